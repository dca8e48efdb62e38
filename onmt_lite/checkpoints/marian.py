"""Reads Marian models as Hugging Face transformers stores them (OPUS-MT): a directory.

`config.json` and `generation_config.json` describe the model, `vocab.json` gives the ids of the
pieces that `source.spm` and `target.spm` cut (their own ids mean nothing here), the weights are in
`model.safetensors` or `pytorch_model.bin`, whole or in shards that an index lists.
"""

from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch
from torch import Tensor

from onmt_lite.checkpoints import archive, safetensors
from onmt_lite.checkpoints.building import build_config, finished
from onmt_lite.checkpoints.description import Description, checked_tokens, read_json
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.weights import Weights, layout_of
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import MarianTokenizer, SpaceTokenizer, Tokenizer
from onmt_lite.text.vocab import Vocab

CONFIG = "config.json"
SIDES = ("source", "target")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
    "silu": "silu",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# Our names of a layer's parts, and theirs; fairseq has the same ones
ENCODER_LAYER = {
    "self_attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out": ("self_attn.out_proj",),
    "self_attn_residual.norm": ("self_attn_layer_norm",),
    "ffn.up": ("fc1",),
    "ffn.down": ("fc2",),
    "ffn_residual.norm": ("final_layer_norm",),
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "cross_attn.q": ("encoder_attn.q_proj",),
    "cross_attn.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attn.out": ("encoder_attn.out_proj",),
    "cross_attn_residual.norm": ("encoder_attn_layer_norm",),
}
SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"


def recognises(path: Path) -> bool:
    return (path / CONFIG).is_file()


def load(path: Path) -> Checkpoint:
    """CheckpointError for a directory of another family, or one that is damaged."""
    config = read_json(path / CONFIG)
    _check_family(Description(config, path / CONFIG))
    if (path / "generation_config.json").is_file():  # wins where both say something
        own = read_json(path / "generation_config.json")
        config = _completed(config, own, path)
    described = Description(config, path / CONFIG)
    model = _read_model(described, Weights(_read_weights(path), path))
    src_vocab, tgt_vocab = _read_vocabularies(path, described, model)
    start = described.number("decoder_start_token_id", described.number("pad_token_id"))
    if not 0 <= start < len(tgt_vocab):
        raise CheckpointError(f"{described.path}: decoder_start_token_id is not in the vocabulary")
    tokenizers: dict[str, Tokenizer] = {"space": SpaceTokenizer()}
    missing = [path / f"{side}.spm" for side in SIDES if not (path / f"{side}.spm").exists()]
    if path / "source.spm" not in missing:
        pieces = MarianTokenizer(_read_pieces(path, "source"), _read_pieces(path, "target"))
        tokenizers = {"sentencepiece": pieces, **tokenizers}
    eos = tgt_vocab.eos_id
    assert eos is not None
    return Checkpoint(
        model,
        src_vocab=src_vocab,
        tgt_vocab=tgt_vocab,
        tokenizers=tokenizers,
        start_id=start,
        src_end=(eos,),
        never_ids=_never_ids(described, start, len(tgt_vocab)),
        forced_eos=_forces_eos(described, eos),
        never_in_softmax=True,
        missing=tuple(map(str, missing)),
        toolkit="marian",
        version=str(config.get("transformers_version", ""))[:20],
    )


def _completed(config: dict[str, Any], own: dict[str, Any], path: Path) -> dict[str, Any]:
    """What generation_config.json says wins, but special tokens are the same in both."""
    said = {name: value for name, value in own.items() if value is not None}
    for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id"):
        one, other = (_token(Description(t, path), name, -1) for t in (config, said))
        if one != other and -1 not in (one, other):
            raise CheckpointError(f"{path}: {name} differs between its two configurations")
    return {**config, **said}


def _check_family(config: Description) -> None:
    kind = config.text("model_type", "unknown")
    if kind != "marian":
        raise CheckpointError(
            f"{config.path}: a Hugging Face model of type {kind[:50]!r}; of these, only 'marian' "
            "is read"
        )
    for name in ("normalize_embedding", "add_final_layer_norm", "normalize_before"):
        if config.flag(name):
            raise CheckpointError(f"{config.path}: a Marian model with {name}, which is not read")
    if config.get("quantization_config") is not None:
        raise CheckpointError(f"{config.path}: a quantised model; give the one it was made from")


