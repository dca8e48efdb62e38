"""Missing packages and old Python versions are reported in one line; process settings."""

import ast
import contextlib
import gc
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from onmt_lite.jobs.workers import FORK_SERVER_PROGRAM
from onmt_lite.system import resources
from onmt_lite.system.resources import speed_up_imports

ROOT = Path(__file__).resolve().parents[2]
ALL = "torch, sentencepiece, PyYAML, tqdm"
PROGRAMS = [
    ["translate.py"],
    ["translate.py", "-help"],
    ["-m", "onmt_lite"],
    ["-m", "onmt_lite.train"],
    ["-m", "onmt_lite.export"],
    ["-m", "onmt_lite.ray", "-help"],
]
# Parsed before the version of Python is checked
ANY_PYTHON = ["translate.py", "onmt_lite/__init__.py"]
OLD_PYTHONS = ["python2.7", "python3.6", "python3.7", "python3.8", "python3.9"]
IMPORTS = ["import onmt_lite", "from onmt_lite import Translator", "import onmt_lite.errors"]


@pytest.fixture
def checkout(tmp_path):
    """A directory with the program but without an environment."""
    folder = tmp_path / "check out"
    folder.mkdir()
    for name in ("translate.py", "requirements.txt"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "onmt_lite").symlink_to(ROOT / "onmt_lite")
    return folder


def start(folder, *words, path=()):
    """Return exit code and stderr of a Python with only the standard library and `path`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-S", *words], cwd=folder, env=env, capture_output=True)
    assert done.stdout == b""
    return done.returncode, done.stderr.decode("utf-8")


def format_missing_error(missing, command):
    line = f"onmt_lite: error: missing packages: {missing} ({sys.executable}); run: {command}\n"
    return 2, line


@pytest.mark.parametrize("words", PROGRAMS, ids=" ".join)
def test_missing_packages_error_contains_install_command(checkout, words):
    packages = "torch sentencepiece PyYAML tqdm"
    assert start(checkout, *words) == format_missing_error(
        ALL, f"{sys.executable} -m pip install {packages}"
    )


def test_missing_packages_of_installed_copy(tmp_path):
    (tmp_path / "onmt_lite").symlink_to(ROOT / "onmt_lite")
    for name in ("torch", "yaml"):
        (tmp_path / f"{name}.py").touch()
    command = f"{sys.executable} -m pip install sentencepiece tqdm"
    assert start(tmp_path, "-m", "onmt_lite") == format_missing_error(
        "sentencepiece, tqdm", command
    )


@pytest.mark.parametrize("code", ["runpy.run_path('translate.py', run_name='__main__')", *IMPORTS])
def test_old_python_is_rejected_in_one_line(checkout, code):
    version = "import sys, runpy; sys.version_info = (3, 9, 18, 'final', 0); "
    problem = f"Python 3.9 is too old ({sys.executable}); onmt_lite needs Python 3.10 or newer"
    assert start(checkout, "-c", version + code) == (2, f"onmt_lite: error: {problem}\n")


def has(name):
    """Return True if a Python is installed; pyenv has commands for versions that are not."""
    found = shutil.which(name)
    return bool(found) and subprocess.run([name, "-c", ""], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", OLD_PYTHONS)
def test_old_python_with_installed_copy_is_rejected_in_one_line(checkout, name):
    if not has(name):
        pytest.skip("not installed")
    version = f"Python {name.removeprefix('python')} is too old"
    line = rf"onmt_lite: error: {version} \(.*\); onmt_lite needs Python 3.10 or newer\n"
    for words in (*PROGRAMS, *(["-c", code] for code in IMPORTS)):
        done = subprocess.run([name, "-B", *words], cwd=checkout, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "") and re.fullmatch(line, done.stderr)


@pytest.mark.parametrize("name", ANY_PYTHON)
def test_entry_files_parse_under_old_syntax(name):
    tree = ast.parse((ROOT / name).read_text("utf-8"), feature_version=(3, 4))
    # What Python 2.7 lacks besides: unpacking in displays, annotations, f-strings
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.Starred, ast.AnnAssign, ast.JoinedStr)), ast.dump(node)
        assert not (isinstance(node, ast.Dict) and None in node.keys), ast.dump(node)
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None and not any(a.annotation for a in node.args.args)


def python(code, env):
    """Return the output of a Python in that environment."""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "given, expected",
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=str,
)
def test_idle_threads_spin_briefly_by_default(given, expected):
    """libgomp reads the variable when torch is imported."""
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os; from onmt_lite.system.resources import prepare_environment as p; p();"
    code += "print(os.environ.get('GOMP_SPINCOUNT'))"
    assert python(code, env | given) == expected


PRODUCTS = """
from onmt_lite.system.resources import prepare_environment
prepare_environment()
import torch
from torch.nn.functional import linear
found = set()
for k, n in ((192, 768), (768, 192), (2048, 512)):
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(n, k, generator=generator), torch.randn(320, k, generator=generator)
    torch.set_num_threads(1)
    expected = linear(x, w)
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        for m in (1, 2, 5, 7, 16, 35, 64, 320):
            found.add(torch.equal(linear(x[:m], w), expected[:m]))
