"""Reads CTranslate2 models: a directory with model.bin, vocabularies and, from version 6 on,
config.json.

A package of Argos Translate is such a directory, `model`, beside sentencepiece.model.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair, Languages
from onmt_lite.checkpoints.config_reader import (
    ConfigReader,
    check_tokens,
    read_config,
    read_json,
    read_limited,
    refuse_unsupported_options,
)
from onmt_lite.checkpoints.ctranslate2.model import build_model, read_variables
from onmt_lite.checkpoints.huggingface.bart import (
    OF_M2M100,
    OF_MBART,
    OF_NLLB,
    find_marian_languages,
)
from onmt_lite.checkpoints.huggingface.directory import (
    TOKENIZER,
    LanguageCheck,
    find_language_ids,
    read_default_language,
)
from onmt_lite.checkpoints.huggingface.t5 import OF_LANGUAGE
from onmt_lite.checkpoints.subwords import SHARED_MODELS, find_tokenizer, has_subword_model
from onmt_lite.errors import CheckpointError
from onmt_lite.system.safe_parse import parse_json
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

CHECKS_LANGUAGES = True  # `load` takes a LanguageCheck
MODEL, CONFIG = "model.bin", "config.json"
PATTERNS = (OF_M2M100, OF_NLLB, OF_MBART)  # of tokens that name a language
PACKAGE = "metadata.json"  # of Argos Translate
CODES = "bpe.model"  # of old packages of Argos Translate
MAX_VOCABULARY = 64 << 20  # bytes
START = "<start>"  # what the decoder starts from where that is a vector of zeros
# In the place of config.json before version 6
OLD_TOKENS: dict[str, Any] = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
OLD_FLAGS = {"with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"}


def can_load(path: Path) -> bool:
    return _folder(path) is not None


def _folder(path: Path) -> Path | None:
    """The folder with model.bin: the path, or `model` in it as in a package of Argos Translate; or
    that of the file itself, where vocabularies are beside it."""
    if path.name == MODEL and path.is_file():
        return path.parent if any(path.parent.glob("*_vocabulary.*")) else None
    return next((folder for folder in (path, path / "model") if (folder / MODEL).is_file()), None)


def load(path: Path, check: LanguageCheck) -> Checkpoint:
    """CheckpointError for what is damaged, or a model of another kind, and what `check` raises."""
    folder = _folder(path)
    assert folder is not None
    said = folder / CONFIG
    beside = (folder, folder.parent) if folder.name == "model" else (folder,)
    if said.is_file() and has_subword_model(beside):  # before weights are read, which may be large
        tokens = (_read_tokens(folder, side) for side in ("source", "target"))
        check(_languages(folder, read_config(said), *tokens))
    version, variables = read_variables(folder / MODEL)
    config = _read_config(said, version, variables)
    model, zero_start = build_model(variables, config, folder / MODEL)
    src, tgt = _read_vocabularies(folder, config, zero_start, model.cfg.share_embeddings)
    languages = _languages(folder, config, src.tokens, tgt.tokens)
    if languages is not None and languages.target != "text":
        tgt = replace(tgt, language_ids=frozenset(languages.ids.values()))
    listed = src if languages is not None and languages.target == "text" else tgt
    silent = [listed.tokens[i] for i in languages.ids.values()] if languages else []
    tokenizers, missing = find_tokenizer(beside, tgt.tokens, SHARED_MODELS[:1], silent)
    if not tokenizers and any((place / CODES).is_file() for place in beside):
        missing = (f"{beside[-1] / SHARED_MODELS[0]} ({CODES} and words of Moses are not read)",)
    # Models of transformers want the end token, and leave it to the caller
    wants_end = zero_start or languages is not None or model.cfg.relative == "buckets"
    adds_end = config.get_bool("add_source_eos", None)
    language_starts = languages is not None and languages.target == "start"
    start = "eos_token" if language_starts else "decoder_start_token"  # the first is never used
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={**tokenizers, "space": SpaceTokenizer()},
        start_id=len(tgt) - 1 if zero_start else _id(tgt, config, start),
        src_start=(_id(src, config, "bos_token"),)
        if config.get_bool("add_source_bos", None)
        else (),
        src_end=(_id(src, config, "eos_token"),) if adds_end else (),
        raw_text_end=(_id(src, config, "eos_token"),) if wants_end and not adds_end else (),
        banned_ids=(len(tgt) - 1,) if zero_start else (),
        missing_files=missing,
        toolkit="ctranslate2",
        version=f"(format {version})",
        languages=languages,
    )


def _read_config(path: Path, version: int, variables: dict[str, Tensor]) -> ConfigReader:
    """What config.json says; in old files, flags among the variables do."""
    if version > 5:
        config = ConfigReader(read_json(path), path)
        refuse_unsupported_options(config, "CTranslate2")
        if "decoder_start_token" not in config.values:  # none is said by null
            raise CheckpointError(f"{path}: its options do not say decoder_start_token")
        return config
    stored = {name: variables.pop(name).squeeze() for name in OLD_FLAGS & variables.keys()}
    flags = ConfigReader({name: flag.tolist() for name, flag in stored.items()}, path)
    values = OLD_TOKENS | read_config(path).values
    values["add_source_bos"] = flags.get_bool("with_source_bos")
    values["add_source_eos"] = flags.get_bool("with_source_eos")
    start = "bos_token" if flags.get_bool("with_target_bos", True) else "eos_token"
    is_given = flags.get_bool("user_decoder_start_tokens")
    values["decoder_start_token"] = None if is_given else values[start]
    return ConfigReader(values, path)


def _read_vocabularies(
    folder: Path, config: ConfigReader, zero_start: bool, one_table: bool
) -> tuple[Vocab, Vocab]:
    """Source and target.  A start that is no token of theirs is one more.

    Where nothing adds the end token to a source line of tokens, the line may hold it.
    """
    src, tgt = (_read_tokens(folder, side) for side in ("source", "target"))
    if zero_start:
        src, tgt = [*src, START] if one_table else src, [*tgt, START]
    bos = START if zero_start else config.get("bos_token")
    special = {"eos": config.get_str("eos_token"), "unk": config.get_str("unk_token")}
    special |= {"bos": bos} if isinstance(bos, str) else {}
    source, target = (Vocab.from_tokens(tokens, **special) for tokens in (src, tgt))
    if target.eos_id is None:
        raise CheckpointError(f"{folder}: its target vocabulary lacks the end token")
    if not config.get_bool("add_source_eos", None):
        source = replace(source, eos_id=None)
    if not config.get_bool("add_source_bos"):  # a line of tokens may have it
        source = replace(source, bos_id=None)
    return target if source == target else source, target


def _read_tokens(folder: Path, side: str) -> list[str]:
    """The tokens of a side: a list in JSON, or one token per line."""
    names = [f"{kind}_vocabulary.{form}" for kind in ("shared", side) for form in ("json", "txt")]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{folder}: the directory has neither {' nor '.join(names)}")
    try:
        data = read_limited(path, MAX_VOCABULARY)
        listed = parse_json(data) if path.suffix == ".json" else None
        if listed is None:
            listed = data.decode().removesuffix("\n").split("\n")
        tokens = check_tokens(listed, path)
        # The converter fills up rows of T5 with names that are there already
        twice = Counter(t for t in tokens if not t.startswith("<extra_id_")).most_common(1)
        if twice and twice[0][1] > 1:
            raise ValueError(f"it has {twice[0][0][:50]!r} twice")
        return tokens
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _languages(
    folder: Path, config: ConfigReader, src: list[str], tgt: list[str]
) -> Languages | None:
    """Those that tokens of the vocabulary name, placed as the family of such tokens does; of a
    package of Argos Translate, what each of its translations begins with."""
    tokens = dict(enumerate(tgt))
    held = not config.get("add_source_eos")
    package = folder.parent / PACKAGE
    if prefix := read_config(package).get_str("target_prefix", ""):
        if prefix not in tgt:
            raise CheckpointError(f"{package}: the model has no target_prefix {prefix[:50]!r}")
        return Languages({prefix: tgt.index(prefix)}, "none", default=LanguagePair("", prefix))
    texts = find_language_ids(dict(enumerate(src)), OF_LANGUAGE)
    if len(texts) > 1:
        return Languages(texts, source="none", target="text", optional_in_tokens=held)
    if marian := find_marian_languages(dict(enumerate(src))):
        return replace(marian, optional_in_tokens=held)
    ids = next((i for p in PATTERNS if len(i := find_language_ids(tokens, p)) > 1), None)
    if ids is None:
        return None
    tokenizer = read_config(folder / TOKENIZER)
    default = LanguagePair(
        *(read_default_language(tokenizer, n, ids) for n in ("src_lang", "tgt_lang"))
    )
    if config.get("decoder_start_token") is None:
        return Languages(ids, "after", "start", default, held)
    last = tokenizer.get_bool("legacy_behaviour", False)
    return Languages(ids, "after" if last else "before", "forced", default, held)


def _id(vocab: Vocab, config: ConfigReader, name: str) -> int:
    """The id of a token by its name in the configuration."""
    token = config.get_str(name)
    if token not in vocab.ids:
        raise CheckpointError(f"{config.path}: the vocabulary has no {name} {token[:50]!r}")
    return vocab.ids[token]
