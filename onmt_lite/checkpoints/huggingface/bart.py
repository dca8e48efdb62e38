"""Models that transformers writes like BART: Marian (OPUS-MT), M2M100, NLLB-200 and mBART.

Each language of the multilingual ones has a token.  The source's stands beside the line; the
target's is the first token of each output, at no cost, or (mBART of 25 languages) what the decoder
starts with.
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
    directory: Directory, weights: Weights, others: dict[str, Tensor], **variant: Any
) -> Transformer:
    """The model, of all weights that are left, of `others` under our names, and of switches."""
    config = directory.config
    ours = _embeddings(config, weights) | others
    if BIAS in weights:
        ours["output.bias"] = weights.pop(BIAS).flatten()
    weights.rename("bart")
    weights.tensors |= ours
    weights.drop(r"model\.(encoder|decoder)\.version")  # old files have it
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


def _embeddings(config: ConfigReader, weights: Weights) -> dict[str, Tensor]:
    """The tables under our names.

    A file may repeat a shared table under each of its names, or keep any one of them.  Where
    nothing is tied, transformers 4 still shares the table of source and target, 5 does not.
    """
    tied = config.get_bool("tie_word_embeddings", True)
    shared = config.get_bool("share_encoder_decoder_embeddings", True)
    one_table = shared and tied
    wanted = {
        "src_embedding.token.weight": [SOURCE] + [SHARED, TARGET] * shared + [HEAD] * one_table,
        "tgt_embedding.token.weight": [TARGET] + [SHARED, SOURCE] * shared + [HEAD] * tied,
        "output.weight": [TARGET] + [SHARED, HEAD, SOURCE] * shared + [HEAD] if tied else [HEAD],
    }
    found = {}
    for table, names in wanted.items():
        name = next((name for name in names if name in weights), names[0])
        weights.get_shape(name)
        found[table] = name
    tables = {name: weights.pop(name) for name in set(found.values())}
    weights.drop("|".join(map(re.escape, (SHARED, SOURCE, TARGET, HEAD))))
    ours = {name: tables[theirs] for name, theirs in found.items()}
    src, tgt = ours["src_embedding.token.weight"], ours["tgt_embedding.token.weight"]
    if one_table and not has_same_values(src, tgt):
        raise CheckpointError(f"{config.path}: embeddings that it says are shared differ")
    return ours


# -- Marian ----------------------------------------------------------------------------------------

OF_MARIAN = r">>([^<>\s]+)<<"  # a target language token


def load_marian(directory: Directory) -> Checkpoint:
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
    weights = directory.weights()
    positions, tables, rows = _marian_positions(config, weights)
    switches = dict(pre_norm=False, final_norm=False, positions=positions, max_positions=rows)
    model = read_transformer(directory, weights, tables, **switches)
    src = tgt = make_vocab(config, tokens, model.cfg.src_vocab_size, lambda _: path / "vocab.json")
    other = path / "target_vocab.json"
    if directory.tokenizer.get_bool("separate_vocabs", other.is_file()):
        tgt = make_vocab(config, read_vocab_json(other), model.cfg.tgt_vocab_size, lambda _: other)
    elif model.cfg.src_vocab_size != model.cfg.tgt_vocab_size:
        raise CheckpointError(f"{path}: two vocabularies, but no target_vocab.json")
    pad = config.get_int("pad_token_id")
    start = read_start_id(directory, pad)
    cutters = {}
    missing = [path / name for name in SIDE_MODELS if not (path / name).exists()]
    added = AddedTokenFiles(path, directory.tokenizer)
    if path / SIDE_MODELS[0] not in missing:
        source, target = (read_sentencepiece(str(path / name)) for name in SIDE_MODELS)
        cutters["sentencepiece"] = MarianTokenizer(
            source,
            target,
            [AddedToken(token, special=token.special) for token in added.cut(NAMED_T5, src.ids)],
            joiner=source if src is tgt else target,  # as transformers does since version 5
            cleans_up=directory.tokenizer.get_bool("clean_up_tokenization_spaces"),
        )
    codes = [directory.tokenizer.get_str(f"{side}_lang", "") for side in ("source", "target")]
    found = make_checkpoint(
        directory,
        model,
        (src, tgt),
        cutters,
        start,
        added,
        exclude_banned_from_softmax=True,
        missing_files=tuple(map(str, missing)),
        toolkit="marian",
        languages=languages,
        language_pair=LanguagePair(*codes) if all(codes) and not languages else LanguagePair(),
    )
    never = {*found.banned_ids, *([start] if start == pad else [])}
    return replace(found, banned_ids=tuple(sorted(never)))


def find_marian_languages(tokens: Mapping[int, str]) -> Languages | None:
    """Return the target languages that tokens of the source name. None: there are no such tokens,
    because the model translates into one language."""
    codes = find_language_ids(tokens, OF_MARIAN)
    return Languages(codes, source="none", target="text") if codes else None


def _marian_positions(config: ConfigReader, weights: Weights) -> tuple[str, dict[str, Tensor], int]:
    """Layout, tables where they are not computed, and how many positions there are."""
    rows = config.get_int("max_position_embeddings")
    names = {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    stored = [name for name in names.values() if name in weights]
    for name in stored:
        weights.get_shape(name)
    if all(detect_position_layout(weights.tensors[name]) == "concat" for name in stored):
        if any(weights.get_shape(name)[0] != rows for name in stored):
            file = config.get_file("max_position_embeddings")
            raise CheckpointError(f"{file}: max_position_embeddings is not what is stored")
        weights.drop("|".join(map(re.escape, stored)))
        return "concat", {}, rows
    src, tgt = (weights.pop(name) for name in names.values())
    tables = {"src_embedding.position": src, "tgt_embedding.position": tgt}
    return "learned", tables, min(src.size(0), tgt.size(0))


# -- M2M100, NLLB-200 and mBART --------------------------------------------------------------------

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, whatever sentencepiece says
FIRST_PIECE = 3  # of sentencepiece, after its own special ones; here it has the id 4
OFFSET = 2  # the first position's row of the table
OF_M2M100 = r"__(\w+)__"  # patterns of language tokens
OF_NLLB = r"([a-z]{2,3}_[A-Z][a-z]{3})"
OF_MBART = r"([a-z]{2,3}_[A-Z]{2})"


def load_m2m_100(directory: Directory) -> Checkpoint:
    """M2M100 and NLLB."""
    file = directory.path / "vocab.json"
    if not file.is_file():
        words = TokenizerReader(directory, OF_NLLB)
        last = directory.tokenizer.get_bool("legacy_behaviour", False)
        others = [*get_language_codes("nllb"), "<mask>"]
        return _load(words, _fairseq_ids(words), others, "after" if last else "before", "forced")
    words, tokens = TokenizerReader(directory, OF_M2M100), read_vocab_json(file)
    lists = {"m2m100": "m2m100", "wmt21": "wmt21"}
    codes = get_language_codes(directory.tokenizer.get_choice("language_codes", lists, "m2m100"))
    words.file = file.name
    return _load(words, tokens, [f"__{code}__" for code in codes], "before", "forced")


def load_mbart(directory: Directory) -> Checkpoint:
    """mBART of 25 or of 50 languages."""
    words = TokenizerReader(directory, OF_MBART)
    codes = [get_language_codes("mbart25"), get_language_codes("mbart50")]
    # The tokenizer's class tells, or else whether its tokens are too few for 50 languages
    named = [d.get("tokenizer_class") for d in (directory.tokenizer, directory.config)]
    name = next((n for n in named if isinstance(n, str) and n.startswith("MBart")), None)
    if name is not None:
        of_25 = not name.startswith("MBart50")
    else:
        n_others = directory.config.get_int("vocab_size") - len(words.pieces)
        of_25 = n_others < len(codes[0] + codes[1])
    others = [*codes[0], *([] if of_25 else codes[1]), "<mask>"]
    starts = of_25 and directory.config.get("forced_bos_token_id") is None
    return _load(
        words,
        _fairseq_ids(words),
        others,
        "after" if of_25 else "before",
        "start" if starts else "forced",
    )


def get_language_codes(name: str) -> list[str]:
    """Languages in the order of their ids, for directories that do not list them."""
    codes: str = load_family_table("languages")[name]
    return codes.split()


def _fairseq_ids(words: TokenizerReader) -> dict[int, str]:
    """The pieces by id: those of tokenizer.json, or sentencepiece's moved by one."""
    if words.own_ids:
        return dict(enumerate(words.pieces))
    return dict(enumerate([*SPECIAL, *words.pieces[FIRST_PIECE:]]))