print(found)
"""


def test_matrix_products_do_not_depend_on_threads_or_rows():
    """True on processors where it costs no time; JSONL then does not depend on the workers."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    if not {"GenuineIntel", "avx512f", "avx512bw"} <= flags:
        pytest.skip("another processor")
    env = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    assert python(PRODUCTS, env) == "{True}"


@pytest.mark.parametrize("error", [None, ImportError])
def test_garbage_collection_is_disabled_during_imports(error):
    """Imported objects stay exempt afterwards; new objects are collected as usual."""
    gc.collect()
    try:
        before = gc.get_freeze_count()
        with contextlib.suppress(ImportError), speed_up_imports():
            assert not gc.isenabled()
            kept = [[i] for i in range(1000)]
            if error:
                raise error
        assert gc.isenabled() and gc.get_freeze_count() >= before + len(kept)
        circle: list = []
        circle.append(circle)
        del circle
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    "platform, given, most, taken",
    [
        ("linux", "", 1 << 40, {-3: 256 << 20, -1: 512 << 20}),
        ("linux", "", 32 << 20, {-3: 32 << 20, -1: 512 << 20}),  # glibc 2.31
        ("linux", "", 0, {}),
        ("linux", "7", 1 << 40, {}),
        ("win32", "", 1 << 40, {}),
    ],
)
def test_freed_memory_is_kept_unless_user_sets_malloc(monkeypatch, platform, given, most, taken):
    """`most` is the largest mmap threshold that this C library accepts."""
    settings = {}

    def mallopt(name, value):
        takes = name != -3 or value <= most
        if takes:
            settings[name] = value
        return int(takes)

    library = types.SimpleNamespace(mallopt=mallopt)
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    if given:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", given)
    with monkeypatch.context() as patch:
        patch.setattr(resources.ctypes, "CDLL", lambda name: library)
        patch.setattr(sys, "platform", platform)
        resources.keep_freed_memory()
    assert settings == taken


FAULTS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(20 << 20)
    ctypes.memset(block, 1, 20 << 20)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages()
print(pages())
"""


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize("given", [{}, {"MALLOC_MMAP_THRESHOLD_": "100000"}])
@pytest.mark.parametrize(
    "start",
    [
        FORK_SERVER_PROGRAM.split("with speed_up_imports")[0].format(path=[str(ROOT), *sys.path]),
        "from onmt_lite import Translator; Translator.from_pretrained(device='cpu')",
    ],
    ids=["workers", "Python"],
)
def test_freed_memory_of_decoding_step_is_kept(start, given):
    """20 MB are 5,120 pages."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    assert (int(python(start + "\n" + FAULTS, {**env, **given})) < 1000) == (not given)
