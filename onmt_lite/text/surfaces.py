"""Tokens as the characters that they add to a text, whatever the tokenizer."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import product

from onmt_lite.text.phrases import UNREADABLE, is_word, occurs
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.vocab import Vocab

ANCHOR = "a"  # a word beside which tokens are looked at
LAST = chr(0x10FFFF)


class Surfaces:
    """The text that each token of a vocabulary adds.

    A space stands between two tokens unless one of them is glued to the other: to its left as `s`
    in `▁cat s` is, or to its right as `cat@@` in `cat@@ s`.  If no token is glued to its left, the
    space is counted to the token before it, so that the text shows at once that a word has ended:
    `cat` is "cat " and `cat@@` is "cat".

    Pieces are asked for with `joined`: whether the token before glues them to itself, or they begin
    the text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: Vocab, case: Callable[[str], str] = str):
        """case: turns the text of the tokens into that of the translation."""
        self.tokenizer, self.vocab, self.case = tokenizer, vocab, case
        self.anchor, self.word = self._anchored()
        self.parts = [self._look_at(token) for token in vocab.tokens]
        texts = [part for i, part in enumerate(self.parts) if not vocab.is_special(i)]
        self.spaced_behind = not any(
            glued for core, glued, _ in texts if core not in ("", UNREADABLE)
        )

    def _anchored(self) -> tuple[list[str], str]:
        """Tokens that are a word wherever they stand, and the word.

        If text is cut by other rules than it is joined by, as with `-tokenizer space -detokenizer
        sentencepiece`, a word that was cut is none: "a" stays `a`, without the mark of a word.  A
        token of the vocabulary has its marks.
        """
        own = ([t] for i, t in enumerate(self.vocab.tokens) if not self.vocab.is_special(i))
        cut = self.tokenizer.encode_target(ANCHOR)
        for tokens in (cut, *own):
            word = self.tokenizer.decode(tokens).strip()
            two = self.tokenizer.decode([*tokens, *tokens]).strip()
            if word.isalpha() and two == f"{word} {word}":
                return tokens, word
        return cut, ANCHOR

    def _look_at(self, token: str) -> tuple[str, bool, bool]:
        """The text of a token between two words, and whether it is glued to its left and glues the
        token to its right; UNREADABLE if that cannot be told."""
        text = self.tokenizer.decode([*self.anchor, token, *self.anchor]).strip()
        word, n = self.word, len(self.word)
        inner = text[n:-n]
        framed = text.startswith(word) and text.endswith(word) and len(text) >= 2 * n
        if not framed or UNREADABLE in inner:
            return UNREADABLE, True, False
        if inner == " ":  # it says nothing
            return "", True, False
        glued, glues = not inner.startswith(" "), not inner.endswith(" ")
        core = inner[0 if glued else 1 : None if glues else -1]
        return self.case(core), glued, glues

    def piece(self, token: str | int, joined: bool) -> tuple[str, bool]:
        """Return the text that a token adds and whether it joins the next token.

        token: its id, or a word of the line's own that a model copies
        """
        core, glued, glues = self.parts[token] if isinstance(token, int) else self._look_at(token)
        if self.spaced_behind:
            return (core if glues or not core else f"{core} "), True
        return (core if glued or joined else f" {core}"), glues

    # ---- Tokens by their text ----

    @cached_property
    def adding(self) -> dict[str, list[int]]:
        """Tokens by the texts that they may add, in alphabetical order."""
        found: dict[str, list[int]] = {}
        for i in range(len(self.parts)):
            if not self.vocab.is_special(i):
                for text in {self.piece(i, joined)[0] for joined in (False, True)}:
                    found.setdefault(text, []).append(i)
        found.pop("", None)
        return dict(sorted(found.items()))

    @cached_property
    def texts(self) -> list[str]:
        return list(self.adding)

    def beginning(self, text: str) -> Iterator[int]:
        """Tokens that may add this text and perhaps more after it."""
        start, end = bisect_left(self.texts, text), bisect_left(self.texts, text + LAST)
        return (token for each in self.texts[start:end] for token in self.adding[each])

    @cached_property
    def several(self) -> list[int]:
        """Tokens inside of which a word may end: a space or a mark is between letters."""
        return [
            i
            for i, (core, _, _) in enumerate(self.parts)
            if any(not is_word(char) for char in core[1:]) or len(core) > 1 and core[0] == " "
        ]

    @cached_property
    def classes(self) -> list[list[bool]]:
        """Three classes of tokens (3, V + 1); the last column is of words of the line's own.

        0 and 1  end the word before them, after a token that joins none (0) or joins them (1)
        2        go on with the word before them, after a token that joins none
        """
        ids = range(len(self.parts))
        apart, joined = ([self.piece(i, joins)[0] for i in ids] for joins in (False, True))
        ends = [[text != "" and not is_word(text[0]) for text in each] for each in (apart, joined)]
        goes_on = [text != "" and is_word(text[0]) for text in apart]
        return [[*ends[0], not self.spaced_behind], [*ends[1], False], [*goes_on, False]]

    # ---- Phrases by their tokens ----

    def spelt(self, phrase: str) -> list[int]:
        """The tokens that say a phrase as whole words; none if the model cannot say it."""
        ids = self._encoded(phrase)
        return ids if self._says(ids, phrase) else self._composed(phrase)

    def _says(self, ids: Sequence[int], phrase: str) -> bool:
        """Whether tokens between two words are a phrase, of whole words."""
        text, joined = ANCHOR + " " * self.spaced_behind, self.spaced_behind
        for token in ids:
            piece, joined = self.piece(token, joined)
            text += piece
        text += ANCHOR if joined else f" {ANCHOR}"
        return text[1:-1].strip() == phrase and occurs(text, phrase)

    def _encoded(self, phrase: str) -> list[int]:
        """The tokenizer's tokens of a phrase, if the model has them all."""
        lower = self.case is not str  # the model writes small letters, which become capitals
        tokens = self.tokenizer.encode_target(phrase.lower() if lower else phrase)
        ids = [self.vocab.ids[token] for token in tokens if token in self.vocab.ids]
        if len(ids) < len(tokens) or any(map(self.vocab.is_special, ids)):
            return []
        if len(ids) > 1 and not is_word(phrase[0]) and not self.parts[ids[0]][0]:
            del ids[0]  # the mark of a word, which marks and such scripts do without
        return ids

    def _composed(self, phrase: str) -> list[int]:
        """The fewest tokens that say a phrase, if the tokenizer does not know the vocabulary."""
        for text in (phrase, f" {phrase}", f"{phrase} "):
            for ids in self._fewest(text):
                if self._says(ids, phrase):
                    return ids
        return []

    def _fewest(self, text: str) -> Iterator[list[int]]:
        """The fewest tokens that add a text after a word; of those that join the next token, and of
        the others."""
        ways: dict[tuple[int, bool], list[int]] = {(0, self.spaced_behind): []}
        most = max(map(len, self.texts), default=0)
        for n, joined in product(range(len(text)), (False, True)):
            for end in range(n + 1, min(len(text), n + most) + 1) if (n, joined) in ways else ():
                for token in self.adding.get(text[n:end], ()):
                    piece, joins = self.piece(token, joined)
                    way = [*ways[n, joined], token]
                    best = ways.get((end, joins))
                    if piece == text[n:end] and (best is None or len(way) < len(best)):
                        ways[end, joins] = way
        return (ways[end] for end in ((len(text), False), (len(text), True)) if end in ways)
