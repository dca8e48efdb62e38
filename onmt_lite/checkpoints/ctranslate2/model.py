"""Parses model.bin of a CTranslate2 model and builds the Transformer.

The file is little-endian: u32 version, string specification, u32 revision, u32 n, then n variables
(string name, u8 rank, u32 dimensions, u8 dtype, u32 size in bytes, data), u32 n, then n aliases
(string name, string variable). A string is a u16 length and the bytes including a final NUL.
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
DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


def read_variables(path: Path) -> tuple[int, dict[str, Tensor]]:
    """Read model.bin; raise CheckpointError if it is damaged.

    Returns:
        The binary version, and all variables by name: weights as float32, scalars as stored.
    """
    with open(path, "rb") as stream:
        try:
            return _ModelParser(stream, path.stat().st_size).parse()
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None


class _ModelParser:
    """Sequential parser of model.bin; all methods raise ValueError if the file is damaged."""

    def __init__(self, stream: BinaryIO, n_bytes: int):
        self.stream, self.n_left = stream, n_bytes

    def parse(self) -> tuple[int, dict[str, Tensor]]:
        """Parse the whole file; return the binary version and the variables by name."""
        version = self.read_int("I")
        if version not in VERSIONS:
            raise ValueError(
                f"binary version {version} is not supported (1: Bergamot); convert the model again "
                "with a CTranslate2 release that writes version 5 or 6"
            )
        specification, revision = self.read_str(), self.read_int("I")
        if (specification, revision > REVISION) != (SPECIFICATION, False):
            raise ValueError(
                f"{specification[:50]!r} revision {revision} is not supported; use a translation "
                f"model ({SPECIFICATION} up to revision {REVISION})"
            )
        variables: dict[str, Tensor] = {}
        for _ in range(self.read_count("variables")):
            name = self.read_str()
            if name in variables:
                raise ValueError(f"duplicate variable {name[:80]!r}")
            variables[name] = self.read_variable(name)
        # Before the aliases are added, because they share the tensors
        variables = dequantize(variables, "_scale", divide=True)
        aliases = {self.read_str(): self.read_str() for _ in range(self.read_count("aliases"))}
        if self.n_left:
            raise ValueError("the file is longer than its fields")
        for alias, name in aliases.items():
            if name not in variables or alias in variables:
                raise ValueError(f"{alias[:80]!r} cannot be an alias of {name[:80]!r}")
        for name, tensor in variables.items():
            if tensor.dim() and tensor.is_floating_point():
                variables[name] = tensor.float()
        return version, variables | {alias: variables[name] for alias, name in aliases.items()}

    def read_variable(self, name: str) -> Tensor:
        """Read the shape, dtype and data of a variable."""
        shape = [self.read_int("I") for _ in range(self.read_int("B"))]
        type_id, n_bytes = self.read_int("B"), self.read_int("I")
        if not is_valid_shape(shape) or type_id >= len(DTYPES):
            raise ValueError(
                f"{name[:80]!r} has the invalid shape {str(shape)[:80]} or dtype {type_id}"
            )
        if math.prod(shape) * DTYPES[type_id].itemsize != n_bytes:
            raise ValueError(f"the size of {name[:80]!r} does not match its shape and dtype")
        return make_tensor(self.read_bytes(n_bytes), DTYPES[type_id], shape)

    def read_count(self, items: str) -> int:
        """Read a number of variables or aliases, within the limit."""
        n = self.read_int("I")
        if n > MAX_TENSORS:
            raise ValueError(f"{n:,} {items} are more than any model has")
        return n

    def read_str(self) -> str:
        """Read a NUL-terminated string."""
        data = self.read_bytes(self.read_int("H"))
        if data[-1:] != b"\0":
            raise ValueError("a string is not NUL-terminated")
        return data[:-1].decode("utf-8", "backslashreplace")

    def read_int(self, code: str) -> int:
        """Read an integer; `code` is its format character in `struct`."""
        return struct.unpack(f"<{code}", self.read_bytes(struct.calcsize(f"<{code}")))[0]

    def read_bytes(self, n: int) -> bytearray:
        """Read n bytes; memory is only allocated if the file has that many."""
        self.n_left -= n
        data = bytearray(n if self.n_left >= 0 else 0)
        if self.stream.readinto(data) != n:  # type: ignore[attr-defined]
            raise ValueError("the file is truncated")
        return data


# -- The Transformer -------------------------------------------------------------------------------

MAX_POSITIONS = 5000  # limit for computed position encodings
ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh")
SUFFIXES = {"gamma": "weight", "beta": "bias"}


def build_model(
    variables: dict[str, Tensor], config: ConfigReader, path: Path
) -> tuple[Transformer, bool]:
    """Build the Transformer.

    Args:
        variables: all variables of model.bin by name.
        config: the model configuration (config.json).
        path: model.bin, for error messages.

    Returns:
        The model, and True if the decoder starts from an all-zero embedding.

    Raises:
        CheckpointError: if variables are missing, unknown or of the wrong shape, or a setting is
            not supported.
    """
    sides = _read_scalars(variables, path)
    arrays = {}
    for name, variable in variables.items():
        if variable.dim():  # encoder/layer_norm/gamma -> encoder.layer_norm.weight
            scope, _, last = name.rpartition("/")
            arrays[f"{scope}.{SUFFIXES.get(last, last)}".replace("/", ".")] = variable
    weights = Weights(arrays, path)
    weights.rename("ctranslate2")
    encoder, decoder = sides.values()
    settings = _read_side_settings(encoder, "encoder.0.self_attn.relation.weight" in weights)
    decoder_settings = _read_side_settings(
        decoder, "decoder.0.self_attn.relation.weight" in weights
    )
    for name, value in decoder_settings.items():
        if value != settings.get(name):
            raise CheckpointError(
                f"{path}: different {name} in encoder and decoder is not supported"
            )
    if "src_embedding.position" not in weights:
        is_computed = settings["relative"] == "none"
        settings["positions"] = "fairseq" if is_computed else "none"
        settings |= dict(position_offset=int(is_computed), max_positions=MAX_POSITIONS)
    if settings["relative"] == "shaw":
        settings["relative_values"] = _has_relative_values(weights)
    settings["scale_embedding"] = _fold_factors(weights, sides)
    has_zero_start = decoder.get_bool("start_from_zero_embedding")
    if has_zero_start:
        add_zero_start_token(weights.tensors)
    layer, n_layers = decoder.get_int("alignment_layer", -1), weights.count_layers("decoder.")
    default_eps = 1e-5 if "encoder.0.ffn_residual.norm.bias" in weights else 1e-6
    model = assemble_transformer(
        weights,
        path,
        **settings,
        heads=encoder.get_int("num_heads", 8),
        dec_heads=decoder.get_int("num_heads", 8),
        norm_eps=config.get_float("layer_norm_epsilon", default_eps),
        align_layer=layer + 1 if layer >= 0 else n_layers + layer + 1,
        align_heads=decoder.get_int("alignment_heads", 1),
    )
    return model, has_zero_start


def _read_scalars(variables: dict[str, Tensor], path: Path) -> dict[str, ConfigReader]:
    """Return the scalar variables by side; before revision 5, some apply to both sides.

    Raises:
        CheckpointError: for an unknown scalar, or layers with different values.
    """
    known = load_yaml("weight_names.yaml")["ctranslate2_switches"]
    sides: dict[str, dict[str, Any]] = {"encoder": {}, "decoder": {}}
    for name, tensor in variables.items():
        if tensor.dim():
            continue
        side, slash, rest = name.partition("/")
        setting, value = re.sub(r"^layer_\d+/", "", rest if slash else name), tensor.item()
        is_alibi = setting == "alibi" and value
        if setting not in known or (slash and side not in sides) or is_alibi:
            raise CheckpointError(f"{path}: {name[:80]!r} is not supported")
        for values in [sides[side]] if slash else sides.values():
            if values.setdefault(setting, value) != value:
                raise CheckpointError(f"{path}: different {setting} per layer is not supported")
    return {side: ConfigReader(values, path) for side, values in sides.items()}


def _read_side_settings(options: ConfigReader, has_relation: bool) -> dict[str, Any]:
    """Return the settings that must be equal in encoder and decoder."""
    activation = options.get_int("activation", 0)
    if not 0 <= activation < len(ACTIVATIONS):
        raise CheckpointError(f"{options.path}: activation {activation} is not supported")
    settings = dict[str, Any](
        pre_norm=options.get_bool("pre_norm", True),
        activation=ACTIVATIONS[activation],
        relative="none",
    )
    limit = options.get_int("self_attention/relative_attention_max_distance", 0)
    if has_relation and limit:
        settings |= dict(relative="buckets", relative_limit=limit)
    elif has_relation:
        settings |= dict(relative="shaw")
    elif "self_attention/rotary_dim" in options.values:
        settings |= dict(
            relative="rotary",
            rotary_dim=options.get_int("self_attention/rotary_dim"),
            rotary_interleave=options.get_bool("self_attention/rotary_interleave", True),
            rotary_theta=options.get_float("self_attention/rotary_base", 10000.0),
        )
    return settings


def _has_relative_values(weights: Weights) -> bool:
    """Return True if keys and values have different relative positions; drop equal values."""
    names = [name for name in weights.tensors if name.endswith(".relation.values")]
    keys = [name.replace("values", "weight") for name in names]
    for name in keys:
        weights.get_shape(name)  # required
    pairs = ((weights.tensors[name], weights.tensors[key]) for name, key in zip(names, keys))
    if not all(has_same_values(*pair) for pair in pairs):
        return True
    weights.drop(r".*\.relation\.values")
    return False


def _fold_factors(weights: Weights, sides: dict[str, ConfigReader]) -> bool:
    """Multiply scaling factors into the weights.

    Returns:
        True if the embedding factor is the square root of the model size. This factor is not
        folded, because our model applies it itself.
    """
    tables = [f"{side}_embedding.token.weight" for side in ("src", "tgt")]
    sqrt_d_model = [weights.get_shape(name) for name in (*tables, "output.weight")][0][1] ** 0.5
    by_table = [_get_embedding_factor(options, sqrt_d_model) for options in sides.values()]
    is_sqrt = all(math.isclose(factor, sqrt_d_model, rel_tol=1e-6) for factor in by_table)
    factors = {} if is_sqrt else dict(zip(tables, by_table))
    # Decoder states are scaled in the final norm if there is one, otherwise in the output layer
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
    return is_sqrt


def _get_embedding_factor(options: ConfigReader, sqrt_d_model: float) -> float:
    """Return the embedding factor: the square root of the model size, 1, or a stored number."""
    scale = options.get("scale_embeddings")
    if scale is None:
        scale = options.get("embeddings/multiply_by_sqrt_depth")
    if type(scale) is float:
        return scale
    return 1.0 if scale == 0 else sqrt_d_model


def _scale_queries(weights: Weights, layer: str, options: ConfigReader) -> None:
    """Scale the query projections if attention scores are not scaled by 1/sqrt(d_head).

    Args:
        weights: all tensors under our names.
        layer: prefix of the layer, such as "encoder.0".
        options: scalar variables of the side.
    """
    for attention, name in (("self_attn.qkv", "self_attention"), ("cross_attn.q", "attention")):
        if f"{name}/queries_scale" not in options.values:
            continue
        n_rows = weights.get_shape(f"{layer}.self_attn.out.weight")[1]
        width = n_rows // max(1, options.get_int("num_heads", 8))
        factor = options.get_float(f"{name}/queries_scale") * width**0.5
        for suffix in ("weight", "bias"):
            if (stored := weights.tensors.get(f"{layer}.{attention}.{suffix}")) is not None:
                scaled = torch.cat([stored[:n_rows] * factor, stored[n_rows:]])
                weights.tensors[f"{layer}.{attention}.{suffix}"] = scaled
