"""Linear layers: choice of the kernel, and accuracy of each kernel."""

import copy
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.inference import runtime
from onmt_lite.models import linear
from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.models.linear import (
    KERNELS,
    CKernel,
    Linear,
    OneDnnKernel,
    assign_kernels,
    choose_kernel,
)
from onmt_lite.system import processor
from tests.support import tiny
from tests.support.sweeps import mark_sweeps

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
needs_library = pytest.mark.skipif(
    kernels.get_library() is None, reason="this machine has no kernels"
)
INT8_KERNELS = [pytest.param("int8", marks=needs_library), "rounded"]


def make_layer(n_inputs: int, n_outputs: int, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    layer = Linear(n_inputs, n_outputs, bias=bias)
    torch.nn.init.normal_(layer.weight)
    return layer.requires_grad_(False)


def compute_int8(x: torch.Tensor, layer: Linear) -> torch.Tensor:
    """Compute int8 in float64, with scales per row and per output and nearest integers."""
    x, weight = x.double(), layer.weight.double()
    row, column = x.abs().amax(-1, keepdim=True) / 127, weight.abs().amax(1) / 127
    out = (x / row).round() @ (weight / column[:, None]).round().T * row * column
    return out if layer.bias is None else out + layer.bias


@pytest.mark.parametrize("kernel", INT8_KERNELS)
class TestInt8:
    @pytest.mark.parametrize("n_outputs", [3, 64, 519])
    @pytest.mark.parametrize("n_inputs", [1, 48, 200])
    @pytest.mark.parametrize("shape", [(1,), (7, 5), (2, 3, 4)])
    def test_int8_equals_the_definition(self, kernel, shape, n_inputs, n_outputs):
        layer = make_layer(n_inputs, n_outputs, bias=n_outputs != 64)
        x = torch.randn(*shape, n_inputs) * torch.logspace(-8, 8, shape[-1])[:, None]
        expected = compute_int8(x, layer)
        assign_kernels(layer, kernel)
        # A value halfway between two integers may be rounded either way
        tolerance = 2 * x.abs().amax(-1, keepdim=True) / 127 * layer.weight.abs().amax()
        assert (layer(x) - expected).abs().le(1e-5 * expected.abs() + tolerance).all()
        assert (layer(x) - expected).abs().median() <= 1e-5 * expected.abs().median()

    def test_int8_zero_infinite_and_nan_inputs_affect_their_row_only(self, kernel):
        layer, x = make_layer(64, 32), torch.randn(5, 64)
        assign_kernels(layer, kernel)
        x[1], x[2, 3], x[3, 4] = 0, float("inf"), float("nan")
        out = layer(x)
        torch.testing.assert_close(out[0], layer(x[:1])[0])
        assert torch.equal(out[1], layer.bias)
        assert not out[2].isfinite().any() and out[3].isnan().all()
        assert out[4].isfinite().all()


@pytest.mark.parametrize(
    "kernel", [*INT8_KERNELS, pytest.param("fp32", marks=needs_library), "packed"]
)
@pytest.mark.parametrize("activation", [*linear.ACTIVATIONS][1:])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_with_kernel_is_close_to_torch(kernel, activation, gated):
    """With norm and residual, which not all kernels compute."""
    switches = dict(d_model=64, d_ff=136, activation=activation, gated_ffn=gated)
    layer = tiny.make_model(**switches).decoder[0].requires_grad_(False)
    x, ffn, norm = torch.randn(6, 5, 64), layer.ffn, layer.ffn_residual.norm
    exact = ffn(x, norm, x)
    assign_kernels(layer, kernel)
    found, allowed = ffn(x, norm, x), 0.04 if kernel in ("int8", "rounded") else 1e-5
    assert (found - exact).abs().mean() < allowed * (exact - x).abs().mean()
    torch.testing.assert_close(ffn(x[2:3], norm, x[2:3]), found[2:3])
    assign_kernels(layer, "")
    assert torch.equal(ffn(x, norm, x), exact)


def test_layer_on_another_device_does_not_use_its_kernel():
    layer = make_layer(70, 33)
    assign_kernels(layer, "rounded")
    assert layer.to("meta")(torch.empty(4, 70, device="meta")).shape == (4, 33)


ZEN_5 = {"AuthenticAMD", "avx2", "avx512f", "avx512_vnni", "avx_vnni"}
XEON = {"GenuineIntel", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8"}


class TestChooseKernel:
    """The kernel of a Transformer, with and without the C library."""

    @pytest.fixture
    def no_library(self, monkeypatch):
        monkeypatch.setattr(kernels, "get_library", lambda: None)
        monkeypatch.setattr(linear, "read_cpu_flags", lambda: XEON)

    @needs_library
    def test_choose_kernel_with_library(self):
        chosen = {p: choose_kernel(p, is_wide=True) for p in ("auto", *runtime.DTYPES)}
        expected = {"auto": "int8", "fp32": "fp32", "int8": "int8", "bf16": "", "fp16": ""}
        assert chosen == expected
        narrow = {p: choose_kernel(p, is_wide=False) for p in ("auto", *runtime.DTYPES)}
        assert narrow == expected | {"auto": "fp32"}  # too small for a speedup

    def test_choose_kernel_without_library(self, no_library, monkeypatch):
        for is_wide in (True, False):
            chosen = {p: choose_kernel(p, is_wide) for p in ("auto", *runtime.DTYPES)}
            expected = {"auto": "", "fp32": "", "int8": "rounded", "bf16": "", "fp16": ""}
            assert chosen == expected
        monkeypatch.setattr(linear, "read_cpu_flags", lambda: ZEN_5)
        assert [choose_kernel("auto", wide) for wide in (True, False)] == ["packed", ""]

    def test_choose_kernel_without_private_operators_uses_torch(self, no_library, monkeypatch):
        monkeypatch.setattr(linear, "read_cpu_flags", lambda: ZEN_5)
        model, x = tiny.make_model(d_model=128), torch.tensor([[4, 5, 6]])
        expected = model.encode(x, torch.tensor([3])).bank
        assert runtime.get_kernels(runtime.move_to(model, CPU, "auto")) == "packed"
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
        found = runtime.move_to(model, CPU, "auto")
        assert runtime.get_kernels(found) == "" and found.encoder[0].ffn.up.kernel is None
        assert torch.equal(found.encode(x, torch.tensor([3])).bank, expected)

    def test_choose_kernel_precision_of_models(self, no_library):
        chosen = {
            (precision, width): runtime.move_to(tiny.make_model(d_model=width), CPU, precision)
            for precision in ("auto", "int8")
            for width in (64, 128)
        }
        assert {key: runtime.get_precision(model) for key, model in chosen.items()} == {
            ("auto", 64): "fp32",
            ("auto", 128): "fp32",
            ("int8", 64): "int8",
            ("int8", 128): "int8",
        }

    @needs_library
    def test_choose_kernel_does_not_depend_on_timing(self, monkeypatch):
        """Two loads choose the same kernels, and no clock is read."""
        clocks = [name for name in dir(time) if re.search("time|perf_counter|monotonic", name)]
        for name in clocks:
            if callable(getattr(time, name)) and name != "struct_time":
                monkeypatch.setattr(time, name, lambda *_: pytest.fail("a clock was read"))
        chosen = []
        for _ in range(2):
            processor.read_cpu_flags.cache_clear()
            models = (tiny.make_model(d_model=256, heads=4) for _ in range(3))
            moved = [runtime.move_to(m, CPU, p) for m, p in zip(models, ("auto", "fp32", "int8"))]
            chosen.append([*map(runtime.get_kernels, moved)])
        assert chosen[0] == chosen[1] == ["int8", "fp32", "int8"]

    @needs_library
    def test_move_to_another_precision_shares_parameters(self):
        first = runtime.move_to(tiny.make_model(), CPU, "int8")
        second = runtime.move_to(first, CPU, "fp32")
        assert second is not first
        assert second.output.kernel is not first.output.kernel
        assert all(a is b for a, b in zip(first.parameters(), second.parameters(), strict=True))
        assert runtime.move_to(first, CPU, "int8") is first

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_copied_layer_shares_its_kernel(self, kernel):
        if kernels.get_library() is None and kernel in linear.C_KERNELS:
            pytest.skip("this machine has no kernels")
        layer = make_layer(64, 32)
        assign_kernels(layer, kernel)
        assert copy.deepcopy(layer).kernel is layer.kernel
        assert isinstance(layer.kernel, (CKernel, OneDnnKernel, linear.RoundedKernel))


@needs_library
@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("every", mark_sweeps([1, 4], [4]))
def test_translation_does_not_depend_on_the_batch(precision, every, german):
    """Scores and alignments are bitwise equal in batches of any size and order."""
    given = dict(device="cpu", precision=precision, threads=1, report_align=True, n_best=2)
    translator = Translator.from_pretrained(**given)
    lines = german[::every]
    single = [translator.translate([line])[0].hyps for line in lines]
    for batch_size in (1, 7, 64):
        order = random.Random(batch_size).sample(range(len(lines)), len(lines))
        batches = dict(batch_type="sents", batch_size=batch_size)
        batched = translator.translate([lines[i] for i in order], **batches)
        for i, found in zip(order, batched, strict=True):
            assert found.hyps == single[i]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
@settings(deadline=None, max_examples=30)
def test_encoder_packed_equals_padded(lengths):
    """With gradients enabled, layers also compute the padding."""
    model = tiny.make_model(enc_layers=2)
    src = torch.randint(4, 9, (len(lengths), max(lengths) + 2))
    is_token = torch.arange(src.size(1)) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        packed = model.run_encoder(src, torch.tensor(lengths)).bank
    padded = model.run_encoder(src, torch.tensor(lengths)).bank
    torch.testing.assert_close(packed[is_token], padded[is_token])
    assert (packed[~is_token] == 0).all()


@pytest.fixture(scope="module")
def german() -> list[str]:
    """Lines of many lengths."""
    lines = (ROOT / "data" / "sample.de.txt").read_text("utf-8").split("\n")[:-1]
    lines = [line for line in lines if line]
    longer = [" ".join(lines[i : i + n]) for i in range(len(lines)) for n in (2, 3)]
    return lines + [line for line in longer if len(line) < 150]
