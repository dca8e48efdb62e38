"""Changed checkpoints load as the same model or are refused; nothing else is raised.

What no format protects is left out: numbers in safetensors, the words of a plain text file, and
whatever a writer with a right checksum put there.
"""

import re
import shutil
import struct
import zipfile
from random import Random

import pytest
import torch

from onmt_lite.checkpoints import pickled, safetensors
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError
from tests.support.files import DATA, assert_refused
from tests.support.sweeps import swept

ZIPS = ["onmt351_transformer.pt", "onmt120_lstm.pt", "m12_cnn_step_2.pt", "m12_copyrnn_step_2.pt"]
ZIPS += ["switches/onmt351_average.pt", "switches/fairseq_pre_norm"]
DAILY = ["onmt120_lstm.pt", "switches/fairseq_pre_norm"]
PLAIN = ["onmt351_transformer.pt", "fairseq_transformer", "fairseq_fconv"]  # plain enough for torch


def everything(path):
    """What must be the same: weights, sizes and switches, vocabularies, special tokens."""
    found = load_checkpoint(path)
    weights = {name: tensor.tolist() for name, tensor in found.model.state_dict().items()}
    rest = {name: v for name, v in vars(found).items() if name not in ("model", "tokenizers")}
    return weights, vars(found.model)["cfg"], {name: str(vars(v)) if hasattr(v, "tokens") else v
                                               for name, v in rest.items()}  # fmt: skip


@pytest.fixture(params=swept(ZIPS, DAILY))
def stored(request, tmp_path):
    """A model, and its file, which is in a directory for those of fairseq."""
    path = DATA / request.param
    copy = (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / "x.pt")
    return copy, copy / "checkpoint.pt" if copy.is_dir() else copy


def test_bytes_changed_cut_out_and_repeated(stored):
    (path, file), random, n_refused = stored, Random(1), 0
    original, expected = file.read_bytes(), everything(path)
    for _ in range(20):
        at, n = random.randrange(len(original)), random.choice([1, 4, 300])
        part = original[at : at + n]
        for changed in (bytes(255 - byte for byte in part), b"", part + part):
            file.write_bytes(original[:at] + changed + original[at + n :])
            try:
                assert everything(path) == expected
            except CheckpointError as error:
                n_refused += 1
                assert "\n" not in str(error) and len(str(error)) < 500
    assert n_refused > 30


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


class TestSizesThatNoModelHas:
    def refuse(self, tmp_path, data, *words):
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
            archive.writestr("x/data.pkl", b"\x80\x02" + data + b".")
            archive.writestr("x/version", "3")
        assert_refused(tmp_path / "x.pt", *words)

    def test_names_that_are_lists(self, tmp_path):
        self.refuse(tmp_path, b"]]\x93", "STACK_GLOBAL")

    def test_long_pickles(self, tmp_path, monkeypatch):
        monkeypatch.setattr(pickled, "MAX_OPERATIONS", 1000)
        self.refuse(tmp_path, b")" + b"\x85" * 1001, "longer than any")

    def test_messages_do_not_quote_all_that_is_there(self, tmp_path):
        self.refuse(tmp_path, b"P" + b"x" * 100_000 + b"\n", "no PyTorch file")
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path / "x.pt")
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize("n, shape", [(20_001, [0]), (1, [1] * 100_000)])
    def test_safetensors(self, n, shape):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * (0 not in shape)]}
        header = str({f"w{i}": entry for i in range(n)}).replace("'", '"').encode()
        with pytest.raises(ValueError):
            safetensors.parse(struct.pack("<Q", len(header)) + header + bytes(4 * (0 not in shape)))
