"""Changed checkpoints load as the same model or are refused; nothing else is raised.

What no format protects is left out: numbers in safetensors, the words of a plain text file, and
whatever a writer with a right checksum put there.
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
    ODD,
    assert_refused,
    change,
    everything,
    loads_or_is_refused,
    root_of,
)
from tests.support.sweeps import swept

# A model, and after a colon the file of its directory
ZIPS = ["onmt351_transformer.pt", "onmt120_lstm.pt", "m12_cnn_step_2.pt", "m12_copyrnn_step_2.pt"]
ZIPS += ["switches/onmt351_average.pt", "switches/fairseq_pre_norm:checkpoint.pt"]
ZIPS += ["marian_npz/opus:model.npz.best-bleu.npz"]
OURS = ["ours:model.json", "ours:weights.safetensors", "ours:sentencepiece.model"]
REST = [*OURS, "marian_npz/opus:decoder.yml"]
UNCHECKED = [
    *("leg2.pt", "marian_npz/opus:opus.spm32k.vocab.yml"),
    *("hf/marian:config.json", "hf/marian:vocab.json", "hf/marian:model.safetensors"),
    *("ct2/opennmt_int16:config.json", "ct2/opennmt_int16:target_vocabulary.json"),
]
DAILY = ["onmt120_lstm.pt", *ZIPS[-2:]]
PLAIN = ["onmt351_transformer.pt", "fairseq_transformer", "fairseq_fconv"]  # plain enough for torch


@pytest.fixture
def stored(request, tmp_path):
    """A model, and a file of it: the same where it has only one."""
    name, _, file = request.param.partition(":")
    path = request.getfixturevalue("tiny_checkpoint") if name == "ours" else DATA / name
    copy = (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / "x.pt")
    return copy, copy / file if file else copy


def changed(data: bytes, random: Random, n: int):
    """Bytes that are others, missing or repeated, at n places, a third of them near the end: a
    zip file has its directory there."""
    for i in range(n):
        first = max(0, len(data) - 4000) if i % 3 == 0 else 0
        at, size = random.randrange(first, len(data)), random.choice([1, 4, 300])
        part = data[at : at + size]
        for other in (bytes(255 - byte for byte in part), b"", part + part):
            yield data[:at] + other + data[at + size :]


@pytest.mark.parametrize("stored", swept([*ZIPS, *REST], [*DAILY, *REST]), indirect=True)
def test_bytes_changed_cut_out_and_repeated(stored):
    (path, file), n_refused = stored, 0
    original, expected = file.read_bytes(), everything(path)
    for data in changed(original, Random(1), 20):
        file.write_bytes(data)
        try:
            assert everything(path) == expected
        except CheckpointError as error:
            n_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 500
    assert n_refused > 30 or file.suffix == ".yml"


@pytest.mark.parametrize("stored", swept(UNCHECKED, UNCHECKED[1::3]), indirect=True)
def test_bytes_that_no_checksum_protects(stored):
    path, file = stored
    for data in changed(file.read_bytes(), Random(1), 20):
        file.write_bytes(data)
        loads_or_is_refused(path)


@pytest.mark.parametrize("stored", OURS, indirect=True)
def test_a_file_of_ours_that_is_cut_off_lengthened_or_missing(stored):
    path, file = stored
    data = file.read_bytes()
    # The description ends in a line feed, which it can do without
    for n in (0, len(data) // 3, 2 * len(data) // 3, len(data) - 2):
        file.write_bytes(data[:n])
        assert_refused(path)
    file.write_bytes(data + b"x")
    assert_refused(path)
    file.unlink()
    assert_refused(path, file.name)
    file.mkdir()
    assert_refused(path)


@pytest.mark.parametrize("stored", swept(ZIPS, DAILY), indirect=True)
def test_a_part_of_the_archive_is_missing(stored):
    path, file = stored
    with zipfile.ZipFile(file) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    expected = everything(path)
    for gone in Random(2).sample(sorted(parts), 12):
        with zipfile.ZipFile(file, "w") as archive:
            for name in parts.keys() - {gone}:
                archive.writestr(name, parts[name])
        try:  # an optimiser is not missed
            assert everything(path) == expected
        except CheckpointError:
            continue


# Versions, copies for another way to compute the same, tables whose length nothing else tells
UNUSED = r"version|[^.]_(weight|bias)$|\.pe\.|embed_positions"
EDITS = {
    "gone": lambda table, name: table.pop(name),
    "renamed": lambda table, name: table.update({name + "x": table.pop(name)}),
    "added": lambda table, name: table.update({"more." + name: table[name]}),
    "not finite": lambda table, name: table.update({name: table[name] * torch.inf}),
    "whole": lambda table, name: table.update({name: torch.ones_like(table[name]).long()}),
    "complex": lambda table, name: table.update({name: table[name] + 0j}),
    "empty": lambda table, name: table.update({name: table[name][..., :0]}),
    "shorter": lambda table, name: table.update({name: table[name][:-1]}),
    "deeper": lambda table, name: table.update({name: table[name][None]}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("kind", swept(PLAIN, PLAIN[1:2]))
def test_a_weight_is_not_what_it_should_be(kind, edit, tmp_path):
    copy = shutil.copytree if (DATA / kind).is_dir() else shutil.copy
    path = copy(DATA / kind, tmp_path / "x.pt")
    stored = next(path.glob("*.pt")) if path.is_dir() else path
    root = torch.load(stored, weights_only=False)
    for side in ("model", "generator"):
        names = [n for n, w in root.get(side, {}).items() if w.is_floating_point() and w.dim()]
        weights = [name for name in names if not re.search(UNUSED, name)]
        for name in Random(3).sample(weights, min(4, len(weights))):
            table = dict(root[side])
            edit(table, name)
            torch.save(root | {side: table}, stored)
            assert_refused(path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "stored",
    [*ZIPS[4:6], "hf/marian:config.json", "hf/marian:generation_config.json"],
    indirect=True,
)
def test_options_of_any_kind_raise_nothing_else(stored):
    (path, file), random = stored, Random(0)
    if file.suffix == ".json":
        original = json.loads(file.read_text("utf-8"))
        for name in original:
            change(file, **original | {name: random.choice(ODD)})
            loads_or_is_refused(path)
        return
    root = root_of(file)
    options = vars(root["opt"] if "opt" in root else root["args"])
    for name, value in [*options.items()]:
        options[name] = random.choice(ODD)
        torch.save(root, file)
        loads_or_is_refused(path)
        options[name] = value
    for value in (*ODD, {"model": {}}, {"model": {"arch": 3}, "task": 3}):  # nested, of fairseq
        torch.save(root | {"args": None, "cfg": value}, file)
        loads_or_is_refused(path)


class TestSizesThatNoModelHas:
    def refuse(self, tmp_path, data, *words):
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
            archive.writestr("x/data.pkl", b"\x80\x02" + data + b".")
            archive.writestr("x/version", "3")
        assert_refused(tmp_path / "x.pt", *words)

    def test_pickles(self, tmp_path, monkeypatch):
        self.refuse(tmp_path, b"]]\x93", "STACK_GLOBAL")  # names that are lists
        self.refuse(tmp_path, b"P" + b"x" * 100_000 + b"\n", "not a valid PyTorch model file")
        monkeypatch.setattr(pickle_check, "MAX_OPERATIONS", 1000)
        self.refuse(tmp_path, b")" + b"\x85" * 1001, "longer or copies")

    @pytest.mark.parametrize("n, shape", [(20_001, [0]), (1, [1] * 100_000)])
    def test_safetensors(self, n, shape):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * (0 not in shape)]}
        header = str({f"w{i}": entry for i in range(n)}).replace("'", '"').encode()
        with pytest.raises(ValueError):
            safetensors.parse(struct.pack("<Q", len(header)) + header + bytes(4 * (0 not in shape)))
