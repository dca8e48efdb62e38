"""Duplicates: equal lines are translated once."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from onmt_lite.inference.records import Example, Progress, Translation

OF_A_LINE = ("id", "fields")  # fields that a translation takes over from its line unread


class Copies:
    """Examples, of which equal ones are worked on once.

    distinct  the first of each kind, in order
    """

    def __init__(
        self,
        examples: Sequence[Example],
        merge: bool,
        progress: Progress = lambda n_lines, n_tokens: None,
    ):
        """`merge`: equal examples have equal translations.  Only a text that comes twice costs
        more than a look at it."""
        self.progress = progress
        n_lines = Counter(example.line.text for example in examples) if merge else Counter[str]()
        kinds: dict[Hashable, Example] = {}
        self.examples = examples
        self.firsts = [
            kinds.setdefault(kind_of(e) if n_lines[e.line.text] > 1 else id(e), e) for e in examples
        ]
        self.distinct = list(kinds.values())
        self.n_copies = Counter(map(id, self.firsts))

    def tell(self, done: Sequence[Example], n_tokens: Iterable[int] = ()) -> None:
        """Report the lines of distinct examples as done, and the target tokens of each."""
        numbers = [self.n_copies[id(example)] for example in done]
        self.progress(sum(numbers), sum(n * tokens for n, tokens in zip(numbers, n_tokens)))

    def of_all(self, made: Iterable[Translation]) -> list[Translation]:
        """The translations of all examples, from those of the distinct ones."""
        found = {id(example): each for example, each in zip(self.distinct, made, strict=True)}
        return [
            found[id(first)] if example is first else copied(found[id(first)], example)
            for example, first in zip(self.examples, self.firsts)
        ]


def kind_of(example: Example) -> str:
    """All that an example is but the number of its line and what passes through, so that whatever
    a line may be given counts.  As text, since not all of it can be a key."""
    nothing: dict[str, Any] = dict.fromkeys(OF_A_LINE)
    return repr(replace(example, line=replace(example.line, **nothing)))


def copied(translation: Translation, example: Example) -> Translation:
    """The translation of an equal example; lists are its own."""
    made: dict[str, Any] = {n: [*v] for n, v in vars(translation).items() if isinstance(v, list)}
    made |= {"id": example.line.id, "fields": example.line.fields}
    if translation.trace is not None:
        made["trace"] = replace(translation.trace, id=example.line.id)
    return replace(translation, **made)
