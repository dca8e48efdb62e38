"""Guesses for error messages: the option near an unknown name, and where a stray word belongs."""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from onmt_lite.config.files import PHRASES, TAKES
from onmt_lite.config.option import Option
from onmt_lite.system.terminal import is_text, line_that_works

MAX_GUESSES = 3  # names in a suggestion
DASHES = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d"  # characters that look like a hyphen
DASHED = re.compile(rf"(?:[-{DASHES}]*[{DASHES}][-{DASHES}]*|-{{3,}})(?=[A-Za-z_])")
IS_NAME = re.compile(r"([A-Za-z]\w*)(?:=(.*))?", re.DOTALL)
CLOSE, SIMILAR = 0.75, 0.65  # ratios of difflib


def near_names(
    name: str, options: Mapping[str, Option], page: Collection[str], groups: Iterable[str] = ()
) -> list[str]:
    """Return up to three options, or groups, that an unknown name may mean.

    Names that begin with it come first, then names that contain it as a word or as the start of a
    word, then similar names and words, and last options of the page whose help has the word.
    """
    plain = name.lower().replace("-", "_").strip("_")
    known = [*options, *groups]
    words = sorted({word for each in known for word in each.split("_")})

    def with_word(start: str) -> list[str]:
        pattern = re.compile(rf"(?:^|_){re.escape(start)}")
        return [each for each in known if start and pattern.search(each)]

    def in_help() -> list[str]:
        pattern = re.compile(rf"\b{re.escape(plain)}\b", re.IGNORECASE)
        found = [each for each in page if len(plain) > 3 and pattern.search(options[each].help)]
        return found if len(found) <= MAX_GUESSES else []

    found = (
        [each for each in known if plain and each.startswith(plain)]
        or with_word(plain if len(plain) > 2 else "")
        or difflib.get_close_matches(plain, known, 1, CLOSE)
        or with_word(_closest(plain, words, CLOSE))
        or with_word(next((each for each in words if len(each) > 3 and each in plain), ""))
        or difflib.get_close_matches(plain, known, 1, SIMILAR)
        or in_help()
        or difflib.get_close_matches(plain, known, 1)
    )
    found.sort(key=lambda each: (each not in page, len(each)))
    return found[:MAX_GUESSES]


def _closest(name: str, known: Iterable[str], cutoff: float) -> str:
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, cutoff)), "")


def as_option(word: str, options: Collection[str]) -> str:
    """Return what to type if a word is an option without a hyphen: `beam_size=5` -> `-beam_size=5`;
    "" for any other word."""
    match = IS_NAME.fullmatch(word)
    name = match[1].lower() if match else ""
    if match is None or name not in options:
        return ""
    return f"-{name}" if match[2] is None else f"-{name}={match[2]}"


def about_stray(words: Sequence[str], options: Mapping[str, Option], takes_text: bool) -> str:
    """Return what to do about words before any option."""
    if words == ["predict"]:  # Eole's command
        return "leave it out: this program only translates"
    if typed := as_option(words[0], options):
        return f"an option begins with a hyphen: {shlex.join([typed, *words[1:]])}"
    return line_that_works(words) if takes_text else "-help lists the options"


def about_extra(
    option: Option,
    words: Sequence[str],
    options: Mapping[str, Option],
    given: Collection[str],
    takes_text: bool,
) -> str:
    """Return what to do about several words after an option that takes one value.

    given: the options that have a value.
    """
    name, extra = option.name, words[1]
    if words[0] in ("", "="):
        return f"write -{name}={extra} without spaces"
    if typed := as_option(extra, options):
        return f"an option begins with a hyphen: {shlex.join([typed, *words[2:]])}"
    if option.kind is str and os.path.lexists(joined := " ".join(words)):
        return f"quote a path with spaces: -{name} {shlex.quote(joined)}"
    if TAKES.get(name) == PHRASES:
        return f"{name} takes {PHRASES}: write the phrases to a file and give its path"
    if option.kind is bool and {*words} <= {"true", "false"}:
        return "give only one of them"
    for joined in (":".join(words), "/".join(words)):  # cuda:1, 1/8
        if option.form[1] and re.fullmatch(option.form[0], joined):
            return f"did you mean {joined}?"
    rest = words if name == "src" else [word for word in words[1:] if word not in ("true", "false")]
    several = " " in " ".join(rest).strip()
    if takes_text and several and is_text(rest):
        return line_that_works(rest)
    if option.kind is str and not (option.choices or option.is_path or option.form[1]):
        return f"quote a value with spaces: -{name} {shlex.quote(' '.join(words))}"
    exists = os.path.lexists(extra)
    if exists and name != "src" and "src" in options and "src" not in given:
        return f"did you mean -src {shlex.quote(extra)}?"
    if exists and name == "src" and not os.path.isdir(extra):
        files = shlex.join(words)
        if "output" not in given:
            return f"to write to it, give -output {shlex.quote(extra)}; to read all: cat {files}"
        return f"join the files first: cat {files}"
    is_path = re.search(r"[./\\]", extra) and not re.fullmatch(r"[-+\d.,]+", extra)
    if (exists or is_path) and "output" in options and "output" not in {name, *given}:
        return f"did you mean -output {shlex.quote(extra)}?"
    if option.kind in (int, float):
        return "give only one of them"
    return f"leave {' '.join(words[1:])!r} out, or write the name of its option before it"
