"""Sizes in a config are compared with the weights before any table is computed."""

import contextlib
import itertools
import json
import shutil
import struct
from pathlib import Path

import pytest
import torch

from onmt_lite.checkpoints import config_reader, native
from onmt_lite.checkpoints import weights as weights_module
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError
from onmt_lite.models import positions, transformer
from tests.support import tiny
from tests.support.ctranslate2_bin import ModelBin
from tests.support.files import assert_refused
from tests.support.sweeps import mark_sweeps

DATA = Path(__file__).parents[2] / "data"
MODELS = [
    *(DATA / "families" / name for name in ("m2m", "t5")),
    *(DATA / "checkpoints" / name for name in ("hf/marian", "marian_npz/opus", "ct2/t5_bfloat16")),
    *(DATA / "checkpoints" / name for name in ("switches/fairseq_pre_norm", "fairseq_fconv")),
    *(DATA / "checkpoints" / name for name in ("m35_st_step_2.pt", "m35_lstm_step_2.pt")),
]
DAILY = [path for path in MODELS if path.name in ("t5", "opus", "fairseq_pre_norm")]
INT32 = 3  # dtype id of CTranslate2
LARGE = 600  # wrong for these files, but smaller than one of their weights
HUGE = 10**6
MAX_TABLE = 1 << 22  # elements of a table that may be computed


@pytest.fixture
def computed(monkeypatch):
    """Return a list that collects the sizes of computed position tables."""
    sizes, make_sinusoids = [], positions.make_sinusoids

    def count_sinusoids(n, d, layout):
        sizes.append(n * d)
        return (
            make_sinusoids(n, d, layout) if n * d <= MAX_TABLE else torch.empty(n, d, device="meta")
        )

    for module in (positions, transformer, weights_module):
        monkeypatch.setattr(module, "make_sinusoids", count_sinusoids)
    return sizes


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    native.save(path, tiny.make_model(head_width=4), tiny.train_pieces())
    return path


SIZES = """
src_vocab_size tgt_vocab_size d_model heads d_ff enc_layers dec_layers max_positions
position_offset kv_heads head_width dec_heads dec_d_ff relative_limit relative_buckets
""".split()


@pytest.mark.parametrize("relative", ["none", "rotary", "alibi", "shaw", "buckets"])
@pytest.mark.parametrize("name", SIZES)
def test_load_native_false_size_is_rejected_before_computation(
    name, relative, directory, tmp_path, computed
):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    original = json.loads((directory / native.MANIFEST).read_text("utf-8"))
    is_bounded = "position" not in name and "relative" not in name  # by the weights
    for value in (*([LARGE] if is_bounded else []), HUGE, 10**9, 2**63, 10**30):
        config = original["config"] | {"relative": relative, "relative_limit": 40, name: value}
        if name.endswith("vocab_size"):
            config |= {"share_embeddings": False}
        if name == "d_model":
            config |= {"heads": 1, "head_width": 0}
        manifest = {**original, "config": config}
        manifest["sha256"] = native._checksum(manifest)
        (tmp_path / native.MANIFEST).write_text(json.dumps(manifest), "utf-8")
        with pytest.raises(CheckpointError):
            native.load(tmp_path)
    assert computed == []


@pytest.mark.parametrize("path", mark_sweeps(MODELS, DAILY), ids=lambda path: path.name)
def test_load_false_size_computes_no_large_table(path, monkeypatch, computed):
    """Each integer in a config becomes large, one at a time."""
    original_init, seen, changed, large = config_reader.ConfigReader.__init__, [], 0, HUGE

    def init_with_large_value(self, values, path):
        values = dict(getattr(values, "state", values))
        for name, value in values.items():
            if type(value) is int:
                seen.append(name)
                values[name] = large if len(seen) == changed else value
        original_init(self, values, path)

    monkeypatch.setattr(config_reader.ConfigReader, "__init__", init_with_large_value)
    load_checkpoint(path)
    numbers = range(1, len(seen) + 1)
    for changed, large in itertools.product(numbers, (5000, HUGE)):  # noqa: B007
        seen.clear()
        with contextlib.suppress(CheckpointError):
            load_checkpoint(path)
    assert len(numbers) and max(computed, default=0) <= MAX_TABLE


@pytest.mark.parametrize("value", [10**4, 10**6, 10**9])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_load_ctranslate2_false_num_heads_is_rejected(side, value, tmp_path):
    """The number of heads determines a width that no weight shows."""
    path = shutil.copytree(DATA / "checkpoints" / "ct2" / "opennmt_int16", tmp_path / "copy")
    stored = ModelBin.parse((path / "model.bin").read_bytes())
    assert f"{side}/num_heads" in stored.variables
    stored.variables[f"{side}/num_heads"] = [], INT32, struct.pack("<i", value)
    (path / "model.bin").write_bytes(stored.dump())
    assert_refused(path, "heads")
