"""Parts shared by the readers of convolutional models."""

from collections.abc import Callable

from onmt_lite.checkpoints.building import build
from onmt_lite.checkpoints.weights import Rules, Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.convolution import Convolution, ConvolutionConfig, Layer


def build_convolution(
    read_config: Callable[[Weights], ConvolutionConfig], weights: Weights, rules: Rules
) -> Convolution:
    """Build a model from weights with weight norm folded.  Raises CheckpointError."""
    try:
        cfg = read_config(weights)
    except ValueError as error:
        raise CheckpointError(f"{weights.path}: {error}") from None
    return build(lambda: Convolution(cfg), weights.by_rules(rules), weights.path)


def read_layers(
    weights: Weights, pattern: str, attends: Callable[[int], bool]
) -> tuple[Layer, ...]:
    """Read widths and kernels off the convolutions (2 out, kernel, in) named by `pattern`.

    pattern  the name, with {} for the number of the layer
    """
    shapes = [weights.shape(pattern.format(i), 3) for i in range(weights.count(pattern))]
    return tuple(Layer(rows // 2, kernel, attends(i)) for i, (rows, kernel, _) in enumerate(shapes))
