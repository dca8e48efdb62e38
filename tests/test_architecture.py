"""The rules of the code base that no type checker knows: who imports whom, who touches files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "onmt_lite").rglob("*.py")) + [ROOT / "translate.py"]
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

# Imports go from a later rank to an earlier one; within a rank only inside one package
RANKS = [
    [
        *("onmt_lite.errors", "onmt_lite.interrupt", "onmt_lite.chart", "onmt_lite.clock"),
        "onmt_lite.trace",
    ],
    [
        *("onmt_lite.console", "onmt_lite.environment", "onmt_lite.shipped", "onmt_lite"),
        "onmt_lite.trace_page",
    ],
    ["onmt_lite.cores"],
    ["onmt_lite.policy", "onmt_lite.forkserver"],
    ["onmt_lite.schema", "onmt_lite.presets"],
    [
        *("onmt_lite.text_options", "onmt_lite.opennmt_options", "onmt_lite.peer_options"),
        *("onmt_lite.attention_options", "onmt_lite.length_options"),
        *("onmt_lite.editing_options", "onmt_lite.information_options"),
        "onmt_lite.phrase_options",
        "onmt_lite.generation",
    ],
    ["onmt_lite.records", "onmt_lite.options"],
    ["onmt_lite.journal", "onmt_lite.fingerprint", "onmt_lite.bleu", "onmt_lite.spelling"],
    ["onmt_lite.text", "onmt_lite.models", "onmt_lite.search"],
    ["onmt_lite.checkpoints", "onmt_lite.glossary"],
    ["onmt_lite.budget"],
    ["onmt_lite.runtime"],
    ["onmt_lite.languages"],
    ["onmt_lite.rules", "onmt_lite.tokenization", "onmt_lite.examples"],
    ["onmt_lite.rendering", "onmt_lite.alternatives", "onmt_lite.parts", "onmt_lite.notes"],
    ["onmt_lite.widening", "onmt_lite.copies", "onmt_lite.paragraphs"],
    ["onmt_lite.tracing"],
    ["onmt_lite.alignment"],
    ["onmt_lite.translator"],
    ["onmt_lite.reports"],
    ["onmt_lite.files"],
    ["onmt_lite.buckets"],
    ["onmt_lite.progress", "onmt_lite.work", "onmt_lite.workers", "onmt_lite.part"],
    [
        *("onmt_lite.worker", "onmt_lite.output", "onmt_lite.pool"),
        "onmt_lite.phrase_files",
    ],
    ["onmt_lite.dump"],
    ["onmt_lite.job", "onmt_lite.training", "onmt_lite.cli"],
    [
        *("onmt_lite.train", "onmt_lite.export", "onmt_lite.calibrate", "onmt_lite.shortlist"),
        *("onmt_lite.ray", "onmt_lite.plan"),
    ],
    ["onmt_lite.bench"],
    ["onmt_lite.__main__"],
    ["translate"],
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
# What the command line imports for -save_config alone, late
SAVING = {"onmt_lite.files", "onmt_lite.fingerprint", "onmt_lite.output"}
# What a search is written against
INTERFACE = ("onmt_lite.models.base", "onmt_lite.models.selection")
# May read or write files; a schema reads configurations
FILE_LAYER = (
    r"onmt_lite/(environment|cores|files|fingerprint|journal|part|output|dump|generation|progress|cli"
    r"|schema/yamlfile|text/lines|train|export|checkpoints/\w+|training/\w+"
    r"|ray/(inputs|folder|tables|job)|bench/\w+)"
    r"\.py"
)


@pytest.fixture(scope="module")
def trees():
    return {name: ast.parse(path.read_text("utf-8")) for name, path in zip(NAMES, FILES)}


def module_of(name):
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def unit(module):
    """The part of the code a module belongs to: onmt_lite.search.beam -> onmt_lite.search."""
    return ".".join(module.split(".")[:2])


def imports(tree):
    """(module, line) of each import, `from onmt_lite import job` giving onmt_lite.job.

    Those for type checkers alone do not count."""
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = (ROOT / full.replace(".", "/")).with_suffix(".py").exists()
                known |= (ROOT / full.replace(".", "/")).is_dir()
                yield full if known else node.module, node.lineno


def calls(tree):
    """(name, node) of each call: open -> "open", os.open -> "os.open", x.y().z -> ".z"."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            yield node.func.id, node
        elif isinstance(node.func, ast.Attribute):
            owner = node.func.value
            yield f"{owner.id if isinstance(owner, ast.Name) else ''}.{node.func.attr}", node


def keywords(node):
    return {keyword.arg: keyword.value for keyword in node.keywords}


def test_every_module_has_a_rank():
    assert {unit(module_of(name)) for name in NAMES} <= set(RANK)


def test_imports_go_down(trees):
    wrong = []
    for name, tree in trees.items():
        here = unit(module_of(name))
        for module, line in imports(tree):
            there = unit(module)
            if module in INTERFACE:
                continue
            above = ("onmt_lite.job", "onmt_lite.work", "onmt_lite.pool")
            if name == "onmt_lite/translator.py" and module in above:
                continue  # translate_file and workers, when they are asked for
            if there in RANK and there != here and RANK[there] >= RANK[here]:
                wrong.append(f"{name}:{line} imports {module}")
    assert not wrong


def test_search_and_models_do_not_know_each_other(trees):
    wrong = []
    for name, tree in trees.items():
        for module, line in imports(tree):
            if "/search/" in name and module.startswith("onmt_lite.models"):
                if module not in INTERFACE:
                    wrong.append(f"{name}:{line} imports {module}")
            if "/models/" in name and module.startswith("onmt_lite.search"):
                wrong.append(f"{name}:{line} imports {module}")
    assert not wrong