# -- weights --------------------------------------------------------------------------------------


def _read_weights(path: Path) -> dict[str, Tensor]:
    for name in WEIGHTS:
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            return _read_part(path / name)
        if index.is_file():
            return _read_shards(path, index)
    raise CheckpointError(f"{path}: the directory has neither {' nor '.join(WEIGHTS)}")


def _read_shards(path: Path, index: Path) -> dict[str, Tensor]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(type(name) is str for name in where.values()):
        raise CheckpointError(f"{index}: has no weight_map")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(where.values())):
        if Path(name).name != name or not (path / name).is_file():
            raise CheckpointError(f"{index}: there is no file {name[:100]!r} beside it")
        tensors |= _read_part(path / name)
    if set(tensors) != set(where):
        raise CheckpointError(f"{index}: its shards do not hold what it lists")
    return tensors


def _read_part(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.read(path)
    with archive.opened(path) as found:
        return found.tensors(found.root)


def _read_model(config: Description, weights: Weights) -> Transformer:
    positions, tables, rows = _positions(config, weights)
    ours, shared, tied = _embeddings(config, weights)
    ours |= tables
    bias = "final_logits_bias" in weights
    if bias:
        ours["output.bias"] = weights.take("final_logits_bias").flatten()
    enc_layers = weights.count(r"model\.encoder\.layers\.(\d+)\.")
    dec_layers = weights.count(r"model\.decoder\.layers\.(\d+)\.")
    d_ff = weights.shape("model.encoder.layers.0.fc1.weight")[0]
    dec_d_ff = weights.shape("model.decoder.layers.0.fc1.weight")[0]
    for i in range(enc_layers):
        theirs = f"model.encoder.layers.{i}"
        ours |= weights.renamed(theirs, f"encoder.{i}", ENCODER_LAYER)
    for i in range(dec_layers):
        theirs = f"model.decoder.layers.{i}"
        ours |= weights.renamed(theirs, f"decoder.{i}", DECODER_LAYER)
    src_size, d_model = ours["src_embedding.token.weight"].shape
    _check_sizes(
        config,
        d_model=d_model,
        vocab_size=src_size,
        encoder_layers=enc_layers,
        decoder_layers=dec_layers,
        encoder_ffn_dim=d_ff,
        decoder_ffn_dim=dec_d_ff,
    )
    cfg = build_config(
        config.path,
        src_vocab_size=src_size,
        tgt_vocab_size=ours["tgt_embedding.token.weight"].size(0),
        d_model=d_model,
        heads=config.number("encoder_attention_heads"),
        dec_heads=config.number("decoder_attention_heads"),
        d_ff=d_ff,
        dec_d_ff=dec_d_ff,
        enc_layers=enc_layers,
        dec_layers=dec_layers,
        pre_norm=False,
        final_norm=False,
        positions=positions,
        max_positions=rows,
        activation=config.choice("activation_function", ACTIVATIONS),
        scale_embedding=config.flag("scale_embedding", None),
        output_bias=bias,
        share_embeddings=shared,
        tie_output=tied,
        norm_eps=1e-5,
    )
    return finished(cfg, ours, weights)


def _check_sizes(config: Description, **sizes: int) -> None:
    """CheckpointError where the configuration gives another size than the weights have."""
    for name, size in sizes.items():
        if config.number(name, size) != size:
            raise CheckpointError(
                f"{config.path}: {name} is {config.number(name)}, but the weights have {size}"
            )


def _embeddings(config: Description, weights: Weights) -> tuple[dict[str, Tensor], bool, bool]:
    """The tables under our names; whether source and target share one, and the output layer too.

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
    weights.drop("|".join(map(_literal, (SHARED, SOURCE, TARGET, HEAD))))
    ours = {name: tables[theirs] for name, theirs in found.items()}
    src, tgt = ours["src_embedding.token.weight"], ours["tgt_embedding.token.weight"]
    same = src.shape == tgt.shape and torch.equal(src, tgt)
    if one_table and not same:
        raise CheckpointError(f"{config.path}: embeddings that it says are shared differ")
    return ours, shared and same, tied


def _literal(name: str) -> str:
    return name.replace(".", r"\.")


def _positions(config: Description, weights: Weights) -> tuple[str, dict[str, Tensor], int]:
    """Layout, tables where they are not computed, and how many positions there are."""
    rows = config.number("max_position_embeddings")
    names = {side: f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    stored = [name for name in names.values() if name in weights]
    for name in stored:
        weights.shape(name)
    if all(layout_of(weights.tensors[name]) == "concat" for name in stored):
        if any(weights.shape(name)[0] != rows for name in stored):
            raise CheckpointError(f"{config.path}: max_position_embeddings is not what is stored")
        weights.drop("|".join(map(_literal, stored)))
        return "concat", {}, rows
    src, tgt = (weights.take(name) for name in names.values())
    tables = {"src_embedding.position": src, "tgt_embedding.position": tgt}
    return "learned", tables, min(src.size(0), tgt.size(0))


# -- vocabulary and tokens ------------------------------------------------------------------------


def _read_vocabularies(path: Path, config: Description, model: Transformer) -> tuple[Vocab, Vocab]:
    cfg = model.cfg
    eos, pad = _token(config, "eos_token_id"), config.number("pad_token_id")
    separate = (path / "target_vocab.json").is_file()
    if (path / "tokenizer_config.json").is_file():
        tokenizer = Description(read_json(path / "tokenizer_config.json"), path)
        separate = tokenizer.flag("separate_vocabs", separate)
    src = _read_vocab(path / "vocab.json", cfg.src_vocab_size, eos, pad)
    if separate:
        return src, _read_vocab(path / "target_vocab.json", cfg.tgt_vocab_size, eos, pad)
    if cfg.src_vocab_size != cfg.tgt_vocab_size:
        raise CheckpointError(f"{path}: two vocabularies, but no target_vocab.json")
    return src, src


def _read_vocab(path: Path, size: int, eos: int, pad: int) -> Vocab:
    """Tokens by id.  Rows of the model's table behind the last token get names of their own."""
    tokens = [f"<unused {i}>" for i in range(size)]
    taken = set()
    for token, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size or i in taken:
            raise CheckpointError(f"{path}: id {str(i)[:20]} of {token[:50]!r} cannot be")
        taken.add(i)
        tokens[i] = token
    if len(taken) <= max(taken, default=0):
        hole = next(i for i in range(size) if i not in taken)
        raise CheckpointError(f"{path}: no token has the id {hole}, but others have larger ones")
    if not {eos, pad} <= taken:
        raise CheckpointError(f"{path}: it lacks the end or the padding token of config.json")
    found = Vocab(checked_tokens(tokens, path), eos_id=eos, pad_id=pad)
    return Vocab(tokens, eos_id=eos, pad_id=pad, unk_id=found.ids.get("<unk>"))


def _token(config: Description, name: str, default: int | None = None) -> int:
    """An id; some files have it as a list of one."""
    value = config.get(name)
    if isinstance(value, list) and len(value) == 1:
        return Description({name: value[0]}, config.path).number(name)
    return config.number(name, default)


def _never_ids(config: Description, start: int, vocab_size: int) -> tuple[int, ...]:
    """The pad token where it starts the decoder, and what `bad_words_ids` lists."""
    never = {start} if start == config.number("pad_token_id") else set()
    listed = config.get("bad_words_ids") or []
    if not isinstance(listed, list):
        raise CheckpointError(f"{config.path}: bad_words_ids is not a list")
    for words in listed:
        single = isinstance(words, list) and len(words) == 1 and type(words[0]) is int
        if not single or not 0 <= words[0] < vocab_size:
            raise CheckpointError(f"{config.path}: bad_words_ids with more than single tokens")
        never.add(words[0])
    return tuple(sorted(never))


def _forces_eos(config: Description, eos: int) -> bool:
    """Whether the last token of an output that reaches max_length becomes the end token."""
    forced: Any = config.get("forced_eos_token_id")
    if config.get("forced_bos_token_id") is not None or forced not in (None, eos, [eos]):
        raise CheckpointError(f"{config.path}: forces tokens other than the end")
    return forced is not None


def _read_pieces(path: Path, side: str) -> spm.SentencePieceProcessor:
    pieces = spm.SentencePieceProcessor()
    try:
        pieces.load_from_serialized_proto((path / f"{side}.spm").read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}/{side}.spm: {error.strerror}") from None
    except (RuntimeError, ValueError, TypeError):
        raise CheckpointError(f"{path}/{side}.spm: not a sentencepiece model") from None
    return pieces
