"""The file model.bin of a CTranslate2 model: its variables, and the Transformer that they make.

Little-endian: u32 version, text specification, u32 revision, u32 n, then n variables (text name,
u8 rank, u32 dimensions, u8 type, u32 bytes, the bytes), u32 n, then n aliases (text name, text of
which variable).  A text is u16 length, its bytes and a NUL, which the length counts.
"""

import math
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from onmt_lite.checkpoints.description import MARIAN, Description
from onmt_lite.checkpoints.weights import (
    MAX_TENSORS,
    Weights,
    add_zero_start,
    finished,
    is_shape,
    same_numbers,
    tensor_of,
)
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer

# -- Variables -------------------------------------------------------------------------------------

VERSIONS, SPECIFICATION, REVISION = (5, 6), "TransformerSpec", 7
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


def read_variables(path: Path) -> tuple[int, dict[str, Tensor]]:
    """The binary version, and all variables: weights as float32, other numbers as stored."""
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
        if version == 1:
            raise ValueError(f"{MARIAN}; give the .npz file")
        if version not in VERSIONS:
            raise ValueError(
                f"a model.bin of version {version}; CTranslate2's versions "
                f"{' and '.join(map(str, VERSIONS))} are read, so convert the model again"
            )
        specification, revision = self.text(), self.number("I")
        if (specification, revision > REVISION) != (SPECIFICATION, False):
            raise ValueError(
                f"a CTranslate2 model of {specification[:50]!r}, revision {revision}; of these, "
                f"translators are read: {SPECIFICATION} up to revision {REVISION}"
            )
        variables: dict[str, Tensor] = {}
        for _ in range(self.count("variables")):
            name = self.text()
            if name in variables:
                raise ValueError(f"it has {name[:80]!r} twice")
            variables[name] = self.variable(name)
        variables = _without_scales(variables)  # which aliases share
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
        if not is_shape(shape) or kind >= len(TYPES):
            raise ValueError(f"{name[:80]!r} has the shape {str(shape)[:80]} and type {kind}")
        if math.prod(shape) * TYPES[kind].itemsize != n_bytes:
            raise ValueError(f"{name[:80]!r} does not have the size it claims")
        return tensor_of(self.bytes(n_bytes), TYPES[kind], shape)

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
    """The numbers that 8 and 16 bits stand for: each row divided by its scale, or all by one."""
    found = {}
    for name, stored in variables.items():
        scale = variables.get(f"{name}_scale")
        if name.endswith("_scale") and name.removesuffix("_scale") in variables:
            continue
        if scale is not None:
            rows = scale.view(-1, *[1] * (stored.dim() - 1)) if scale.dim() else scale
            if scale.shape not in ((), stored.shape[:1]):
                raise ValueError(f"{name[:80]!r} has {list(scale.shape)} scales")
            if not (scale > 0).all():
                raise ValueError(f"{name[:80]!r} has a scale that is not above 0")
            stored = stored.float() / rows
        found[name] = stored.float() if stored.dim() and stored.is_floating_point() else stored
    return found


# -- The Transformer -------------------------------------------------------------------------------

MAX_POSITIONS = 5000  # where the model has no limit of its own
ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh")
ENCODER_LAYER: dict[str, tuple[str, ...]] = {
    "self_attn.qkv": ("self_attention.linear_0",),
    "self_attn.out": ("self_attention.linear_1",),
    "self_attn_residual.norm": ("self_attention.layer_norm",),
    "ffn.up": ("ffn.linear_0",),
    "ffn.down": ("ffn.linear_1",),
    "ffn_residual.norm": ("ffn.layer_norm",),
    "ffn.gate": ("ffn.linear_0_noact",),
    "self_attn.relation": ("self_attention.relation",),
    "self_attn.relation.values": ("self_attention.relation.values",),
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    "cross_attn.q": ("attention.linear_0",),
    "cross_attn.kv": ("attention.linear_1",),
    "cross_attn.out": ("attention.linear_2",),
    "cross_attn_residual.norm": ("attention.layer_norm",),
}
# By the last part of a name: what it is under the names that `Weights.renamed` knows
LAST = {
    "gamma": "weight",
    "beta": "bias",
    "encodings": "weight",
    "relative_attention_bias": "relation.weight",
    "relative_position_keys": "relation.weight",
    "relative_position_values": "relation.values.weight",
}
# Switches of a side, those of its layers without the layer's number
KNOWN = {
    *("num_heads", "pre_norm", "activation", "scale_embeddings", "scale_outputs"),
    *("embeddings/multiply_by_sqrt_depth", "embeddings_merge", "multi_query_attention"),
    *("start_from_zero_embedding", "alignment_layer", "alignment_heads"),
    *("alibi", "alibi_use_positive_positions", "scale_alibi"),
    *("self_attention/queries_scale", "attention/queries_scale"),
    *("self_attention/num_heads_kv", "attention/num_heads_kv"),
    *("self_attention/head_dim", "attention/head_dim"),
    *("self_attention/rotary_dim", "self_attention/rotary_interleave"),
    *("self_attention/rotary_base", "self_attention/relative_attention_max_distance"),
}


