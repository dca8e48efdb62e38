"""README.md and docs/ are correct: commands, Python, YAML, links, names and figures.

`python -m tests.docs.test_readme` regenerates tables, figures and the output of commands. A comment
above a block marks commands that cannot run in a test: `<!-- not run: needs a GPU -->`. Their
options are still checked.
"""

import json
import logging
import pkgutil
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
import torch
import yaml

import onmt_lite
import onmt_lite.inference.postprocess
from benchmarks.__main__ import parse as parse_benchmarks
from benchmarks.report import (
    compute_speedups,
    format_headline,
    format_processors,
    format_tables,
    read_records,
    write_pages,
)
from benchmarks.systems import OURS
from onmt_lite import OnmtLiteError, OptionError, Translator
from onmt_lite.config import other_tools
from onmt_lite.config.help import format_markdown
from onmt_lite.config.options import OPTIONS, load_options
from onmt_lite.export import OPTIONS as EXPORT_OPTIONS
from onmt_lite.export import load_export_options
from onmt_lite.ray.options import OPTIONS as RAY_OPTIONS
from onmt_lite.ray.options import load_ray_options
from onmt_lite.search.presets import PRESETS
from onmt_lite.train.calibrate import OPTIONS as CALIBRATE_OPTIONS
from onmt_lite.train.calibrate import load_calibrate_options
from onmt_lite.train.options import OPTIONS as TRAIN_OPTIONS
from onmt_lite.train.options import load_train_options
from tests.gpu.counts import COLUMNS, MODELS, count_cells, count_middle_step
from tests.unit.test_architecture import ROOMS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "data/de-en/README.md", ROOT / "recipes/de_en/README.md"]
PAGES += [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
INSTALL = "python3 -m venv .venv && . .venv/bin/activate && pip install -q -r requirements.txt"

# Programs in the pages, with the function that parses their options
PROGRAMS: dict[str, Callable] = {
    "translate.py": load_options,
    "onmt_lite": load_options,
    "onmt_lite.train": load_train_options,
    "onmt_lite.export": load_export_options,
    "onmt_lite.train.calibrate": load_calibrate_options,
    "onmt_lite.ray": load_ray_options,
    "benchmarks": parse_benchmarks,
}
COMMANDS = {  # installed by pip
    "onmt_lite": "onmt_lite",
    "onmt_lite_train": "onmt_lite.train",
    "onmt_lite_export": "onmt_lite.export",
}
# Input files of the commands, in addition to the repository
INPUTS = {
    "input.de": "Guten Morgen!\nWo ist der Bahnhof?\n\nIch lerne Deutsch.\n",
    "begin.en": "Good\nWhere\n\n\n",
    "numbers.de": (
        "Das kostet 899,00 €.\nEs waren 12.345.678 Menschen.\n"
        "Die Firma hat 1.234.567 Kunden.\nDie Temperatur ist -5 Grad.\n"
        "Das Konto hat 4.567.890,12 Euro.\n"
    ),
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment above it."""

    page: str
    line: int
    language: str
    body: str
    comment: str

    @property
    def not_run(self) -> str:
        """The reason why its commands are not run; empty if they are run."""
        is_marked = self.comment.startswith("not run: ")
        return self.comment.removeprefix("not run: ") if is_marked else ""


def find_blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"(?:^<!-- ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", text, re.S | re.M):
        line = text.count("\n", 0, match.start(3))
        yield Block(str(path.relative_to(ROOT)), line, match[2] or "sh", match[3], match[1] or "")


BLOCKS = [block for path in PAGES for block in find_blocks(path)]


def parametrize(*languages: str):
    blocks = [block for block in BLOCKS if block.language in languages]
    ids = [f"{block.page}:{block.line}" for block in blocks]
    return pytest.mark.parametrize("block", blocks, ids=ids)


def find_commands(block: Block) -> list[str]:
    """Return the commands of a shell block, with continuation lines joined."""
    lines = block.body.replace("\\\n", " ").split("\n")
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def split_words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>&;")
    lexer.commenters = ""
    return list(lexer)


def find_program(words: list[str]) -> tuple[str, list[str]] | None:
    """Return a program of this project and its arguments; None for other commands."""
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]], words[1:]
    if words[:1] != ["python"]:
        return None
    name, *argv = words[2:] if words[1] == "-m" else words[1:]
    assert name in PROGRAMS or not name.startswith("onmt_lite"), name
    return (name, argv) if name in PROGRAMS else None


# -- commands -------------------------------------------------------------------------------------


def make_sandbox(directory: Path) -> Path:
    """Fill a directory with links to the repository and with input files; return it."""
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "README.md":
            (directory / path.name).symlink_to(path)
    for name, text in INPUTS.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> Path:
    return make_sandbox(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def run(sandbox, monkeypatch, capfdbinary):
    """run(command) -> its output. Our programs run in this process, because it has already loaded
    torch; other commands run in a shell. The working directory is the sandbox."""
    monkeypatch.chdir(sandbox)

    def run(command: str) -> str:
        output = run_in_process(command, sandbox, capfdbinary)
        return run_in_shell(command, sandbox) if output is None else output

    return run


def run_in_shell(command: str, cwd: Path) -> str:
    """Run a command with the Python of this test; return its output."""
    command = re.sub(r"\bpython\b", f'"{sys.executable}"', command)
    process = subprocess.run(["sh", "-ec", command], cwd=cwd, capture_output=True)
    assert process.returncode == 0, process.stderr.decode("utf-8")
    return process.stdout.decode("utf-8")


def run_in_process(command: str, cwd: Path, capfdbinary) -> str | None:
    """Return the output of `[echo WORDS |] PROGRAM OPTIONS [< FILE] [> FILE]`; None for other
    commands."""
    result = call_command(command, cwd, capfdbinary)
    assert result is None or result[0] == 0, result[2]
    return None if result is None else result[1]


def call_command(command: str, cwd: Path, capfdbinary) -> tuple[int, str, str] | None:
    """Run a command in this process.

    Args:
        command: as for `run_in_process`.
        cwd: the sandbox.
        capfdbinary: the pytest fixture.

    Returns:
        Exit code, standard output and standard error; None if it is not one of our programs.
    """
    words = split_words(command)
    stdin, output = b"", None
    if words[0] == "echo" and words.count("|") == 1:
        echoed, words = words[1 : words.index("|")], words[words.index("|") + 1 :]
        stdin = (" ".join(echoed) + "\n").encode("utf-8")
    if ">" in words[-2:-1]:
        words, output = words[:-2], words[-1]
    if "<" in words[-2:-1]:
        words, stdin = words[:-2], (cwd / words[-1]).read_bytes()
    program = find_program(words)
    if program is None or {"|", "<", ">", "&&", ";"} & set(words):
        return None
    capfdbinary.readouterr()
    code = call_program(*program, stdin, cwd)
    out, err = capfdbinary.readouterr()
    if output is not None:
        (cwd / output).write_bytes(out)
        out = b""
    return code, out.decode("utf-8"), err.decode("utf-8")


def call_program(name: str, argv: list[str], stdin: bytes, cwd: Path) -> int:
    """Run a program in this process and restore the state of the process.

    Args:
        name: a key of PROGRAMS.
        argv: its arguments.
        stdin: its standard input.
        cwd: directory for a temporary file.

    Returns:
        The exit code.
    """
    (cwd / ".stdin").write_bytes(stdin)
    signals = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    saved_stdin, saved_argv, threads = sys.stdin, sys.argv, torch.get_num_threads()
    run_program = runpy.run_path if name.endswith(".py") else runpy.run_module
    try:
        with open(cwd / ".stdin", "rb") as sys.stdin, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the module is already imported
            sys.argv = [name, *argv]
            run_program(name, run_name="__main__")
    except SystemExit as error:
        return error.code
    finally:
        sys.stdin, sys.argv = saved_stdin, saved_argv
        torch.set_num_threads(threads)
        logging.getLogger("onmt_lite").handlers = []
        for number, handler in signals.items():
            signal.signal(number, handler)
    return 0


@parametrize("sh", "bash")
def test_commands_run(block, run, monkeypatch):
    monkeypatch.setattr("onmt_lite.checkpoints.hub.NAME", re.compile("(?!)"))  # no downloads
    for command in find_commands(block):
        if INSTALL in command:
            continue  # see test_quick_start_commands_translate_sample_and_run_tests
        if not block.not_run:
            run(command)
            continue
        words = split_words(command.split(" | ")[-1])
        ends = [words.index(word) for word in ("<", ">", "&&") if word in words]
        program = find_program(words[: min(ends, default=None)])
        if program is not None:
            name, argv = program
            PROGRAMS[name](argv)


def test_blocks_marked_not_run_have_reason():
    marked = [block for block in BLOCKS if block.comment.startswith("not run")]
    assert all(len(block.not_run) > 5 for block in marked)
    assert {block.language for block in marked} <= {"sh", "bash", "python"}


def test_quick_start_commands_translate_sample_and_run_tests():
    first, second, third = (block.body for block in BLOCKS[:3])
    assert first.startswith(INSTALL + " && ")
    out = run_in_shell(first.removeprefix(INSTALL + " && "), ROOT)
    german = (ROOT / "data" / "sample.de.txt").read_text(encoding="utf-8").split("\n")
    english = out.split("\n")
    assert [bool(line) for line in english] == [bool(line) for line in german]
    assert "Good morning" in english[0] and "14:35" in out
    (torch,) = re.findall("torch==.*", (ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert f" {torch} --index-url" in BLOCKS[3].body
    assert second.strip() == f"{INSTALL} -r tests/requirements.txt && python -m pytest"
    assert re.fullmatch(r"Good morning[.!]\n", run_in_shell(third, ROOT))


NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def split_transcript(block: Block) -> list[tuple[str, str]]:
    """Return pairs of a command and the output below it in a console block."""
    parts = re.split(r"^\$ (.*)\n", block.body, flags=re.M)
    return list(zip(parts[1::2], parts[2::2]))


def assert_same_text(actual: str, expected: str) -> None:
    """Compare texts; the last digits of decimal numbers may differ, because processors do."""
    assert NUMBER.sub("#", actual) == NUMBER.sub("#", expected)
    numbers = [float(x) for x in NUMBER.findall(actual)]
    assert numbers == pytest.approx([float(x) for x in NUMBER.findall(expected)], abs=2e-2)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_tables_have_valid_options(path):
    rows = re.findall(r"^\|.*\|$", read_prose(path), re.M)
    for command in re.findall(r"`(?:[^`]*\| )?python (translate.py [^`]*)`", "\n".join(rows)):
        load_options(split_words(command)[1:])


@parametrize("console")
def test_console_blocks_show_output(block, run):
    for command, expected in split_transcript(block):
        assert_same_text(run(command), expected)


@parametrize("json")
def test_json_blocks_show_output_of_command(block, run):
    assert block.comment.startswith("prints: "), "which command prints this?"
    assert_same_json(
        json.loads(run(block.comment.removeprefix("prints: "))), json.loads(block.body)
    )


def assert_same_json(actual, expected) -> None:
    """Compare JSON values; the page rounds numbers."""
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        actual, expected = list(actual.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected):
            assert_same_json(*pair)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=2e-3)
    else:
        assert actual == expected


LOGS = [block for block in BLOCKS if block.comment.startswith("logs: ")]


@pytest.mark.parametrize("block", LOGS, ids=lambda block: f"{block.page}:{block.line}")
def test_log_blocks_show_stderr_of_command(block, sandbox, monkeypatch, capfdbinary):
    monkeypatch.chdir(sandbox)
    command = block.comment.removeprefix("logs: ")
    code, _, log = call_command(command, sandbox, capfdbinary)
    assert (code, log) == (0, block.body)


PYTHON_PAGES = [path for path in PAGES if any(b.language == "python" for b in find_blocks(path))]


@pytest.mark.parametrize("path", PYTHON_PAGES, ids=lambda path: path.name)
def test_python_blocks_run(path, sandbox, monkeypatch, capfd):
    """All blocks of a page share a namespace."""
    monkeypatch.chdir(sandbox)
    variables: dict = {"__name__": "__main__"}
    blocks = [
        block for block in find_blocks(path) if block.language == "python" and not block.not_run
    ]
    for i, block in enumerate(blocks):
        exec(compile(block.body, f"{block.page}:{block.line}", "exec"), variables)
        out, err = capfd.readouterr()
        if path.name == "python.md" and i == 0:  # the first example
            assert err == "" and "Guten Morgen! Good morning" in out
            assert len(out.splitlines()) == 5 and out.splitlines()[4].startswith("A very ")


@parametrize("yaml")
def test_yaml_blocks_load(block, tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(block.body, encoding="utf-8")
    if block.comment == "refused":  # see test_job_files_of_three_tools_give_same_output
        return
    load = load_train_options if "train" in yaml.safe_load(block.body) else load_options
    options, resolved = load(["-config", str(path)])
    assert any(origin != "default" for origin in resolved.origins.values())
    if "transforms" in block.body:
        assert options.text.token_transforms == ("sentencepiece", "prefix", "suffix")


def test_job_files_of_three_tools_give_same_output(sandbox, run):
    """The OpenNMT-py file works unchanged; the error for the Eole file has all equivalent names."""
    blocks = [b for b in BLOCKS if (b.page, b.language) == ("docs/coming-from.md", "yaml")]
    outputs, options = set(), "-model data/de-en -gpu -1 -precision fp32 -search opennmt-3"
    for block in blocks:
        text = block.body
        if block.comment == "refused":
            (sandbox / "job.yaml").write_text(text, encoding="utf-8")
            with pytest.raises(OptionError) as error:
                load_options(["-config", "job.yaml"])
            hints = [
                re.match(r"unknown option (\w+); use (\w+)\b", problem)
                for problem in error.value.problems
            ]
            assert len(hints) >= 2
            for theirs, ours in (hint.groups() for hint in hints):
                text = text.replace(f"{theirs}:", f"{ours}:")
        (sandbox / "job.yaml").write_text(text, encoding="utf-8")
        assert run(f"python translate.py -config job.yaml {options}") == ""
        outputs.add((sandbox / "output.en").read_bytes())
    assert len(outputs) == 1 and len(blocks) == 3


# -- names and links ------------------------------------------------------------------------------


def read_prose(path: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)


def find_anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as Markdown viewers build them."""
    heads = re.findall(r"^#+ (.+)$", read_prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
class TestNames:
    def test_links_have_targets(self, path):
        for target in re.findall(r"\]\(([^)\s]+)\)", read_prose(path)):
            if target.startswith(("http://", "https://")):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name) if name else path
            assert file.exists(), target
            assert not anchor or anchor in find_anchors(file), target

    def test_files_exist(self, path):
        spans = re.findall(r"`([^`\s]+)`", read_prose(path))
        top = {entry.name for entry in ROOT.iterdir()}
        named = [span for span in spans if "/" in span and span.split("/")[0] in top]
        assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []

    def test_options_exist(self, path):
        known = {*OPTIONS, *TRAIN_OPTIONS, *EXPORT_OPTIONS, *CALIBRATE_OPTIONS, *RAY_OPTIONS}
        known |= {*vars(parse_benchmarks([])), *other_tools.load_opennmt_options()}
        spans = re.findall(r"`(-[^`]+)`", read_prose(path))
        named = [name for span in spans for name in re.findall(r"(?:^| )--?([a-z]\w+)", span)]
        assert set(named) - known == set()


def test_readme_is_short_and_links_to_all_pages():
    """Words are counted as by wc."""
    front, *rest = (path.read_text(encoding="utf-8") for path in PAGES)
    docs = [text for path, text in zip(PAGES[1:], rest) if path.parent.name == "docs"]
    assert len(front.split()) <= 700
    assert sum(len(text.split()) for text in (front, *docs)) < 19_000
    for path in PAGES[1:]:
        assert f"]({path.relative_to(ROOT)}" in front


def test_readme_claims_have_figures_of_docs():
    pages = ("README.md", "docs/searches.md", "docs/jobs-reference.md", "docs/text.md")
    front, searches, jobs, text = ((ROOT / n).read_text(encoding="utf-8") for n in pages)
    claims = dict(re.findall(r"^- \*\*(.*?)\.\*\* (.*?)(?=^- |^\n)", front, re.M | re.S))
    exactness = extract_generated(searches, "exactness")
    n_equal = sum(map(int, re.findall(r"\| (\d+) of \1 \|", exactness)))
    assert f"{n_equal:,} of {n_equal:,}" in claims["Exact"]
    base = median(compute_speedups(SPEED["workloads"]["base"], OURS, "seconds"))
    assert f"{base:.2f} times" in claims["Fast on CPU"]
    trials = dict(re.findall(r"^\| (\w+) \| (\d+) \|", extract_generated(jobs, "kit"), re.M))
    n_jobs = sum(int(trials[kit]) for kit in ("K1", "K1w", "K2", "K3", "K4", "K12", "faults"))
    assert f"All {n_jobs:,} jobs" in claims["No line is lost"]
    pattern = r"marked (\d+) of 2,000 .*? (\d+) of 1,000 .*?; (\d+) of the (\d+) were correct"
    counts = re.search(pattern, text, re.S)
    n_test, n_heavy, n_correct, n_warnings = map(int, counts.groups())
    assert n_warnings == n_test + n_heavy
    assert f"{n_correct} of {n_warnings} number" in claims["Suspicious output is flagged"]
    n_names = sum(map(len, other_tools.load_peers()["tools"].values()))
    assert f"{n_names} option names" in claims["Clear errors"]


# -- tables ---------------------------------------------------------------------------------------


def extract_generated(page: str, name: str) -> str:
    """Return the text between generation markers."""
    return page.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


def format_names_table() -> str:
    """Return a table with a row per tool: its option names and their equivalents."""
    rows = ["| tool | name → equivalent |", "|---|---|"]
    for tool, names in other_tools.load_peers()["tools"].items():
        pairs = [f"{theirs} → `{ours.split(',')[0]}`" for theirs, ours in names.items()]
        rows.append(f"| {tool} | {', '.join(pairs)} |")
    return "\n".join(rows)


def test_searches_table_shows_output_of_presets():
    page = (ROOT / "docs" / "searches.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) ; (.*?) \|", page, re.M)
    assert [name for name, _, _ in rows] == list(PRESETS)
    for name, *expected in rows:
        options, _ = load_options(["-config", "configs/searches.yaml", "-search", name])
        (translation,) = Translator.load(options).translate(["x x"])
        hyps = [f"{h.text or '(empty)'} {h.score:.4f}" for h in translation.hyps]
        assert hyps == expected, name


def format_exactness_table() -> str:
    """Return a table of the number of n-best lists that the tests compare with each system.

    test_conformance.py compares the lists on table models, test_references.py the lists on real
    models; a list that differs fails there.
    """
    lists: Counter = Counter()
    originals: dict[str, list[str]] = {name: [] for name in PRESETS}
    for path in sorted((ROOT / "tests/exactness/conformance/cases").glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        originals[file["preset"]].append(re.sub(r": rule.*| \(rule.*", "", file["system"]))
        for case in file["cases"]:
            lists[file["preset"], case.get("by", "table")] += len(case["expected"])
    for path in sorted((ROOT / "tests/data/checkpoints/references").glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        peer = re.sub(r",.*| float32.*", "", file["peer"])
        originals[file["search"]].append(peer.replace("ctranslate2", "CTranslate2"))
        rows = [row for case in file["cases"] for row in case["rows"]]
        lists[file["search"], "model"] += sum(row.get("stable", True) for row in rows)
    lines = [
        "| `-search` | original | small tables | real models | from source | equal |",
        "|---|---|---|---|---|---|",
    ]
    for name in [name for name in PRESETS if originals[name]]:
        counts = [lists[name, source] for source in ("table", "model", "rule")]
        systems = ", ".join(dict.fromkeys(originals[name]))
        cells = " | ".join(str(n or "–") for n in counts)
        lines.append(f"| `{name}` | {systems} | {cells} | {sum(counts)} of {sum(counts)} |")
    return "\n".join(lines)


def format_gpu_table() -> str:
    """Return two rows of the table that `python -m tests.gpu.counts` prints, for the base model."""
    name = next(name for name in MODELS if name.startswith("base"))
    rows = [count_cells(name, n, count_middle_step(MODELS[name], n)) for n in (64, 1024)]
    omitted = {"to the GPU, KB", "to the host, KB", "matrix products, µs"}
    shown = [i for i, column in enumerate(COLUMNS) if column not in omitted]
    table = [[cells[i] for i in shown] for cells in (COLUMNS, *rows)]
    table.insert(1, ["---"] * len(shown))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def test_warnings_are_all_documented():
    """The docstring of postprocess.py lists them too."""
    page = (ROOT / "docs" / "jobs-reference.md").read_text(encoding="utf-8")
    section = page.split("## Warnings")[1].split("\n## ")[0]
    rows = re.findall(r"^  of .*: (.*)$", onmt_lite.inference.postprocess.__doc__ or "", re.M)
    names = [name for row in rows for name in row.split(", ")]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", section, re.M)) == sorted(names)


def test_exit_codes_are_all_documented():
    page = (ROOT / "docs" / "jobs-reference.md").read_text(encoding="utf-8")
    section = page.split("## Exit codes")[1].split("\n## ")[0]
    codes = [
        int(n) for cell in re.findall(r"^\| ([\d, ]+) \|", section, re.M) for n in cell.split(",")
    ]
    errors = {error.exit_code for error in OnmtLiteError.__subclasses__()}
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE]
    assert sorted(codes) == sorted({0, 1} | errors | {128 + number for number in signals})


CARD = ROOT / "data" / "de-en" / "README.md"


def format_card_examples(card: str) -> str:
    """Return the table of examples with current translations; keep the manual assessments."""
    head, rule, *rows = extract_generated(card, "examples").split("\n")
    cells = [row.split("|") for row in rows]
    # fp32, because all processors agree on the result
    translator = Translator.from_pretrained(precision="fp32")
    translations = translator.translate([source.strip() for _, source, *_ in cells])
    lines = [
        f"|{row[1]}| {t.text} | {t.confidence:.2f} |{row[-2]}|"
        for row, t in zip(cells, translations)
    ]
    return "\n".join([head, rule, *lines])


def test_model_card_shows_translations_of_model():
    card = CARD.read_text(encoding="utf-8")
    assert_same_text(format_card_examples(card), extract_generated(card, "examples"))


def test_readme_has_scores_of_model_card():
    card, page = (path.read_text(encoding="utf-8") for path in (CARD, ROOT / "README.md"))
    bleu, chrf = re.search(r"\| beam 5 \(default\) \| ([\d.]+) \| ([\d.]+) \|", card).groups()
    assert f"{bleu} BLEU" in page and f"{chrf} chrF" in page
    assert f"| {bleu}, {chrf} with beam 5" in card
    assert f"{bleu} BLEU" in (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_design_draws_packages_in_order():
    """Names and order are the same as in the test of imports."""
    names = re.findall(r"^  │ ([a-z_]+)(?:/|\.py) +│", DESIGN, re.M)
    assert tuple(names) == ROOMS


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_modules_named_in_pages_for_contributors_exist(page):
    spans = re.findall(r"`([^`\s]+)`", (ROOT / page).read_text(encoding="utf-8"))
    names = {span for span in spans if span.split("/")[0] in ROOMS and "/" in span}
    assert len(names) > 8
    assert {name for name in names if not (ROOT / "onmt_lite" / name).exists()} == set()


def test_pages_start_with_their_purpose():
    """A paragraph of prose follows the title: no list, table, code or heading."""
    for path in PAGES:
        title, empty, first = path.read_text(encoding="utf-8").split("\n")[:3]
        assert title.startswith("# ") and empty == "", path
        assert re.match(r"[A-Z][a-z]* .{40}", first), path


def test_site_navigation_has_all_pages():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    sections = yaml.safe_load(text)["nav"]
    pages = [page for section in sections for page in find_pages(section)]
    assert sorted(pages) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def find_pages(entry: str | dict | list) -> Iterator[str]:
    """Yield the pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for child in entry.values() if isinstance(entry, dict) else entry:
            yield from find_pages(child)


def test_api_reference_names_exist():
    for name in re.findall(r"^::: (\S+)", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.M):
        assert pkgutil.resolve_name(name) is not None


def test_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == onmt_lite.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", changelog, re.M)
    assert releases[0] == (onmt_lite.__version__, str(citation["date-released"]))


def test_pre_commit_uses_ruff_of_test_requirements():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (revision,) = [
        repo["rev"] for repo in config["repos"] if repo["repo"].endswith("/ruff-pre-commit")
    ]
    requirements = (ROOT / "tests" / "requirements.txt").read_text(encoding="utf-8")
    assert f"ruff=={revision.removeprefix('v')}\n" in requirements


SPEED_RECORDS = read_records(ROOT / "docs" / "speed.json")
SPEED = next(iter(SPEED_RECORDS.values()))
GENERATED = {  # name of the markers: the page, and the function that generates the text
    "options": (ROOT / "docs" / "options.md", lambda: format_markdown(OPTIONS)),
    "names": (ROOT / "docs" / "coming-from.md", format_names_table),
    "exactness": (ROOT / "docs" / "searches.md", format_exactness_table),
    "gpu": (ROOT / "docs" / "speed.md", format_gpu_table),
    "processors": (ROOT / "docs" / "speed.md", lambda: format_processors(SPEED_RECORDS)),
    "measured": (ROOT / "docs" / "speed.md", lambda: format_tables(SPEED)),
    "speed": (ROOT / "README.md", lambda: format_headline(SPEED)),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_tables_are_current(name):
    path, make = GENERATED[name]
    page = path.read_text(encoding="utf-8")
    assert extract_generated(page, name) == make(), "run `python -m tests.docs.test_readme`"


def test_speed_chart_shows_recorded_ratios():
    svg = (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8")
    labels = re.findall(r"<text [^>]*>([^<]*)</text>", svg)
    for workload, work in SPEED["workloads"].items():
        medians = [
            f"{median(compute_speedups(work, name, 'seconds')):.2f}" for name in work["systems"]
        ]
        assert {workload, *work["systems"], *medians} <= set(labels)


def test_peer_searches_give_identical_lines_in_fp32():
    shipped = SPEED["workloads"]["shipped"]
    for name in ("transformers float32", "CTranslate2 float32"):
        assert shipped["systems"][name]["equal"] == shipped["lines"]


def test_pictures_show_current_output(tmp_path, monkeypatch, capfdbinary):
    """`python docs/pictures.py` redraws them."""
    pictures, session = runpy.run_path(str(ROOT / "docs" / "pictures.py")), []
    monkeypatch.chdir(make_sandbox(tmp_path))
    (tmp_path / "input.de").write_text(pictures["INPUT"], encoding="utf-8")
    for command in pictures["SESSION"]:
        result = call_command(command, tmp_path, capfdbinary)
        output = run_in_shell(command, tmp_path) if result is None else "".join(result[1:])
        session.append((command, output))
    expected = {
        "terminal.svg": pictures["draw_terminal"](session),
        "search.svg": pictures["draw_search"](),
    }
    for name, text in expected.items():
        assert_same_text(text, (ROOT / "docs" / name).read_text(encoding="utf-8"))
        assert f"](docs/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_need_no_css_variables_or_links(path):
    """Many viewers support neither; they draw black rectangles."""
    text = path.read_text(encoding="utf-8")
    assert "var(" not in text and "<a " not in text and "class=" not in text
    drawn = re.sub(r"<clipPath.*?</clipPath>", "", text, flags=re.S)
    for shape in re.findall(r"<(?:rect|text|circle) [^>]*>", drawn):
        assert "fill=" in shape or "style=" in shape


# -- generation -----------------------------------------------------------------------------------


def rewrite() -> None:
    """Regenerate tables, the chart, and the output of commands."""
    write_pages()  # the chart and the speed tables
    examples = (CARD, lambda: format_card_examples(CARD.read_text(encoding="utf-8")))
    for name, (path, make) in {**GENERATED, "examples": examples}.items():
        start = f"<!-- {name} -->\n"
        current = extract_generated(path.read_text(encoding="utf-8"), name)
        replace(path, start + current, start + make())
    with tempfile.TemporaryDirectory() as directory:
        sandbox = make_sandbox(Path(directory))
        for block in (block for block in BLOCKS if block.language == "console"):
            commands = [command for command, _ in split_transcript(block)]
            body = "".join(f"$ {c}\n{run_in_shell(c, sandbox)}" for c in commands)
            replace(ROOT / block.page, block.body, body)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
