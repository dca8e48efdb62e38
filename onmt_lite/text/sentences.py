"""The sentences of a line, as far as marks and capitals tell."""

import re

WORD = re.compile(r"\S+")
OPENING, CLOSING = "\"'„“‚‘«»‹›([¿¡", "\"'“”‘’«»‹›)]"
MARKS = ".!?…"
VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûœæ]", re.IGNORECASE)


def sentences_of(text: str) -> list[str]:
    """At least one, the blank line's being "".  Joined with spaces they are the line, but for the
    white space around and between them."""
    words = list(WORD.finditer(text))
    starts = [i for i in range(1, len(words)) if begins(words[i][0], words[i - 1][0])]
    bounds = zip([0, *starts], [*starts, len(words)])
    return [text[words[i].start() : words[j - 1].end()] for i, j in bounds if i < j] or [""]


def begins(word: str, before: str) -> bool:
    """Whether a sentence ends with the word before, and this one begins another."""
    closed, first = before.strip(OPENING + CLOSING), word.lstrip(OPENING)[:1]
    last = closed.rstrip(MARKS)
    marks = closed[len(last) :]
    if not marks or not first.isalnum() or first.islower():
        return False
    return marks != "." or not is_abbreviation(last)


def is_abbreviation(word: str) -> bool:
    """Whether the point behind a word may be its own: "Dr.", "z.B.", "bzw.", "3.".  Short nouns
    count as such, too, so that two sentences may be taken for one ("Guten Tag. Ich gehe.")."""
    if not word.isalpha() or len(word) == 1:
        return True
    return len(word) <= 4 and (word[0].isupper() or not VOWEL.search(word))