def build_model(
    variables: dict[str, Tensor], config: Description, path: Path
) -> tuple[Transformer, bool]:
    """The model, and whether its decoder starts from zeros."""
    sides = _switches(variables, path)
    arrays = {}
    for name, variable in variables.items():
        if variable.dim():  # encoder/layer_norm/gamma -> encoder.layer_norm.weight
            scope, _, last = name.rpartition("/")
            arrays[f"{scope}.{LAST.get(last, last)}".replace("/", ".")] = variable
    weights = Weights(arrays, path)
    if sides["decoder"].flag("alibi"):
        raise CheckpointError(f"{path}: a model with ALiBi in its decoder alone, which is not read")
    src, tgt = (_side(side, weights, said) for side, said in sides.items())
    layers = {"encoder": src.pop("layers"), "decoder": tgt.pop("layers")}
    dec_heads = tgt.pop("heads")
    for name in (name for name in tgt if src[name] != tgt[name]):
        raise CheckpointError(f"{path}: encoder and decoder differ in {name}, which is not read")
    ours, more = _inputs_and_output(weights, sides)
    for side, parts in (("encoder", ENCODER_LAYER), ("decoder", DECODER_LAYER)):
        n = layers[side]
        ours |= weights.layers(side + ".layer_{}", side, n, parts)
        for i in range(n):
            _scale_queries(ours, f"{side}.{i}", sides[side])
    if src["relative"] == "shaw":
        src["relative_values"] = _values_of_their_own(ours)
    zero_start = sides["decoder"].flag("start_from_zero_embedding")
    if zero_start:
        add_zero_start(ours)
    layer = sides["decoder"].number("alignment_layer", -1)
    model = finished(
        ours,
        weights,
        path,
        **src,
        **more,
        dec_heads=dec_heads,
        norm_eps=config.real("layer_norm_epsilon", 1e-5 if src["norm"] == "layer" else 1e-6),
        align_layer=layer + 1 if layer >= 0 else layers["decoder"] + layer + 1,
        align_heads=sides["decoder"].number("alignment_heads", 1),
    )
    return model, zero_start


def _switches(variables: dict[str, Tensor], path: Path) -> dict[str, Description]:
    """The single numbers by side and name; before revision 5, some are of both sides."""
    sides: dict[str, dict[str, Any]] = {"encoder": {}, "decoder": {}}
    for name, tensor in variables.items():
        if tensor.dim():
            continue
        side, slash, rest = name.partition("/")
        switch, value = re.sub(r"^layer_\d+/", "", rest if slash else name), tensor.item()
        if switch not in KNOWN or (slash and side not in sides):
            raise CheckpointError(f"{path}: a model with {name[:80]!r}, which is not read")
        for values in [sides[side]] if slash else sides.values():
            if values.setdefault(switch, value) != value:
                raise CheckpointError(f"{path}: layers differ in {switch}, which is not read")
    return {side: Description(values, path) for side, values in sides.items()}


def _side(side: str, weights: Weights, said: Description) -> dict[str, Any]:
    """What names and shapes of a side's weights tell, and what its switches say."""
    first = f"{side}.layer_0"
    d_model, heads = weights.shape(_table(weights, side))[1], said.number("num_heads", 8)
    kv_heads = said.number("self_attention/num_heads_kv", heads)
    if side == "decoder" and said.number("attention/num_heads_kv", heads) != kv_heads:
        raise CheckpointError(f"{weights.path}: its attentions differ in num_heads_kv")
    n_rows = weights.shape(f"{first}.self_attention.linear_0.weight")[0]
    width = n_rows // max(1, heads + 2 * kv_heads)
    if width == 0:
        raise CheckpointError(f"{weights.path}: {heads} heads are more than its weights have")
    activation = said.number("activation", 0)
    if not 0 <= activation < len(ACTIVATIONS):
        raise CheckpointError(f"{weights.path}: activation {activation} is not one that is read")
    relation = _relation(f"{first}.self_attention.relation.weight", weights, said)
    computed = relation["relative"] == "none"  # where no table is stored
    learned = f"{side}.position_encodings.weight" in weights
    found = dict(
        d_model=d_model,
        heads=heads,
        kv_heads=0 if kv_heads == heads else kv_heads,
        layers=weights.count(side + ".layer_{}."),
        pre_norm=said.flag("pre_norm", True),
        final_norm=f"{side}.layer_norm.weight" in weights,
        embedding_norm=f"{side}.layernorm_embedding.weight" in weights,
        activation=ACTIVATIONS[activation],
        gated_ffn=f"{first}.ffn.linear_0_noact.weight" in weights,
        norm="layer" if f"{first}.ffn.layer_norm.bias" in weights else "rms",
        attn_bias=f"{first}.self_attention.linear_0.bias" in weights,
        ffn_bias=f"{first}.ffn.linear_0.bias" in weights,
        positions="learned" if learned else "fairseq" if computed else "none",
        position_offset=int(computed and not learned),
        **relation,
    )
    found["head_width"] = width if width * heads != d_model else 0
    return found