def _load(
    words: TokenizerReader,
    tokens: dict[int, str],
    others: list[str],
    source: Literal["before", "after"],
    target: Literal["forced", "start"],
) -> Checkpoint:
    """The model of these languages; `others` follow the tokens where no file says their ids."""
    directory = words.directory
    tokens = words.with_added(tokens)
    if not find_language_ids(tokens, words.pattern):
        tokens |= dict(enumerate(others, len(tokens)))
    ids = find_language_ids(tokens, words.pattern)
    config = directory.config
    start = read_start_id(directory, read_token_id(config, "eos_token_id"))
    default = LanguagePair(
        read_default_language(directory.tokenizer, "src_lang", ids),
        _default_target(directory, ids, start, target == "start"),
    )
    languages = Languages(ids, source, target, default)
    directory.check(languages)
    weights = directory.weights()
    tables: dict[str, Tensor] = {}
    if words.pattern == OF_MBART:
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
        config, tokens, model.vocab_size, words.file_of, words.unk_token, ids.values()
    )
    if words.pattern == OF_M2M100:  # its tokenizer in transformers is written in Python
        added = words.added.cut(NAMED_M2M100, vocab.ids)
        added = [AddedToken(token, **{**vars(token), "normalized": False}) for token in added]
    else:
        added = words.added.cut(NAMED_MBART, vocab.ids, [tokens[i] for i in ids.values()])
    keeps_spaces = words.pattern == OF_NLLB or (words.pattern == OF_MBART and source == "before")
    cutters = {"sentencepiece": words.tokenizer(vocab, added, keeps_spaces=keeps_spaces)}
    files = words.added
    return make_checkpoint(
        directory, model, (vocab, vocab), cutters, start, files, languages=languages
    )


def _default_target(directory: Directory, ids: dict[str, int], start: int, starts: bool) -> str:
    """The language that every output begins with or, where that is so, the decoder starts with."""
    config, codes = directory.config, {i: code for code, i in ids.items()}
    if config.get("forced_bos_token_id") is not None:
        forced = read_token_id(config, "forced_bos_token_id")
        if forced not in codes:
            raise CheckpointError(
                f"{config.get_file('forced_bos_token_id')}: forced_bos_token_id {forced} is not a "
                "language of the model"
            )
        return codes[forced]
    if starts and start in codes:
        return codes[start]
    if starts and start != read_token_id(config, "eos_token_id"):
        file = config.get_file("decoder_start_token_id")
        raise CheckpointError(
            f"{file}: decoder_start_token_id {start} is neither a language nor the end token"
        )
    return read_default_language(directory.tokenizer, "tgt_lang", ids)
