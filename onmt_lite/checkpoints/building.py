"""Models from weights under onmt_lite's names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer

MAX_POSITIONS = 1 << 17  # a table of positions is computed, so no file bounds it
Model = TypeVar("Model", bound=nn.Module)


def build(make: Callable[[], Model], weights: Mapping[str, Tensor], path: Path) -> Model:
    """Call `make` and give the model these weights, float32.

    The model is made on the meta device and takes over the tensors: a false size in a file costs no
    memory, and no weight is held twice.  Raises CheckpointError unless names and shapes of the
    weights are exactly those of the model.
    """
    try:
        with torch.device("meta"), _Unfilled():
            model = make()
        _, unknown = model.load_state_dict(dict(weights), strict=False, assign=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[-1].strip()}") from None
    if isinstance(model, Transformer):
        model.tie()
    missing = [name for name, weight in model.named_parameters() if weight.is_meta]
    for what, names in (("missing", missing), ("unknown", unknown)):
        if names:
            raise CheckpointError(f"{path}: {len(names)} weights are {what}, first {names[0]}")
    return model.eval().requires_grad_(False)


class _Unfilled(TorchFunctionMode):
    """Skips random initialisation, which has no effect on the meta device.

    PyTorch would load its compiler for it, at more time and memory than a model of 100 MB.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.__name__ == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_transformer(
    cfg: TransformerConfig, weights: Mapping[str, Tensor], path: Path
) -> Transformer:
    """Build a Transformer, after a check of the configuration's sizes against the weights."""
    for kind, n in (("encoder", cfg.enc_layers), ("decoder", cfg.dec_layers)):
        layers = {name.split(".")[1] for name in weights if name.startswith(f"{kind}.")}
        if len(layers) != n:
            raise CheckpointError(f"{path}: {len(layers)} {kind} layers, its description says {n}")
    # Before tables of these sizes are computed, as a model is made
    tables = [w for name, w in weights.items() if name.endswith("_embedding.token.weight")]
    widest = max(n for weight in weights.values() for n in weight.shape)
    heads, d_ff = max(cfg.heads, cfg.dec_heads), max(cfg.d_ff, cfg.dec_d_ff)
    if (
        {table.shape[-1] for table in tables} != {cfg.d_model}
        or max(cfg.src_vocab_size, cfg.tgt_vocab_size, d_ff, heads * cfg.width) > widest
        or max(cfg.max_positions, cfg.position_offset) > MAX_POSITIONS
    ):
        raise CheckpointError(f"{path}: sizes in its description do not fit the weights")
    return build(lambda: Transformer(cfg), weights, path)


def finished(ours: dict[str, Tensor], rest: Weights, path: Path, **switches: Any) -> Transformer:
    """Build a Transformer of weights under our names, which tell the sizes, and of switches.

    path: the file that describes the model.  CheckpointError where the switches contradict each
    other or the weights, and where weights of the file are left in `rest`.
    """
    try:
        cfg = TransformerConfig(**{**_sizes(ours), **switches})
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    if rest.tensors:
        name = min(rest.tensors)
        raise CheckpointError(
            f"{rest.path}: {len(rest.tensors)} weights are not of a model that is read, "
            f"first {name[:100]!r}"
        )
    return build_transformer(cfg, ours, rest.path)


def _sizes(ours: dict[str, Tensor]) -> dict[str, Any]:
    src, tgt = (ours[f"{side}_embedding.token.weight"] for side in ("src", "tgt"))
    sizes: dict[str, Any] = {}
    for side, prefix in (("encoder", ""), ("decoder", "dec_")):
        n_layers = len({name.split(".")[1] for name in ours if name.startswith(f"{side}.")})
        sizes[f"{side[:3]}_layers"] = n_layers
        if f"{side}.0.ffn.up.weight" in ours:
            sizes[f"{prefix}d_ff"] = len(ours[f"{side}.0.ffn.up.weight"])
    return sizes | dict(
        src_vocab_size=len(src),
        tgt_vocab_size=len(tgt),
        d_model=tgt.size(1),
        output_bias="output.bias" in ours,
        share_embeddings=same_numbers(src, tgt),
        tie_output=same_numbers(tgt, ours["output.weight"]),
    )


NEVER = -1e9  # the logit of what is no token: its probability is 0 in every precision


def add_zero_start(ours: dict[str, Tensor]) -> None:
    """A last row of the target table for a decoder that starts from zeros, never to be said.

    The source table gets it too where both are one.
    """
    table, out = ours["tgt_embedding.token.weight"], ours["output.weight"]
    longer = torch.cat([table, table.new_zeros(1, table.size(1))])
    if same_numbers(table, ours["src_embedding.token.weight"]):
        ours["src_embedding.token.weight"] = longer
    ours["tgt_embedding.token.weight"] = longer
    tied = same_numbers(table, out)
    ours["output.weight"] = longer if tied else torch.cat([out, out.new_zeros(1, out.size(1))])
    bias = ours.get("output.bias", out.new_zeros(len(out)))
    ours["output.bias"] = torch.cat([bias, bias.new_tensor([NEVER])])


def same_numbers(one: Tensor, other: Tensor) -> bool:
    return one is other or one.shape == other.shape and torch.equal(one, other)
