"""Tokens and their ids."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onmt_lite.errors import DataError


@dataclass(frozen=True)
class Vocab:
    """A list of tokens, and the ids of special tokens, None for those that are missing.

    language_ids  tokens that name the language to translate from or to
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

    @classmethod
    def named(cls, tokens: list[str], **special: str | None) -> "Vocab":
        """Make a vocabulary whose special tokens are found by text: `named(tokens, eos="</s>")`."""
        ids = cls(tokens).ids
        found: dict[str, Any] = {
            f"{kind}_id": ids.get(t) for kind, t in special.items() if t is not None
        }
        return cls(tokens, **found)

    def __len__(self) -> int:
        return len(self.tokens)

    def is_control(self, i: int) -> bool:
        """Whether i is BOS, EOS, padding or a language; text never becomes one of these."""
        return i in (self.eos_id, self.bos_id, self.pad_id) or i in self.language_ids

    def is_special(self, i: int) -> bool:
        """Whether i is a control token or the unknown token."""
        return self.is_control(i) or i == self.unk_id

    def encode(self, tokens: list[str], own_words: Sequence[str] = ()) -> list[int]:
        """Ids of text tokens; a token that is missing, or equal to a control token, becomes unk.

        A word of `own_words` that would be unk gets an id after those of the vocabulary.  Raises
        DataError where a token should become unk and the vocabulary has none.
        """
        extension = {word: len(self) + i for i, word in enumerate(own_words)}
        ids = [self._encode_one(token) for token in tokens]
        return [extension.get(t, i) if i == self.unk_id else i for t, i in zip(tokens, ids)]

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
