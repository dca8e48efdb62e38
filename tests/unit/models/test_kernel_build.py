"""How the library of the kernels is found and compiled, and what happens without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_lite.models.kernels import build

ROOT = Path(__file__).parents[3]
TILES = ROOT / "tests/support/emulated_tiles.h"
SETS = build.list_supported_sets()
HAS_LIBRARY = (
    "from onmt_lite.models.kernels.bindings import get_library; print(get_library() is not None)"
)
pytestmark = pytest.mark.skipif(not build.list_supported_sets(), reason="no kernels for this CPU")

# A fake compiler: copies $SOURCE to its output, and logs each call
COMPILER = """#!/bin/sh
echo called >> "$CALLS"
while [ "$1" != -o ]; do shift; done
sleep 0.2
cat "$SOURCE" > "$2"
"""


@pytest.fixture
def count_compilations(tmp_path, monkeypatch):
    """Install a compiler that copies a file; return a function that counts its calls."""
    compiler, calls, home = tmp_path / "cc", tmp_path / "calls", tmp_path / "home"
    compiler.write_text(COMPILER, encoding="utf-8")
    compiler.chmod(0o755)
    (tmp_path / "compiled").write_bytes(b"a library")
    for name, value in {"CC": compiler, "CALLS": calls, "SOURCE": tmp_path / "compiled"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.delenv("ONMT_LITE_KERNELS", raising=False)
    return lambda: calls.read_text(encoding="utf-8").count("called") if calls.exists() else 0


def test_find_library_compiles_once(count_compilations, tmp_path):
    first = build.find_library()
    assert first.read_bytes() == b"a library" and count_compilations() == 1
    assert first.parent == tmp_path / "home" / "onmt_lite"
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert build.find_library() == first and count_compilations() == 1


def test_find_library_in_two_processes_compiles_once(count_compilations):
    program = "from onmt_lite.models.kernels import build; print(build.find_library())"
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    found = {process.communicate()[0] for process in both}
    assert len(found) == 1 and b"onmt_lite" in found.pop()
    assert count_compilations() == 1


@pytest.mark.parametrize("damage", ["truncated", "other bytes", "link"])
def test_find_library_recompiles_modified_file(count_compilations, tmp_path, damage):
    first = build.find_library()
    if damage == "link":
        first.rename(tmp_path / "elsewhere")
        first.symlink_to(tmp_path / "elsewhere")
    else:
        first.write_bytes(b"a lib" if damage == "truncated" else b"other")
    again = build.find_library()
    assert again == first and again.read_bytes() == b"a library" and not again.is_symlink()
    assert count_compilations() == 2


def test_find_library_recompiles_for_changed_source(count_compilations, tmp_path, monkeypatch):
    first = build.find_library()
    source = tmp_path / "kernels.c"
    source.write_text("int other;", encoding="utf-8")
    monkeypatch.setattr(build, "SOURCES", (source,))
    assert build.find_library() != first and count_compilations() == 2


def test_find_library_prefers_installed_library(count_compilations, tmp_path, monkeypatch):
    installed = tmp_path / f"library_{build.SETS[build.list_supported_sets()[0]].library}.so"
    installed.write_bytes(b"")
    monkeypatch.setattr(build, "SOURCE", tmp_path / "kernels.c")
    assert build.find_library() == installed and count_compilations() == 0


def test_find_library_uses_next_set_if_best_set_fails(count_compilations, tmp_path, monkeypatch):
    """A compiler may be too old for the best set."""
    monkeypatch.setattr(build, "list_candidate_sets", lambda: ("avxvnni", "avx2"))
    compiler = tmp_path / "cc"
    source = compiler.read_text(encoding="utf-8")
    fails = 'case "$*" in *AVXVNNI*) exit 1;; esac'
    compiler.write_text(source.replace("#!/bin/sh\n", f"#!/bin/sh\n{fails}\n"), encoding="utf-8")
    assert build.find_library().name.startswith("kernels-avx2-") and count_compilations() == 1


def test_describe_kernels_does_not_compile(count_compilations):
    assert build.describe_kernels() == "not compiled yet" and count_compilations() == 0


@pytest.mark.parametrize("case", ["no compiler", "a compiler that fails", "no home", "shared"])
def test_find_library_returns_none_if_it_cannot_compile(
    count_compilations, tmp_path, monkeypatch, case
):
    home = tmp_path / "home"
    if case == "no compiler":
        monkeypatch.setenv("CC", str(tmp_path / "missing"))
    elif case == "a compiler that fails":
        monkeypatch.setenv("SOURCE", str(tmp_path / "missing"))
        (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    elif case == "no home":
        home.write_text("a file", encoding="utf-8")
    else:  # other users can write to the directory
        (home / "onmt_lite").mkdir(parents=True)
        (home / "onmt_lite").chmod(0o777)
    assert build.find_library() is None
    if case != "no home":
        assert not list(home.rglob("*.so"))


@pytest.mark.parametrize("case", ["no compiler", "not a library"])
def test_translation_without_library_equals_translation_with_it(
    count_compilations, tmp_path, monkeypatch, case
):
    """In fp32."""
    given = dict(cwd=ROOT, capture_output=True, text=True)
    command = [sys.executable, "translate.py", "-quiet", "-precision", "fp32"]
    command += ["-workers", "1", "-with_score"]
    if case == "no compiler":
        monkeypatch.setenv("CC", str(tmp_path / "missing"))
    check = subprocess.run([sys.executable, "-c", HAS_LIBRARY], **given)
    assert check.stdout == "False\n", check.stderr
    without = subprocess.run(command, input="Guten Morgen!\nDas Haus ist alt.\n", **given)
    monkeypatch.delenv("CC")
    monkeypatch.delenv("XDG_CACHE_HOME")
    with_library = subprocess.run(command, input="Guten Morgen!\nDas Haus ist alt.\n", **given)
    assert without.returncode == with_library.returncode == 0, without.stderr

    def parse(text: str) -> tuple[list[str], list[float]]:
        lines = [line.split("\t") for line in text.splitlines()]
        return [line[0] for line in lines], [float(line[1]) for line in lines]

    texts, scores = parse(with_library.stdout)
    assert len(texts) == 2 and parse(without.stdout)[0] == texts
    assert parse(without.stdout)[1] == pytest.approx(scores, abs=1e-4)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("instruction_set", "tiles"),  # few rows do not use the tiles, so AVX-512 runs once
    [*((n, "") for n in SETS if n not in ("amx", "avx512")), ("avx512", f"-include {TILES}")],
)
def test_kernels_pass_address_and_undefined_behavior_sanitizers(tmp_path, instruction_set, tiles):
    """Run every kernel with both sanitizers: all sets of this machine, and emulated AMX."""
    if instruction_set not in SETS:
        pytest.skip(f"this CPU does not support {instruction_set}")
    found = [
        subprocess.run(["cc", f"-print-file-name={name}.so"], capture_output=True, text=True)
        for name in ("libasan", "libubsan")
    ]
    libraries = [result.stdout.strip() for result in found]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("the compiler has no sanitizers")
    compiler = tmp_path / "cc"
    checks = f"{tiles} -g -O2 -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    compiler.write_text(f'#!/bin/sh\nexec cc {checks} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    environment = {
        **os.environ,
        **{"CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path), "LD_PRELOAD": " ".join(libraries)},
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaks at exit
        build.VARIABLE: instruction_set,
    }
    command = [sys.executable, "-m", "tests.support.kernel_digests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert list(tmp_path.rglob("*.so"))
