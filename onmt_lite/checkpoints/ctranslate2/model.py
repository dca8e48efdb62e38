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

from onmt_lite.checkpoints.config_reader import ConfigReader, load_yaml
from onmt_lite.checkpoints.weights import (
    MAX_TENSORS,
    Weights,
    add_zero_start_token,
    assemble_transformer,
    dequantize,
    has_same_values,
    is_valid_shape,
    make_tensor,
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
        version = self.get_int("I")
        if version not in VERSIONS:
            raise ValueError(
                f"a model.bin of version {version} (1: Bergamot's); CTranslate2's versions 5 and 6 "
                "are read, so convert the model again"
            )
        specification, revision = self.get_str(), self.get_int("I")
        if (specification, revision > REVISION) != (SPECIFICATION, False):
            raise ValueError(
                f"a CTranslate2 model of {specification[:50]!r}, revision {revision}; of these, "
                f"translators are read: {SPECIFICATION} up to revision {REVISION}"
            )
        variables: dict[str, Tensor] = {}
        for _ in range(self.count("variables")):
            name = self.get_str()
            if name in variables:
                raise ValueError(f"it has {name[:80]!r} twice")
            variables[name] = self.variable(name)
        # Before aliases, which share the numbers
        variables = dequantize(variables, "_scale", divide=True)
        aliases = {self.get_str(): self.get_str() for _ in range(self.count("aliases"))}
        if self.left:
            raise ValueError("longer than its fields")
        for name, other in aliases.items():
            if other not in variables or name in variables:
                raise ValueError(f"{name[:80]!r} cannot be another name of {other[:80]!r}")
        for name, tensor in variables.items():
            if tensor.dim() and tensor.is_floating_point():
                variables[name] = tensor.float()
        return version, variables | {name: variables[other] for name, other in aliases.items()}

    def variable(self, name: str) -> Tensor:
        shape = [self.get_int("I") for _ in range(self.get_int("B"))]
        kind, n_bytes = self.get_int("B"), self.get_int("I")
        if not is_valid_shape(shape) or kind >= len(TYPES):
            raise ValueError(f"{name[:80]!r} has the shape {str(shape)[:80]} and type {kind}")
        if math.prod(shape) * TYPES[kind].itemsize != n_bytes:
            raise ValueError(f"{name[:80]!r} does not have the size it claims")
        return make_tensor(self.bytes(n_bytes), TYPES[kind], shape)

    def count(self, what: str) -> int:
        n = self.get_int("I")
        if n > MAX_TENSORS:
            raise ValueError(f"{n:,} {what}, more than any model has")
        return n

    def get_str(self) -> str:
        data = self.bytes(self.get_int("H"))
        if data[-1:] != b"\0":
            raise ValueError("a name without its end")
        return data[:-1].decode("utf-8", "backslashreplace")

    def get_int(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def bytes(self, n: int) -> bytearray:
        """Read n bytes; nothing is allocated for bytes that the file does not have."""
        self.left -= n
        data = bytearray(n if self.left >= 0 else 0)
        if self.stream.readinto(data) != n:  # type: ignore[attr-defined]
            raise ValueError("cut off")
        return data


# -- The Transformer -------------------------------------------------------------------------------

MAX_POSITIONS = 5000  # where the model has no limit of its own
ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh")
LAST = {"gamma": "weight", "beta": "bias"}  # parts of names


def build_model(
    variables: dict[str, Tensor], config: ConfigReader, path: Path
) -> tuple[Transformer, bool]:
    """The model, and whether its decoder starts from zeros."""
    sides = _switches(variables, path)
    arrays = {}
    for name, variable in variables.items():
        if variable.dim():  # encoder/layer_norm/gamma -> encoder.layer_norm.weight
            scope, _, last = name.rpartition("/")
            arrays[f"{scope}.{LAST.get(last, last)}".replace("/", ".")] = variable
    weights = Weights(arrays, path)
    weights.rename("ctranslate2")
    encoder, decoder = sides.values()
    switches = _of_side(encoder, "encoder.0.self_attn.relation.weight" in weights)
    for name, value in _of_side(decoder, "decoder.0.self_attn.relation.weight" in weights).items():
        if value != switches.get(name):
            raise CheckpointError(
                f"{path}: encoder and decoder differ in {name}, which is not read"
            )
    if "src_embedding.position" not in weights:
        is_computed = switches["relative"] == "none"
        switches["positions"] = "fairseq" if is_computed else "none"
        switches |= dict(position_offset=int(is_computed), max_positions=MAX_POSITIONS)
    if switches["relative"] == "shaw":
        switches["relative_values"] = _keep_values(weights)
    switches["scale_embedding"] = _fold_factors(weights, sides)
    zero_start = decoder.get_bool("start_from_zero_embedding")
    if zero_start:
        add_zero_start_token(weights.tensors)
    layer, n_layers = decoder.get_int("alignment_layer", -1), weights.count_layers("decoder.")
    usual_eps = 1e-5 if "encoder.0.ffn_residual.norm.bias" in weights else 1e-6
    model = assemble_transformer(
        weights,
        path,
        **switches,
        heads=encoder.get_int("num_heads", 8),
        dec_heads=decoder.get_int("num_heads", 8),
        norm_eps=config.get_float("layer_norm_epsilon", usual_eps),
        align_layer=layer + 1 if layer >= 0 else n_layers + layer + 1,
        align_heads=decoder.get_int("alignment_heads", 1),
    )
    return model, zero_start


def _switches(variables: dict[str, Tensor], path: Path) -> dict[str, ConfigReader]:
    """The single numbers by side and name; before revision 5, some are of both sides."""
    known = load_yaml("weight_names.yaml")["ctranslate2_switches"]
    sides: dict[str, dict[str, Any]] = {"encoder": {}, "decoder": {}}
    for name, tensor in variables.items():
        if tensor.dim():
            continue
        side, slash, rest = name.partition("/")
        switch, value = re.sub(r"^layer_\d+/", "", rest if slash else name), tensor.item()
        is_alibi = switch == "alibi" and value
        if switch not in known or (slash and side not in sides) or is_alibi:
            raise CheckpointError(f"{path}: a model with {name[:80]!r}, which is not read")
        for values in [sides[side]] if slash else sides.values():
            if values.setdefault(switch, value) != value:
                raise CheckpointError(f"{path}: layers differ in {switch}, which is not read")
    return {side: ConfigReader(values, path) for side, values in sides.items()}


def _of_side(options: ConfigReader, has_relation: bool) -> dict[str, Any]:
    """Switches of a side, which must be those of the other one."""
    activation = options.get_int("activation", 0)
    if not 0 <= activation < len(ACTIVATIONS):
        raise CheckpointError(f"{options.path}: activation {activation} is not one that is read")
    switches = dict[str, Any](
        pre_norm=options.get_bool("pre_norm", True),
        activation=ACTIVATIONS[activation],
        relative="none",
    )
    limit = options.get_int("self_attention/relative_attention_max_distance", 0)
    if has_relation and limit:
        switches |= dict(relative="buckets", relative_limit=limit)
    elif has_relation:
        switches |= dict(relative="shaw")
    elif "self_attention/rotary_dim" in options.values:
        switches |= dict(
            relative="rotary",
            rotary_dim=options.get_int("self_attention/rotary_dim"),
            rotary_interleave=options.get_bool("self_attention/rotary_interleave", True),
            rotary_theta=options.get_float("self_attention/rotary_base", 10000.0),
        )
    return switches


def _keep_values(weights: Weights) -> bool:
    """Drop the relative positions of values if those of keys are the same in all layers.  Return
    whether they are kept."""
    names = [name for name in weights.tensors if name.endswith(".relation.values")]
    keys = [name.replace("values", "weight") for name in names]
    for name in keys:
        weights.get_shape(name)  # must be there
    pairs = ((weights.tensors[one], weights.tensors[other]) for one, other in zip(names, keys))
    if not all(has_same_values(*pair) for pair in pairs):
        return True
    weights.drop(r".*\.relation\.values")
    return False


def _fold_factors(weights: Weights, sides: dict[str, ConfigReader]) -> bool:
    """Multiply factors into the weights.

    Returns:
        Whether the embeddings are scaled by the root of their width, a factor that we have too.
    """
    tables = [f"{side}_embedding.token.weight" for side in ("src", "tgt")]
    root = [weights.get_shape(name) for name in (*tables, "output.weight")][0][1] ** 0.5
    by_table = [_embedding_factor(options, root) for options in sides.values()]
    is_usual = all(math.isclose(factor, root, rel_tol=1e-6) for factor in by_table)
    factors = {} if is_usual else dict(zip(tables, by_table))
    # The decoder's states are scaled by its last norm, or else by the output layer
    ends = (
        ["dec_norm.weight", "dec_norm.bias"] if "dec_norm.weight" in weights else ["output.weight"]
    )
    factors |= dict.fromkeys(ends, sides["decoder"].get_float("scale_outputs", 1.0))
    for name, factor in factors.items():
        if factor != 1 and name in weights:
            weights.tensors[name] = weights.tensors[name] * factor
    for side, options in sides.items():
        for i in range(weights.count_layers(f"{side}.")):
            _scale_queries(weights, f"{side}.{i}", options)
    return is_usual


def _embedding_factor(options: ConfigReader, root: float) -> float:
    """Factor of the embeddings: the root of the width, 1, or the number itself."""
    scale = options.get("scale_embeddings")
    if scale is None:
        scale = options.get("embeddings/multiply_by_sqrt_depth")
    if type(scale) is float:
        return scale
    return 1.0 if scale == 0 else root


def _scale_queries(weights: Weights, layer: str, options: ConfigReader) -> None:
    """Scores may be scaled otherwise than by the root of a head's width: queries make up for it."""
    for attention, name in (("self_attn.qkv", "self_attention"), ("cross_attn.q", "attention")):
        if f"{name}/queries_scale" not in options.values:
            continue
        n_rows = weights.get_shape(f"{layer}.self_attn.out.weight")[1]
        width = n_rows // max(1, options.get_int("num_heads", 8))
        factor = options.get_float(f"{name}/queries_scale") * width**0.5
        for kind in ("weight", "bias"):
            if (stored := weights.tensors.get(f"{layer}.{attention}.{kind}")) is not None:
                scaled = torch.cat([stored[:n_rows] * factor, stored[n_rows:]])
                weights.tensors[f"{layer}.{attention}.{kind}"] = scaled