def test_what_runs_before_torch_imports_only_small_things(trees):
    """Wrong options are told within 0.1 s; see also test_options.py."""
    names = r"(errors|interrupt|console|generation|schema/.*|(\w+_)?options|cli|__init__).py"
    before = f"onmt_lite/({names}|ray/options.py)"
    for path in [name for name in NAMES if re.fullmatch(before, name)]:
        heavy = {
            module
            for module, _ in imports(trees[path])
            if module.split(".")[0] in ("torch", "numpy", "sentencepiece", "tqdm")
            or (module.startswith("onmt_lite.") and RANK[unit(module)] > RANK["onmt_lite.options"])
        }
        if path == "onmt_lite/cli.py":
            heavy -= SAVING
        assert not heavy, path


def test_only_the_file_layer_touches_files(trees):
    touching = re.compile(
        r"open|io\.open|os\.(open|replace|rename|remove|unlink|makedirs|mkdir|truncate)|gzip\.open"
        r"|shutil\.\w+|tempfile\.\w+|torch\.(load|save)|logging\.FileHandler"
        r"|\w*\.(read_text|read_bytes|write_text|write_bytes|unlink|mkdir|open|touch)"
    )
    wrong = [
        f"{name}:{node.lineno} {called}"
        for name, tree in trees.items()
        if not re.fullmatch(FILE_LAYER, name)
        for called, node in calls(tree)
        # The command line replaces a dead standard output by /dev/null
        if touching.fullmatch(called) and "os.devnull" not in ast.unparse(node)
    ]
    assert not wrong


def test_text_files_say_how_they_are_encoded(trees):
    """Without encoding the locale decides; without newline lone CRs become line feeds."""
    wrong = []
    for name, tree in trees.items():
        for called, node in calls(tree):
            if called not in ("open", "io.open", "gzip.open", "open_text", ".open"):
                continue
            mode = keywords(node).get("mode", node.args[1] if len(node.args) > 1 else None)
            mode = mode.value if isinstance(mode, ast.Constant) else "r"
            if "b" not in mode and not {"encoding", "newline"} <= set(keywords(node)):
                wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
        for called, node in calls(tree):
            if called.endswith((".read_text", ".write_text", ".FileHandler")):
                if "encoding" not in keywords(node):
                    wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert not wrong


def test_durations_do_not_look_at_the_calendar(trees):
    """Its clock may jump; dates are for the log alone."""
    calendar = r"time\.(time|time_ns|localtime|gmtime|ctime|strftime)|datetime\.\w+"
    wrong = [
        f"{name}:{node.lineno} {called}"
        for name, tree in trees.items()
        for called, node in calls(tree)
        if re.fullmatch(calendar, called)
    ]
    assert not wrong


def test_nothing_that_runs_what_it_reads(trees):
    wrong = []
    for name, tree in trees.items():
        for module, line in imports(tree):
            if module.split(".")[0] in ("pickle", "dill", "marshal", "shelve", "cloudpickle"):
                wrong.append(f"{name}:{line} {module}")
        for called, node in calls(tree):
            forbidden = called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen")
            loose = re.fullmatch(r"yaml\.(load|load_all|unsafe_load|full_load)(_all)?", called)
            if forbidden or loose:
                wrong.append(f"{name}:{node.lineno} {called}")
            if called == "torch.load":
                only = keywords(node).get("weights_only")
                if not (isinstance(only, ast.Constant) and only.value is True):
                    wrong.append(f"{name}:{node.lineno} torch.load without weights_only=True")
    assert not wrong


def test_data_is_not_split_at_unicode_line_ends(trees):
    """str.splitlines knows eleven of them, a file one; the text of an error may be split so."""
    wrong = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, tree in trees.items()
        for called, node in calls(tree)
        if called.endswith(".splitlines")
        and not re.match(r"str\((error|exc|e)\)\.splitlines", ast.unparse(node))
    ]
    assert not wrong


def test_errors_are_not_swallowed(trees):
    """No bare except, and no `except Exception: pass`."""
    wrong = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type else ""
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if caught in ("", "Exception", "BaseException") and not raises:
                wrong.append(f"{name}:{node.lineno}")
    assert not wrong


def test_only_the_command_line_prints(trees):
    """Standard output carries translations and nothing else."""
    may = {"onmt_lite/cli.py", "translate.py", "onmt_lite/options.py"}
    wrong = [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        if name not in may
        for called, node in calls(tree)
        if called == "print" and "file" not in keywords(node)
    ]
    assert not wrong


@pytest.mark.parametrize("name", NAMES)
def test_files_and_functions_can_be_read_at_once(trees, name):
    # A run is one story, and so is a list of declarations
    longer = {
        "onmt_lite/train.py": 580,
        "onmt_lite/options.py": 850,
        "onmt_lite/translator.py": 500,
    }
    longer["onmt_lite/training/options.py"] = 800
    assert len((ROOT / name).read_text("utf-8").split("\n")) <= longer.get(name, 400) + 1
    for node in ast.walk(trees[name]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < 60, f"{node.name} in line {node.lineno}"


@pytest.mark.parametrize("name", NAMES)
def test_every_module_says_what_it_is(trees, name):
    if (ROOT / name).stat().st_size:
        assert ast.get_docstring(trees[name])


def test_every_package_is_declared():
    """What pyproject.toml does not list is left out of an installed copy."""
    declared = re.findall(r'"(onmt_lite[\w.]*)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    found = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in FILES[:-1]}
    assert found <= set(declared)
