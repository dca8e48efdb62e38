"""Maps tokens to the words of the text that they make, to count by words.

| tokens | text | word of each token |
|---|---|---|
| `▁Gu ten ▁Mor gen !` | `Guten Morgen!` | 0 0 1 1 1 |

A word stands between white space.  A token that says nothing by itself, such as a mark for
a capital letter, goes with the token that follows; one of several words with the last of them.
"""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

Decode = Callable[[list[str]], str]


def word_of_each(tokens: Sequence[str], decode: Decode, text: str) -> list[int]:
    """For each token the number of its word in `text`, from 0; the numbers never fall.

    decode  joins tokens.  `text` is made of all of them, but words may have been changed,
            added or removed afterwards; it has one word at least
    """
    made = [decode([*tokens[:n]]).split() for n in range(len(tokens) + 1)]
    places = _places(made[-1], text.split())
    word, found = len(places) - 1, []
    for before, after in zip(reversed(made[:-1]), reversed(made)):
        if after != before:  # this token says something
            word = min(word, len(after) - 1)
        found.append(places[word] if places else 0)
    return found[::-1]


def word_log_probs(
    tokens: Sequence[str], log_probs: Sequence[float], decode: Decode, text: str
) -> list[float]:
    """For each word of `text` the sum over its tokens; see `word_of_each`.

    log_probs  one per token; that of an end token after them belongs to no word
    """
    sums = [0.0] * len(text.split())
    if sums:
        for word, log_prob in zip(word_of_each(tokens, decode, text), log_probs):
            sums[word] += log_prob
    return sums


def _places(made: list[str], words: list[str]) -> list[int]:
    """For each word that the tokens have made, its number among the `words` of the final text.

    Upper and lower case are equal; in a run of words that have become others, they go one by one,
    and the rest with the last."""
    if made == words:
        return [*range(len(words))]
    small, others = ([word.casefold() for word in side] for side in (made, words))
    matched = SequenceMatcher(None, small, others, autojunk=False)
    places: list[int] = []
    for _, start, end, first, beyond in matched.get_opcodes():
        last = max(first, beyond - 1)  # words that were removed go with the next one
        places += [min(first + i, last, len(words) - 1) for i in range(end - start)]
    return places
