"""Kernels of linear layers against plain arithmetic."""

import copy
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.workloads import Shape, random_workload
from onmt_lite import Translator
from onmt_lite.inference import runtime
from onmt_lite.models import attention, linear, processor
from onmt_lite.models.linear import BLOCK, Bytes, Int8, Int8Weight, Linear, Packed, is_right, pack
from onmt_lite.models.processor import processor_words
from tests.support import tiny
from tests.support.sweeps import swept

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
NUMBERS = st.floats(-(2.0**60), 2.0**60, width=32).filter(lambda x: x == 0 or abs(x) > 2**-100)


def sums_are_exact() -> bool:
    """Whether this processor adds up products of bytes in 32 bits; one that adds two of them in 16
    bits first (AVX2 without VNNI) cuts large sums off, and `auto` does not choose int8 there."""
    rows = Bytes(torch.full((1, 64), 255, dtype=torch.uint8), torch.ones(1, 1), 0)
    return bool((Int8Weight(torch.ones(8, 64))(rows) - 64 * 255).abs().max() < 1)


exact_sums = pytest.mark.skipif(not sums_are_exact(), reason="sums of bytes are cut off here")


def make_layer(n_inputs: int, n_outputs: int, seed: int = 0) -> Linear:
    torch.manual_seed(seed)
    layer = Linear(n_inputs, n_outputs)
    torch.nn.init.normal_(layer.weight)
    return layer.requires_grad_(False)


def as_int8(x: torch.Tensor, layer: Linear) -> torch.Tensor:
    """int8 as the textbook has it, in float64: scales per row and per output, nearest integers."""
    x, weight, bias = x.double(), layer.weight.double(), layer.bias.double()
    row, column = x.abs().amax(-1, keepdim=True) / 127, weight.abs().amax(1) / 127
    return (x / row).round() @ (weight / column[:, None]).round().T * row * column + bias


