"""Detection of lines in another language than the model reads, by frequent short words."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import yaml

DATA_FILE = Path(__file__).with_name("function_words.yaml")
WORD = re.compile(r"[\w'’-]+")
ELISION = re.compile(r"(?:[cdjlmnst]|qu|dell|nell|all|un)'")  # l'école, dell'arte
# Letters that are rare in the other languages
LETTERS = {"es": "¿¡ñ", "fr": "çœêîûùë", "it": "ìòù", "de": "äöüß"}
MIN_SHARE = 0.2  # of the words, if a language leads by one


@lru_cache
def load_function_words() -> Mapping[str, frozenset[str]]:
    """Load function_words.yaml: language code -> words."""
    data = yaml.safe_load(DATA_FILE.read_bytes())
    return {code: frozenset(words.split()) for code, words in data.items()}


@lru_cache
def get_foreign_features(expected: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return words and characters; each line in another language has at least one of them.

    The apostrophe is among the characters, because of elisions. Without a list of words of the
    expected language, both are empty.

    Args:
        expected: code of the language that lines should have.
    """
    known = load_function_words()
    if expected not in known:
        return frozenset(), frozenset()
    letters = {*"".join(LETTERS.values())} - {*LETTERS.get(expected, "")}
    return frozenset().union(*known.values()) - known[expected], frozenset(letters | {*"'’"})


def find_other_language(text: str, expected: str) -> str:
    """Return the code of the language of a line if it is certainly another one, else "".

    Each language scores one for each of its words, and one for its letters. The line is in another
    language if that leads by two, or by one with a fifth of the words.

    Args:
        text: the line.
        expected: code of the language that the line should have.
    """
    foreign_words, foreign_chars = get_foreign_features(expected)
    if not foreign_words:
        return ""
    lowered = text.lower()
    if foreign_words.isdisjoint(WORD.findall(lowered)) and foreign_chars.isdisjoint(lowered):
        return ""
    known = load_function_words()
    words = [word.replace("’", "'") for word in WORD.findall(text)]
    words = [word for word in words if not any(map(str.isdigit, word))]
    # In German lines, a word before a capitalized word may be a part of a name: van Gogh
    following = [*words[1:], ""]
    others = [word for word, after in zip(words, following) if after[:1].islower() or not after]
    letters = {*lowered}
    scores = {
        code: sum(w in listed for w in split_elisions(words if code == expected else others))
        + bool(letters & {*LETTERS.get(code, "")})
        for code, listed in known.items()
    }
    best = max(scores, key=lambda code: (scores[code], code == expected))
    lead = scores[best] - scores[expected]
    is_clear = lead >= 2 or lead == 1 and scores[best] >= MIN_SHARE * len(words)
    return best if best != expected and is_clear else ""


def split_elisions(words: list[str]) -> list[str]:
    """Return the words in lowercase, and the rest of each word with an elision: l'arte, arte."""
    words = [word.lower() for word in words]
    return words + [word[m.end() :] for word in words if (m := ELISION.match(word))]
