"""Count English constructions that this project avoids; CONTRIBUTING.md has the style guide.

    python -m tests.docs.prose              table of hits per 10,000 words
    python -m tests.docs.prose --show C     every hit of pattern C
    python -m tests.docs.prose --check      exit with 1 if a ceiling is exceeded

A hit is a hint, not a verdict: "says" is right for a person.  The ceilings leave room for that.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml


class Pattern(NamedTuple):
    """A construction to avoid, and how often it may occur in 10,000 words."""

    avoid: str
    write: str
    regex: re.Pattern[str]
    ceiling: int


class Passage(NamedTuple):
    """A piece of prose: a docstring, a comment, a message or a line of Markdown."""

    path: Path
    line: int
    text: str


PATTERNS = {
    key: Pattern(p["avoid"], p["write"], re.compile(p["regex"]), p["ceiling"])
    for key, p in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
}


def python_prose(path: Path) -> Iterator[Passage]:
    """Yield docstrings, string literals of three or more words, and comments."""
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if len(node.value.split()) >= 3:
                yield Passage(path, node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Passage(path, token.start[0], token.string.lstrip("# "))


def yaml_prose(path: Path) -> Iterator[Passage]:
    """Yield every line: comments, help texts and messages."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        yield Passage(path, number, line.lstrip("# "))


def markdown_prose(path: Path) -> Iterator[Passage]:
    """Yield the lines outside fenced code blocks."""
    in_code = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield Passage(path, number, line)


READERS = {".py": python_prose, ".yaml": yaml_prose, ".md": markdown_prose}
YAML_WITH_PROSE = ("help.yaml", "notes.yaml")


def area_of(path: Path) -> str | None:
    """Return the area whose words a tracked file counts toward, or None if it has no prose."""
    if path.suffix == ".md":
        return "docs"
    if path.suffix == ".py":
        return "tests" if path.parts[0] == "tests" else "package"
    return "package" if path.name in YAML_WITH_PROSE else None


def collect_prose() -> dict[str, list[Passage]]:
    """Return the passages of all tracked files of the checkout, by area."""
    root = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    passages: dict[str, list[Passage]] = {"package": [], "tests": [], "docs": []}
    for name in filter(None, listed.split("\0")):
        area = area_of(Path(name))
        if area and (root / name).is_file():
            for passage in READERS[Path(name).suffix](root / name):
                passages[area].append(passage._replace(path=Path(name)))
    return passages


def print_hits(passages: dict[str, list[Passage]], key: str) -> None:
    """Print the hits of one pattern as `file:line: context`."""
    pattern = PATTERNS[key]
    for path, line, text in (p for area in passages.values() for p in area):
        for hit in pattern.regex.finditer(text):
            context = " ".join(text[max(0, hit.start() - 50) : hit.end() + 50].split())
            print(f"{path}:{line + text.count(chr(10), 0, hit.start())}: {context}")
    print(f"avoid {pattern.avoid}; write: {pattern.write}")


def count_hits(passages: dict[str, list[Passage]]) -> Iterator[tuple[str, str, int, float]]:
    """Yield (pattern key, area, hits, hits per 10,000 words)."""
    for key, pattern in PATTERNS.items():
        for area, texts in passages.items():
            n_words = sum(len(text.split()) for _, _, text in texts)
            n_hits = sum(1 for _, _, text in texts for _ in pattern.regex.finditer(text))
            yield key, area, n_hits, 10_000 * n_hits / max(1, n_words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--show", choices=PATTERNS, help="print every hit of one pattern")
    parser.add_argument("--check", action="store_true", help="exit with 1 above a ceiling")
    args = parser.parse_args()
    passages = collect_prose()
    if args.show:
        print_hits(passages, args.show)
        return 0
    n_above = 0
    for key, area, n_hits, rate in count_hits(passages):
        above = rate > PATTERNS[key].ceiling
        n_above += above
        mark = "above its ceiling" if above else ""
        print(f"{key} {area:8} {n_hits:4} {rate:6.1f} of {PATTERNS[key].ceiling:2} {mark}".rstrip())
    print(
        f"{n_above} counts above their ceiling" if n_above else "all counts within their ceilings"
    )
    return int(args.check and n_above > 0)


if __name__ == "__main__":
    sys.exit(main())