class TestInt8:
    @exact_sums
    @pytest.mark.parametrize("n_outputs", [3, 64, BLOCK, 2 * BLOCK + 7])
    @pytest.mark.parametrize("n_inputs", [1, 48, 200])
    @pytest.mark.parametrize("shape", [(1,), (7, 5), (2, 3, 4)])
    def test_is_rounded_once(self, shape, n_inputs, n_outputs):
        layer = make_layer(n_inputs, n_outputs)
        x = torch.randn(*shape, n_inputs) * torch.logspace(-8, 8, shape[-1])[:, None]
        expected = as_int8(x, layer)
        # A number half-way between two integers may go either way
        slack = 2 * x.abs().amax(-1, keepdim=True) / 127 * layer.weight.abs().amax()
        assert (Int8(layer)(x) - expected).abs().le(1e-5 * expected.abs() + slack).all()
        assert (Int8(layer)(x) - expected).abs().median() <= 1e-5 * expected.abs().median()

    @exact_sums
    def test_a_layer_without_bias(self):
        layer = Linear(64, 32, bias=False).requires_grad_(False)
        x = torch.randn(5, 64)
        assert torch.allclose(Int8(layer)(x), F.linear(x, layer.weight), atol=0.05)

    def test_zero_infinite_and_missing_numbers_stay_in_their_row(self):
        layer, x = make_layer(64, 32), torch.randn(5, 64)
        x[1], x[2, 3], x[3, 4] = 0, float("inf"), float("nan")
        alone = Int8(layer)(x[:1])
        out = Int8(layer)(x)
        assert torch.equal(out[0], alone[0])
        assert torch.equal(out[1], layer.bias)
        assert not out[2].isfinite().any() and out[3].isnan().all()
        assert out[4].isfinite().all()

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.integers(0, 39), min_size=1, max_size=60), st.integers(0, 9))
    def test_a_row_is_alone(self, rows, seed):
        layer = make_layer(130, BLOCK + 9, seed)
        x = torch.randn(40, 130, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(Int8(layer)(x[rows]), Int8(layer)(x)[rows])

    @settings(max_examples=50, deadline=None)
    @given(st.lists(NUMBERS, min_size=1, max_size=30))
    def test_bytes_are_the_nearest_integers(self, numbers):
        rows = torch.tensor([numbers])
        found = Bytes.of(rows, torch.full((len(numbers),), linear.ROUNDING + 128))
        if rows.any():
            back = (found.values.double() - found.zero) * found.step
            assert (back - rows).abs().max() <= found.step.item() * 0.5001


class TestFeedForward:
    @exact_sums
    @pytest.mark.parametrize("d_ff", [96, BLOCK, 2 * BLOCK + 40])
    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    @pytest.mark.parametrize("gated", [False, True])
    def test_is_near(self, d_ff, activation, gated):
        switches = dict(d_model=64, d_ff=d_ff, activation=activation, gated_ffn=gated)
        layer = tiny.make_model(**switches).decoder[0].ffn.requires_grad_(False)
        x = torch.randn(6, 5, 64)
        exact = layer(x)
        pack(layer, "int8")
        packed = layer(x)
        assert 0 < (packed - exact).abs().mean() < 0.04 * exact.abs().mean()
        assert torch.equal(layer(x[2:3]), packed[2:3])
        assert (layer.kernel is not None) == (activation == "relu" and not gated)
        pack(layer, "")
        assert torch.equal(layer(x), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_is_the_plain_product(dtype):
    if dtype == torch.bfloat16 and not processor_words() & {"avx512bw", "avx_ne_convert"}:
        pytest.skip("torch packs no bfloat16 for this processor")
    layer = make_layer(70, 33).to(dtype)
    x = torch.randn(4, 9, 70).to(dtype)
    assert torch.allclose(Packed(layer)(x), layer(x), rtol=1e-2 if dtype != torch.float32 else 1e-5)


def test_a_layer_that_moved_leaves_its_kernel():
    layer = make_layer(70, 33)
    pack(layer, "packed")
    assert layer.to("meta")(torch.empty(4, 70, device="meta")).shape == (4, 33)


class TestRight:
    """The check of a kernel's products."""

    @pytest.fixture(autouse=True)
    def anew(self):
        is_right.cache_clear()
        yield
        is_right.cache_clear()

    def test_of_what_works(self):
        assert is_right("packed")
        assert is_right("int8") == sums_are_exact()

    @pytest.mark.parametrize("kind", ["packed", "int8"])
    def test_of_an_operator_that_is_missing(self, kind, monkeypatch):
        class Nothing:
            def __getattr__(self, name):
                raise AttributeError(f"'_OpNamespace' object has no attribute '{name}'")

        monkeypatch.setattr(torch.ops, "mkldnn", Nothing())
        monkeypatch.setattr(torch.ops, "onednn", Nothing())
        assert not is_right(kind)

    def test_of_a_wrong_product(self, monkeypatch):
        right = Packed.__call__
        monkeypatch.setattr(Packed, "__call__", lambda self, x: 1.5 * right(self, x))
        assert not is_right("packed")

    @pytest.mark.parametrize("least", [-(2**15), -(2**31)])
    def test_of_sums_that_are_cut_off(self, least, monkeypatch):
        """As AVX2 without VNNI adds: two products of bytes in 16 bits instead of 32."""

        def cut_off(weight: torch.Tensor) -> Callable[[Bytes], torch.Tensor]:
            scale = weight.abs().amax(1) / 127
            values = (weight / scale[:, None]).round()

            def product(rows: Bytes) -> torch.Tensor:
                terms = rows.values.float()[:, None] * values  # (R, N, D)
                pairs = terms.unflatten(-1, (-1, 2)).sum(-1).clamp(least, -least - 1)
                return (pairs.sum(-1) - rows.zero * values.sum(1)) * scale

            return product

        monkeypatch.setattr(linear, "Int8Weight", cut_off)
        assert is_right("int8") == (least == -(2**31))


ZEN_4 = {"AuthenticAMD", "avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"}
ZEN_5 = ZEN_4 | {"avx_vnni"}
XEON = {"GenuineIntel", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8"}
PROCESSORS = {
    "Zen 5": (ZEN_5, ["int8", "packed", "bf16_keys"]),
    "Zen 4": (ZEN_4, ["int8", "bf16_keys"]),
    "Zen 3": ({"AuthenticAMD", "avx2"}, []),
    "Xeon with AMX": (XEON, ["int8", "bf16_keys"]),
    "Xeon with VNNI": ({"GenuineIntel", "avx512f", "avx512_vnni"}, ["int8"]),
    "Xeon without": ({"GenuineIntel", "avx2", "avx512f"}, []),
    "Intel's small cores": ({"GenuineIntel", "avx2", "avx_vnni"}, ["int8"]),
    "ARM": ({"asimd", "asimddp", "bf16", "i8mm"}, []),
    "unknown": (set(), []),
}


@pytest.mark.parametrize("features, kernels", PROCESSORS.values(), ids=PROCESSORS)
def test_kernels_by_features(features, kernels):
    """The choice is a function of the features alone."""
    every = ["int8", "packed", "bf16_keys"]
    assert [kernel for kernel in every if processor.fits(kernel, features)] == kernels
    of_layers = [kernel for kernel in kernels if kernel != "bf16_keys"]
    for is_wide in (True, False):
        chosen = {p: processor.kernels_for(p, is_wide, features) for p in runtime.DTYPES}
        auto = processor.kernels_for("auto", is_wide, features)
        assert auto == (of_layers if is_wide else [])
        assert chosen["fp32"] == [kernel for kernel in auto if kernel == "packed"]
        assert chosen["int8"] == [kernel for kernel in of_layers if kernel == "int8"]
        assert chosen["bf16"] == chosen["fp16"] == []


def test_no_clock_decides(monkeypatch):
    """Two loads choose the same, and neither asks for the time."""
    clocks = [name for name in dir(time) if re.search("time|perf_counter|monotonic", name)]
    for name in clocks:
        if callable(getattr(time, name)) and name != "struct_time":
            monkeypatch.setattr(time, name, lambda *_: pytest.fail("a clock was read"))
    chosen = []
    for _ in range(2):
        processor.processor_words.cache_clear()
        is_right.cache_clear()
        models = (tiny.make_model(d_model=256, heads=4) for _ in range(3))
        placed = [runtime.placed(m, CPU, p) for m, p in zip(models, ("auto", "fp32", "int8"))]
        kept = [model.decoder[0].cross_attn.kept for model in placed]
        chosen.append((*map(runtime.kernels_of, placed), *kept))
    assert chosen[0] == chosen[1]


class TestChoice:
    """Which precision and kernels a model gets."""

    @pytest.fixture(autouse=True)
    def right(self, monkeypatch):
        """What each kernel's check says."""
        right = {"int8": True, "packed": True}
        monkeypatch.setattr(runtime, "is_right", lambda kind: right[kind])
        monkeypatch.setattr(runtime, "processor_words", lambda: {"fpu", "avx512_vnni"})
        return right

    def made(self, precision: str, **switches: int) -> str:
        model = runtime.placed(tiny.make_model(**switches), CPU, precision)
        return runtime.precision_of(model)

    def test_auto(self, right):
        assert self.made("auto", d_model=128, heads=2) == "int8"
        assert self.made("auto", d_model=64) == "fp32"  # too small to gain
        right["int8"] = False
        assert self.made("auto", d_model=128, heads=2) == "fp32"

    def test_on_a_processor_that_is_not_made_for_it(self, monkeypatch):
        monkeypatch.setattr(runtime, "processor_words", lambda: {"fpu", "avx2"})
        assert self.made("auto", d_model=128, heads=2) == "fp32"
        assert self.made("int8") == "fp32"

    def test_asked_for(self, right):
        assert self.made("int8") == "int8"
        assert self.made("fp32", d_model=128, heads=2) == "fp32"
        right["int8"] = False
        assert self.made("int8") == "fp32"

    @pytest.mark.parametrize("features, kind", [(XEON, type(None)), (ZEN_5, Packed)])
    def test_float32_by_the_faster_product(self, features, kind, monkeypatch):
        monkeypatch.setattr(runtime, "processor_words", lambda: features)
        model = runtime.placed(tiny.make_model(d_model=128, heads=2), CPU, "fp32")
        assert type(model.output.kernel) is kind

    def test_two_precisions_share_what_stays(self):
        first = runtime.placed(tiny.make_model(), CPU, "int8")
        second = runtime.placed(first, CPU, "fp32")
        assert second is not first
        assert second.output.kernel is None and first.output.kernel is not None
        assert all(a is b for a, b in zip(first.parameters(), second.parameters(), strict=True))
        assert runtime.placed(first, CPU, "int8") is first

    def test_a_copy_has_the_kernels(self):
        model = runtime.placed(tiny.make_model(), CPU, "int8")
        assert copy.deepcopy(model).output.kernel is model.output.kernel


@pytest.mark.parametrize("every", swept([1, 4], [4]))
def test_a_sentence_is_alone_in_int8(every, german, int8_anywhere):
    """A last bit may decide how a number is rounded to a byte, so all of them must be the same."""
    translator = Translator.from_pretrained(device="cpu", precision="int8", threads=1)
    lines = german[::every]
    alone = [translator.translate([line], n_best=2)[0] for line in lines]
    for batch_size in (1, 7, 64):
        order = random.Random(batch_size).sample(range(len(lines)), len(lines))
        batches = dict(batch_type="sents", batch_size=batch_size, n_best=2)
        mixed = translator.translate([lines[i] for i in order], **batches)
        for i, found in zip(order, mixed, strict=True):
            assert [h.text for h in found.hyps] == [h.text for h in alone[i].hyps]
            scores = [h.score for h in found.hyps]
            assert scores == pytest.approx([h.score for h in alone[i].hyps], abs=1e-5)


class TestAttentionInBfloat16:
    """What int8 keeps of keys and values where products of them are fast."""

    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch, int8_anywhere):
        monkeypatch.setattr(attention, "processor_words", lambda: {"avx512_bf16"})

    def test_where_it_is_kept(self, monkeypatch):
        def kept(precision: str, **sizes: int) -> torch.dtype:
            model = runtime.placed(tiny.make_model(**sizes), CPU, precision)
            memory = model.encode(torch.tensor([[5, 6, 7]]), torch.tensor([3]))
            state = model.init_state(memory)
            model.step(torch.tensor([1]), state)
            types = {x.dtype for x in (*state.memory.values, state.past.keys)}
            assert len(types) == 1
            return types.pop()

        wide = {"d_model": 256, "heads": 4}
        with torch.inference_mode():
            assert kept("int8", **wide) == torch.bfloat16
            assert kept("fp32", **wide) == torch.float32
            assert kept("int8") == torch.float32
            monkeypatch.setattr(attention, "processor_words", lambda: {"avx512_vnni"})
            assert kept("int8", **wide) == torch.float32

    @pytest.mark.parametrize("kept_as", ["entries", "positions"])
    def test_near_the_exact_one(self, kept_as):
        torch.manual_seed(1)
        q, k, v = torch.randn(3, 4, 5, 16), torch.randn(3, 4, 20, 16), torch.randn(3, 4, 20, 16)
        mask = torch.zeros(3, 1, 5, 20).masked_fill_(torch.rand(3, 1, 5, 20) < 0.3, -torch.inf)
        exact = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        keys = k.bfloat16().transpose(-2, -1)
        if kept_as == "positions":
            keys = keys.contiguous()
        found, weights = attention.attend(q, keys, v.bfloat16(), mask)
        assert found.dtype == weights.dtype == torch.float32
        torch.testing.assert_close(found, exact, rtol=0, atol=0.03)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 5))

    @pytest.mark.parametrize("batch_size", swept([1, 5], [5]))
    def test_a_sentence_is_alone(self, batch_size, tmp_path):
        shape = Shape(2, 256, 512, 4, 300, n_lines=8, n_tokens=20)
        made = random_workload(shape, tmp_path / "wide")
        lines = [" ".join(line.split()[: 2 + 2 * i]) for i, line in enumerate(made.lines)]
        given = dict(device="cpu", precision="int8", threads=1, max_length=24, n_best=2)
        translator = Translator.from_pretrained(made.model, **given)
        together = translator.translate(lines, batch_type="sents", batch_size=8)
        others = translator.translate(lines[::-1], batch_type="sents", batch_size=batch_size)
        for one, other in zip(together, others[::-1], strict=True):
            assert [h.text for h in one.hyps] == [h.text for h in other.hyps]
            scores = [h.score for h in other.hyps]
            assert [h.score for h in one.hyps] == pytest.approx(scores, abs=1e-5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
@settings(deadline=None, max_examples=30)
def test_padding_changes_nothing(lengths):
    """Where gradients are asked for, layers compute padding, too."""
    model = tiny.make_model(enc_layers=2)
    src = torch.randint(4, 9, (len(lengths), max(lengths) + 2))
    of_tokens = torch.arange(src.size(1)) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        packed = model.read(src, torch.tensor(lengths)).bank
    padded = model.read(src, torch.tensor(lengths)).bank
    torch.testing.assert_close(packed[of_tokens], padded[of_tokens])
    assert (packed[~of_tokens] == 0).all()


@pytest.fixture(scope="module")
def german() -> list[str]:
    """Lines of many lengths."""
    lines = (ROOT / "data" / "sample.de.txt").read_text("utf-8").split("\n")[:-1]
    lines = [line for line in lines if line]
    longer = [" ".join(lines[i : i + n]) for i in range(len(lines)) for n in (2, 3)]
    return lines + [line for line in longer if len(line) < 150]