def _table(weights: Weights, side: str) -> str:
    """The name of a side's embeddings, which are numbered where there may be several."""
    numbered = f"{side}.embeddings_0.weight"
    return numbered if numbered in weights else f"{side}.embeddings.weight"


def _relation(name: str, weights: Weights, said: Description) -> dict[str, Any]:
    limit = said.number("self_attention/relative_attention_max_distance", 0)
    if name in weights and limit:
        n_buckets = weights.shape(name)[0]
        return dict(relative="buckets", relative_limit=limit, relative_buckets=n_buckets)
    if name in weights:
        return dict(relative="shaw", relative_limit=weights.shape(name)[0] // 2)
    if "self_attention/rotary_dim" in said.values:
        return dict(
            relative="rotary",
            rotary_dim=said.number("self_attention/rotary_dim"),
            rotary_interleave=said.flag("self_attention/rotary_interleave", True),
            rotary_theta=said.real("self_attention/rotary_base", 10000.0),
        )
    return dict(relative="none")


def _values_of_their_own(ours: dict[str, Tensor]) -> bool:
    """Whether values have other relative positions than keys; where all have the same, those of
    values are dropped."""
    values = {n: w for n, w in ours.items() if n.endswith(".relation.values.weight")}
    own = False
    for name, table in values.items():
        del ours[name]
        keys = ours.get(name.replace("values.", ""))
        own |= keys is None or not same_numbers(table, keys)
    if own:
        ours |= {name.removesuffix(".weight"): table for name, table in values.items()}
    return own


def _inputs_and_output(
    weights: Weights, sides: dict[str, Description]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All weights but those of layers, and the switches that they tell."""
    tables = {side: weights.take(_table(weights, side)) for side in sides}
    factors = {side: _scale(said, tables[side].size(1)) for side, said in sides.items()}
    weights.shape("decoder.projection.weight")  # which must be there
    ours = weights.renamed("decoder", "", {"output": ("projection",)})
    root = tables["encoder"].size(1) ** 0.5
    scaled = all(math.isclose(factor, root, rel_tol=1e-6) for factor in factors.values())
    if not scaled and any(factor != 1 for factor in factors.values()):
        tables = {side: table * factors[side] for side, table in tables.items()}
    ours["src_embedding.token.weight"] = tables["encoder"]
    ours["tgt_embedding.token.weight"] = tables["decoder"]
    positions = {}
    for side, short in (("encoder", "src"), ("decoder", "tgt")):
        norms = {f"{side[:3]}_norm": "layer_norm", f"{short}_embedding.norm": "layernorm_embedding"}
        ours |= weights.renamed(side, "", {name: (part,) for name, part in norms.items()})
        if f"{side}.position_encodings.weight" in weights:
            positions[short] = weights.take(f"{side}.position_encodings.weight")
    n = min(map(len, positions.values()), default=MAX_POSITIONS)
    ours |= {f"{short}_embedding.position": table[:n] for short, table in positions.items()}
    # What scales the decoder's states goes into their last norm, or else into the output layer
    factor = sides["decoder"].real("scale_outputs", 1.0)
    normed = "dec_norm.weight" in ours
    for name in ("dec_norm.weight", "dec_norm.bias") if normed else ("output.weight",):
        if factor != 1 and name in ours:
            ours[name] = ours[name] * factor
    return ours, dict(scale_embedding=scaled, max_positions=n)


def _scale(said: Description, d_model: int) -> float:
    """What embeddings are multiplied by: the root of the width, 1, or the number itself."""
    scale = said.get("scale_embeddings")
    if scale is None:
        scale = said.get("embeddings/multiply_by_sqrt_depth")
    if type(scale) is float:
        return scale
    return 1.0 if scale == 0 else d_model**0.5


def _scale_queries(ours: dict[str, Tensor], layer: str, said: Description) -> None:
    """Scores may be scaled otherwise than by the root of a head's width: queries make up for it."""
    heads = said.number("num_heads", 8)
    n_parts = heads + 2 * said.number("self_attention/num_heads_kv", heads)
    width = len(ours.get(f"{layer}.self_attn.qkv.weight", ())) // max(1, n_parts)
    for attention, name in (("self_attention", "self_attn.qkv"), ("attention", "cross_attn.q")):
        said_factor = f"{attention}/queries_scale"
        factor = said.real(said_factor, 1.0) * width**0.5 if said_factor in said.values else 1.0
        for kind in ("weight", "bias"):
            stored = ours.get(f"{layer}.{name}.{kind}")
            if stored is not None and not math.isclose(factor, 1, rel_tol=1e-6):
                queries, rest = stored[: heads * width], stored[heads * width :]
                ours[f"{layer}.{name}.{kind}"] = torch.cat([queries * factor, rest])
