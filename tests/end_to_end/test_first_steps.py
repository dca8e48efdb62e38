"""First steps of a new user."""

import re
import subprocess
import sys

import pytest

from onmt_lite import OptionError, Translator, load_options
from onmt_lite.config.options import PROGRAM
from onmt_lite.models.kernels.build import describe_kernels
from tests.end_to_end.conftest import ROOT, SCRIPT

FAMILIES = "tests/data/families"
SURE = "Guten Morgen!"
UNSURE = "Mensch, das hättest du mir ja wohl auch schon früher sagen können!"


@pytest.fixture
def run(tmp_path, env):
    """run(*words) -> the process, with the shipped model and no terminal."""

    def run(*words, **more):
        command = [sys.executable, SCRIPT, *words]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, **more
        )

    return run


def test_plain_run_prints_only_translation(run):
    done = run(input=f"{SURE}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Good morning!\n", "")


def test_precision_and_kernels_are_logged_with_verbose_and_print_config(run, tmp_path):
    precision, kernels = Translator.from_pretrained().machine["precision"], describe_kernels()
    done = run("-verbose", "-log_file", "log", input=f"{SURE}\n")
    assert done.stderr.startswith(f"precision {precision} on cpu\nkernels: {kernels}\n")
    log = (tmp_path / "log").read_text("utf-8")
    assert f" INFO] precision {precision} on cpu\n" in log and f"kernels: {kernels}\n" in log
    shown = f"\nprecision: auto  # default; here {precision}; kernels: {kernels}\n"
    assert shown in run("-print_config").stdout


@pytest.mark.parametrize(
    "words",
    [
        "-model tests/data/checkpoints/hf/marian",
        "-search fairseq",
        "-model tests/data/families/m2m",
    ],
)
def test_print_config_shows_actual_precision(words):
    """-print_config shows the precision of the loaded model."""
    options, resolved = load_options(["-device", "cpu", *words.split()])
    given = dict(options.given)
    if "m2m" in words:
        given["tgt_lang"] = "en"
    machine = Translator.from_pretrained(**given).machine
    shown = PROGRAM.describe_auto(resolved.values)["precision"]
    assert shown == f"here {machine['precision']}; kernels: {describe_kernels()}"


def test_print_config_shows_possible_precision_of_other_models():
    _, resolved = load_options(["-device", "cpu", "-model", "data/toy.json"])
    assert "fp32" in PROGRAM.describe_auto(resolved.values)["precision"]
    _, resolved = load_options(["-device", "cpu", "-precision", "bf16"])
    shown = PROGRAM.describe_auto(resolved.values)["precision"]
    assert shown == f"kernels: {describe_kernels()}"


def test_unsure_line_is_shown_by_default(run, tmp_path):
    """The line is shown once, at the end, with its number and text, unless -quiet is set."""
    lines = f"{SURE}\n{UNSURE}\n{SURE}\n"
    done = run(input=lines)
    first, quote = done.stderr.splitlines()
    assert first == "line 2: the model is not confident; the translation may be wrong [unsure]"
    text = done.stdout.splitlines()[1]
    assert quote == f"    2: {UNSURE[:57]}... -> {text}"
    quiet = run("-quiet", input=lines)
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")


TEXTS = [
    ["Guten", "Morgen!"],
    ["-src", "Wie geht's dir?"],
    ["-src", "Guten", "Morgen!"],
    ["-beam_size", "2", "Das kostet 5 $HOME"],
    ["-src", "Hallo"],
]


@pytest.mark.parametrize("words", TEXTS, ids=lambda words: " ".join(words))
def test_text_as_argument_suggests_working_command(run, words, env):
    done = run(*words)
    text = " ".join(words[words[:1].count("-src") :]).removeprefix("-beam_size 2 ")
    assert done.returncode == (5 if words[0] == "-src" and len(words) == 2 else 2)
    assert done.stdout == "" and done.stderr.count("\n") == 1
    line = re.search(r"; to translate text: (echo .*)\n", done.stderr)[1]
    result = subprocess.run(line.partition(" | ")[0], shell=True, capture_output=True, text=True)
    assert result.stdout == f"{text}\n"
    if words is TEXTS[0]:
        typed = subprocess.run(line, shell=True, capture_output=True, text=True, env=env)
        assert typed.stdout == "Good morning!\n"


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (
            ["-src", "no/such.de"],
            5,
            "src no/such.de: the file does not exist; src must be a text file with one sentence ",
        ),
        (
            ["-src", "input"],
            5,
            "src input: the file does not exist; src must be a text file with one sentence ",
        ),
        ([str(SCRIPT)], 2, f"; to translate a file: {sys.executable} {SCRIPT} -src {SCRIPT}\n"),
        (["input.de"], 2, f"; to translate a file: {sys.executable} {SCRIPT} -src input.de\n"),
        (
            ["-n_best", "2", "3"],
            2,
            "takes one value, got 2: 2 3 (command line); remove '3', or put the name ",
        ),
        (
            ["-src", str(SCRIPT), str(ROOT)],
            2,
            f"got 2: {SCRIPT} {ROOT} (command line); to write to it, use -output {ROOT}; ",
        ),
    ],
)
def test_file_name_as_argument_is_not_treated_as_text(run, words, code, problem):
    done = run(*words)
    assert done.returncode == code and problem in done.stderr
    assert done.stderr.count("\n") == 1 and "echo" not in done.stderr


def test_several_unknown_options_have_one_error_each():
    with pytest.raises(OptionError) as caught:
        load_options("-s 1 -beam 2 -r -foo -t x -n 3".split())
    problems = caught.value.problems
    assert [problem.split("; ")[0] for problem in problems] == [
        f"unknown option {name}" for name in ("s", "beam", "r", "foo", "t", "n")
    ]
    for problem in problems:
        guesses = re.findall(r"(?:mean | or )(\w+)", problem)
        assert len(guesses) <= 3 and {*guesses} <= {*PROGRAM.options}
    assert "did you mean src or search or " in problems[0]  # common options first


@pytest.mark.parametrize("words", ["-tgt_lang fr", "-src_lang en -tgt_lang de", "-src_lang deu"])
def test_tgt_lang_unsupported_is_rejected(run, words):
    done = run(*words.split(), input=f"{SURE}\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the model translates from de to en only" in done.stderr


def test_tgt_lang_of_model_changes_nothing(run):
    done = run("-src_lang", "de", "-tgt_lang", "EN", input=f"{SURE}\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Good morning!\n", "")
