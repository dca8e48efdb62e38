"""The wheel, installed in a fresh environment without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import onmt_lite
from onmt_lite.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
IN_THE_WHEEL = ["pyproject.toml", "README.md", "LICENSE", "onmt_lite", "data", "configs"]
# Packages and commands of the wheels of OpenNMT-py 1.2, 2.3 and 3.5.1
OPENNMT_PACKAGE = "onmt"
OPENNMT_COMMANDS = (
    "onmt_average_models onmt_build_vocab onmt_preprocess onmt_release_model onmt_server "
    "onmt_train onmt_translate onmt_translate_dynamic"
).split()
GERMAN = "Guten Morgen!\nWo ist der Bahnhof?\n"


def pip(*words):
    subprocess.run([sys.executable, "-m", "pip", "--no-input", *map(str, words)], check=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel; other packages come from the current one."""
    folder = tmp_path_factory.mktemp("installed")
    source, venv = folder / "source", folder / "venv"
    source.mkdir()
    for name in IN_THE_WHEEL:  # a copy: building leaves files behind
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    (site,) = venv.glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(paths), encoding="utf-8")
    return venv


@pytest.fixture
def run(environment, tmp_path):
    """run(command, *words) -> standard output; in an empty directory."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(command, *words, stdin="", code=0, err=None):
        words = [environment / "bin" / command, *words]
        done = subprocess.run(
            words, cwd=tmp_path, env=outside, input=stdin.encode(), capture_output=True
        )
        assert done.returncode == code, done.stderr
        if err is not None:
            assert done.stderr.decode("utf-8") == err
        return done.stdout.decode("utf-8")

    return run


@pytest.fixture
def from_checkout(tmp_path, monkeypatch, capfdbinary):
    """Run the same command with the checkout, in this process."""
    monkeypatch.chdir(ROOT)

    def run(*words, stdin=""):
        (tmp_path / "stdin").write_text(stdin, encoding="utf-8")
        capfdbinary.readouterr()
        with open(tmp_path / "stdin", "rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main(list(words)) == 0
        return capfdbinary.readouterr().out.decode("utf-8")

    return run


def test_wheel_installed_with_opennmt_py_overwrites_nothing(environment):
    (path,) = environment.parent.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        packages = {name.split("/")[0] for name in wheel.namelist()}
        (entries,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
        lines = wheel.read(entries).decode("utf-8").splitlines()
    (about,) = (name for name in packages if name.endswith(".dist-info"))
    assert packages == {"onmt_lite", about} and OPENNMT_PACKAGE not in packages
    commands = {line.split(" = ")[0] for line in lines if " = " in line}
    assert commands == {"onmt_lite", "onmt_lite_train", "onmt_lite_export"}
    assert commands.isdisjoint(OPENNMT_COMMANDS)
    assert all((environment / "bin" / command).exists() for command in commands)


def test_wheel_shipped_model_translates(run, from_checkout, environment):
    where = run("python", "-c", "import onmt_lite; print(onmt_lite.__file__)")
    assert Path(where).is_relative_to(environment)
    exact = "-precision", "fp32"
    expected = from_checkout(*exact, stdin=GERMAN)
    assert "Good morning" in expected
    assert run("onmt_lite", *exact, stdin=GERMAN, err="") == expected
    words = "-m", "onmt_lite", "-model", "de-en", *exact
    assert run("python", *words, stdin=GERMAN) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["nbest", "nbest.yaml", "configs/nbest.yaml"])
def test_wheel_shipped_config_by_name(run, from_checkout, name):
    expected = from_checkout("-config", "configs/nbest.yaml", "-print_config")
    found = run("onmt_lite", "-config", name, "-print_config")
    values = [line.split("  # ")[0] for line in found.splitlines()]
    assert values == [line.split("  # ")[0] for line in expected.splitlines()]
    assert "n_best: 5" in values
    # One that names a shipped model
    expected = from_checkout("-config", "configs/searches.yaml", stdin="x x\n")
    assert run("onmt_lite", "-config", "searches", stdin="x x\n") == expected


@pytest.mark.sweep
@pytest.mark.parametrize(
    "command",
    [["onmt_lite"], ["python", "-m", "onmt_lite"], ["onmt_lite_train"], ["onmt_lite_export"]],
)
def test_wheel_version_and_help(run, command):
    version = run(*command, "-version", err="")
    assert version.startswith(f"onmt_lite {onmt_lite.__version__} (")
    assert version.count("\n") == 1
    assert run(*command, "-help", err="").startswith(" ".join(command) + " ")


@pytest.mark.sweep
def test_wheel_train_and_export_commands(run, tmp_path):
    assert run("onmt_lite_train", "-config", "train-small", "-print_config").startswith("train: ")
    run("onmt_lite_export", "-model", "de-en", "-to", "opennmt-py", "-output", "de-en.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["de-en.model", "de-en.pt"]
    # The table of names from other tools is there too
    error = "onmt_lite: error: unknown option num_beams; use beam_size instead (command line)\n"
    run("onmt_lite", "-num_beams", "5", code=2, err=error)


@pytest.mark.sweep
def test_wheel_from_python(run):
    code = (
        "import importlib.util; from onmt_lite import Translator; "
        "assert importlib.util.find_spec('tests') is None; "
        "translator = Translator.from_pretrained('data/de-en'); "
        "print(translator.translate(['Guten Morgen!'])[0].hyps[0].text)"
    )
    assert run("python", "-c", code, err="").startswith("Good morning")
    out = run("python", ROOT / "examples" / "draw_search.py", "Ja.", err="")
    assert out.startswith("Ja.\n\nstep ")


USER_SCRIPT = """
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

