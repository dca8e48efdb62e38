"""Tokens and their ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onmt_lite.errors import DataError


class AddedToken(str):
    """A token that a tokenizer cuts out of a line before it tokenizes the rest.

    Unlike a word with the same text, it has the ID of that token even if the token is a control
    token.

    special      not text in an output
    takes_left   spaces on its left belong to it; `takes_right`: on its right
    single_word  cut out only if no letter, digit or underscore is next to it
    normalized   searched in normalized text
    """

    special, takes_left, takes_right, single_word, normalized = True, False, False, False, False

    def __new__(cls, text: str, **flags: bool) -> "AddedToken":
        token = super().__new__(cls, text)
        token.__dict__.update(flags)
        return token


@dataclass(frozen=True)
class Vocab:
    """A list of tokens, and the ids of special tokens, None if missing."""

    tokens: list[str]
    eos_id: int | None = None
    bos_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    language_ids: frozenset[int] = frozenset()  # tokens that name a language

    @cached_property
    def ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            ids.setdefault(token, i)  # of duplicates the first counts
        return ids

    @classmethod
    def from_tokens(cls, tokens: list[str], **special: str | None) -> "Vocab":
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

    def lacks(self, token: str) -> bool:
        """Whether a token of text is missing; a word that equals a control token is."""
        i = self.ids.get(token)
        if i is None or isinstance(token, AddedToken):
            return i in (None, self.unk_id)
        return self.is_special(i)

    def encode(self, tokens: list[str], oov_words: Sequence[str] = ()) -> list[int]:
        """Ids of text tokens.

        Tokens that the vocabulary lacks become unk, or, if they are in `own_words`, get ids after
        the vocabulary's.  Raises DataError if a token must become unk and the vocabulary has none.
        """
        extension = {word: len(self) + i for i, word in enumerate(oov_words)}
        ids = []
        for token in tokens:
            i = extension.get(token, self.unk_id) if self.lacks(token) else self.ids[token]
            if i is None:
                raise DataError(
                    f"{token[:50]!r} is not in the vocabulary, which has no token for unknown ones"
                    "; remove it from the line or give another model"
                )
            ids.append(i)
        return ids

    def encode_copied(self, tokens: list[str]) -> tuple[list[int], list[str]]:
        """Ids of the source tokens that a model may copy, and the own words among them.

        Own words are all that the vocabulary lacks: a copied word that equals the end token must
        not end a translation.
        """
        oov_words = list(dict.fromkeys(filter(self.lacks, tokens)))
        return self.encode(tokens, oov_words), oov_words

    def decode(self, ids: list[int], oov_words: Sequence[str] = ()) -> list[str]:
        n = len(self)
        return [self.tokens[i] if i < n else oov_words[i - n] for i in ids]
