"""Guesses for error messages: the option near an unknown name, and where a stray word belongs."""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from onmt_lite.config.files import CONTENTS, PHRASES
from onmt_lite.config.option import Option
from onmt_lite.system.terminal import looks_like_text, suggest_command

MAX_SUGGESTIONS = 3  # names in a suggestion
OPTION_NAME = re.compile(r"(\W*)([A-Za-z]\w*)(=.*)?", re.DOTALL)


def suggest_names(
    name: str, options: Mapping[str, Option], page: Collection[str], groups: Iterable[str] = ()
) -> list[str]:
    """Return up to three options, or groups, that an unknown name may mean: names that begin with
    it, contain it as a word, are spelled like it, or share the word that is most like it."""
    plain = name.lower().replace("-", "_").strip("_")
    known = [*options, *groups]
    words = sorted({word for each in known for word in each.split("_") if len(word) > 2})

    def with_word(word: str) -> list[str]:
        return [each for each in known if word and f"_{word}" in f"_{each}"]

    found = (
        [each for each in known if plain and each.startswith(plain)]
        or (with_word(plain) if len(plain) > 2 else [])
        or difflib.get_close_matches(plain, known, 1, 0.75)
        or with_word(next(iter(difflib.get_close_matches(plain, words, 1, 0.75)), ""))
        or with_word(next((each for each in words if len(each) > 3 and each in plain), ""))
        or difflib.get_close_matches(plain, known, 1)
    )
    found.sort(key=lambda each: (each not in page, len(each)))
    return found[:MAX_SUGGESTIONS]


def suggest_hyphen(words: Sequence[str], options: Collection[str]) -> str:
    """Return the remedy if the first word is an option without its hyphen or after another dash:
    `beam_size=5` -> `-beam_size=5`; "" for any other word."""
    match = OPTION_NAME.fullmatch(words[0])
    if match is None or match[2].lower() not in options:
        return ""
    typed = f"-{match[2].lower()}{match[3] or ''}"
    return f"an option begins with a hyphen: {shlex.join([typed, *words[1:]])}"


def suggest_for_stray(words: Sequence[str], options: Mapping[str, Option], takes_text: bool) -> str:
    """Return what to do about words before any option."""
    works = suggest_command(words) if takes_text else "-help lists the options"
    return suggest_hyphen(words, options) or works


def suggest_for_extra(
    option: Option, words: Sequence[str], options: Mapping[str, Option], takes_text: bool
) -> str:
    """Return what to do about several words after an option that takes one value."""
    extra = words[1:]
    if remedy := suggest_hyphen(extra, options):
        return remedy
    if CONTENTS.get(option.name) == PHRASES:
        return f"{option.name} takes {PHRASES}: write the phrases to a file and give its path"
    text = words if option.name == "src" else extra
    if takes_text and " " in " ".join(text).strip() and looks_like_text(text):
        return suggest_command(text)
    is_free = option.value_type is str and not (option.choices or option.pattern[1])
    if is_free and (not option.is_path or os.path.lexists(" ".join(words))):
        return f"quote a value with spaces: -{option.name} {shlex.quote(' '.join(words))}"
    path = shlex.quote(extra[0])
    exists = os.path.lexists(extra[0])
    if exists and option.name == "src":
        return f"to write to it, give -output {path}; to read all: cat {shlex.join(words)}"
    for name, fits in (("src", exists), ("output", re.search(r"[./\\]", extra[0]))):
        if fits and name in options and option.name != name:
            return f"did you mean -{name} {path}?"
    return f"leave {' '.join(extra)!r} out, or write the name of its option before it"
