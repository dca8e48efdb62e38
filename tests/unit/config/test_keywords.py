"""Types of keyword options: the stub file, the options of each call, and mypy on both."""

import os
import subprocess
import sys
import typing
from dataclasses import replace
from pathlib import Path

import pytest

from onmt_lite import OptionError
from onmt_lite.config.option import META_NAMES, check_value
from onmt_lite.config.options import OPTIONS
from tests.support import make_keywords as keywords

ROOT = Path(__file__).resolve().parents[3]
NAMES = [name for name in OPTIONS if name not in META_NAMES]
# Only public modules, to save time
CONFIG = """\
[mypy]
follow_imports = skip
[mypy-onmt_lite,onmt_lite.api,onmt_lite.config.*,onmt_lite.inference.records]
follow_imports = silent
"""
HEADER = """\
from pathlib import Path
from typing_extensions import Unpack, assert_type
from onmt_lite import TranslateOptions, Translation, Translator
from onmt_lite.config.keywords import AllOptions
def use(**options: Unpack[AllOptions]) -> None: ...
translator = Translator.from_pretrained(Path("de-en"), threads=1, gpu=[0], model=["a", Path("b")])
"""
RIGHT = [
    'assert_type(translator.translate("x", n_best=2, search="fairseq", alpha=1), Translation)',
    'assert_type(translator.translate(["x"], early_stopping=True), list[Translation])',
    'translator.translate("x", force_words=["a"], batch_size=None, ignore_when_blocking=("a",))',
    'next(translator.translate_stream(["x"], beam_size=3))',
    'translator.translate_file("a", Path("b"), tgt=Path("c"), output_format="jsonl", beam_size=3)',
    'TranslateOptions.of(beam_size=3, src_onmttok_kwargs={"mode": "none"}).updated(n_best=2)',
]
WRONG = [
    'translator.translate("x", beam_siz=3)',
    'translator.translate("x", beam_size="3")',
    'translator.translate(["x"], beam_siz=3)',
    'translator.translate("x", search="fairsek")',
    'translator.translate("x", model="y")',
    'translator.translate("x", tgt="y")',
    'translator.translate("x", quiet=True)',
    'translator.translate_stream(["x"], beam_siz=3)',
    'translator.translate_file("a", "b", quiet=True)',
    'translator.translate_file("a", "b", output_format="json")',
    "Translator.from_pretrained(beam_siz=3)",
    'Translator.from_pretrained(config="x")',
    "Translator.from_pretrained(precision=16)",
    'TranslateOptions.of(beam_size="3")',
    "TranslateOptions.of().updated(beam=3)",
    'translator("x")',
]


def test_stub_file_is_up_to_date():
    text = keywords.STUB.read_text(encoding="utf-8")
    assert text == keywords.make_stub(), "run `python -m tests.support.make_keywords`"


@pytest.mark.parametrize(
    ("name", "stub", "parameters"),
    [
        ("translate", "CallOptions", {"force_words", "ban_words"}),
        ("translate_stream", "CallOptions", {"force_words", "ban_words"}),
        ("translate_file", "FileOptions", {"src", "output"}),
    ],
)
def test_stub_has_options_of_each_call(translator, tmp_path, name, stub, parameters):
    """An option that a call does not support is rejected even with its default value."""
    (tmp_path / "src").write_text("", encoding="utf-8")
    lines = [tmp_path / "src", tmp_path / "out"] if name == "translate_file" else [[]]
    accepted = set()
    for option in set(NAMES) - parameters:
        try:
            getattr(translator, name)(*lines, **{option: OPTIONS[option].default})
            accepted.add(option)
        except OptionError as error:
            assert str(error).startswith(f"{option}: ")
    types = {}
    exec(keywords.make_stub(), types)
    assert typing.get_type_hints(types[stub]).keys() == accepted


def write_values(option):
    """Return Python source of values of many types."""
    texts = {option.choices[0] if option.choices else "x", "fairsek"}
    found = [*map(repr, sorted(texts)), "0.5", "1", "[0.5]", "(1,)", "['x']", "('x',)", "[b'x']"]
    found += ["Path('x')", "[Path('x')]", "{'mode': 'none'}", "{1}", "b'x'", "True"]
    is_number = option.value_type in (int, float)
    # mypy accepts True as an int and bytes as a sequence of int
    return [value for value in found if value not in ("True", "b'x'") or not is_number]


def accepts(option, value):
    """Return True if a value has a type that the option accepts, ignoring bounds and pattern."""
    try:
        check_value(replace(option, min=None, max=None, above=None, pattern=(".*", "")), value)
        return True
    except ValueError:
        return False


def test_mypy_accepts_valid_values_and_rejects_mistakes(tmp_path):
    """Run `mypy --strict` on a script; paths may be a str or a Path."""
    lines, wrong = [*HEADER.splitlines(), *RIGHT, *WRONG], {*WRONG}
    for name in NAMES:
        for written in write_values(OPTIONS[name]):
            if "Path" in written and not OPTIONS[name].is_path:
                continue  # works, but is not in the types
            lines.append(f"use({name}={written})")
            if not accepts(OPTIONS[name], eval(written, {"Path": Path})):
                wrong.add(lines[-1])
    (tmp_path / "user.py").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "user.py"]
    paths = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=paths, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all(line.startswith("user.py:") for line in errors), errors
    assert {lines[int(line.split(":")[1]) - 1] for line in errors} == wrong