from onmt_lite import (
    Beam,
    CheckpointError,
    DataError,
    FileError,
    Hypothesis,
    MemoryExhausted,
    OnmtLiteError,
    OptionError,
    TranslateOptions,
    Translation,
    Translator,
    __version__,
    load_checkpoint,
    load_options,
)


def show(n_lines: int, n_tokens: int) -> None: ...


def books(beam: Beam) -> list[list[int]]:
    return beam.next_ys


translator = Translator.from_pretrained(Path("de-en"), threads=1)
assert_type(translator, Translator)
found = translator.translate(["a"], n_best=2, progress=show)
assert_type(found, list[Translation])
assert_type(found[0].text, str)
assert_type(found[0].hyps, list[Hypothesis])
assert_type(found[0].hyps[0].score, float)
assert_type(found[0].notes, tuple[str, ...])
assert_type(found[0].to_dict(), dict[str, Any])
assert_type(translator.score(["a"], ["b"]), list[float | None])
for t in translator.translate_stream(line for line in ["a"]):
    assert_type(t, Translation)
assert_type(translator.translate_file("a", Path("b")).n_lines, int)
assert_type(TranslateOptions.of(beam_size=3).search.beam_size, int)
assert_type(load_options(["-n_best", "2"])[0], TranslateOptions)
assert_type(load_checkpoint("x").eos_id, int)
assert_type(__version__, str)
try:
    print(translator.translate(["a"])[0])
except (CheckpointError, DataError, FileError, MemoryExhausted, OptionError) as error:
    base: OnmtLiteError = error
assert_type(OptionError("a").problems, tuple[str, ...])
"""

MISTAKES = {
    "from onmt_lite import Translater": 'no attribute "Translater"',
    "onmt_lite.nothing": 'no attribute "nothing"',
    "t.texts": '"Translation" has no attribute "texts"',
    "t.hyps[0].scoer": '"Hypothesis" has no attribute "scoer"',
    "translator.translate([1])": 'expected "str"',
    "translator.translate_stream(5)": 'expected "Iterable[str]"',
    "translator.score(['a'], [None])": 'expected "str"',
    "translator.translate('a', beam_size='3')": "No overload variant",
    "translator.translate_stream(['a'], beam_siz=3)": 'did you mean "beam_size"?',
    "onmt_lite.Translator.from_pretrained(search='fairsek')": "expected \"Literal['opennmt', ",
}


@pytest.mark.sweep
def test_wheel_type_checker_finds_mistakes(environment):
    """Run `mypy --strict` on two scripts, without the types of torch, which take long."""
    folder = environment.parent
    wrong = ["import onmt_lite", "translator = onmt_lite.Translator.from_pretrained()"]
    wrong += ["t = translator.translate(['a'])[0]"]
    first = len(wrong) + 1
    (folder / "right.py").write_text(USER_SCRIPT, encoding="utf-8")
    (folder / "wrong.py").write_text("\n".join([*wrong, *MISTAKES, ""]), encoding="utf-8")
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n", "utf-8")
    words = ["-m", "mypy", "--strict", "--no-error-summary", "--no-incremental"]
    words += ["--python-executable", environment / "bin" / "python", "right.py", "wrong.py"]
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True)
    found = [line for line in done.stdout.decode("utf-8").splitlines() if ": note: " not in line]
    for i, (line, (mistake, error)) in enumerate(zip(found, MISTAKES.items(), strict=True), first):
        assert line.startswith(f"wrong.py:{i}: error: "), mistake
        assert error in line
