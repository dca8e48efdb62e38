"""Which languages to translate between: from options, from a line's own tag, from the model."""

import difflib
import re

from onmt_lite.checkpoints.record import Direction, Languages
from onmt_lite.errors import OptionError

# >>eng_Latn<< or >>deu_Latn:eng_Latn<<, and one blank that belongs to it
TAG = re.compile(r">>(?:([^<>:\s]+):)?([^<>:\s]+)<< ?")
N_NEAR = 3  # codes that are shown for one that is unknown


def choose_languages(languages: Languages | None, given: Direction) -> Direction:
    """The languages of lines without a tag: the given ones, or else the model's own.

    A model without languages has nothing to choose.  Raises OptionError if a code is unknown, or
    is needed and missing.
    """
    if languages is None:
        return Direction()
    named = [name for name, code in zip(("src_lang", "tgt_lang"), given) if code]
    if languages.source == "none" and given.src:
        raise OptionError("src_lang: the model is told the target language only; leave it out")
    for name, code in zip(("src_lang", "tgt_lang"), given):
        if code and code not in languages.ids:
            raise OptionError(
                f"{name}: the model has no language {code[:50]!r}; {near(code, languages)}"
            )
    held = languages.in_tokens
    if held and not named and languages.target != "start":
        return Direction()
    default = Direction() if held else languages.default
    direction = Direction(given.src or default.src, given.tgt or default.tgt)
    lacks = {"src_lang": languages.source != "none" and not (direction.src or held)}
    lacks["tgt_lang"] = languages.target != "text" and not direction.tgt
    problems = [
        f"{name} is missing: the model has {len(languages.ids)} languages, none as default; give "
        f"one such as {', '.join(list(languages.ids)[:N_NEAR])} (-print_model lists all)"
        for name, lacking in lacks.items()
        if lacking
    ]
    if problems:
        raise OptionError(*problems)
    return direction


def near(code: str, languages: Languages) -> str:
    """Known codes that are perhaps meant: first codes that begin alike, then the most similar."""

    def distance(known: str) -> tuple[bool, float]:
        alike = difflib.SequenceMatcher(None, code.lower()[:50], known.lower()).ratio()
        return known.lower()[:2] != code.lower()[:2], -alike

    found = sorted(languages.ids, key=distance)[:N_NEAR]
    return f"nearest are {', '.join(found)} (-print_model lists all)"


def read_tag(text: str, languages: Languages | None, direction: Direction) -> tuple[str, Direction]:
    """The line without its tag, and its languages; a tag with unknown codes stays text."""
    found = TAG.match(text) if languages else None
    if found is None or languages is None or (languages.in_tokens and not direction.tgt):
        return text, direction
    src, tgt = found[1] or direction.src, found[2]
    if tgt not in languages.ids or (found[1] and src not in languages.ids):
        return text, direction
    if found[1] and languages.source == "none":
        return text, direction
    return text[found.end() :], Direction(src, tgt)
