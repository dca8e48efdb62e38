"""Tokens and their ids."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from onmt_lite.errors import DataError


@dataclass(frozen=True)
class Vocab:
    """A list of tokens; special ones are known by id, None where a vocabulary has none.

    language_ids: tokens that say which language to translate from or to
    """

    tokens: list[str]
    eos_id: int | None = None
    bos_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    language_ids: frozenset[int] = frozenset()
    ids: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            ids.setdefault(token, i)  # of duplicates the first counts
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return len(self.tokens)

    def is_control(self, i: int) -> bool:
        """Start, end, padding and languages: never text, whatever a line says."""
        return i in (self.eos_id, self.bos_id, self.pad_id) or i in self.language_ids

    def is_special(self, i: int) -> bool:
        """A control token or the unknown one."""
        return self.is_control(i) or i == self.unk_id

    def encode(self, tokens: list[str], own_words: Sequence[str] = ()) -> list[int]:
        """Ids of text tokens; what is not in the vocabulary, or is a control token, becomes unk.

        A word of `own_words` that would be unk has an id after those of the vocabulary.
        DataError where the vocabulary has no unk to stand for such a token.
        """
        own = {word: len(self) + i for i, word in enumerate(own_words)}
        found = [self._encode_one(token) for token in tokens]
        return [own.get(t, i) if i == self.unk_id else i for t, i in zip(tokens, found)]

    def _encode_one(self, token: str) -> int:
        i = self.ids.get(token)
        if i is not None and not self.is_control(i):
            return i
        if self.unk_id is None:
            raise DataError(
                f"{token[:50]!r} is not in the vocabulary, which has no token for unknown ones"
            )
        return self.unk_id

    def decode(self, ids: list[int], own_words: Sequence[str] = ()) -> list[str]:
        n = len(self)
        return [self.tokens[i] if i < n else own_words[i - n] for i in ids]
