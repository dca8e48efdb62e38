"""Reads M2M100, NLLB-200 and mBART directories of Hugging Face.

Each language has a token.  The source's stands beside the line; the target's is the first token of
each output, at no cost, or (mBART of 25 languages) what the decoder starts with.
"""

from pathlib import Path
from typing import Literal

import yaml

from onmt_lite.checkpoints.building import MAX_POSITIONS
from onmt_lite.checkpoints.description import read_json
from onmt_lite.checkpoints.huggingface.bart import read_transformer
from onmt_lite.checkpoints.huggingface.directory import Directory, checkpoint, token_id
from onmt_lite.checkpoints.huggingface.words import Words, default_language, language_ids
from onmt_lite.checkpoints.record import Checkpoint, Direction, Languages
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, whatever sentencepiece says
FIRST_PIECE = 3  # of sentencepiece, after its own special ones; here it has the id 4
OFFSET = 2  # the first position's row of the table
OF_M2M100 = r"__(\w+)__"  # patterns of language tokens
OF_NLLB = r"([a-z]{2,3}_[A-Z][a-z]{3})"
OF_MBART = r"([a-z]{2,3}_[A-Z]{2})"


def load_m2m_100(directory: Directory) -> Checkpoint:
    """M2M100 and NLLB.  CheckpointError for a directory that is damaged."""
    own_vocab = (directory.path / "vocab.json").is_file()
    words = Words(directory, OF_M2M100 if own_vocab else OF_NLLB)
    if own_vocab:
        lists = {"m2m100": "m2m100", "wmt21": "wmt21"}
        named = directory.tokenizer.choice("language_codes", lists, "m2m100")
        tokens = _own_ids(directory)
        others = [f"__{code}__" for code in usual_codes(named)]
    else:
        tokens = _fairseq_ids(words)
        others = [*usual_codes("nllb"), "<mask>"]
    tokens = _with_languages(tokens, words, others)
    last = not own_vocab and directory.tokenizer.flag("legacy_behaviour", False)
    languages = _languages(directory, words, tokens, "after" if last else "before", "forced")
    weights = directory.weights()
    weights.drop(r"model\.(encoder|decoder)\.(embed_positions\.weights|version)")
    rows = directory.config.number("max_position_embeddings", 1024)
    model = read_transformer(
        directory,
        weights,
        {},
        pre_norm=True,
        positions="fairseq",
        position_offset=OFFSET,
        max_positions=min(rows, MAX_POSITIONS),
    )
    return _checkpoint(directory, model, words, tokens, languages)


def load_mbart(directory: Directory) -> Checkpoint:
    """mBART of 25 or of 50 languages.  CheckpointError for a directory that is damaged."""
    words = Words(directory, OF_MBART)
    of_25 = _is_of_25(directory, words)
    codes = usual_codes("mbart25") + ([] if of_25 else usual_codes("mbart50"))
    tokens = _with_languages(_fairseq_ids(words), words, [*codes, "<mask>"])
    starts = of_25 and directory.config.get("forced_bos_token_id") is None
    languages = _languages(
        directory,
        words,
        tokens,
        "after" if of_25 else "before",
        "start" if starts else "forced",
    )
    weights = directory.weights()
    src, tgt = (weights.take(f"model.{s}.embed_positions.weight") for s in ("encoder", "decoder"))
    model = read_transformer(
        directory,
        weights,
        {"src_embedding.position": src, "tgt_embedding.position": tgt},
        pre_norm=True,
        embedding_norm=True,
        positions="learned",
        position_offset=OFFSET,
        max_positions=src.size(0) - OFFSET,
    )
    return _checkpoint(directory, model, words, tokens, languages)


def _is_of_25(directory: Directory, words: Words) -> bool:
    """What the tokenizer's class says, or else whether its tokens are too few for 50 languages."""
    for described in (directory.tokenizer, directory.config):
        name = described.get("tokenizer_class")
        if isinstance(name, str) and name.startswith("MBart"):
            return not name.startswith("MBart50")
    n_others = directory.config.number("vocab_size") - len(words.pieces)
    return n_others < len(usual_codes("mbart25") + usual_codes("mbart50"))


def usual_codes(name: str) -> list[str]:
    """Languages in the order of their ids, for directories that do not list them."""
    lists = yaml.safe_load(Path(__file__).with_name("languages.yaml").read_bytes())
    return lists[name].split()


def _own_ids(directory: Directory) -> dict[int, str]:
    """The tokens of vocab.json by id."""
    path = directory.path / "vocab.json"
    ids = read_json(path)
    tokens = {i: text for text, i in ids.items() if type(i) is int}
    if set(tokens) != set(range(len(ids))):
        raise CheckpointError(f"{path}: its ids are not 0, 1, ... once each")
    return tokens


def _fairseq_ids(words: Words) -> dict[int, str]:
    """The pieces by id: those of tokenizer.json, or sentencepiece's moved by one."""
    if words.own_ids:
        return dict(enumerate(words.pieces))
    return dict(enumerate([*SPECIAL, *words.pieces[FIRST_PIECE:]]))


def _with_languages(tokens: dict[int, str], words: Words, others: list[str]) -> dict[int, str]:
    """All tokens by id.  `others` follow the pieces where no file says their ids."""
    tokens = words.with_added(tokens)
    if not language_ids(tokens, words.pattern):
        tokens |= dict(enumerate(others, len(tokens)))
    return tokens


def _checkpoint(
    directory: Directory,
    model: Transformer,
    words: Words,
    tokens: dict[int, str],
    languages: Languages,
) -> Checkpoint:
    starts = () if languages.target == "start" else ("decoder_start_token_id",)
    directory.check_special_tokens("eos_token_id", "pad_token_id", *starts)
    vocab = words.vocab(tokens, model.vocab_size, languages.ids.values())
    cutters, start = {"sentencepiece": words.tokenizer()}, _start(directory)
    return checkpoint(directory, model, (vocab, vocab), cutters, start, languages=languages)


def _start(directory: Directory) -> int:
    config = directory.config
    return token_id(config, "decoder_start_token_id", token_id(config, "eos_token_id"))


def _languages(
    directory: Directory,
    words: Words,
    tokens: dict[int, str],
    source: Literal["before", "after"],
    target: Literal["forced", "start"],
) -> Languages:
    """The languages and the directory's defaults, checked before weights are read."""
    ids = language_ids(tokens, words.pattern)
    default = Direction(
        default_language(directory.tokenizer, "src_lang", ids),
        _default_target(directory, ids, target == "start"),
    )
    languages = Languages(ids, source, target, default)
    directory.check(languages)
    return languages


def _default_target(directory: Directory, ids: dict[str, int], starts: bool) -> str:
    """The language that every output begins with or, where that is so, the decoder starts with."""
    config, codes = directory.config, {i: code for code, i in ids.items()}
    start = _start(directory)
    if config.get("forced_bos_token_id") is not None:
        forced = token_id(config, "forced_bos_token_id")
        if forced not in codes:
            raise CheckpointError(
                f"{config.path}: forced_bos_token_id {forced} is no language of the model"
            )
        return codes[forced]
    if starts and start in codes:
        return codes[start]
    if starts and start != token_id(config, "eos_token_id"):
        raise CheckpointError(
            f"{config.path}: decoder_start_token_id {start} is neither a language nor the end token"
        )
    return default_language(directory.tokenizer, "tgt_lang", ids)
