"""Reads CTranslate2 models: a directory with model.bin, vocabularies and, mostly, config.json.

A package of Argos Translate is such a directory, `model`, beside sentencepiece.model.

model.bin is little-endian: u32 version, text specification, u32 revision, u32 n, then n variables
(text name, u8 rank, u32 dimensions, u8 type, u32 bytes, the bytes), u32 n, then n aliases (text
name, text of which variable).  A text is u16 length, its bytes and a NUL, which the length counts.
"""

import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from onmt_lite.checkpoints.building import add_zero_start, build_config, finished
from onmt_lite.checkpoints.description import Description, checked_tokens, parse_json, read_json
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.safetensors import MAX_DIMS, MAX_TENSORS
from onmt_lite.checkpoints.subwords import pieces_beside
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

MODEL, CONFIG = "model.bin", "config.json"
VERSIONS, SPECIFICATION, REVISION = (5, 6), "TransformerSpec", 7
MAX_VOCABULARY = 64 << 20  # bytes
MAX_POSITIONS = 5000  # where the model has no limit of its own
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh")
START = "<start>"  # what the decoder starts from where that is a vector of zeros
DEFAULTS = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", decoder_start_token="<s>")
# Names that end otherwise than in weight or bias
ENDINGS = {"gamma": "weight", "beta": "bias"}
ENDINGS |= {
    name: f"{name}.weight"
    for name in (
        "relative_attention_bias",
        "relative_position_keys",
        "relative_position_values",
        "encodings",
    )
}
RELATIONS = {"buckets": "relative_attention_bias", "shaw": "relative_position_keys"}
ENCODER_LAYER = {
    "self_attn.qkv": ("self_attention.linear_0",),
    "self_attn.out": ("self_attention.linear_1",),
    "self_attn_residual.norm": ("self_attention.layer_norm",),
    "ffn.up": ("ffn.linear_0",),
    "ffn.down": ("ffn.linear_1",),
    "ffn_residual.norm": ("ffn.layer_norm",),
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "cross_attn.q": ("attention.linear_0",),
    "cross_attn.kv": ("attention.linear_1",),
    "cross_attn.out": ("attention.linear_2",),
    "cross_attn_residual.norm": ("attention.layer_norm",),
}
# Switches of a side that are read, those of layers without the number
KNOWN = set(
    "num_heads pre_norm activation scale_embeddings embeddings_merge multi_query_attention "
    "start_from_zero_embedding scale_outputs alignment_layer alignment_heads alibi alibi_use_positive_positions scale_alibi "
    "self_attention/relative_attention_max_distance self_attention/rotary_dim "
    "self_attention/rotary_interleave self_attention/rotary_base".split()
)
KNOWN |= {
    f"{attention}/{name}"
    for attention in ("self_attention", "attention")
    for name in ("queries_scale", "num_heads_kv", "head_dim")
}


def recognises(path: Path) -> bool:
    return _folder(path) is not None


def _folder(path: Path) -> Path | None:
    """The folder with model.bin: the path, or `model` in it as in a package of Argos Translate."""
    return next((folder for folder in (path, path / "model") if (folder / MODEL).is_file()), None)


def load(path: Path) -> Checkpoint:
    """CheckpointError for what is damaged, or a model of another kind."""
    folder = _folder(path)
    assert folder is not None
    version, variables = read_variables(folder / MODEL)
    has_config = (folder / CONFIG).is_file()  # version 6 does
    config = Description(read_json(folder / CONFIG) if has_config else {}, folder / CONFIG)
    if config.get("quantization_type"):
        raise CheckpointError(f"{folder}: a model of AWQ weights, which is not read")
    sides = _switches(variables, folder / MODEL)
    weights = Weights({_named(n): v for n, v in variables.items() if v.dim()}, folder / MODEL)
    zero_start = sides["decoder"].flag("start_from_zero_embedding")
    model = _build(weights, sides, config, zero_start)
    adds_end = config.flag("add_source_eos")
    src, tgt = _read_vocabularies(folder, config, zero_start, adds_end)
    for vocab, rows, side in (
        (src, model.cfg.src_vocab_size, "source"),
        (tgt, model.cfg.tgt_vocab_size, "target"),
    ):
        if len(vocab) != rows:
            raise CheckpointError(f"{folder}: {len(vocab)} {side} tokens, but the model has {rows}")
    tokenizers, missing = pieces_beside(
        (folder, folder.parent) if folder.name == "model" else (folder,), tgt.tokens
    )
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={**tokenizers, "space": SpaceTokenizer()},
        start_id=_start_id(config, tgt, zero_start),
        src_start=_around(src.bos_id, config, "add_source_bos"),
        src_end=_around(src.eos_id, config, "add_source_eos"),
        never_ids=(len(tgt) - 1,) if zero_start else (),
        missing=missing,
        toolkit="ctranslate2",
        version=f"(format {version})",
    )


