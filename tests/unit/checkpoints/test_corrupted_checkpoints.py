"""A corrupted checkpoint loads as the same model or raises CheckpointError.

Not tested, because no format detects it: changed tensor data in safetensors, changed words in a
text file, and files that were written with a valid checksum.
"""

import json
import re
import shutil
import struct
import zipfile
from random import Random

import pytest
import torch

from onmt_lite.checkpoints import pickle_check, safetensors
from onmt_lite.errors import CheckpointError
from tests.support.files import (
    DATA,
    UNUSUAL_VALUES,
    assert_loads_or_refused,
    assert_refused,
    load_pickled_root,
    summarize_checkpoint,
    update_json,
)
from tests.support.sweeps import mark_sweeps

# A model file, or a model directory and one of its files after a colon
ZIPS = ["onmt351_transformer.pt", "onmt120_lstm.pt", "m12_cnn_step_2.pt", "m12_copyrnn_step_2.pt"]
ZIPS += ["switches/onmt351_average.pt", "switches/fairseq_pre_norm:checkpoint.pt"]
ZIPS += ["marian_npz/opus:model.npz.best-bleu.npz"]
NATIVE = ["native:model.json", "native:weights.safetensors", "native:sentencepiece.model"]
CHECKED = [*NATIVE, "marian_npz/opus:decoder.yml"]
UNCHECKED = [
    *("leg2.pt", "marian_npz/opus:opus.spm32k.vocab.yml"),
    *("hf/marian:config.json", "hf/marian:vocab.json", "hf/marian:model.safetensors"),
    *("ct2/opennmt_int16:config.json", "ct2/opennmt_int16:target_vocabulary.json"),
]
DAILY = ["onmt120_lstm.pt", *ZIPS[-2:]]
# torch.load can read these
PLAIN = ["onmt351_transformer.pt", "fairseq_transformer", "fairseq_fconv"]


@pytest.fixture
def stored(request, tmp_path):
    """Return a copy of a model and the path of one of its files."""
    name, _, file = request.param.partition(":")
    path = request.getfixturevalue("tiny_checkpoint") if name == "native" else DATA / name
    copy = (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / "x.pt")
    return copy, copy / file if file else copy


def corrupt(data: bytes, random: Random, n: int):
    """Yield data with bytes inverted, removed or repeated at n offsets.

    A third of the offsets are near the end, where a zip file has its directory.
    """
    for i in range(n):
        first = max(0, len(data) - 4000) if i % 3 == 0 else 0
        at, size = random.randrange(first, len(data)), random.choice([1, 4, 300])
        chunk = data[at : at + size]
        for replacement in (bytes(255 - byte for byte in chunk), b"", chunk + chunk):
            yield data[:at] + replacement + data[at + size :]


@pytest.mark.parametrize(
    "stored", mark_sweeps([*ZIPS, *CHECKED], [*DAILY, *CHECKED]), indirect=True
)
def test_load_corrupted_bytes_equals_original_or_is_rejected(stored):
    (path, file), n_refused = stored, 0
    original, expected = file.read_bytes(), summarize_checkpoint(path)
    for data in corrupt(original, Random(1), 20):
        file.write_bytes(data)
        try:
            assert summarize_checkpoint(path) == expected
        except CheckpointError as error:
            n_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 500
    assert n_refused > 30 or file.suffix == ".yml"


@pytest.mark.parametrize("stored", mark_sweeps(UNCHECKED, UNCHECKED[1::3]), indirect=True)
def test_load_corrupted_unchecked_file_raises_only_checkpoint_error(stored):
    path, file = stored
    for data in corrupt(file.read_bytes(), Random(1), 20):
        file.write_bytes(data)
        assert_loads_or_refused(path)


