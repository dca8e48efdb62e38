"""Tokens as the characters that they add to a text, whatever the tokenizer."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from onmt_lite.text.phrases import UNREADABLE, is_word
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.vocab import Vocab

ANCHOR = "a"  # a word beside which tokens are looked at, if it is one
LAST = chr(0x10FFFF)


class Surfaces:
    """What each token of a vocabulary adds to a text.

    A space stands between two tokens unless one of them is glued to the other: to its left as `s`
    in `▁cat s` is, or to its right as `cat@@` in `cat@@ s`.  Where no token is glued to its left,
    the space is counted to the token before it, so that the text shows at once that a word has
    ended: `cat` is "cat " and `cat@@` is "cat".

    Pieces are asked for with `joined`: whether the token before glues them to itself, or they begin
    the text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: Vocab, case: Callable[[str], str] = str):
        """`case`: what is done to the text that the tokens make."""
        self.tokenizer, self.vocab, self.case = tokenizer, vocab, case
        self.anchor, self.word = self._anchored()
        self.parts = [self._look_at(token) for token in vocab.tokens]
        self.spaced_behind = not any(glued for _, glued, _ in self._told())

    def _anchored(self) -> tuple[list[str], str]:
        """Tokens that are a word wherever they stand, and the word.

        Where text is cut by other rules than it is joined by, as with `-tokenizer space
        -detokenizer sentencepiece`, a word that was cut is none: "a" stays `a`, without the mark
        of a word.  A token of the vocabulary has its marks.
        """
        own = ([t] for i, t in enumerate(self.vocab.tokens) if not self.vocab.is_special(i))
        cut = self.tokenizer.encode_target(ANCHOR)
        for tokens in (cut, *own):
            word = self.tokenizer.decode(tokens).strip()
            two = self.tokenizer.decode([*tokens, *tokens]).strip()
            if word.isalpha() and two == f"{word} {word}":
                return tokens, word
        return cut, ANCHOR

    def _told(self) -> Iterator[tuple[str, bool, bool]]:
        """The parts of tokens that are text."""
        told = (i for i in range(len(self.parts)) if not self.vocab.is_special(i))
        return (self.parts[i] for i in told if self.parts[i][0] not in ("", UNREADABLE))

    def _look_at(self, token: str) -> tuple[str, bool, bool]:
        """The text of a token between two words, and whether it is glued to its left and glues what
        is to its right; an unreadable mark where that cannot be told."""
        text = self.tokenizer.decode([*self.anchor, token, *self.anchor]).strip()
        word, n = self.word, len(self.word)
        inner = text[n:-n]
        if not (text.startswith(word) and text.endswith(word)) or len(text) < 2 * n:
            return UNREADABLE, True, False
        if UNREADABLE in inner:
            return UNREADABLE, True, False
        if inner == " ":  # it says nothing
            return "", True, False
        glued, glues = not inner.startswith(" "), not inner.endswith(" ")
        core = inner[0 if glued else 1 : None if glues else -1]
        return self.case(core), glued, glues

    def piece(self, token: str | int, joined: bool) -> tuple[str, bool]:
        """What a token adds, by its id or, for a word of the line's own, by itself; and whether it
        joins the next one."""
        core, glued, glues = self.parts[token] if isinstance(token, int) else self._look_at(token)
        if self.spaced_behind:
            return (core if glues or not core else f"{core} "), True
        return (core if glued or joined else f" {core}"), glues

    @cached_property
    def pieces(self) -> list[tuple[str, int]]:
        """All that tokens can add, in alphabetical order, and the tokens."""
        found = set()
        for i in range(len(self.parts)):
            if not self.vocab.is_special(i):
                found |= {(self.piece(i, joined)[0], i) for joined in (False, True)}
        return sorted(each for each in found if each[0])

    def beginning(self, text: str) -> Iterator[int]:
        """Tokens that may add this text and perhaps more behind it."""
        start = bisect_left(self.pieces, (text, -1))
        end = bisect_left(self.pieces, (text + LAST, -1))
        return (token for _, token in self.pieces[start:end])

    def longest(self, text: str) -> int | None:
        """The token that adds most of the beginning of a text, and nothing else."""
        for n in range(len(text), 0, -1):
            at = bisect_left(self.pieces, (text[:n], -1))
            if at < len(self.pieces) and self.pieces[at][0] == text[:n]:
                return self.pieces[at][1]
        return None

    @cached_property
    def several(self) -> list[int]:
        """Tokens inside of which a word may end: those with a space or a mark between letters."""
        return [
            i
            for i, (core, _, _) in enumerate(self.parts)
            if any(not is_word(char) for char in core[1:]) or len(core) > 1 and core[0] == " "
        ]

    @cached_property
    def classes(self) -> list[list[bool]]:
        """Classes of tokens, which belong to one or not: 0 and 1, those that begin with no letter,
        so that the word before them has ended, behind a token that joins the next one in class 1;
        2, those that begin with a letter of the word before them.  The last column is of words that
        are the line's own."""
        pieces = [[self.piece(i, j)[0] for i in range(len(self.parts))] for j in (False, True)]
        ends = [[p != "" and not is_word(p[0]) for p in each] for each in pieces]
        apart = [not self.spaced_behind, False]
        ends = [[*each, own] for each, own in zip(ends, apart)]
        return [*ends, [*(p != "" and is_word(p[0]) for p in pieces[0]), False]]

    def spelt(self, phrase: str) -> list[tuple[int, int]]:
        """The tokens of a phrase and, for each, how many characters of it are spelt then; none
        where the model cannot say it."""
        path = self._path(self._encoded(phrase), phrase)
        begins_word = path and (self.spaced_behind or not self.parts[path[0][0]][1])
        if begins_word or (path and not is_word(phrase[0])):
            return path
        # The tokenizer does not know the vocabulary, as where lines hold tokens
        return self._path(self._composed(phrase), phrase) or path

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
        """The fewest tokens that spell a phrase so that its words begin and end where it does."""
        if self.spaced_behind:
            texts = [f"{phrase} ", *([] if is_word(phrase[-1]) else [phrase])]
        else:
            texts = [*([] if is_word(phrase[0]) else [phrase]), f" {phrase}"]
        may_join = self.spaced_behind or not is_word(phrase[-1])
        return next(filter(None, (self._fewest(text, may_join) for text in texts)), [])

    def _fewest(self, text: str, may_join: bool) -> list[int]:
        """The fewest tokens that add a text behind one that joins nothing; of equally many, those
        of which the first is longest.  `may_join`: the last may join the next one."""
        most = max((len(piece) for piece, _ in self.pieces), default=0)
        found = {(len(text), False): list[int]()}  # by place and whether the token before joins
        if may_join:
            found[len(text), True] = []
        for n in range(len(text) - 1, -1, -1):
            for joined in (False, True):
                ways = [
                    [token, *found[end, joins]]
                    for end in range(min(len(text), n + most), n, -1)
                    for token in self._adding(text[n:end])
                    for piece, joins in [self.piece(token, joined)]
                    if piece == text[n:end] and (end, joins) in found
                ]
                if ways:
                    found[n, joined] = min(ways, key=len)
        return found.get((0, False), [])

    def _adding(self, text: str) -> Iterator[int]:
        """Tokens that may add this text and nothing else."""
        start = bisect_left(self.pieces, (text, -1))
        end = bisect_left(self.pieces, (text, len(self.parts)))
        return (token for _, token in self.pieces[start:end])

    def _path(self, ids: Sequence[int], phrase: str) -> list[tuple[int, int]]:
        """See `spelt`; none where these tokens do not spell the phrase."""
        text, joined, path = "", False, list[tuple[int, int]]()
        for token in ids:
            piece, joined = self.piece(token, joined)
            text += piece
            path.append((token, min(len(text.lstrip()), len(phrase))))
        return path if text.strip() == phrase else []