# -- model.bin ------------------------------------------------------------------------------------


def read_variables(path: Path) -> tuple[int, dict[str, Tensor]]:
    """The binary version, and all variables as float32 or, where these are no weights, as stored.

    Aliases are the variables that they name.  CheckpointError for another kind of model, and for
    a file that is not what its own sizes say.
    """
    with open(path, "rb") as stream:
        try:
            return _Fields(stream, path.stat().st_size).model()
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None


class _Fields:
    """A file's fields, one after the other.  ValueError where the file does not hold them."""

    def __init__(self, stream: BinaryIO, n_bytes: int):
        self.stream, self.left = stream, n_bytes

    def model(self) -> tuple[int, dict[str, Tensor]]:
        version = self.number("I")
        if version not in VERSIONS:
            raise ValueError(
                f"a model.bin of version {version}; CTranslate2's versions "
                f"{' and '.join(map(str, VERSIONS))} are read, so convert the model again"
            )
        specification, revision = self.text(), self.number("I")
        if (specification, revision > REVISION) != (SPECIFICATION, False):
            raise ValueError(
                f"a CTranslate2 model of {specification[:50]!r}, revision {revision}; of these, "
                f"only {SPECIFICATION} up to revision {REVISION}, a translator, is read"
            )
        variables: dict[str, Tensor] = {}
        for _ in range(self.count("variables")):
            name = self.text()
            if name in variables:
                raise ValueError(f"it has {name[:80]!r} twice")
            variables[name] = self.variable(name)
        variables = _without_scales(variables)
        aliases = {self.text(): self.text() for _ in range(self.count("aliases"))}
        if self.left:
            raise ValueError("longer than its fields")
        for name, other in aliases.items():
            if other not in variables or name in variables:
                raise ValueError(f"{name[:80]!r} cannot be another name of {other[:80]!r}")
        return version, variables | {name: variables[other] for name, other in aliases.items()}

    def variable(self, name: str) -> Tensor:
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind, n_bytes = self.number("B"), self.number("I")
        if len(shape) > MAX_DIMS or kind >= len(TYPES):
            raise ValueError(f"{name[:80]!r} has {len(shape)} dimensions and type {kind}")
        if math.prod(shape) * TYPES[kind].itemsize != n_bytes:
            raise ValueError(f"{name[:80]!r} does not have the size it claims")
        data = self.bytes(n_bytes)
        return torch.frombuffer(data or bytearray(4), dtype=TYPES[kind])[: math.prod(shape)].view(
            shape
        )

    def count(self, what: str) -> int:
        n = self.number("I")
        if n > MAX_TENSORS:
            raise ValueError(f"{n:,} {what}, more than any model has")
        return n

    def text(self) -> str:
        data = self.bytes(self.number("H"))
        if data[-1:] != b"\0":
            raise ValueError("a name without its end")
        return data[:-1].decode("utf-8", "backslashreplace")

    def number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def bytes(self, n: int) -> bytearray:
        """Nothing is allocated for a mere claim."""
        self.left -= n
        data = bytearray(max(0, n if self.left >= 0 else 0))
        if self.left < 0 or self.stream.readinto(data) != n:  # type: ignore[attr-defined]
            raise ValueError("cut off")
        return data


