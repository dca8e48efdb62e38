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

from onmt_lite.checkpoints.checkpoint import Checkpoint, Direction, Languages
from onmt_lite.checkpoints.config_reader import Description
from onmt_lite.checkpoints.huggingface.added_tokens import (
    NAMED_M2M100,
    NAMED_MBART,
    NAMED_T5,
    AddedFiles,
)
from onmt_lite.checkpoints.huggingface.directory import (
    ACTIVATIONS,
    Directory,
    Words,
    checkpoint,
    default_language,
    language_ids,
    make_vocab,
    read_ids,
    start_id,
    token_id,
)
from onmt_lite.checkpoints.huggingface.formats import facts
from onmt_lite.checkpoints.subwords import SIDE_MODELS, read_sentencepiece
from onmt_lite.checkpoints.weights import (
    MAX_POSITIONS,
    Weights,
    assemble_transformer,
    layout_of,
    same_numbers,
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
        ours["output.bias"] = weights.take(BIAS).flatten()
    weights.rename("bart")
    weights.tensors |= ours
    weights.drop(r"model\.(encoder|decoder)\.version")  # old files have it
    model = assemble_transformer(
        weights,
        config.path,
        heads=config.number("encoder_attention_heads"),
        dec_heads=config.number("decoder_attention_heads"),
        activation=config.choice("activation_function", ACTIVATIONS),
        scale_embedding=config.flag("scale_embedding", None),
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
        decoder_ffn_dim=cfg.of_decoder.d_ff,
    )
    return model


def _embeddings(config: Description, weights: Weights) -> dict[str, Tensor]:
    """The tables under our names.

    A file may repeat a shared table under each of its names, or keep any one of them.  Where
    nothing is tied, transformers 4 still shares the table of source and target, 5 does not.
    """
    tied = config.flag("tie_word_embeddings", True)
    shared = config.flag("share_encoder_decoder_embeddings", True)
    one_table = shared and tied
    wanted = {
        "src_embedding.token.weight": [SOURCE] + [SHARED, TARGET] * shared + [HEAD] * one_table,
        "tgt_embedding.token.weight": [TARGET] + [SHARED, SOURCE] * shared + [HEAD] * tied,
        "output.weight": [TARGET] + [SHARED, HEAD, SOURCE] * shared + [HEAD] if tied else [HEAD],
    }
    found = {}
    for table, names in wanted.items():
        name = next((name for name in names if name in weights), names[0])
        weights.shape(name)
        found[table] = name
    tables = {name: weights.take(name) for name in set(found.values())}
    weights.drop("|".join(map(re.escape, (SHARED, SOURCE, TARGET, HEAD))))
    ours = {name: tables[theirs] for name, theirs in found.items()}
    src, tgt = ours["src_embedding.token.weight"], ours["tgt_embedding.token.weight"]
    if one_table and not same_numbers(src, tgt):
        raise CheckpointError(f"{config.path}: embeddings that it says are shared differ")
    return ours


# -- Marian ----------------------------------------------------------------------------------------

OF_MARIAN = r">>([^<>\s]+)<<"  # a target language token


def load_marian(directory: Directory) -> Checkpoint:
    path, config = directory.path, directory.config
    for name in ("normalize_embedding", "add_final_layer_norm", "normalize_before"):
        if directory.model.flag(name):
            raise CheckpointError(
                f"{directory.model.path}: {name} is not supported for Marian models"
            )
    if config.get("forced_bos_token_id") is not None:
        file = config.where("forced_bos_token_id")
        raise CheckpointError(f"{file}: forced_bos_token_id is not supported for Marian models")
    tokens = read_ids(path / "vocab.json")
    languages = marian_languages(tokens)
    directory.check(languages)
    weights = directory.weights()
    positions, tables, rows = _marian_positions(config, weights)
    switches = dict(pre_norm=False, final_norm=False, positions=positions, max_positions=rows)
    model = read_transformer(directory, weights, tables, **switches)
    src = tgt = make_vocab(config, tokens, model.cfg.src_vocab_size, lambda _: path / "vocab.json")
    other = path / "target_vocab.json"
    if directory.tokenizer.flag("separate_vocabs", other.is_file()):
        tgt = make_vocab(config, read_ids(other), model.cfg.tgt_vocab_size, lambda _: other)
    elif model.cfg.src_vocab_size != model.cfg.tgt_vocab_size:
        raise CheckpointError(f"{path}: two vocabularies, but no target_vocab.json")
    pad = config.number("pad_token_id")
    start = start_id(directory, pad)
    cutters = {}
    missing = [path / name for name in SIDE_MODELS if not (path / name).exists()]
    added = AddedFiles(path, directory.tokenizer)
    if path / SIDE_MODELS[0] not in missing:
        source, target = (read_sentencepiece(str(path / name)) for name in SIDE_MODELS)
        cutters["sentencepiece"] = MarianTokenizer(
            source,
            target,
            [AddedToken(token, special=token.special) for token in added.cut(NAMED_T5, src.ids)],
            joiner=source if src is tgt else target,  # as transformers does since version 5
            cleans_up=directory.tokenizer.flag("clean_up_tokenization_spaces"),
        )
    codes = [directory.tokenizer.text(f"{side}_lang", "") for side in ("source", "target")]
    found = checkpoint(
        directory,
        model,
        (src, tgt),
        cutters,
        start,
        added,
        never_in_softmax=True,
        missing=tuple(map(str, missing)),
        toolkit="marian",
        languages=languages,
        pair=Direction(*codes) if all(codes) and not languages else Direction(),
    )
    never = {*found.never_ids, *([start] if start == pad else [])}
    return replace(found, never_ids=tuple(sorted(never)))


def marian_languages(tokens: Mapping[int, str]) -> Languages | None:
    """Return the target languages that tokens of the source name. None: there are no such tokens,
    because the model translates into one language."""
    codes = language_ids(tokens, OF_MARIAN)
    return Languages(codes, source="none", target="text") if codes else None


def _marian_positions(config: Description, weights: Weights) -> tuple[str, dict[str, Tensor], int]:
    """Layout, tables where they are not computed, and how many positions there are."""
    rows = config.number("max_position_embeddings")
    names = {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    stored = [name for name in names.values() if name in weights]
    for name in stored:
        weights.shape(name)
    if all(layout_of(weights.tensors[name]) == "concat" for name in stored):
        if any(weights.shape(name)[0] != rows for name in stored):
            file = config.where("max_position_embeddings")
            raise CheckpointError(f"{file}: max_position_embeddings is not what is stored")
        weights.drop("|".join(map(re.escape, stored)))
        return "concat", {}, rows
    src, tgt = (weights.take(name) for name in names.values())
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
        words = Words(directory, OF_NLLB)
        last = directory.tokenizer.flag("legacy_behaviour", False)
        others = [*usual_codes("nllb"), "<mask>"]
        return _load(words, _fairseq_ids(words), others, "after" if last else "before", "forced")
    words, tokens = Words(directory, OF_M2M100), read_ids(file)
    lists = {"m2m100": "m2m100", "wmt21": "wmt21"}
    codes = usual_codes(directory.tokenizer.choice("language_codes", lists, "m2m100"))
    words.file = file.name
    return _load(words, tokens, [f"__{code}__" for code in codes], "before", "forced")


def load_mbart(directory: Directory) -> Checkpoint:
    """mBART of 25 or of 50 languages."""
    words = Words(directory, OF_MBART)
    codes = [usual_codes("mbart25"), usual_codes("mbart50")]
    # The tokenizer's class tells, or else whether its tokens are too few for 50 languages
    named = [d.get("tokenizer_class") for d in (directory.tokenizer, directory.config)]
    name = next((n for n in named if isinstance(n, str) and n.startswith("MBart")), None)
    if name is not None:
        of_25 = not name.startswith("MBart50")
    else:
        n_others = directory.config.number("vocab_size") - len(words.pieces)
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


def usual_codes(name: str) -> list[str]:
    """Languages in the order of their ids, for directories that do not list them."""
    codes: str = facts("languages")[name]
    return codes.split()


def _fairseq_ids(words: Words) -> dict[int, str]:
    """The pieces by id: those of tokenizer.json, or sentencepiece's moved by one."""
    if words.own_ids:
        return dict(enumerate(words.pieces))
    return dict(enumerate([*SPECIAL, *words.pieces[FIRST_PIECE:]]))


def _load(
    words: Words,
    tokens: dict[int, str],
    others: list[str],
    source: Literal["before", "after"],
    target: Literal["forced", "start"],
) -> Checkpoint:
    """The model of these languages; `others` follow the tokens where no file says their ids."""
    directory = words.directory
    tokens = words.with_added(tokens)
    if not language_ids(tokens, words.pattern):
        tokens |= dict(enumerate(others, len(tokens)))
    ids = language_ids(tokens, words.pattern)
    config = directory.config
    start = start_id(directory, token_id(config, "eos_token_id"))
    default = Direction(
        default_language(directory.tokenizer, "src_lang", ids),
        _default_target(directory, ids, start, target == "start"),
    )
    languages = Languages(ids, source, target, default)
    directory.check(languages)
    weights = directory.weights()
    tables: dict[str, Tensor] = {}
    if words.pattern == OF_MBART:
        for side, name in (("src", "encoder"), ("tgt", "decoder")):
            table = weights.take(f"model.{name}.embed_positions.weight")
            tables[f"{side}_embedding.position"] = table
        rows = len(tables["src_embedding.position"]) - OFFSET
        switches: dict[str, Any] = dict(
            positions="learned", embedding_norm=True, max_positions=rows
        )
    else:
        weights.drop(r"model\.(encoder|decoder)\.embed_positions\.weights")
        rows = min(config.number("max_position_embeddings", 1024), MAX_POSITIONS)
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
    return checkpoint(directory, model, (vocab, vocab), cutters, start, files, languages=languages)


def _default_target(directory: Directory, ids: dict[str, int], start: int, starts: bool) -> str:
    """The language that every output begins with or, where that is so, the decoder starts with."""
    config, codes = directory.config, {i: code for code, i in ids.items()}
    if config.get("forced_bos_token_id") is not None:
        forced = token_id(config, "forced_bos_token_id")
        if forced not in codes:
            raise CheckpointError(
                f"{config.where('forced_bos_token_id')}: forced_bos_token_id {forced} is not a "
                "language of the model"
            )
        return codes[forced]
    if starts and start in codes:
        return codes[start]
    if starts and start != token_id(config, "eos_token_id"):
        raise CheckpointError(
            f"{config.where('decoder_start_token_id')}: decoder_start_token_id {start} is neither "
            "a language nor the end token"
        )
    return default_language(directory.tokenizer, "tgt_lang", ids)
