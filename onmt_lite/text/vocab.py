"""Vocabularies: tokens and their ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onmt_lite.errors import DataError


class AddedToken(str):
    """A token that a tokenizer extracts from a line before it tokenizes the rest.

    Unlike an ordinary word with the same text, it gets the id of that token even if the token is a
    control token.

    Attributes:
        special: it is not text in an output.
        takes_left: it absorbs spaces on its left.
        takes_right: it absorbs spaces on its right.
        single_word: it is extracted only if no letter, digit or underscore is next to it.
        normalized: it is searched for in normalized text.
    """

    special, takes_left, takes_right, single_word, normalized = True, False, False, False, False

    def __new__(cls, text: str, **flags: bool) -> "AddedToken":
        token = super().__new__(cls, text)
        token.__dict__.update(flags)
        return token


@dataclass(frozen=True)
class Vocab:
    """A list of tokens and the ids of the special tokens, None if missing."""

    tokens: list[str]
    eos_id: int | None = None
    bos_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    language_ids: frozenset[int] = frozenset()  # tokens that name a language

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token ids by token."""
        ids: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            ids.setdefault(token, i)  # the first of duplicate tokens wins
        return ids

    @cached_property
    def text_ids(self) -> dict[str, int]:
        """Ids of the tokens that text maps to: no control tokens, not the unknown token."""
        return {token: i for token, i in self.ids.items() if not self.is_special(i)}

    @classmethod
    def from_tokens(cls, tokens: list[str], **special: str | None) -> "Vocab":
        """Make a vocabulary and look up its special tokens: `from_tokens(tokens, eos="</s>")`."""
        ids = cls(tokens).ids
        special_ids: dict[str, Any] = {
            f"{name}_id": ids.get(token) for name, token in special.items() if token is not None
        }
        return cls(tokens, **special_ids)

    def __len__(self) -> int:
        return len(self.tokens)

    def is_control(self, i: int) -> bool:
        """Return True if i is BOS, EOS, padding or a language token. Text never maps to these."""
        return i in (self.eos_id, self.bos_id, self.pad_id) or i in self.language_ids

    def is_special(self, i: int) -> bool:
        """Return True if i is a control token or the unknown token."""
        return self.is_control(i) or i == self.unk_id

    def lacks(self, token: str) -> bool:
        """Return True if a token of ordinary text is not in the vocabulary.

        Words that are spelled like a control token count as missing.
        """
        i = self.ids.get(token)
        if i is None or isinstance(token, AddedToken):
            return i in (None, self.unk_id)
        return self.is_special(i)

    def encode(self, tokens: list[str], oov_words: Sequence[str] = ()) -> list[int]:
        """Return the ids of text tokens.

        Args:
            tokens: the tokens.
            oov_words: words that get ids after the vocabulary, for models with copy attention. All
                other missing tokens become unk.

        Raises:
            DataError: if a token is missing and the vocabulary has no unknown token.
        """
        extension = {word: len(self) + i for i, word in enumerate(oov_words)}
        ids = []
        for token in tokens:
            i = self.text_ids.get(token)
            if i is None:
                i = extension.get(token, self.unk_id) if self.lacks(token) else self.ids[token]
            if i is None:
                raise DataError(
                    f"{token[:50]!r} is not in the vocabulary, and the model has no unknown token; "
                    "remove it from the line or use another model"
                )
            ids.append(i)
        return ids

    def encode_copied(self, tokens: list[str]) -> tuple[list[int], list[str]]:
        """Return ids for source tokens that a model may copy, and the out-of-vocabulary words.

        All words that `lacks` reports are included, because a copied word that is spelled like the
        end token must not end a translation.
        """
        oov_words = list(dict.fromkeys(filter(self.lacks, tokens)))
        return self.encode(tokens, oov_words), oov_words

    def decode(self, ids: list[int], oov_words: Sequence[str] = ()) -> list[str]:
        """Return the tokens of ids; ids after the vocabulary index `oov_words`."""
        n = len(self)
        return [self.tokens[i] if i < n else oov_words[i - n] for i in ids]
