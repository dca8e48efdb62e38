"""The sentences of a line, as far as marks and capitals tell."""

import re

from onmt_lite.text.markup import BRACES, TAG

WORD = re.compile(r"\S+")
OPENING, CLOSING = "\"'„“‚‘«»‹›([¿¡", "\"'“”‘’«»‹›)]"
MARKS = ".!?…"
NO_WORD = re.compile(r"[^\w.]")  # may stand before a word without a space, such as a tag
# Tags, comments and placeholders, in which no sentence ends
ITEM = re.compile(f"{TAG}|{BRACES}")
# Longer abbreviations that have a vowel
SHORTENED = frozenset("dipl inst prof prov sept univ evtl ggfs inkl exkl zzgl".split())
VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûœæ]", re.IGNORECASE)


def sentences_of(text: str) -> list[str]:
    """At least one, the blank line's being "".  Joined with spaces they are the line, but for the
    white space around and between them."""
    words, small = list(WORD.finditer(text)), text == text.lower()
    inside = {i for item in ITEM.finditer(text) for i in range(*item.span())}
    starts = [
        i
        for i in range(1, len(words))
        if begins(words[i][0], words[i - 1][0], small) and words[i].start() not in inside
    ]
    bounds = zip([0, *starts], [*starts, len(words)])
    return [text[words[i].start() : words[j - 1].end()] for i, j in bounds if i < j] or [""]


def begins(word: str, before: str, small: bool) -> bool:
    """Whether a sentence ends with the word before, and this one begins another.

    small  the line has no capitals
    """
    closed, first = before.strip(OPENING + CLOSING), word.lstrip(OPENING)[:1]
    last = closed.rstrip(MARKS)
    marks = closed[len(last) :]
    if not marks or not first.isalnum() or (first.islower() and not small):
        return False
    word = NO_WORD.split(last)[-1]
    return marks != "." or not word or not is_abbreviation(word, small)


def is_abbreviation(word: str, small: bool) -> bool:
    """Whether the point after a word may be its own: "Dr.", "z.B.", "bzw.", "3.".  Nouns of three
    letters count as such, too, so that two sentences may be taken for one ("Guten Tag. Ich gehe.").
    """
    if not word.isalpha() or len(word) == 1 or word.lower() in SHORTENED:
        return True
    capital = small or word[0].isupper()
    return len(word) <= 3 and capital or len(word) <= 4 and not VOWEL.search(word)
