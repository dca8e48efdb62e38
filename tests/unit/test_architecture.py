"""Rules of the code base that type checkers do not check: imports, sizes and file access."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "onmt_lite").rglob("*.py")) + [ROOT / "translate.py"]
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

# Each room may import itself and earlier rooms; docs/design.md describes the rooms
ROOMS = (
    *("version", "errors", "system", "models", "text", "search", "checkpoints", "config"),
    *("inference", "trace", "jobs", "ray", "train", "export", "api", "__main__"),
)


@pytest.fixture(scope="module")
def trees():
    return {name: ast.parse(path.read_text("utf-8")) for name, path in zip(NAMES, FILES)}


def find_imports(tree):
    """Yield (module, line) of each import, also inside functions and for type checkers.

    `from onmt_lite import jobs` gives onmt_lite.jobs.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def find_calls(tree):
    """Yield (name, node) of each call: open -> "open", os.open -> "os.open", x.y().z -> ".z"."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            yield node.func.id, node
        elif isinstance(node.func, ast.Attribute):
            owner = node.func.value
            yield f"{owner.id if isinstance(owner, ast.Name) else ''}.{node.func.attr}", node


def get_keywords(node):
    return {keyword.arg: keyword.value for keyword in node.keywords}


def test_rooms_import_only_earlier_rooms(trees):
    wrong = []
    for name, tree in trees.items():
        room = name.split("/")[1].removesuffix(".py") if "/" in name else "__main__"
        for module, line in find_imports(tree):
            there = module.split(".")[1] if module.startswith("onmt_lite.") else ""
            if there in ROOMS and room in ROOMS and ROOMS.index(there) > ROOMS.index(room):
                wrong.append(f"{name}:{line} imports {module}")
    assert not wrong


def test_there_are_no_import_cycles(trees):
    """Includes cycles of several modules, and imports in functions and for type checkers."""
    names = {name.removesuffix(".py").replace("/", "."): name for name in trees}
    names = {module.removesuffix(".__init__"): name for module, name in names.items()}
    needs = {}
    for name, tree in trees.items():
        imported = {module for module, _ in find_imports(tree)}
        imported |= {module.rpartition(".")[0] for module in imported}
        found = {names[module] for module in imported if module in names}
        needs[name] = {module for module in found if not module.endswith("__init__.py")}
    while free := [name for name, own in needs.items() if not own & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs


def test_files_and_functions_are_short(trees):
    wrong = []
    for name, tree in trees.items():
        text = (ROOT / name).read_text("utf-8")
        if text.count("\n") > 460 and not re.search(r"/(train|options|translator)\.py", name):
            wrong.append(f"{name}: {text.count(chr(10))} lines")
        if text and not ast.get_docstring(tree):
            wrong.append(f"{name}: has no docstring")
        wrong += [
            f"{name}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.end_lineno - node.lineno >= 70
        ]
    assert not wrong


def test_text_files_are_opened_with_encoding_and_newline(trees):
    """The default encoding depends on the locale, and the default newline converts lone CRs."""
    wrong = []
    for name, tree in trees.items():
        for called, node in find_calls(tree):
            if called not in ("open", "io.open", "gzip.open", "open_text", ".open"):
                continue
            mode = get_keywords(node).get("mode", node.args[1] if len(node.args) > 1 else None)
            mode = mode.value if isinstance(mode, ast.Constant) else "r"
            if "b" not in mode and not {"encoding", "newline"} <= set(get_keywords(node)):
                wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
        for called, node in find_calls(tree):
            if called.endswith((".read_text", ".write_text", ".FileHandler")):
                if "encoding" not in get_keywords(node):
                    wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert not wrong


def test_durations_use_monotonic_clock(trees):
    """The wall clock may jump; dates are only for the log."""
    calendar = r"time\.(time|time_ns|localtime|gmtime|ctime|strftime)|datetime\.\w+"
    wrong = [
        f"{name}:{node.lineno} {called}"
        for name, tree in trees.items()
        for called, node in find_calls(tree)
        if re.fullmatch(calendar, called)
    ]
    assert not wrong


def test_no_unsafe_deserialization(trees):
    wrong = []
    for name, tree in trees.items():
        for module, line in find_imports(tree):
            if module.split(".")[0] in ("pickle", "dill", "marshal", "shelve", "cloudpickle"):
                wrong.append(f"{name}:{line} {module}")
        for called, node in find_calls(tree):
            forbidden = called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen")
            loose = re.fullmatch(r"yaml\.(load|load_all|unsafe_load|full_load)(_all)?", called)
            if forbidden or loose:
                wrong.append(f"{name}:{node.lineno} {called}")
            if called == "torch.load":
                only = get_keywords(node).get("weights_only")
                if not (isinstance(only, ast.Constant) and only.value is True):
                    wrong.append(f"{name}:{node.lineno} torch.load without weights_only=True")
    assert not wrong


def test_splitlines_is_not_used_on_data(trees):
    """str.splitlines splits at eleven characters, a file at one; error messages are exempt."""
    wrong = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, tree in trees.items()
        for called, node in find_calls(tree)
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


def test_print_has_file_argument(trees):
    """Standard output is for translations only."""
    wrong = [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for called, node in find_calls(tree)
        if called == "print" and "file" not in get_keywords(node)
    ]
    assert not wrong


def test_pyproject_lists_every_package():
    """Packages that are not listed are missing in the wheel."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    packages = re.search(r"\[tool.setuptools\]\npackages = \[(.*?)\]", project, re.S)[1]
    found = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in FILES[:-1]}
    declared = set(re.findall(r'"(.*)"', packages))
    assert declared == found | {"onmt_lite.data", "onmt_lite.configs"}
