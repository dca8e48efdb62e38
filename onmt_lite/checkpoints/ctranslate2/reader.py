"""Loads CTranslate2 models: a directory with model.bin, vocabularies and (since 6) config.json.

An Argos Translate package contains such a directory, `model`, and a sentencepiece.model.
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
    M2M100_LANGUAGE,
    MBART_LANGUAGE,
    NLLB_LANGUAGE,
    find_marian_languages,
)
from onmt_lite.checkpoints.huggingface.directory import (
    TOKENIZER,
    LanguageCheck,
    find_language_ids,
    read_default_language,
)
from onmt_lite.checkpoints.huggingface.t5 import LANGUAGE
from onmt_lite.checkpoints.subwords import SHARED_MODELS, find_tokenizer, has_subword_model
from onmt_lite.errors import CheckpointError
from onmt_lite.system.safe_parse import parse_json
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

CHECKS_LANGUAGES = True  # `load` takes a LanguageCheck
MODEL, CONFIG = "model.bin", "config.json"
LANGUAGE_PATTERNS = (M2M100_LANGUAGE, NLLB_LANGUAGE, MBART_LANGUAGE)
ARGOS_METADATA = "metadata.json"
ARGOS_BPE = "bpe.model"  # in old Argos Translate packages
MAX_VOCABULARY = 64 << 20  # bytes
START = "<start>"  # our token for an all-zero start embedding
# Defaults for models without config.json (before version 6)
OLD_TOKENS: dict[str, Any] = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
OLD_FLAGS = {"with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"}


def can_load(path: Path) -> bool:
    """Return True for a model directory, an Argos Translate package or a model.bin."""
    return _find_directory(path) is not None


def _find_directory(path: Path) -> Path | None:
    """Return the directory with model.bin and the vocabularies, or None."""
    if path.name == MODEL and path.is_file():
        return path.parent if any(path.parent.glob("*_vocabulary.*")) else None
    candidates = (path, path / "model")  # the latter: Argos Translate
    return next((d for d in candidates if (d / MODEL).is_file()), None)


def load(path: Path, check: LanguageCheck) -> Checkpoint:
    """Load a model.

    Args:
        path: a model directory, an Argos Translate package, or a model.bin.
        check: called with the languages before the weights are read.

    Raises:
        CheckpointError: if the model is damaged or not supported. Exceptions of `check` propagate.
    """
    directory = _find_directory(path)
    assert directory is not None
    config_path = directory / CONFIG
    directories = (directory, directory.parent) if directory.name == "model" else (directory,)
    if config_path.is_file() and has_subword_model(directories):
        tokens = (_read_tokens(directory, side) for side in ("source", "target"))
        check(_find_languages(directory, read_config(config_path), *tokens))
    version, variables = read_variables(directory / MODEL)
    config = _read_config(config_path, version, variables)
    model, has_zero_start = build_model(variables, config, directory / MODEL)
    src, tgt = _read_vocabularies(directory, config, has_zero_start, model.cfg.share_embeddings)
    languages = _find_languages(directory, config, src.tokens, tgt.tokens)
    if languages is not None and languages.target != "text":
        tgt = replace(tgt, language_ids=frozenset(languages.ids.values()))
    vocab = src if languages is not None and languages.target == "text" else tgt
    silent = [vocab.tokens[i] for i in languages.ids.values()] if languages else []
    tokenizers, missing = find_tokenizer(directories, tgt.tokens, SHARED_MODELS[:1], silent)
    if not tokenizers and any((d / ARGOS_BPE).is_file() for d in directories):
        needed = directories[-1] / SHARED_MODELS[0]
        missing = (f"{needed} ({ARGOS_BPE} with Moses tokenization is not supported)",)
    # Models from transformers need EOS after the source, but CTranslate2 does not add it
    needs_end = has_zero_start or languages is not None or model.cfg.relative == "buckets"
    adds_end = config.get_bool("add_source_eos", None)
    starts_with_language = languages is not None and languages.target == "start"
    # The language token replaces the start token, so any token works here
    start = "eos_token" if starts_with_language else "decoder_start_token"
    adds_start = config.get_bool("add_source_bos", None)
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={**tokenizers, "space": SpaceTokenizer()},
        start_id=len(tgt) - 1 if has_zero_start else _find_id(tgt, config, start),
        src_start=(_find_id(src, config, "bos_token"),) if adds_start else (),
        src_end=(_find_id(src, config, "eos_token"),) if adds_end else (),
        raw_text_end=(_find_id(src, config, "eos_token"),) if needs_end and not adds_end else (),
        banned_ids=(len(tgt) - 1,) if has_zero_start else (),
        missing_files=missing,
        toolkit="ctranslate2",
        version=f"(format {version})",
        languages=languages,
    )


def _read_config(path: Path, version: int, variables: dict[str, Tensor]) -> ConfigReader:
    """Read config.json; before version 6, the configuration is in flags among the variables.

    Args:
        path: config.json; optional before version 6.
        version: binary version of model.bin.
        variables: variables of model.bin; the flags are removed.

    Raises:
        CheckpointError: if an entry is missing, invalid or not supported.
    """
    if version > 5:
        config = ConfigReader(read_json(path), path)
        refuse_unsupported_options(config, "CTranslate2")
        if "decoder_start_token" not in config.values:  # null: no start token
            raise CheckpointError(f"{path}: decoder_start_token is missing")
        return config
    stored = {name: variables.pop(name).squeeze() for name in OLD_FLAGS & variables.keys()}
    flags = ConfigReader({name: flag.tolist() for name, flag in stored.items()}, path)
    values = OLD_TOKENS | read_config(path).values
    values["add_source_bos"] = flags.get_bool("with_source_bos")
    values["add_source_eos"] = flags.get_bool("with_source_eos")
    start = "bos_token" if flags.get_bool("with_target_bos", True) else "eos_token"
    is_user_defined = flags.get_bool("user_decoder_start_tokens")
    values["decoder_start_token"] = None if is_user_defined else values[start]
    return ConfigReader(values, path)


def _read_vocabularies(
    directory: Path, config: ConfigReader, has_zero_start: bool, share_embeddings: bool
) -> tuple[Vocab, Vocab]:
    """Read the source and target vocabularies.

    Args:
        directory: the directory with the vocabulary files.
        config: the model configuration.
        has_zero_start: append a token for the all-zero start embedding.
        share_embeddings: source and target share an embedding table.

    Raises:
        CheckpointError: if a file is missing, damaged or lacks EOS.
    """
    src, tgt = (_read_tokens(directory, side) for side in ("source", "target"))
    if has_zero_start:
        src, tgt = [*src, START] if share_embeddings else src, [*tgt, START]
    bos = START if has_zero_start else config.get("bos_token")
    special = {"eos": config.get_str("eos_token"), "unk": config.get_str("unk_token")}
    special |= {"bos": bos} if isinstance(bos, str) else {}
    source, target = (Vocab.from_tokens(tokens, **special) for tokens in (src, tgt))
    if target.eos_id is None:
        raise CheckpointError(f"{directory}: the target vocabulary lacks the EOS token")
    # Tokenized lines may contain the special tokens that are not added
    if not config.get_bool("add_source_eos", None):
        source = replace(source, eos_id=None)
    if not config.get_bool("add_source_bos"):
        source = replace(source, bos_id=None)
    return target if source == target else source, target


def _read_tokens(directory: Path, side: str) -> list[str]:
    """Read the vocabulary of one side: a JSON list, or one token per line."""
    names = [f"{stem}_vocabulary.{ext}" for stem in ("shared", side) for ext in ("json", "txt")]
    path = next((directory / name for name in names if (directory / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{directory}: the directory has neither {' nor '.join(names)}")
    try:
        data = read_limited(path, MAX_VOCABULARY)
        listed = parse_json(data) if path.suffix == ".json" else None
        if listed is None:
            listed = data.decode().removesuffix("\n").split("\n")
        tokens = check_tokens(listed, path)
        # The converter pads the table of T5 with duplicate <extra_id_N>
        most_common = Counter(t for t in tokens if not t.startswith("<extra_id_")).most_common(1)
        if most_common and most_common[0][1] > 1:
            raise ValueError(f"duplicate token {most_common[0][0][:50]!r}")
        return tokens
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _find_languages(
    directory: Path, config: ConfigReader, src: list[str], tgt: list[str]
) -> Languages | None:
    """Find language tokens in the vocabularies; their format identifies the model family.

    Args:
        directory: the model directory.
        config: the model configuration.
        src: source tokens.
        tgt: target tokens.

    Returns:
        The languages, or the target prefix of an Argos Translate package as a language; None if
        there are no language tokens.

    Raises:
        CheckpointError: if a configuration is invalid.
    """
    tokens = dict(enumerate(tgt))
    is_optional = not config.get("add_source_eos")
    metadata = directory.parent / ARGOS_METADATA
    if prefix := read_config(metadata).get_str("target_prefix", ""):
        if prefix not in tgt:
            raise CheckpointError(
                f"{metadata}: target_prefix {prefix[:50]!r} is not in the vocabulary"
            )
        return Languages({prefix: tgt.index(prefix)}, "none", default=LanguagePair("", prefix))
    text_ids = find_language_ids(dict(enumerate(src)), LANGUAGE)
    if len(text_ids) > 1:
        return Languages(text_ids, source="none", target="text", optional_in_tokens=is_optional)
    if marian := find_marian_languages(dict(enumerate(src))):
        return replace(marian, optional_in_tokens=is_optional)
    ids = next((i for p in LANGUAGE_PATTERNS if len(i := find_language_ids(tokens, p)) > 1), None)
    if ids is None:
        return None
    tokenizer = read_config(directory / TOKENIZER)
    default = LanguagePair(
        *(read_default_language(tokenizer, n, ids) for n in ("src_lang", "tgt_lang"))
    )
    if config.get("decoder_start_token") is None:
        return Languages(ids, "after", "start", default, is_optional)
    is_legacy = tokenizer.get_bool("legacy_behaviour", False)
    return Languages(ids, "after" if is_legacy else "before", "forced", default, is_optional)


def _find_id(vocab: Vocab, config: ConfigReader, name: str) -> int:
    """Return the ID of a special token.

    Args:
        vocab: the vocabulary.
        config: the model configuration.
        name: key of the token in the configuration, such as "eos_token".

    Raises:
        CheckpointError: if the token is not in the vocabulary.
    """
    token = config.get_str(name)
    if token not in vocab.ids:
        raise CheckpointError(f"{config.path}: {name} {token[:50]!r} is not in the vocabulary")
    return vocab.ids[token]
