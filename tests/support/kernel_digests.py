"""Print a digest of the results of each kernel as JSON: `python -m tests.support.kernel_digests`.

ONMT_LITE_KERNELS selects the instruction set.  Inputs cover sizes that are not multiples of a
register, many rows, NaN and infinity.  Translations with small models show that torch adds nothing
that depends on the processor; ATEN_CPU_CAPABILITY selects its instruction set.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor, nn

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import assign_kernels
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits
from tests.support import tiny

NO_TOKENS, NO_ROWS = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
ROWS = (1, 2, 5, 6, 7, 13, 16, 17, 33, 100)
SIZES = ((1, 1), (3, 17), (16, 32), (33, 31), (64, 100), (100, 65), (256, 48))  # inputs, outputs


MODELS = {
    "pre-norm": dict(),
    "post-norm": dict(pre_norm=False, final_norm=False),
    "embedding-norm": dict(embedding_norm=True, activation="silu"),
    "rms-norm": dict(norm="rms", gated_ffn=True),
}


def digest(*tensors: Tensor | None) -> str:
    """Return a hash of the bits of tensors.  All NaN count as equal."""
    sha = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            clean = torch.where(tensor.isnan(), float("nan"), tensor.float())
            sha.update(clean.contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def make_random(*shape: int, special: bool = False) -> Tensor:
    """Return random numbers; `special` adds NaN, infinity and large and small numbers.

    `torch.randn` depends on the processor, integers do not.
    """
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-8191, 8192, shape, generator=generator) / 4096
    if special:
        x.view(-1)[:: max(1, x.numel() // 7)] = torch.tensor(
            [float("nan"), float("inf"), -float("inf"), 1e30, 1e-38, -0.0, 88.0]
        ).repeat(x.numel() // 7 + 1)[: len(x.view(-1)[:: max(1, x.numel() // 7)])]
    return x


def linear_layers(
    sizes: Sequence[tuple[int, int]] = SIZES, row_counts: Sequence[int] = ROWS
) -> Iterator[tuple[str, str]]:
    """Yield (case, digest) of linear layers, feed-forward layers, logits and log-sum-exp."""
    for (d, n), is_int8, special in product(sizes, (False, True), (False, True)):
        up = kernels.Weights(make_random(n, d), make_random(n), is_int8)
        down = kernels.Weights(make_random(d, n), make_random(d), is_int8)
        layer_norm = nn.LayerNorm(d)
        norms = (None, kernels.Norm(layer_norm), kernels.Norm(nn.RMSNorm(d, eps=1e-6)))
        for rows in row_counts:
            x = make_random(rows, d, special=special)
            case = f"{rows}x{d}x{n}-{'int8' if is_int8 else 'fp32'}{'-special' * special}"
            for i, norm in enumerate(norms[1:]):
                yield f"norm-{case}-{i}", digest(kernels.normalize(x, norm))
            for i, norm in enumerate(norms):
                yield f"linear-{case}-{i}", digest(kernels.linear(x, up, norm))
            for activation in kernels.ACTIVATIONS:
                out = kernels.linear(x, up, None, activation)
                yield f"{activation}-{case}", digest(out)
                out = kernels.feed_forward(x, up, down, norms[1], activation, x)
                yield f"feed-forward-{activation}-{case}", digest(out)
            logits = torch.empty(rows, n)
            log_sums = kernels.compute_output_logits(x, up, norms[1], logits)
            yield f"logits-{case}", digest(logits, log_sums)
            ranked = kernels.rank_continuations(
                *(x, up, norms[1], torch.arange(rows, dtype=torch.int32)[None]),
                *(make_random(1, rows), min(7, rows * n), (NO_TOKENS, NO_ROWS), NO_TOKENS),
            )
            yield f"ranked-{case}", digest(*ranked)
            yield f"log-sums-{case}", digest(kernels.logsumexp(make_random(rows, 40 * n)))


def extreme_products() -> Iterator[tuple[str, str]]:
    """Yield (case, digest) of int8 products of the largest numbers, each after its exact product.

    The largest weight is 127 and the largest input 127, or 255 after ReLU, so all scales are 1.
    """
    n, rows = 40, 7
    for d, is_positive in product((1, 2, 3, 5, 64, 70, 500), (False, True)):
        signs = make_random(n, d).sign()
        heavy = signs * (127 - make_random(n, d).abs().mul(9).round())
        heavy[:, 0] = 127
        alternating = (1 - torch.arange(d) % 2 * 2) * 127.0
        pairs = (1 - torch.arange(d) // 2 % 2 * 2) * 127.0
        weights = torch.full((n, d), 127.0), alternating.repeat(n, 1), pairs.repeat(n, 1), heavy
        inputs = torch.full((rows, d), 127.0), *(w[:rows] for w in weights[1:])
        for i, (weight, x) in enumerate(product((*weights, -weights[0]), (*inputs, -inputs[0]))):
            layer = kernels.Weights(weight, None, True)
            if is_positive:  # the hidden units are the bias of the first layer
                x = (x[:1] + 128).relu().repeat(rows, 1).clamp(max=255)
                x[:, 0] = 255
                up = kernels.Weights(torch.zeros(d, 1), x[0], True)
                out = kernels.feed_forward(torch.ones(rows, 1), up, layer)
            else:
                out = kernels.linear(x, layer)
            case = f"{d}-{i}{'-positive' * is_positive}"
            yield f"exact-{case}", digest(x.long() @ weight.long().T)
            yield f"extreme-{case}", digest(out)


def attention() -> Iterator[tuple[str, str]]:
    """Yield (case, digest) of the attention kernels."""
    for width, (heads, groups), special in product(
        (5, 16, 32, 40), ((1, 1), (4, 2)), (False, True)
    ):
        columns = (heads + 2 * groups) * width
        lengths = torch.tensor([1, 2, 7, 16, 17, 40])
        starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        qkv = make_random(int(lengths.sum()), columns, special=special)
        case = f"{heads}-{groups}-{width}{'-special' * special}"
        yield f"self-{case}", digest(kernels.attend_self(qkv, starts, heads, groups))
        q = make_random(42, heads * width, special=special)
        keys, values = make_random(6, groups, width, 40), make_random(6, groups, 40, width)
        rows = torch.tensor([0, 7, 8, 15, 22, 29, 36])  # the second sentence has one row
        for needs_weights in (False, True):
            inputs = q[:36], rows, keys, values, lengths, needs_weights
            yield f"memory-{case}-{needs_weights}", digest(*kernels.attend_memory(*inputs))
        old = torch.stack([torch.randperm(500)[:20] for _ in range(42)]).int()
        past = kernels.Past(old, torch.randint(21, (42,)).int(), old[0])
        past = kernels.advance_past(past, torch.arange(42).flip(0), rows, 500)
        yield f"past-{case}", digest(past.counts, past.new_entries)
        cache = make_random(600, 2, groups, width)
        step = make_random(36, columns, special=special)
        out = kernels.attend_cached(step, rows, cache, past, heads)
        yield f"cached-{case}", digest(out, cache)


def translations() -> Iterator[tuple[str, str]]:
    """Yield (case, digest) of the scores of translations with small models."""
    preset = PRESETS["opennmt"]
    settings = dict(beam_size=4, bos_id=tiny.BOS, eos_id=tiny.EOS)
    spec = SearchSpec(preset.policy, next(iter(preset.stop_rules.values())), **settings)
    sentences = [Sentence([4 + i, 7, 30 - i, 5], SentenceLimits(12, 6)) for i in range(5)]
    for name, precision in product(MODELS, ("int8", "fp32")):
        model = tiny.make_model(d_model=40, d_ff=72, **MODELS[name])
        for weight in model.parameters():
            weight.copy_(make_random(*weight.shape) / 4)
        assign_kernels(model, precision)
        beams = [beam for _, beam in decode(model, sentences, spec, 3)]
        scores = [hypothesis.score for beam in beams for hypothesis in beam.finished]
        yield f"model-{name}-{precision}", digest(torch.tensor(scores))


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps(dict([*linear_layers(), *extreme_products(), *attention(), *translations()])))
