"""Suggestions in errors: similar option names, and the option that a stray word belongs to."""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from onmt_lite.config.files import CONTENTS, PHRASES
from onmt_lite.config.option import Option
from onmt_lite.system.terminal import looks_like_text, suggest_command

MAX_SUGGESTIONS = 3  # names per message
OPTION_NAME = re.compile(r"(\W*)([A-Za-z]\w*)(=.*)?", re.DOTALL)


def suggest_names(
    name: str, options: Mapping[str, Option], common: Collection[str], groups: Iterable[str] = ()
) -> list[str]:
    """Suggest options or groups for an unknown name.

    Tried in this order: names that start with it, contain it as a word, are spelled like it, or
    share its most similar word.

    Args:
        name: The unknown name.
        options: All options by name.
        common: Common options, which come first.
        groups: Titles of groups to suggest as well.

    Returns:
        At most three names.
    """
    plain = name.lower().replace("-", "_").strip("_")
    known = [*options, *groups]
    words = sorted({word for option in known for word in option.split("_") if len(word) > 2})

    def with_word(word: str) -> list[str]:
        return [option for option in known if word and f"_{word}" in f"_{option}"]

    found = (
        [option for option in known if plain and option.startswith(plain)]
        or (with_word(plain) if len(plain) > 2 else [])
        or difflib.get_close_matches(plain, known, 1, 0.75)
        or with_word(next(iter(difflib.get_close_matches(plain, words, 1, 0.75)), ""))
        or with_word(next((word for word in words if len(word) > 3 and word in plain), ""))
        or difflib.get_close_matches(plain, known, 1)
    )
    found.sort(key=lambda option: (option not in common, len(option)))
    return found[:MAX_SUGGESTIONS]


def suggest_hyphen(words: Sequence[str], options: Collection[str]) -> str:
    """Return a remedy if the first word is an option without a hyphen, or with another dash.

    `beam_size=5` -> `-beam_size=5`; "" for any other word.
    """
    match = OPTION_NAME.fullmatch(words[0])
    if match is None or match[2].lower() not in options:
        return ""
    typed = f"-{match[2].lower()}{match[3] or ''}"
    return f"start options with a hyphen: {shlex.join([typed, *words[1:]])}"


def suggest_for_stray(
    words: Sequence[str], options: Mapping[str, Option], accepts_text: bool
) -> str:
    """Return a remedy for words before the first option.

    Args:
        words: The words.
        options: All options by name.
        accepts_text: Whether the words may be text to translate.

    Returns:
        The remedy.
    """
    remedy = suggest_command(words) if accepts_text else "-help lists the options"
    return suggest_hyphen(words, options) or remedy


def suggest_for_extra(
    option: Option, words: Sequence[str], options: Mapping[str, Option], accepts_text: bool
) -> str:
    """Return a remedy for several words after an option that takes a single value.

    Args:
        option: The option.
        words: The words.
        options: All options by name.
        accepts_text: Whether the words may be text to translate.

    Returns:
        The remedy.
    """
    extra = words[1:]
    if remedy := suggest_hyphen(extra, options):
        return remedy
    if CONTENTS.get(option.name) == PHRASES:
        return f"{option.name} must be {PHRASES}: write the phrases to a file and pass its path"
    text = words if option.name == "src" else extra
    if accepts_text and " " in " ".join(text).strip() and looks_like_text(text):
        return suggest_command(text)
    is_free = option.value_type is str and not (option.choices or option.pattern[1])
    if is_free and (not option.is_path or os.path.lexists(" ".join(words))):
        return f"quote a value with spaces: -{option.name} {shlex.quote(' '.join(words))}"
    path = shlex.quote(extra[0])
    exists = os.path.lexists(extra[0])
    if exists and option.name == "src":
        return f"to write to it, use -output {path}; to read all files: cat {shlex.join(words)}"
    for name, fits in (("src", exists), ("output", re.search(r"[./\\]", extra[0]))):
        if fits and name in options and option.name != name:
            return f"did you mean -{name} {path}?"
    return f"remove {' '.join(extra)!r}, or put the name of its option before it"