@pytest.mark.parametrize("stored", NATIVE, indirect=True)
def test_load_native_truncated_extended_or_missing_file_is_rejected(stored):
    path, file = stored
    data = file.read_bytes()
    # The final line feed of the manifest is optional
    for n in (0, len(data) // 3, 2 * len(data) // 3, len(data) - 2):
        file.write_bytes(data[:n])
        assert_refused(path)
    file.write_bytes(data + b"x")
    assert_refused(path)
    file.unlink()
    assert_refused(path, file.name)
    file.mkdir()
    assert_refused(path)


@pytest.mark.parametrize("stored", mark_sweeps(ZIPS, DAILY), indirect=True)
def test_load_missing_zip_member_equals_original_or_is_rejected(stored):
    path, file = stored
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    expected = summarize_checkpoint(path)
    for removed in Random(2).sample(sorted(members), 12):
        with zipfile.ZipFile(file, "w") as archive:
            for name in members.keys() - {removed}:
                archive.writestr(name, members[name])
        try:  # the optimizer is not needed
            assert summarize_checkpoint(path) == expected
        except CheckpointError:
            continue


# Versions, copies for alternative computations, and tables whose length is not checked
UNUSED = r"version|[^.]_(weight|bias)$|\.pe\.|embed_positions"
EDITS = {
    "missing": lambda table, name: table.pop(name),
    "renamed": lambda table, name: table.update({name + "x": table.pop(name)}),
    "added": lambda table, name: table.update({"extra." + name: table[name]}),
    "not finite": lambda table, name: table.update({name: table[name] * torch.inf}),
    "integer": lambda table, name: table.update({name: torch.ones_like(table[name]).long()}),
    "complex": lambda table, name: table.update({name: table[name] + 0j}),
    "empty": lambda table, name: table.update({name: table[name][..., :0]}),
    "shorter": lambda table, name: table.update({name: table[name][:-1]}),
    "deeper": lambda table, name: table.update({name: table[name][None]}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("name", mark_sweeps(PLAIN, PLAIN[1:2]))
def test_load_changed_weight_is_rejected(name, edit, tmp_path):
    copy = shutil.copytree if (DATA / name).is_dir() else shutil.copy
    path = copy(DATA / name, tmp_path / "x.pt")
    stored = next(path.glob("*.pt")) if path.is_dir() else path
    content = torch.load(stored, weights_only=False)
    for side in ("model", "generator"):
        tensors = content.get(side, {})
        names = [n for n, w in tensors.items() if w.is_floating_point() and w.dim()]
        weights = [weight for weight in names if not re.search(UNUSED, weight)]
        for weight in Random(3).sample(weights, min(4, len(weights))):
            table = dict(content[side])
            edit(table, weight)
            torch.save(content | {side: table}, stored)
            assert_refused(path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "stored",
    [*ZIPS[4:6], "hf/marian:config.json", "hf/marian:generation_config.json"],
    indirect=True,
)
def test_load_options_of_any_type_raise_only_checkpoint_error(stored):
    (path, file), random = stored, Random(0)
    if file.suffix == ".json":
        original = json.loads(file.read_text("utf-8"))
        for name in original:
            update_json(file, **original | {name: random.choice(UNUSUAL_VALUES)})
            assert_loads_or_refused(path)
        return
    content = load_pickled_root(file)
    options = vars(content["opt"] if "opt" in content else content["args"])
    for name, value in [*options.items()]:
        options[name] = random.choice(UNUSUAL_VALUES)
        torch.save(content, file)
        assert_loads_or_refused(path)
        options[name] = value
    for value in (
        *UNUSUAL_VALUES,
        {"model": {}},
        {"model": {"arch": 3}, "task": 3},
    ):  # nested, fairseq
        torch.save(content | {"args": None, "cfg": value}, file)
        assert_loads_or_refused(path)


class TestSizeLimits:
    def assert_pickle_refused(self, tmp_path, data, *words):
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
            archive.writestr("x/data.pkl", b"\x80\x02" + data + b".")
            archive.writestr("x/version", "3")
        assert_refused(tmp_path / "x.pt", *words)

    def test_load_pickle_over_operation_limit_is_rejected(self, tmp_path, monkeypatch):
        # A global whose name is a list
        self.assert_pickle_refused(tmp_path, b"]]\x93", "STACK_GLOBAL")
        self.assert_pickle_refused(
            tmp_path, b"P" + b"x" * 100_000 + b"\n", "not a valid PyTorch model file"
        )
        monkeypatch.setattr(pickle_check, "MAX_OPERATIONS", 1000)
        self.assert_pickle_refused(tmp_path, b")" + b"\x85" * 1001, "longer or copies")

    @pytest.mark.parametrize("n, shape", [(20_001, [0]), (1, [1] * 100_000)])
    def test_safetensors_header_over_tensor_limit_is_rejected(self, n, shape):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * (0 not in shape)]}
        header = str({f"w{i}": entry for i in range(n)}).replace("'", '"').encode()
        with pytest.raises(ValueError):
            safetensors.parse(struct.pack("<Q", len(header)) + header + bytes(4 * (0 not in shape)))
