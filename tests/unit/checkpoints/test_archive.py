"""torch.save files are loaded as data, rejected when damaged, and never executed."""

import io
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite.checkpoints import archive, pickle_check
from onmt_lite.errors import CheckpointError
from tests.support import files
from tests.support.files import DATA, allow_one_line_error

FILES = sorted(path.name for path in DATA.glob("m*_step_2.pt"))


def read(path):
    """Load a file and check the tensors of its model."""
    content = archive.load(path)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        archive.check_state_dict(content["model"], path)
    return content


def assert_refused(path, *words):
    with pytest.raises(CheckpointError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def write_zip(path, members, **kwargs):
    with zipfile.ZipFile(path, "w", **kwargs) as out:
        for name, data in members:
            out.writestr(name, data)
    return path


def write_pickle(path, data):
    return write_zip(path, [("x/data.pkl", data), ("x/data/0", b"\0" * 16), ("x/version", "3")])


FLOAT = torch.FloatStorage


def tensor_pickle(storage=("storage", FLOAT, "0", "cpu", 4), offset=0, size=(2, 2), stride=(2, 1)):
    """Pickle {"model": {"a": tensor}} with an arbitrary description of the tensor."""

    class Tensor:
        def __reduce__(self):
            args = (Storage(), offset, size, stride, False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, args

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return storage if isinstance(obj, Storage) else None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump({"model": {"a": Tensor()}})
    return out.getvalue()


@pytest.fixture
def sample():
    shared = torch.arange(12.0).view(3, 4)
    return {
        "model": OrderedDict(a=shared, b=shared, part=shared[1:, ::2], t=shared.T),
        "half": torch.tensor([1.5, -2.0]).half(),
        "ids": torch.tensor([1, 2**40]),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3.0).bfloat16(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "plain": [None, True, False, 3, 300, -1, 70_000, 2**80, 1.5, "ä", (1,), (1, 2, 3, 4), {5}],
    }


class TestLoad:
    @pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
    def test_load_torch_save_file_equals_original(self, tmp_path, sample, new):
        torch.save(sample, tmp_path / "x.pt", _use_new_zipfile_serialization=new)
        path = tmp_path / "x.pt"
        content = archive.load(path)
        assert content["plain"] == sample["plain"]
        model = archive.check_state_dict(content["model"], path)
        for name, tensor in sample["model"].items():
            assert torch.equal(model[name], tensor), name
        assert model["a"].data_ptr() == model["b"].data_ptr()
        names = ("half", "ids", "empty", "scalar", "parameter")
        for name, tensor in archive.check_state_dict({n: content[n] for n in names}, path).items():
            assert tensor.dtype == sample[name].dtype and torch.equal(tensor, sample[name])

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_load_pickle_protocol_other_than_2_is_rejected(self, tmp_path, protocol):
        value = {"a": [1, (2, 3)], "b": {"c", "d"}, "e": "x" * 300}
        path = write_pickle(tmp_path / "x.pt", pickle.dumps(value, protocol=protocol))
        if protocol == 2:
            assert archive.load(path) == value
        else:
            assert_refused(path, f"protocol {protocol}")

    @pytest.mark.parametrize("name", FILES)
    def test_load_real_file_equals_torch_load(self, name):
        content = archive.load(DATA / name)
        assert isinstance(content["opt"], pickle_check.InertObject)
        assert content["opt"].name == "argparse.Namespace"
        assert content["opt"].get("heads") in (2, 8)
        if "model" in content:
            expected = torch.load(DATA / name, weights_only=False, pickle_module=Stubs)["model"]
            tensors = archive.check_state_dict(content["model"], DATA / name)
            assert set(tensors) == set(expected)
            assert all(torch.equal(tensors[n], expected[n]) for n in expected)

    def test_load_legacy_file_with_optimizer_object(self):
        content = archive.load(DATA / "leg2.pt")
        assert content["optim"].name == "onmt.utils.optimizers.Optimizer"
        adam = content["optim"].get("_optimizer")
        assert adam is None or adam.name == "torch.optim.adam.Adam"
        assert archive.check_state_dict(content["model"], DATA / "leg2.pt")

    def test_load_big_endian_zip_swaps_bytes(self, tmp_path):
        numbers = struct.pack(">4f", 1, 2, 3, 4)
        members = [("x/data.pkl", tensor_pickle()), ("x/data/0", numbers), ("x/version", "3")]
        path = write_zip(tmp_path / "x.pt", [*members, ("x/byteorder", b"big")])
        assert archive.load(path)["model"]["a"].tolist() == [[1, 2], [3, 4]]

    def test_load_objects_of_other_packages_are_inert(self, tmp_path):
        saved = {
            "defaults": defaultdict(list, a=[1]),
            "counts": Counter("aab"),
            "set": frozenset("a"),
            "numpy": numpy.float64(0.5),
            "partial": partial(print, 1, end=""),
        }
        data = pickle.dumps(saved, protocol=2).replace(b"print", b"float")
        content = archive.load(write_pickle(tmp_path / "x.pt", data))
        assert content["defaults"] == {"a": [1]} and content["counts"] == {"a": 2, "b": 1}
        assert content["partial"].name == "functools.partial"  # inert: not executed either
        assert content["partial"].args[0].name == "builtins.float"

    def test_load_in_threads_restores_safe_globals(self):
        before = set(torch.serialization.get_safe_globals())
        with ThreadPoolExecutor(4) as pool:
            contents = list(pool.map(archive.load, [DATA / name for name in FILES] * 3))
        assert all(content["opt"].name == "argparse.Namespace" for content in contents)
        assert set(torch.serialization.get_safe_globals()) == before


class Stubs:
    """A pickle module for torch.load that replaces toolkit classes, for these files only."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            if module.split(".")[0] in ("onmt", "torchtext") or name == "partial":
                methods = ("__init__", "__setstate__")
                return type(name, (), dict.fromkeys(methods, lambda self, *args: None))
            return super().find_class(module, name)

    load = pickle.load


class TestRejected:
    @pytest.mark.parametrize("name", ["evil.pt", "evil2.pt"])
    def test_load_malicious_file_is_rejected_without_execution(self, name, capfd):
        assert_refused(DATA / name, "posix.system" if name == "evil.pt" else "eval", "no code")
        assert "PWNED" not in "".join(capfd.readouterr())

    @pytest.mark.parametrize(
        "path",
        [
            *("os.system", "builtins.eval", "builtins.getattr", "builtins.__import__"),
            *("subprocess.Popen", "torch.load", "torch.hub.load", "torch.serialization.load"),
            *("numpy.load", "pickle.loads", "onmt", "collections.namedtuple"),
            *("functools.reduce", "argparse.Namespace.x y"),
        ],
    )
    @pytest.mark.parametrize("protocol", [2, 4])
    def test_load_unexpected_global_is_rejected(self, tmp_path, path, protocol):
        module, _, name = path.rpartition(".")
        if protocol == 2:
            head = f"c{module}\n{name}\n".encode()
        else:
            head = b"".join(b"\x8c" + bytes([len(x)]) + x.encode() for x in (module, name))
            head += b"\x93"
        data = b"\x80" + bytes([protocol]) + head + b"X\x04\x00\x00\x00true\x85R."
        words = ["refers to", "no code was executed"] if protocol == 2 else ["protocol 4"]
        assert_refused(write_pickle(tmp_path / "x.pt", data), *words)

    def test_load_compressed_member_is_rejected(self, tmp_path):
        members = [("x/data.pkl", pickle.dumps({}, 2)), ("x/data/0", b"\0" * (1 << 20))]
        path = write_zip(tmp_path / "x.pt", members, compression=zipfile.ZIP_DEFLATED)
        assert_refused(path, "compressed")

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    @pytest.mark.parametrize(
        "names",
        [
            *(["x/data.pkl", "x/../../evil"], ["x/data.pkl", "/data/0"]),
            *(["x/data.pkl", "y/data/0"], ["x/data.pkl", "x/data.pkl"]),
            *(["x/data.pkl", "x/constants.pkl"], ["x/data.pkl", "x/code/__torch__.py"]),
            *(["x/data/0", "x/version"], ["data.pkl", "data/0"], []),
        ],
        ids=str,
    )
    def test_load_unexpected_or_duplicate_member_is_rejected(self, tmp_path, names):
        path = write_zip(tmp_path / "x.pt", [(name, pickle.dumps({}, 2)) for name in names])
        assert_refused(path)

    @pytest.mark.parametrize(
        "changes",
        [
            *(dict(stride=(0, 0)), dict(size=(10**6, 10**6), stride=(0, 0)), dict(stride=(1, 1))),
            *(dict(size=(2, 3), stride=(3, 1)), dict(offset=1), dict(offset=-1)),
            *(dict(size=(-2, 2)), dict(size=(2,)), dict(size=(2**50,), stride=(1,))),
            dict(size=(2**47, 2**47, 0), stride=(1, 2**47, 1)),
            dict(size=(1,) * 17, stride=(1,) * 17),
            *(dict(size=("2", 2)), dict(size=(True, 2)), dict(storage="0")),
            *(dict(storage=("storage", FLOAT, "0", "cpu", n)) for n in (5, 10**15)),
            *(dict(storage=("storage", FLOAT, name, "cpu", 4)) for name in ("../x", "7")),
            dict(storage=("storage", torch.DoubleStorage, "0", "cpu", 4)),
            dict(storage=("module", FLOAT, "0", "cpu", 4)),
            dict(storage=("storage", "torch.FloatStorage", "0", "cpu", 4)),
            dict(storage=("storage", FLOAT, "0", "cpu")),
            dict(storage=("storage", torch.UntypedStorage, "0", "cpu", 4)),
        ],
        ids=str,
    )
    def test_load_invalid_tensor_description_is_rejected(self, tmp_path, changes):
        assert read(write_pickle(tmp_path / "good.pt", tensor_pickle()))
        assert_refused(write_pickle(tmp_path / "x.pt", tensor_pickle(**changes)))

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b".", b"\x80\x02.", b"\x80\x02N", b"\x80\x02NN.", b"\x80\x02h\x00."),
            *(b"\x80\x02}K\x01s.", b"\x80\x02}(K\x01u.", b"\x80\x02]]N\x87s."),
            *(b"\x80\x02K\x01R.", b"\x80\x02K\x01Nb.", b"\x80\x02NQ.", b"\x80\x02u.", b"I1\n."),
            *(b"\x80\x02X\xff\xff\xff\xff.", b"\x80\x02\x8b\xff\xff\xff\x7f."),
            b"\x80\x02}" + b")\x85" + b"\x85" * 200_000 + b"Ns.",
            b"\x80\x02\x8f(" + b")" + b"\x85" * 200_000 + b"\x90.",
        ],
        ids=lambda data: repr(data[:12]),
    )
    def test_load_malformed_pickle_is_rejected(self, tmp_path, data):
        assert_refused(write_pickle(tmp_path / "x.pt", data))

    @pytest.mark.parametrize(
        "start", [b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x02}.", archive.LEGACY]
    )
    def test_load_truncated_header_is_rejected(self, tmp_path, start):
        (tmp_path / "x.pt").write_bytes(start)
        assert_refused(tmp_path / "x.pt", "x.pt")

    def test_check_state_dict_non_tensor_is_rejected(self, tmp_path):
        torch.save({"w": torch.ones(2)}, tmp_path / "x.pt")
        content = archive.load(tmp_path / "x.pt")
        for state_dict in (3, {"a": 3}, {3: content["w"]}, {"a": content["w"].to_sparse()}):
            with pytest.raises(CheckpointError):
                archive.check_state_dict(state_dict, tmp_path / "x.pt")

    def test_load_big_endian_legacy_file_is_rejected(self, tmp_path):
        path = tmp_path / "x.pt"
        torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"))
        assert path.read_bytes() != data
        assert_refused(path, "big-endian")


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def name(path):
    module, _, attribute = path.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def nest_pairs(value, before, after, n=60):
    """Build a value that contains the previous value twice, n levels deep: 2^n values in total."""
    for i in range(n):
        value = before + value + b"q" + bytes([i]) + b"h" + bytes([i]) + after
    return value


DEEP = 100_000
TUPLES = nest_pairs(b")", b"", b"\x86")
LISTS = nest_pairs(b"]", b"](", b"e")
MANY = b"(" + b"N" * 990 + b"tq\1"  # a large tuple; each further use costs two opcodes
KEYS = b"}q\1(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(200_000)) + b"u"
STORAGE = b"(" + text("storage") + name("torch.FloatStorage") + text("0") + text("cpu") + b"K\x04tQ"
ORDERED = name("collections.OrderedDict") + b")R"
NAMESPACE = name("argparse.Namespace") + b")\x81"
REBUILD, PARAMETER = (name(f"torch._utils._rebuild_{suffix}") for suffix in ("tensor", "parameter"))
TENSOR = REBUILD + b"(" + STORAGE + b"K\0M\xff\xff\x85K\0\x85tR"


class TestDecompressionBombs:
    """Small files that would make torch's loader exhaust memory, hang or crash."""

    def load(self, tmp_path, data):
        """Load a file that is not a model; return None if it is rejected."""
        path = write_pickle(tmp_path / "x.pt", b"\x80\x02" + data + b".")
        files.assert_refused(path)
        with allow_one_line_error():
            return archive.load(path)

    @pytest.mark.parametrize(
        "data, word",
        {
            "deep tuples": (b")" + b"\x85" * DEEP, "tuple"),
            "deep keys": (b"})" + b"\x85" * DEEP + b"Ns", "tuple"),
            "deep sets": (name("builtins.set") * DEEP + b"]" + b"\x85R" * DEEP, "object"),
            "marks": (b"(" * DEEP, ""),
            "2^60 tuples as a key": (b"}" + TUPLES + b"Ns", "tuple"),
            "2^60 tuples in a set": (name("builtins.set") + b"](" + TUPLES + b"e\x85R", "tuple"),
            "2^60 lists called": (LISTS + b")R", "calls"),
            "2^60 lists as a class": (LISTS + b")\x81", "calls"),
            "2^60 lists as a storage": (LISTS + b"Q", "storage"),
            "a storage as a set": (name("builtins.set") + STORAGE + b"\x85R", "object"),
            "a tensor as a set": (name("builtins.set") + TENSOR + b"\x85R", "object"),
            "a hidden method": (ORDERED + b"}" + text("keys") + REBUILD + b"sb", "attributes"),
            "many copies of a set": (b"]q\0(" + b"N" * DEEP + b"e" + name("builtins.set") + b"q\1"
            + b"](" + b"h\1h\0\x85R" * 1000 + b"e\x86", "copies"),
            "calls of many values": (b"](" + name("builtins.set") + b"q\2" + MANY
            + b"h\2h\1R" * 20_000 + b"e", "copies"),
            "objects of many values": (b"](" + name("argparse.Namespace") + b"q\2" + MANY
            + b"h\2h\1R" * 20_000 + b"e", "copies"),
            "storages of many values": (b"](" + MANY + b"h\1Q" * 20_000 + b"e", "copies"),
            "many attributes, repeatedly": (b"](" + NAMESPACE + b"q\2" + KEYS
            + b"h\2h\1b" * 1000 + b"e", "copies"),
            "many dict attributes": (b"](" + ORDERED + b"q\2}q\1(" + text("_metadata") + b"q\3N"
            + b"h\3N" * 500_000 + b"uh\2h\1b" + b"h\2h\1b" * 1000 + b"e", "copies"),
            "many attributes from an instance": (b"](" + NAMESPACE + b"q\2" + ORDERED + b"q\1"
            + KEYS[KEYS.index(b"("):] + b"h\2h\1b" * 1000 + b"e", "copies"),
            "attributes from a dict": (ORDERED + ORDERED + b"b", "attributes"),
            "attributes of a tensor": (TENSOR + b"}b", "attributes"),
            "attributes of a list": (b"]}b", "attributes"),
            "slow codecs": (name("_codecs.encode") + text("a") + text("idna") + b"\x86R", "bytes"),
            "a tensor of an object": (REBUILD + b"(" + NAMESPACE + b"K\0))tR", "dtype"),
            "a parameter of an object": (PARAMETER + b"(" + NAMESPACE + b"\x88NtR", "detach"),
            "a call of a type": (name("torch.float32") + b")R", "callable"),
            "a string of 2 GiB": (b"X\xff\xff\xff\x7fabc", "2147483647"),
            "too many references": (b"]q\0(" + b"h\0" * 4_100_000 + b"e", "longer"),
        }.values(),
    )  # fmt: skip
    def test_load_bomb_is_rejected(self, tmp_path, data, word):
        assert self.load(tmp_path, data) is None
        assert_refused(tmp_path / "x.pt", word)

    @pytest.mark.parametrize(
        "data",
        [
            b"]" * DEEP + b"a" * (DEEP - 1),
            b"}" + (text("a") + b"}") * DEEP + b"s" * DEEP,
            LISTS,
            b"}(" + text("opt") + LISTS + text("vocab") + b"Nu",
            b"]q\0h\0a",
            NAMESPACE + b"K\1b",
            NAMESPACE + b"}" + text("get") + REBUILD + b"sb",
            b"](" + (b"\x8a\xff" + b"\x7f" * 255) * 1000 + b"e",
        ],
        ids=lambda data: repr(data[:12]),
    )
    def test_load_deep_or_recursive_value_terminates(self, tmp_path, data):
        assert self.load(tmp_path, data) is not None

    @pytest.mark.parametrize("numel", [5, 1000, 10**15])
    def test_load_legacy_file_with_false_storage_size_is_rejected(self, tmp_path, numel):
        path = tmp_path / "x.pt"
        torch.save({"w": torch.ones(4)}, path, _use_new_zipfile_serialization=False)
        false_size = b"\x8a\x08" + struct.pack("<q", numel)
        data = path.read_bytes()
        changed = re.sub(rb"(cpuq.)K\x04", lambda match: match[1] + false_size, data)
        assert changed != data
        path.write_bytes(changed)
        assert_refused(path)


@given(st.binary(max_size=60))
def test_load_random_bytes_raises_only_checkpoint_error(tmp_path_factory, data):
    """A pickle that passes the check is loaded or rejected by torch."""
    path = tmp_path_factory.getbasetemp() / "any.pt"
    for start in (b"", b"\x80\x02", b"\x80\x02}"):
        with allow_one_line_error():
            archive.load(write_pickle(path, start + data + b"."))


def test_load_imports_no_toolkit_and_uses_no_unpickler():
    """torch itself imports pickle, but its weights-only loader does not use it."""
    code = (
        "import sys, pickle, torch\n"
        "from pathlib import Path\n"
        "from onmt_lite.checkpoints import archive\n"
        "def forbidden(*args, **kwargs): raise AssertionError('unpickled')\n"
        "pickle.Unpickler = pickle.load = pickle.loads = forbidden\n"
        f"path = Path({str(DATA / 'm12_cnn_step_2.pt')!r})\n"
        "archive.check_state_dict(archive.load(path)['model'], path)\n"
        "assert not {'onmt', 'torchtext'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DATA.parents[2])
