"""What the README says is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.options import OPTIONS, load_options
from onmt_lite.presets import PRESETS
from onmt_lite.schema import markdown_table
from onmt_lite.training.options import load_train_options

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.S)
INSTALL = "python3 -m venv .venv && . .venv/bin/activate && pip install -q -r requirements.txt"


def shell(command: str) -> str:
    """Run a command of the README as written, `python` being the one that runs this test."""
    command = re.sub(r"\bpython\b", f'"{sys.executable}"', command)
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=True)
    return done.stdout.decode("utf-8")


def test_the_first_line_translates_the_sample():
    first = BLOCKS[0][1]
    assert first.startswith(INSTALL + " && ")
    out = shell(first.removeprefix(INSTALL + " && "))
    german = (ROOT / "data" / "sample.de.txt").read_text(encoding="utf-8").split("\n")
    english = out.split("\n")
    assert [bool(line) for line in english] == [bool(line) for line in german]
    assert "Good morning" in english[0]
    assert "14:35" in out


def test_the_second_line_installs_and_runs_these_tests():
    second = BLOCKS[1][1].strip()
    assert second == f"{INSTALL} -r tests/requirements.txt && python -m pytest"


def test_the_one_liner():
    assert re.fullmatch(r"Good morning[.!]\n", shell(BLOCKS[2][1]))


def test_the_options_table_is_generated():
    written = README.split("<!-- options -->\n")[1].split("\n<!-- /options -->")[0]
    assert written == markdown_table(OPTIONS), "paste what `python tests/test_readme.py` prints"


def test_the_yaml_examples_load(tmp_path):
    path, loaded = tmp_path / "my.yaml", []
    for example in [body for kind, body in BLOCKS if kind == "yaml"]:
        path.write_text(example, encoding="utf-8")
        loaded.append(load_options(["-config", str(path)])[0])
    own, opennmt = loaded
    assert own.search.n_best == 3
    assert opennmt.text.performed == ("sentencepiece", "prefix", "suffix")


def test_the_python_example_runs():
    (example,) = [body for kind, body in BLOCKS if kind == "python"]
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=ROOT, capture_output=True, check=True
    )
    out = done.stdout.decode("utf-8")
    assert "Guten Morgen! Good morning" in out
    assert len(out.splitlines()) == 4 and out.splitlines()[3].startswith("A very ")


def test_the_toy_example_prints_what_is_shown():
    (example,) = [body for _, body in BLOCKS if body.startswith("$ ")]
    command, shown = example.removeprefix("$ ").split("\n", 1)
    assert shell(command) == shown


def test_the_searches_answer_as_the_table_says():
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) ; (.*?) \|", README, re.M)
    assert [name for name, _, _ in rows] == list(PRESETS)
    for name, *shown in rows:
        options, _ = load_options(["-config", "configs/searches.yaml", "-search", name])
        (found,) = Translator.load(options).translate(["x x"])
        assert [f"{h.text or '(empty)'} {h.score:.4f}" for h in found.hyps] == shown, name


def test_every_file_it_names_exists():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_config_loads(path):
    load = load_train_options if path.name.startswith("train") else load_options
    _, resolved = load(["-config", str(path)])
    assert any(origin != "default" for origin in resolved.origins.values())


if __name__ == "__main__":
    print(markdown_table(OPTIONS))
