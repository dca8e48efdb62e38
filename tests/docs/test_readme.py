"""What README.md and docs/ say is what happens: commands, Python, YAML, links, names, figures.

`python -m tests.docs.test_readme` writes the generated parts again: option tables, exactness, and
the output of commands.  A command that cannot run here is marked above its block, with a reason:
`<!-- not run: needs a GPU -->`; its options are checked all the same.
"""

import json
import logging
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

import onmt_lite.inference.postprocess
from benchmarks.__main__ import parse as parse_benchmarks
from benchmarks.report import headline, ratios, tables_of, write_pages
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
from tests.unit.test_architecture import ROOMS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "data/de-en/README.md", ROOT / "recipes/de_en/README.md"]
INSTALL = "python3 -m venv .venv && . .venv/bin/activate && pip install -q -r requirements.txt"

# Programs that the pages call, and how each reads its options
PROGRAMS: dict[str, Callable] = {
    "translate.py": load_options,
    "onmt_lite": load_options,
    "onmt_lite.train": load_train_options,
    "onmt_lite.export": load_export_options,
    "onmt_lite.train.calibrate": load_calibrate_options,
    "onmt_lite.ray": load_ray_options,
    "benchmarks": parse_benchmarks,
}
COMMANDS = {  # of an installed copy
    "onmt_lite": "onmt_lite",
    "onmt_lite_train": "onmt_lite.train",
    "onmt_lite_export": "onmt_lite.export",
}
# Files that commands of the pages read beside those of the repository
INPUTS = {
    "input.de": "Guten Morgen!\nWo ist der Bahnhof?\n\nIch lerne Deutsch.\n",
    "begin.en": "Good\nWhere\n\n\n",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment above it, if there is one."""

    page: str
    line: int
    kind: str
    body: str
    mark: str

    @property
    def not_run(self) -> str:
        """Why its commands are not run; empty if they are."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in re.finditer(r"(?:^<!-- ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", text, re.S | re.M):
        line = text.count("\n", 0, found.start(3))
        yield Block(str(path.relative_to(ROOT)), line, found[2] or "sh", found[3], found[1] or "")


BLOCKS = [block for path in PAGES for block in blocks_of(path)]


def parametrize(*kinds: str):
    chosen = [block for block in BLOCKS if block.kind in kinds]
    names = [f"{block.page}:{block.line}" for block in chosen]
    return pytest.mark.parametrize("block", chosen, ids=names)


def lines_of(block: Block) -> list[str]:
    """Commands of a shell block, continued lines joined."""
    lines = block.body.replace("\\\n", " ").split("\n")
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def words_of(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>&;")
    lexer.commenters = ""
    return list(lexer)


def program_of(words: list[str]) -> tuple[str, list[str]] | None:
    """("translate.py", arguments) of the words of one command, if it is one of our programs."""
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]], words[1:]
    if words[:1] != ["python"]:
        return None
    name, *argv = words[2:] if words[1] == "-m" else words[1:]
    assert name in PROGRAMS or not name.startswith("onmt_lite"), name
    return (name, argv) if name in PROGRAMS else None


# Running what the pages say


def make_sandbox(here: Path) -> Path:
    """A directory that looks like the repository, with input files; what is written stays here."""
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "README.md":
            (here / path.name).symlink_to(path)
    for name, text in INPUTS.items():
        (here / name).write_text(text, encoding="utf-8")
    return here


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> Path:
    return make_sandbox(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def run(sandbox, monkeypatch, capfdbinary):
    """run(command) -> what it prints.  A command of ours runs in this process, which has torch
    loaded, others by the shell; both in the sandbox."""
    monkeypatch.chdir(sandbox)

    def run(command: str) -> str:
        printed = run_here(command, sandbox, capfdbinary)
        return run_by_shell(command, sandbox) if printed is None else printed

    return run


def run_by_shell(command: str, cwd: Path) -> str:
    """`python` is the one that runs this test."""
    command = re.sub(r"\bpython\b", f'"{sys.executable}"', command)
    done = subprocess.run(["sh", "-ec", command], cwd=cwd, capture_output=True)
    assert done.returncode == 0, done.stderr.decode("utf-8")
    return done.stdout.decode("utf-8")


def run_here(command: str, cwd: Path, capfdbinary) -> str | None:
    """What `[echo WORDS |] PROGRAM OPTIONS [< FILE] [> FILE]` prints; None for other commands."""
    done = ended_here(command, cwd, capfdbinary)
    assert done is None or done[0] == 0, done[2]
    return None if done is None else done[1]


def ended_here(command: str, cwd: Path, capfdbinary) -> tuple[int, str, str] | None:
    """The same with the exit code before, and what stderr has after it."""
    words = words_of(command)
    typed, output = b"", None
    if words[0] == "echo" and words.count("|") == 1:
        echoed, words = words[1 : words.index("|")], words[words.index("|") + 1 :]
        typed = (" ".join(echoed) + "\n").encode("utf-8")
    if ">" in words[-2:-1]:
        words, output = words[:-2], words[-1]
    if "<" in words[-2:-1]:
        words, typed = words[:-2], (cwd / words[-1]).read_bytes()
    found = program_of(words)
    if found is None or {"|", "<", ">", "&&", ";"} & set(words):
        return None
    capfdbinary.readouterr()
    code = call_program(*found, typed, cwd)
    out, err = capfdbinary.readouterr()
    if output is not None:
        (cwd / output).write_bytes(out)
        out = b""
    return code, out.decode("utf-8"), err.decode("utf-8")


def call_program(name: str, argv: list[str], typed: bytes, cwd: Path) -> int:
    """Exit code of the program, run in this process, which is left as it was."""
    (cwd / ".stdin").write_bytes(typed)
    signals = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    stdin, words, threads = sys.stdin, sys.argv, torch.get_num_threads()
    run_it = runpy.run_path if name.endswith(".py") else runpy.run_module
    try:
        with open(cwd / ".stdin", "rb") as sys.stdin, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
            sys.argv = [name, *argv]
            run_it(name, run_name="__main__")
    except SystemExit as done:
        return done.code
    finally:
        sys.stdin, sys.argv = stdin, words
        torch.set_num_threads(threads)
        logging.getLogger("onmt_lite").handlers = []
        for number, handler in signals.items():
            signal.signal(number, handler)
    return 0


@parametrize("sh", "bash")
def test_commands_run(block, run, monkeypatch):
    monkeypatch.setattr("onmt_lite.checkpoints.hub.NAME", re.compile("(?!)"))  # nothing is fetched
    for command in lines_of(block):
        if INSTALL in command:
            continue  # the tests of the two lines, below
        if not block.not_run:
            run(command)
            continue
        words = words_of(command.split(" | ")[-1])
        ends = [words.index(word) for word in ("<", ">", "&&") if word in words]
        found = program_of(words[: min(ends, default=None)])
        if found is not None:
            name, argv = found
            PROGRAMS[name](argv)


def test_what_is_not_run_has_a_reason():
    marked = [block for block in BLOCKS if block.mark.startswith("not run")]
    assert all(len(block.not_run) > 5 for block in marked)
    assert {block.kind for block in marked} <= {"sh", "bash", "python"}


def test_the_first_lines_are_what_they_say():
    """The first translates the sample, the second runs these tests, the third a line."""
    first, second, third = (block.body for block in BLOCKS[:3])
    assert first.startswith(INSTALL + " && ")
    out = run_by_shell(first.removeprefix(INSTALL + " && "), ROOT)
    german = (ROOT / "data" / "sample.de.txt").read_text(encoding="utf-8").split("\n")
    english = out.split("\n")
    assert [bool(line) for line in english] == [bool(line) for line in german]
    assert "Good morning" in english[0] and "14:35" in out
    (torch,) = re.findall("torch==.*", (ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert f" {torch} --index-url" in BLOCKS[3].body
    assert second.strip() == f"{INSTALL} -r tests/requirements.txt && python -m pytest"
    assert re.fullmatch(r"Good morning[.!]\n", run_by_shell(third, ROOT))


NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def transcript(block: Block) -> list[tuple[str, str]]:
    """(command, what is shown below it) of a console block."""
    parts = re.split(r"^\$ (.*)\n", block.body, flags=re.M)
    return list(zip(parts[1::2], parts[2::2]))


def assert_numbers_alike(printed: str, shown: str) -> None:
    """Equal texts; numbers with a point may differ in the last digits, as processors do."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    numbers = [float(x) for x in NUMBER.findall(printed)]
    assert numbers == pytest.approx([float(x) for x in NUMBER.findall(shown)], abs=2e-2)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_tables_are_valid(path):
    rows = re.findall(r"^\|.*\|$", prose_of(path), re.M)
    for command in re.findall(r"`(?:[^`]*\| )?python (translate.py [^`]*)`", "\n".join(rows)):
        load_options(words_of(command)[1:])


@parametrize("console")
def test_commands_print_what_is_shown(block, run):
    for command, shown in transcript(block):
        assert_numbers_alike(run(command), shown)


@parametrize("json")
def test_json_is_what_its_command_prints(block, run):
    assert block.mark.startswith("prints: "), "which command prints this?"
    assert_alike(json.loads(run(block.mark.removeprefix("prints: "))), json.loads(block.body))


def assert_alike(found, shown) -> None:
    """Equal but for the digits that the page leaves out."""
    if isinstance(shown, dict):
        assert list(found) == list(shown)
        found, shown = list(found.values()), list(shown.values())
    if isinstance(shown, list):
        assert len(found) == len(shown)
        for each in zip(found, shown):
            assert_alike(*each)
    elif isinstance(shown, float):
        assert found == pytest.approx(shown, abs=2e-3)
    else:
        assert found == shown


PYTHON = [path for path in PAGES if any(b.kind == "python" for b in blocks_of(path))]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_python_runs(path, sandbox, monkeypatch, capfd):
    """The blocks of a page, one after the other, in one namespace."""
    monkeypatch.chdir(sandbox)
    names: dict = {"__name__": "__main__"}
    blocks = [block for block in blocks_of(path) if block.kind == "python" and not block.not_run]
    for i, block in enumerate(blocks):
        exec(compile(block.body, f"{block.page}:{block.line}", "exec"), names)
        out, err = capfd.readouterr()
        if path.name == "python.md" and i == 0:  # the first example
            assert err == "" and "Guten Morgen! Good morning" in out
            assert len(out.splitlines()) == 5 and out.splitlines()[4].startswith("A very ")


@parametrize("yaml")
def test_yaml_loads(block, tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(block.body, encoding="utf-8")
    if block.mark == "refused":  # a file of another tool, see below
        return
    load = load_train_options if "train" in yaml.safe_load(block.body) else load_options
    options, resolved = load(["-config", str(path)])
    assert any(origin != "default" for origin in resolved.origins.values())
    if "transforms" in block.body:  # the one of OpenNMT-py says how lines become tokens
        assert options.text.token_transforms == ("sentencepiece", "prefix", "suffix")


def test_three_files_are_one_job(sandbox, run):
    """OpenNMT-py's is taken as it stands; Eole's says what each of its names is here."""
    blocks = [b for b in BLOCKS if (b.page, b.kind) == ("docs/coming-from.md", "yaml")]
    printed, instead = set(), "-model data/de-en -gpu -1 -precision fp32 -search opennmt-3"
    for block in blocks:
        text = block.body
        if block.mark == "refused":
            (sandbox / "job.yaml").write_text(text, encoding="utf-8")
            with pytest.raises(OptionError) as refused:
                load_options(["-config", "job.yaml"])
            told = [
                re.match(r"unknown option (\w+); here it is (\w+)\b", problem)
                for problem in refused.value.problems
            ]
            assert len(told) >= 2
            for theirs, ours in (found.groups() for found in told):
                text = text.replace(f"{theirs}:", f"{ours}:")
        (sandbox / "job.yaml").write_text(text, encoding="utf-8")
        assert run(f"python translate.py -config job.yaml {instead}") == ""
        printed.add((sandbox / "output.en").read_bytes())
    assert len(printed) == 1 and len(blocks) == 3


# Names and links


def prose_of(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors_of(path: Path) -> set[str]:
    """Names of a page's headings, as Markdown viewers make them."""
    heads = re.findall(r"^#+ (.+)$", prose_of(path), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
class TestNames:
    def test_links_lead_somewhere(self, path):
        for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(path)):
            if target.startswith(("http://", "https://")):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name) if name else path
            assert file.exists(), target
            assert not anchor or anchor in anchors_of(file), target

    def test_files_exist(self, path):
        spans = re.findall(r"`([^`\s]+)`", prose_of(path))
        top = {entry.name for entry in ROOT.iterdir()}
        named = [span for span in spans if "/" in span and span.split("/")[0] in top]
        assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []

    def test_options_exist(self, path):
        known = {*OPTIONS, *TRAIN_OPTIONS, *EXPORT_OPTIONS, *CALIBRATE_OPTIONS, *RAY_OPTIONS}
        known |= {*vars(parse_benchmarks([])), *other_tools.load_opennmt_options()}
        spans = re.findall(r"`(-[^`]+)`", prose_of(path))
        named = [name for span in spans for name in re.findall(r"(?:^| )--?([a-z]\w+)", span)]
        assert set(named) - known == set()


def test_the_pages_are_short_and_the_front_page_leads_to_all():
    """Words, as wc counts them, of the front page and docs/."""
    front, *others = (path.read_text(encoding="utf-8") for path in PAGES)
    docs = [text for path, text in zip(PAGES[1:], others) if path.parent.name == "docs"]
    assert len(front.split()) <= 800
    assert sum(len(text.split()) for text in (front, *docs)) < 19_000
    for path in PAGES[1:]:
        assert f"]({path.relative_to(ROOT)}" in front


def test_the_promises_have_the_figures_of_the_pages():
    pages = ("README.md", "docs/searches.md", "docs/jobs-reference.md", "docs/text.md")
    front, searches, jobs, text = ((ROOT / n).read_text(encoding="utf-8") for n in pages)
    equal = sum(map(int, re.findall(r"\| (\d+) of \1 \|", between(searches, "exactness"))))
    trials = dict(re.findall(r"^\| (\w+) \| (\d+) \|", between(jobs, "kit"), re.M))
    stopped = sum(int(trials[kit]) for kit in ("K1", "K1w", "K2", "K3", "K4", "K12", "faults"))
    noted = re.search(r"was (\d+) of 2,000 .*? (\d+) of 1,000 .*? hand, (\d+) rightly", text, re.S)
    test, others, right = map(int, noted.groups())
    names = sum(map(len, other_tools.load_peers()["tools"].values()))
    base = median(ratios(SPEED["workloads"]["base"], OURS, "seconds"))
    promised = re.findall(r"^- \*\*.*?\*\* ([\d,.]+) (?:of ([\d,]+) )?", front, re.M)
    assert promised == [
        (f"{equal:,}", f"{equal:,}"),
        (f"{base:.2f}", ""),
        (f"{stopped:,}", ""),
        (f"{right}", f"{test + others}"),
        (f"{names:,}", ""),
    ]


# Tables


def between(text: str, name: str) -> str:
    return text.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


def names_table() -> str:
    """A row for each tool: its names, each with the option that is here."""
    rows = ["| from | names there → here |", "|---|---|"]
    for tool, names in other_tools.load_peers()["tools"].items():
        pairs = [f"{theirs} → `{ours.split(',')[0]}`" for theirs, ours in names.items()]
        rows.append(f"| {tool} | {', '.join(pairs)} |")
    return "\n".join(rows)


def test_the_searches_answer_as_the_table_says():
    page = (ROOT / "docs" / "searches.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) ; (.*?) \|", page, re.M)
    assert [name for name, _, _ in rows] == list(PRESETS)
    for name, *shown in rows:
        options, _ = load_options(["-config", "configs/searches.yaml", "-search", name])
        (found,) = Translator.load(options).translate(["x x"])
        assert [f"{h.text or '(empty)'} {h.score:.4f}" for h in found.hyps] == shown, name


def exactness_table() -> str:
    """How many n-best lists of each original the tests compare, and find equal.

    test_conformance.py has a case for each group of lists on tables, test_references.py for each
    on models; a list that differs fails there.
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
        "| `-search` | original | small tables | real models | from its source | equal |",
        "|---|---|---|---|---|---|",
    ]
    for name in [name for name in PRESETS if originals[name]]:
        counts = [lists[name, kind] for kind in ("table", "model", "rule")]
        systems = ", ".join(dict.fromkeys(originals[name]))
        cells = " | ".join(str(n or "–") for n in counts)
        lines.append(f"| `{name}` | {systems} | {cells} | {sum(counts)} of {sum(counts)} |")
    return "\n".join(lines)


def test_every_note_is_explained():
    """The code has the same list, above what makes the notes."""
    page = (ROOT / "docs" / "jobs-reference.md").read_text(encoding="utf-8")
    section = page.split("## Notes")[1].split("\n## ")[0]
    rows = re.findall(r"^  of .*: (.*)$", onmt_lite.inference.postprocess.__doc__ or "", re.M)
    listed = [note for row in rows for note in row.split(", ")]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", section, re.M)) == sorted(listed)


def test_every_exit_code_is_explained():
    page = (ROOT / "docs" / "jobs-reference.md").read_text(encoding="utf-8")
    section = page.split("## Exit codes")[1].split("\n## ")[0]
    listed = [
        int(n) for cell in re.findall(r"^\| ([\d, ]+) \|", section, re.M) for n in cell.split(",")
    ]
    errors = {error.exit_code for error in OnmtLiteError.__subclasses__()}
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE]
    assert sorted(listed) == sorted({0, 1} | errors | {128 + number for number in signals})


CARD = ROOT / "data" / "de-en" / "README.md"


def card_examples(card: str) -> str:
    """The table of examples with what the shipped model says now; the last column is a person's."""
    head, rule, *rows = between(card, "examples").split("\n")
    german, verdicts = zip(*((cells[1], cells[-2]) for cells in (row.split("|") for row in rows)))
    # In the precision in which every processor says the same
    translator = Translator.from_pretrained(precision="fp32")
    found = translator.translate([text.strip() for text in german])
    filled = [
        f"|{text}| {t.text} | {t.confidence:.2f} |{verdict}|"
        for text, t, verdict in zip(german, found, verdicts)
    ]
    return "\n".join([head, rule, *filled])


def test_the_card_shows_what_the_model_says():
    card = CARD.read_text(encoding="utf-8")
    assert_numbers_alike(card_examples(card), between(card, "examples"))


def test_the_front_page_has_the_scores_of_the_card():
    card, page = (path.read_text(encoding="utf-8") for path in (CARD, ROOT / "README.md"))
    bleu, chrf = re.search(r"\| beam 5 \(default\) \| ([\d.]+) \| ([\d.]+) \|", card).groups()
    assert f"{bleu} BLEU" in page and f"{chrf} chrF" in page
    assert f"| {bleu}, {chrf} with beam 5" in card
    assert f"{bleu} BLEU" in (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_design_draws_the_rooms():
    """Rooms and their order are those of the test of imports."""
    drawn = re.findall(r"^  │ ([a-z_]+)(?:/|\.py) +│", DESIGN, re.M)
    assert tuple(drawn) == ROOMS


def test_the_design_names_files_that_exist():
    spans = re.findall(r"`([^`\s]+)`", DESIGN)
    named = {span for span in spans if span.split("/")[0] in ROOMS and "/" in span}
    assert len(named) > 20
    missing = {name for name in named if not (ROOT / "onmt_lite" / name).exists()}
    assert missing == set()


def test_the_design_says_how_much_code_there_is():
    found = re.search(r"About ([\d,]+) lines of Python, and ([\d,]+) of tests", DESIGN)
    stated = [int(number.replace(",", "")) for number in found.groups()]
    for folder, n_stated in zip(("onmt_lite", "tests"), stated):
        paths = (ROOT / folder).rglob("*.py")
        n_lines = sum(path.read_text(encoding="utf-8").count("\n") for path in paths)
        assert n_lines == pytest.approx(n_stated, rel=0.1), folder


SPEED = json.loads((ROOT / "docs" / "speed.json").read_text(encoding="utf-8"))
GENERATED = {  # what stands between comments -> the page that has it, and what makes it
    "options": (ROOT / "docs" / "options.md", lambda: format_markdown(OPTIONS)),
    "names": (ROOT / "docs" / "coming-from.md", names_table),
    "exactness": (ROOT / "docs" / "searches.md", exactness_table),
    "measured": (ROOT / "docs" / "speed.md", lambda: tables_of(SPEED)),
    "speed": (ROOT / "README.md", lambda: headline(SPEED)),
}


@pytest.mark.parametrize("name", GENERATED)
def test_tables_are_generated(name):
    path, make = GENERATED[name]
    page = path.read_text(encoding="utf-8")
    assert between(page, name) == make(), "run `python -m tests.docs.test_readme`"


def test_speed_chart_shows_the_recorded_ratios():
    svg = (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8")
    shown = re.findall(r"<text [^>]*>([^<]*)</text>", svg)
    for workload, work in SPEED["workloads"].items():
        medians = [f"{median(ratios(work, name, 'seconds')):.2f}" for name in work["systems"]]
        assert {workload, *work["systems"], *medians} <= set(shown)


def test_searches_of_peers_by_name_find_all_their_lines():
    shipped = SPEED["workloads"]["shipped"]
    for name in ("transformers float32", "CTranslate2 float32"):
        assert shipped["systems"][name]["equal"] == shipped["lines"]


def test_the_pictures_show_what_this_code_prints(tmp_path, monkeypatch, capfdbinary):
    """`python docs/pictures.py` draws them anew."""
    pictures, session = runpy.run_path(str(ROOT / "docs" / "pictures.py")), []
    monkeypatch.chdir(make_sandbox(tmp_path))
    (tmp_path / "input.de").write_text(pictures["INPUT"], encoding="utf-8")
    for command in pictures["SESSION"]:
        done = ended_here(command, tmp_path, capfdbinary)
        printed = run_by_shell(command, tmp_path) if done is None else "".join(done[1:])
        session.append((command, printed))
    drawn = {
        "terminal.svg": pictures["picture_of_terminal"](session),
        "search.svg": pictures["picture_of_search"](),
    }
    for name, text in drawn.items():
        assert_numbers_alike(text, (ROOT / "docs" / name).read_text(encoding="utf-8"))
        assert f"](docs/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")


# Writing the generated parts


def rewrite() -> None:
    """Tables, the chart, and what commands are shown to print."""
    write_pages()  # the chart, and the tables of speed
    examples = (CARD, lambda: card_examples(CARD.read_text(encoding="utf-8")))
    for name, (path, make) in {**GENERATED, "examples": examples}.items():
        start = f"<!-- {name} -->\n"
        replace(path, start + between(path.read_text(encoding="utf-8"), name), start + make())
    with tempfile.TemporaryDirectory() as here:
        sandbox = make_sandbox(Path(here))
        for block in (block for block in BLOCKS if block.kind == "console"):
            printed = [(run_by_shell(c, sandbox), c) for c, _ in transcript(block)]
            body = "".join(f"$ {command}\n{out}" for out, command in printed)
            replace(ROOT / block.page, block.body, body)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
