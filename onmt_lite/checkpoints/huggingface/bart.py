"""Reads BART-like transformers models: Marian (OPUS-MT), M2M100, NLLB-200 and mBART.

Multilingual models have one token per language.  The source language token is at the start or end
of the source.  The target language token is the forced first output token or, for mBART with 25
languages, the decoder start token.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair, Languages
from onmt_lite.checkpoints.config_reader import ConfigReader
from onmt_lite.checkpoints.huggingface.added_tokens import (
    NAMED_M2M100,
    NAMED_MBART,
    NAMED_T5,
    AddedTokenFiles,
)
from onmt_lite.checkpoints.huggingface.directory import (
    ACTIVATIONS,
    Directory,
    TokenizerReader,
    find_language_ids,
    make_checkpoint,
    make_vocab,
    read_default_language,
    read_start_id,
    read_token_id,
    read_vocab_json,
)
from onmt_lite.checkpoints.huggingface.formats import load_family_table
from onmt_lite.checkpoints.subwords import SIDE_MODELS, read_sentencepiece
from onmt_lite.checkpoints.weights import (
    MAX_POSITIONS,
    Weights,
    assemble_transformer,
    detect_position_layout,
    has_same_values,
)
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import MarianTokenizer
from onmt_lite.text.vocab import AddedToken

SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
BIAS = "final_logits_bias"


def read_transformer(
    directory: Directory, weights: Weights, tables: dict[str, Tensor], **variant: Any
) -> Transformer:
    """Build the model.

    Args:
        directory: the configuration.
        weights: all weights, under their names in the file.
        tables: position tables (P, E), under our names.
        variant: fields of TransformerConfig that depend on the family.

    Raises:
        CheckpointError: if the weights do not match the configuration.
    """
    config = directory.config
    internal = _read_embeddings(config, weights) | tables
    if BIAS in weights:
        internal["output.bias"] = weights.pop(BIAS).flatten()
    weights.rename("bart")
    weights.tensors |= internal
    weights.drop(r"model\.(encoder|decoder)\.version")  # in old files
    model = assemble_transformer(
        weights,
        config.path,
        heads=config.get_int("encoder_attention_heads"),
        dec_heads=config.get_int("decoder_attention_heads"),
        activation=config.get_choice("activation_function", ACTIVATIONS),
        scale_embedding=config.get_bool("scale_embedding", None),
        norm="layer",
        norm_eps=1e-5,
        **variant,
    )
    cfg = model.cfg
    directory.check_sizes(
        d_model=cfg.d_model,
        vocab_size=cfg.src_vocab_size,
        encoder_layers=cfg.enc_layers,
        decoder_layers=cfg.dec_layers,
        encoder_ffn_dim=cfg.d_ff,
        decoder_ffn_dim=cfg.decoder_config.d_ff,
    )
    return model


def _read_embeddings(config: ConfigReader, weights: Weights) -> dict[str, Tensor]:
    """Remove and return the embedding tables and the output matrix, under our names.

    A file may contain a shared table once, under any of its names, or several times.  If embeddings
    are not tied, transformers 4 still shares the source and target tables; version 5 does not.
    """
    tied = config.get_bool("tie_word_embeddings", True)
    shared = config.get_bool("share_encoder_decoder_embeddings", True)
    is_single = shared and tied
    candidates = {
        "src_embedding.token.weight": [SOURCE] + [SHARED, TARGET] * shared + [HEAD] * is_single,
        "tgt_embedding.token.weight": [TARGET] + [SHARED, SOURCE] * shared + [HEAD] * tied,
        "output.weight": [TARGET] + [SHARED, HEAD, SOURCE] * shared + [HEAD] if tied else [HEAD],
    }
    sources = {}
    for table, names in candidates.items():
        name = next((name for name in names if name in weights), names[0])
        weights.get_shape(name)
        sources[table] = name
    tables = {name: weights.pop(name) for name in set(sources.values())}
    weights.drop("|".join(map(re.escape, (SHARED, SOURCE, TARGET, HEAD))))
    internal = {name: tables[external] for name, external in sources.items()}
    src, tgt = internal["src_embedding.token.weight"], internal["tgt_embedding.token.weight"]
    if is_single and not has_same_values(src, tgt):
        raise CheckpointError(
            f"{config.path}: the embeddings must be shared, but the weights differ"
        )
    return internal


# -- Marian ----------------------------------------------------------------------------------------

MARIAN_LANGUAGE = r">>([^<>\s]+)<<"  # target language token in the source


def load_marian(directory: Directory) -> Checkpoint:
    """Load a Marian model."""
    path, config = directory.path, directory.config
    for name in ("normalize_embedding", "add_final_layer_norm", "normalize_before"):
        if directory.model.get_bool(name):
            raise CheckpointError(
                f"{directory.model.path}: {name} is not supported for Marian models"
            )
    if config.get("forced_bos_token_id") is not None:
        file = config.get_file("forced_bos_token_id")
        raise CheckpointError(f"{file}: forced_bos_token_id is not supported for Marian models")
    tokens = read_vocab_json(path / "vocab.json")
    languages = find_marian_languages(tokens)
    directory.check(languages)
    weights = directory.read_weights()
    positions, tables, rows = _read_marian_positions(config, weights)
    switches = dict(pre_norm=False, final_norm=False, positions=positions, max_positions=rows)
    model = read_transformer(directory, weights, tables, **switches)
    src = tgt = make_vocab(config, tokens, model.cfg.src_vocab_size, lambda _: path / "vocab.json")
    tgt_file = path / "target_vocab.json"
    if directory.tokenizer.get_bool("separate_vocabs", tgt_file.is_file()):
        tgt_tokens = read_vocab_json(tgt_file)
        tgt = make_vocab(config, tgt_tokens, model.cfg.tgt_vocab_size, lambda _: tgt_file)
    elif model.cfg.src_vocab_size != model.cfg.tgt_vocab_size:
        raise CheckpointError(f"{path}: target_vocab.json is missing")
    pad = config.get_int("pad_token_id")
    start = read_start_id(directory, pad)
    tokenizers = {}
    missing = [path / name for name in SIDE_MODELS if not (path / name).exists()]
    added = AddedTokenFiles(path, directory.tokenizer)
    if path / SIDE_MODELS[0] not in missing:
        source, target = (read_sentencepiece(str(path / name)) for name in SIDE_MODELS)
        tokenizers["sentencepiece"] = MarianTokenizer(
            source,
            target,
            [
                AddedToken(token, special=token.special)
                for token in added.list_tokens(NAMED_T5, src.ids)
            ],
            joiner=source if src is tgt else target,  # as in transformers 5
            cleans_up=directory.tokenizer.get_bool("clean_up_tokenization_spaces"),
        )
    codes = [directory.tokenizer.get_str(f"{side}_lang", "") for side in ("source", "target")]
    checkpoint = make_checkpoint(
        directory,
        model,
        (src, tgt),
        tokenizers,
        start,
        added,
        exclude_banned_from_softmax=True,
        missing_files=tuple(map(str, missing)),
        toolkit="marian",
        languages=languages,
        language_pair=LanguagePair(*codes) if all(codes) and not languages else LanguagePair(),
    )
    banned = {*checkpoint.banned_ids, *([start] if start == pad else [])}
    return replace(checkpoint, banned_ids=tuple(sorted(banned)))


def find_marian_languages(tokens: Mapping[int, str]) -> Languages | None:
    """Return the languages of the target language tokens in a source vocabulary.

    Returns:
        None if there are no such tokens: the model has a single target language.
    """
    codes = find_language_ids(tokens, MARIAN_LANGUAGE)
    return Languages(codes, source="none", target="text") if codes else None


def _read_marian_positions(
    config: ConfigReader, weights: Weights
) -> tuple[str, dict[str, Tensor], int]:
    """Return the position layout, the tables if learned, and the number of positions."""
    rows = config.get_int("max_position_embeddings")
    names = {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    stored = [name for name in names.values() if name in weights]
    for name in stored:
        weights.get_shape(name)
    if all(detect_position_layout(weights.tensors[name]) == "concat" for name in stored):
        if any(weights.get_shape(name)[0] != rows for name in stored):
            file = config.get_file("max_position_embeddings")
            raise CheckpointError(f"{file}: max_position_embeddings differs from the weights")
        weights.drop("|".join(map(re.escape, stored)))
        return "concat", {}, rows
    src, tgt = (weights.pop(name) for name in names.values())
    tables = {"src_embedding.position": src, "tgt_embedding.position": tgt}
    return "learned", tables, min(src.size(0), tgt.size(0))


# -- M2M100, NLLB-200 and mBART --------------------------------------------------------------------

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # IDs 0 to 3; sentencepiece has other IDs
FIRST_SUBWORD = 3  # sentencepiece ID of the first regular subword; its model ID is 4
OFFSET = 2  # row of the first position in the position table
M2M100_LANGUAGE = r"__(\w+)__"  # language tokens
NLLB_LANGUAGE = r"([a-z]{2,3}_[A-Z][a-z]{3})"
MBART_LANGUAGE = r"([a-z]{2,3}_[A-Z]{2})"


def load_m2m_100(directory: Directory) -> Checkpoint:
    """Load an M2M100 or NLLB model."""
    file = directory.path / "vocab.json"
    if not file.is_file():
        reader = TokenizerReader(directory, NLLB_LANGUAGE)
        is_legacy = directory.tokenizer.get_bool("legacy_behaviour", False)
        extra = [*get_language_codes("nllb"), "<mask>"]
        position: Literal["before", "after"] = "after" if is_legacy else "before"
        return _load(reader, _get_fairseq_ids(reader), extra, position, "forced")
    reader, tokens = TokenizerReader(directory, M2M100_LANGUAGE), read_vocab_json(file)
    lists = {"m2m100": "m2m100", "wmt21": "wmt21"}
    codes = get_language_codes(directory.tokenizer.get_choice("language_codes", lists, "m2m100"))
    reader.file = file.name
    return _load(reader, tokens, [f"__{code}__" for code in codes], "before", "forced")


def load_mbart(directory: Directory) -> Checkpoint:
    """Load an mBART model with 25 or 50 languages."""
    reader = TokenizerReader(directory, MBART_LANGUAGE)
    codes = [get_language_codes("mbart25"), get_language_codes("mbart50")]
    # Decide by the tokenizer class, otherwise by the vocabulary size
    classes = [d.get("tokenizer_class") for d in (directory.tokenizer, directory.config)]
    name = next((n for n in classes if isinstance(n, str) and n.startswith("MBart")), None)
    if name is not None:
        has_25_languages = not name.startswith("MBart50")
    else:
        n_added = directory.config.get_int("vocab_size") - len(reader.subwords)
        has_25_languages = n_added < len(codes[0] + codes[1])
    extra = [*codes[0], *([] if has_25_languages else codes[1]), "<mask>"]
    is_start = has_25_languages and directory.config.get("forced_bos_token_id") is None
    return _load(
        reader,
        _get_fairseq_ids(reader),
        extra,
        "after" if has_25_languages else "before",
        "start" if is_start else "forced",
    )


def get_language_codes(name: str) -> list[str]:
    """Return the default language codes of a family, in the order of their token IDs."""
    codes: str = load_family_table("languages")[name]
    return codes.split()


def _get_fairseq_ids(reader: TokenizerReader) -> dict[int, str]:
    """Return the subwords by ID: as in tokenizer.json, or sentencepiece IDs plus one."""
    if reader.has_final_ids:
        return dict(enumerate(reader.subwords))
    return dict(enumerate([*SPECIAL, *reader.subwords[FIRST_SUBWORD:]]))


def _load(
    reader: TokenizerReader,
    tokens: dict[int, str],
    extra: list[str],
    source: Literal["before", "after"],
    target: Literal["forced", "start"],
) -> Checkpoint:
    """Load a multilingual model.

    Args:
        reader: the subword model and added tokens.
        tokens: subwords by ID; added tokens are merged into it.
        extra: tokens to append if the files do not list the language tokens.
        source: position of the source language token.
        target: position of the target language token.
    """
    directory = reader.directory
    tokens = reader.merge_added_tokens(tokens)
    if not find_language_ids(tokens, reader.pattern):
        tokens |= dict(enumerate(extra, len(tokens)))
    ids = find_language_ids(tokens, reader.pattern)
    config = directory.config
    start = read_start_id(directory, read_token_id(config, "eos_token_id"))
    default = LanguagePair(
        read_default_language(directory.tokenizer, "src_lang", ids),
        _read_default_target(directory, ids, start, target == "start"),
    )
    languages = Languages(ids, source, target, default)
    directory.check(languages)
    weights = directory.read_weights()
    tables: dict[str, Tensor] = {}
    if reader.pattern == MBART_LANGUAGE:
        for side, name in (("src", "encoder"), ("tgt", "decoder")):
            table = weights.pop(f"model.{name}.embed_positions.weight")
            tables[f"{side}_embedding.position"] = table
        rows = len(tables["src_embedding.position"]) - OFFSET
        switches: dict[str, Any] = dict(
            positions="learned", embedding_norm=True, max_positions=rows
        )
    else:
        weights.drop(r"model\.(encoder|decoder)\.embed_positions\.weights")
        rows = min(config.get_int("max_position_embeddings", 1024), MAX_POSITIONS)
        switches = dict(positions="fairseq", max_positions=rows)
    model = read_transformer(
        directory,
        weights,
        tables,
        pre_norm=True,
        final_norm=True,
        position_offset=OFFSET,
        **switches,
    )
    vocab = make_vocab(
        config, tokens, model.vocab_size, reader.get_file, reader.unk_token, ids.values()
    )
    if reader.pattern == M2M100_LANGUAGE:  # a Python tokenizer, without normalization
        added = reader.added.list_tokens(NAMED_M2M100, vocab.ids)
        added = [AddedToken(token, **{**vars(token), "normalized": False}) for token in added]
    else:
        added = reader.added.list_tokens(NAMED_MBART, vocab.ids, [tokens[i] for i in ids.values()])
    keeps_spaces = reader.pattern == NLLB_LANGUAGE or (
        reader.pattern == MBART_LANGUAGE and source == "before"
    )
    tokenizers = {"sentencepiece": reader.make_tokenizer(vocab, added, keeps_spaces=keeps_spaces)}
    return make_checkpoint(
        directory, model, (vocab, vocab), tokenizers, start, reader.added, languages=languages
    )


def _read_default_target(
    directory: Directory, ids: dict[str, int], start: int, is_start: bool
) -> str:
    """Return the default target language, from the forced token or the start token.

    Args:
        directory: the configuration.
        ids: token IDs by language code.
        start: ID of the decoder start token.
        is_start: whether the language token is the start token.

    Returns:
        A language code; "" if the files do not set it.

    Raises:
        CheckpointError: if the forced or start token is not valid for the family.
    """
    config, codes = directory.config, {i: code for code, i in ids.items()}
    if config.get("forced_bos_token_id") is not None:
        forced = read_token_id(config, "forced_bos_token_id")
        if forced not in codes:
            raise CheckpointError(
                f"{config.get_file('forced_bos_token_id')}: forced_bos_token_id {forced} is not a "
                "language of the model"
            )
        return codes[forced]
    if is_start and start in codes:
        return codes[start]
    if is_start and start != read_token_id(config, "eos_token_id"):
        file = config.get_file("decoder_start_token_id")
        raise CheckpointError(
            f"{file}: decoder_start_token_id {start} is neither a language nor the EOS token"
        )
    return read_default_language(directory.tokenizer, "tgt_lang", ids)