def _without_scales(variables: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers that 8 and 16 bits stand for: each row divided by its scale, or all by one.

    Done before aliases are looked at: those share the weight and its scale.
    """
    found = {}
    for name, stored in variables.items():
        scale = variables.get(f"{name}_scale")
        if name.endswith("_scale") and name.removesuffix("_scale") in variables:
            continue
        if scale is not None:
            rows = scale.view(-1, *[1] * (stored.dim() - 1)) if scale.dim() else scale
            if scale.dim() > 1 or scale.dim() == 1 and len(scale) != len(stored):
                raise ValueError(f"{name[:80]!r} has {list(scale.shape)} scales")
            stored = stored.float() / rows
        found[name] = stored.float() if stored.dim() and stored.is_floating_point() else stored
    return found


def _switches(variables: dict[str, Tensor], path: Path) -> dict[str, Description]:
    """The single numbers by side and name, those of layers alike.  CheckpointError for others."""
    sides: dict[str, dict[str, Any]] = {"encoder": {}, "decoder": {}}
    for name, tensor in variables.items():
        if tensor.dim():
            continue
        side, _, rest = name.partition("/")
        rest, value = re.sub(r"^layer_\d+/", "", rest), tensor.item()
        if side not in sides or rest not in KNOWN:
            raise CheckpointError(f"{path}: a model with {name[:80]!r}, which is not read")
        if sides[side].setdefault(rest, value) != value:
            raise CheckpointError(f"{path}: layers differ in {rest}, which is not read")
    return {side: Description(values, path) for side, values in sides.items()}


def _named(name: str) -> str:
    """encoder/layer_norm/gamma -> encoder.layer_norm.weight"""
    scope, _, last = name.rpartition("/")
    return f"{scope}.{ENDINGS.get(last, last)}".replace("/", ".")


# -- the model ------------------------------------------------------------------------------------


def _build(
    weights: Weights, sides: dict[str, Description], config: Description, zero_start: bool
) -> Transformer:
    _check_kind(weights, sides)
    src, tgt = (_side(side, weights, said) for side, said in sides.items())
    layers = {"encoder": src.pop("layers"), "decoder": tgt.pop("layers")}
    own = dict(dec_heads=tgt.pop("heads"), dec_d_ff=tgt.pop("d_ff"))
    for name in [name for name in tgt if src[name] != tgt[name]]:
        raise CheckpointError(
            f"{weights.path}: encoder and decoder differ in {name}, which is not read"
        )
    ours, switches = _embeddings(weights, sides)
    positions, max_positions = _positions(weights, src)
    ours |= positions
    for side, n in layers.items():
        for i in range(n):
            ours |= weights.renamed(f"{side}.layer_{i}", f"{side}.{i}", _parts(side, src))
            _scale_queries(ours, f"{side}.{i}", sides[side])
    _scale_outputs(ours, switches, sides["decoder"])
    if zero_start:
        add_zero_start(ours)
    eps = 1e-5 if src["norm"] == "layer" else 1e-6
    layer = sides["decoder"].number("alignment_layer", -1)
    cfg = build_config(
        weights.path,
        **src,
        **own,
        **switches,
        src_vocab_size=len(ours["src_embedding.token.weight"]),
        tgt_vocab_size=len(ours["tgt_embedding.token.weight"]),
        enc_layers=layers["encoder"],
        dec_layers=layers["decoder"],
        max_positions=max_positions,
        output_bias="output.bias" in ours,
        norm_eps=config.real("layer_norm_epsilon", eps),
        align_layer=layer + 1 if layer >= 0 else layers["decoder"] + layer + 1,
    )
    return finished(cfg, ours, weights)


def _check_kind(weights: Weights, sides: dict[str, Description]) -> None:
    """CheckpointError with what it is, for a kind of Transformer that is not read."""
    reasons = {
        "word features": "encoder.embeddings_1.weight" in weights,
        "ALiBi in its decoder alone": sides["decoder"].flag("alibi"),
        "no attention to the source": "decoder.layer_0.attention.linear_0.weight" not in weights,
        "weights of less than 8 bits": any("weight_zero" in name for name in weights.tensors),
    }
    for reason, found in reasons.items():
        if found:
            raise CheckpointError(f"{weights.path}: a model with {reason}, which is not read")


def _side(side: str, weights: Weights, said: Description) -> dict[str, Any]:
    """What names and shapes of a side's weights tell, and what its switches say."""
    first = f"{side}.layer_0"
    d_model = weights.shape(_table(weights, side))[1]
    heads = said.number("num_heads")
    kv_heads = said.number("self_attention/num_heads_kv", heads)
    if side == "decoder" and said.number("attention/num_heads_kv", heads) != kv_heads:
        raise CheckpointError(f"{weights.path}: its attentions differ in num_heads_kv")
    activation = said.number("activation", 0)
    if not 0 <= activation < len(ACTIVATIONS):
        raise CheckpointError(f"{weights.path}: activation {activation} is not one that is read")
    relation = _relation(f"{first}.self_attention", weights, said)
    learned = f"{side}.position_encodings.encodings.weight" in weights
    computed = "fairseq" if relation["relative"] == "none" else "none"
    return dict(
        d_model=d_model,
        heads=heads,
        kv_heads=0 if kv_heads == heads else kv_heads,
        d_ff=weights.shape(f"{first}.ffn.linear_0.weight")[0],
        layers=weights.count(side + r"\.layer_(\d+)\."),
        pre_norm=said.flag("pre_norm", True),
        final_norm=f"{side}.layer_norm.weight" in weights,
        embedding_norm=f"{side}.layernorm_embedding.weight" in weights,
        positions="learned" if learned else computed,
        position_offset=0 if learned or computed == "none" else 1,
        activation=ACTIVATIONS[activation],
        gated_ffn=f"{first}.ffn.linear_0_noact.weight" in weights,
        norm="layer" if f"{first}.ffn.layer_norm.bias" in weights else "rms",
        attn_bias=f"{first}.self_attention.linear_0.bias" in weights,
        ffn_bias=f"{first}.ffn.linear_0.bias" in weights,
        **relation,
    )


def _table(weights: Weights, side: str) -> str:
    """The name of a side's embeddings, which are numbered where there may be several."""
    numbered = f"{side}.embeddings_0.weight"
    return numbered if numbered in weights else f"{side}.embeddings.weight"


def _relation(attention: str, weights: Weights, said: Description) -> dict[str, Any]:
    bias = f"{attention}.relative_attention_bias.weight"
    keys = f"{attention}.relative_position_keys.weight"
    if bias in weights:
        return dict(
            relative="buckets",
            relative_limit=said.number("self_attention/relative_attention_max_distance"),
            relative_buckets=weights.shape(bias)[0],
        )
    if keys in weights:
        return dict(relative="shaw", relative_limit=weights.shape(keys)[0] // 2)
    if "self_attention/rotary_dim" in said.values:
        return dict(
            relative="rotary",
            rotary_dim=said.number("self_attention/rotary_dim"),
            rotary_interleave=said.flag("self_attention/rotary_interleave", True),
            rotary_theta=said.real("self_attention/rotary_base", 10000.0),
        )
    return dict(relative="none")


def _parts(side: str, switches: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Our names of a layer's parts, and theirs."""
    parts: dict[str, tuple[str, ...]] = dict(ENCODER_LAYER if side == "encoder" else DECODER_LAYER)
    if switches["gated_ffn"]:
        parts["ffn.gate"] = ("ffn.linear_0_noact",)
    if switches["relative"] in RELATIONS:
        parts["self_attn.relation"] = (f"self_attention.{RELATIONS[switches['relative']]}",)
    return parts


def _embeddings(
    weights: Weights, sides: dict[str, Description]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tables, output layer and norms outside of layers, and what is shared and scaled."""
    tables, factors = {}, {}
    for side, said in sides.items():
        tables[side] = weights.take(_table(weights, side))
        root, scale = tables[side].size(1) ** 0.5, said.get("scale_embeddings")
        factors[side] = scale if type(scale) is float else 1.0 if scale == 0 else root
    ours = weights.renamed("decoder", "", {"output": ("projection",)})
    tied = torch.equal(ours["output.weight"], tables["decoder"])
    scaled = all(math.isclose(factor, root, rel_tol=1e-6) for factor in factors.values())
    if not scaled and any(factor != 1 for factor in factors.values()):
        tables = {side: table * factors[side] for side, table in tables.items()}
        tied = False
    ours["src_embedding.token.weight"] = tables["encoder"]
    ours["tgt_embedding.token.weight"] = tables["decoder"]
    for side, table in (("encoder", "src_embedding"), ("decoder", "tgt_embedding")):
        for name, part in (
            (f"{side[:3]}_norm", "layer_norm"),
            (f"{table}.norm", "layernorm_embedding"),
        ):
            if f"{side}.{part}.weight" in weights:
                ours |= weights.renamed(side, "", {name: (part,)})
    return ours, dict(
        share_embeddings=torch.equal(tables["encoder"], tables["decoder"]),
        tie_output=tied,
        scale_embedding=scaled,
    )


def _positions(weights: Weights, switches: dict[str, Any]) -> tuple[dict[str, Tensor], int]:
    """Both tables of position vectors, cut to one length, where the file has them."""
    if switches["positions"] != "learned":
        return {}, MAX_POSITIONS
    src, tgt = (
        weights.take(f"{side}.position_encodings.encodings.weight")
        for side in ("encoder", "decoder")
    )
    n = min(len(src), len(tgt))
    return {"src_embedding.position": src[:n], "tgt_embedding.position": tgt[:n]}, n


def _scale_queries(ours: dict[str, Tensor], layer: str, said: Description) -> None:
    """Scores may be scaled otherwise than by the root of a head's width: queries make up for it."""
    heads = said.number("num_heads")
    n_parts = heads + 2 * said.number("self_attention/num_heads_kv", heads)
    width = len(ours[f"{layer}.self_attn.qkv.weight"]) // n_parts
    for attention, name in (("self_attention", "self_attn.qkv"), ("attention", "cross_attn.q")):
        factor = said.real(f"{attention}/queries_scale", width**-0.5) * width**0.5
        for kind in ("weight", "bias"):
            stored = ours.get(f"{layer}.{name}.{kind}")
            if stored is not None and not math.isclose(factor, 1, rel_tol=1e-6):
                queries, rest = stored[: heads * width], stored[heads * width :]
                ours[f"{layer}.{name}.{kind}"] = torch.cat([queries * factor, rest])


def _scale_outputs(ours: dict[str, Tensor], switches: dict[str, Any], said: Description) -> None:
    """What scales the decoder's states goes into their last norm, or else into the output layer."""
    factor = said.real("scale_outputs", 1.0)
    if factor == 1:
        return
    normed = "dec_norm.weight" in ours
    for name in ("dec_norm.weight", "dec_norm.bias") if normed else ("output.weight",):
        if name in ours:
            ours[name] = ours[name] * factor
    switches["tie_output"] = switches["tie_output"] and normed


# -- vocabulary and tokens ------------------------------------------------------------------------


def _read_vocabularies(
    folder: Path, config: Description, zero_start: bool, adds_end: bool
) -> tuple[Vocab, Vocab]:
    """Source and target.  A start that is no token of theirs is one more.

    Where nothing adds the end token to a source line of tokens, the line may hold it.
    """
    src, tgt = (_read_tokens(folder, side) for side in ("source", "target"))
    if zero_start:
        src, tgt = [*src, START] if src == tgt else src, [*tgt, START]
    special = dict(eos_id="eos_token", bos_id="bos_token", unk_id="unk_token")
    names = {name: config.text(key, DEFAULTS[key]) for name, key in special.items()}
    if zero_start:
        names["bos_id"] = START
    found = [
        Vocab(tokens, **{name: Vocab(tokens).ids.get(token) for name, token in names.items()})
        for tokens in (src, tgt)
    ]
    if found[1].eos_id is None:
        raise CheckpointError(f"{folder}: its target vocabulary lacks the end token")
    if not adds_end:
        found[0] = replace(found[0], eos_id=None)
    return found[1] if found[0] == found[1] else found[0], found[1]


def _read_tokens(folder: Path, side: str) -> list[str]:
    """The tokens of a side: a list in JSON, or one token per line."""
    names = [f"{kind}_vocabulary.{form}" for kind in ("shared", side) for form in ("json", "txt")]
    path = next((folder / name for name in names if (folder / name).is_file()), folder / names[0])
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_VOCABULARY + 1)
        if len(data) > MAX_VOCABULARY:
            raise ValueError("larger than any vocabulary")
        is_json = path.suffix == ".json"
        tokens = parse_json(data) if is_json else data.decode().rstrip("\n").split("\n")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return checked_tokens(tokens, path)


def _around(token_id: int | None, config: Description, name: str) -> tuple[int, ...]:
    """The token that stands around each source line if the configuration says so."""
    if not config.flag(name):
        return ()
    if token_id is None:
        raise CheckpointError(f"{config.path}: {name}, but the source vocabulary has no such token")
    return (token_id,)


def _start_id(config: Description, tgt: Vocab, zero_start: bool) -> int:
    if zero_start:
        return len(tgt) - 1
    start = config.text("decoder_start_token", DEFAULTS["decoder_start_token"])
    if start not in tgt.ids:
        raise CheckpointError(f"{config.path}: no token {start[:50]!r} to start the decoder with")
    return tgt.ids[start]
