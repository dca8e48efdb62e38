"""Phrases of whole words, as they are spelt: in a text, and in the rows of a search.

A word begins and ends where no other letter, digit or underscore stands beside it: "cat" is in
"The cat." and in "cat's", not in "category".  Scripts that are written without spaces between
words have no such borders: there a phrase may stand anywhere.

A search follows its rows by the text of their tokens.  A banned phrase is told by the text, so that
no other tokens can spell it.  A forced phrase is a path of tokens that a row follows; the text says
whether it stands there as whole words.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import repeat
from typing import NamedTuple

from onmt_lite.errors import DataError
from onmt_lite.text.lines import Line, line_from_text, lines_from_texts
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.vocab import Vocab

SPACES = re.compile(r"\s+")
# Thai, Lao, Burmese, Khmer, kana, Chinese characters
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
UNREADABLE = "\ufffd"  # a token that is no text by itself, such as a byte: part of a word
LAST = chr(0x10FFFF)
ANCHOR = "a"  # a word beside which tokens are looked at
CACHED = 1 << 16  # states and tokens
MET = -1

# As the lines of a file: phrases with TAB between them, of all lines or of each line
Phrases = str | Iterable[str] | None


@lru_cache(maxsize=1 << 16)
def is_word(char: str) -> bool:
    """Whether a character is part of a word that spaces or marks must end."""
    if UNSPACED.match(char):
        return False
    return char in ("_", UNREADABLE) or char.isalnum() or unicodedata.category(char)[0] == "M"


def borders(before: str, after: str) -> bool:
    """Whether a word may end between two characters and another begin."""
    return not (is_word(before) and is_word(after))


def ended(text: str, phrase: str, alone: bool = False) -> bool:
    """Whether a phrase stands after the first character of a text, whatever follows the text.

    alone: no letter stands beside it, even if it begins or ends with a mark.
    """
    start = text.find(phrase, 1)
    while start > 0:
        before, after = text[start - 1], text[start + len(phrase) :][:1] or UNREADABLE
        if borders(before, phrase[0]) and borders(phrase[-1], after):
            if not (alone and (is_word(before) or is_word(after))):
                return True
        start = text.find(phrase, start + 1)
    return False


def contains_phrase(text: str, phrase: str, alone: bool = False) -> bool:
    """Whether a phrase stands in a whole text; see `ended`."""
    return ended(f" {text} ", phrase, alone)


def ends_with(text: str, words: str) -> bool:
    """Whether a text ends with words that begin after its first character."""
    n = len(words)
    return len(text) > n and text.endswith(words) and borders(text[-n - 1], words[0])


def parse_phrases(line: str) -> tuple[str, ...]:
    """The phrases of a line of -force_words or -ban_words, TAB between them; each of them once."""
    phrases = (collapse_spaces(part).strip() for part in line.split("\t"))
    return tuple(dict.fromkeys(filter(None, phrases)))


def iter_phrases(name: str, phrases: Phrases) -> Iterator[tuple[str, ...]]:
    """Yield the phrases of each line; `name` is the name of the argument in a TypeError."""
    if isinstance(phrases, str | None):
        return repeat(parse_phrases(line_from_text(phrases or "", 0).text))
    return (parse_phrases(line.text) for line in lines_from_texts(phrases, name))


def collapse_spaces(text: str) -> str:
    return SPACES.sub(" ", text)


# -- rows of a search ------------------------------------------------------------------------------


def with_phrases(line: Line, forced: tuple[str, ...], banned: tuple[str, ...]) -> Line:
    """The line with its phrases.  DataError for one that is forced and banned."""
    for phrase in forced:
        for other in banned:
            if contains_phrase(phrase, other):
                inside = "" if phrase == other else f", of which {other[:50]!r} is a part"
                raise DataError(
                    f"line {line.id + 1}: {phrase[:50]!r} is forced{inside}, and banned; take it "
                    "out of force_words or ban_words"
                )
    return replace(line, forced=forced, banned=banned) if forced or banned else line


class SurfaceForms:
    """The text that each token of a vocabulary adds, whatever the tokenizer.

    A space stands between two tokens unless one of them is glued to the other: to its left as `s`
    in `▁cat s` is, or to its right as `cat@@` in `cat@@ s`.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: Vocab, case: Callable[[str], str] = str):
        """case: turns the text of the tokens into that of the translation."""
        self.tokenizer, self.vocab, self.case = tokenizer, vocab, case
        self.ids = [i for i in range(len(vocab)) if not vocab.is_special(i)]
        self.anchor, self.word = self._anchored()
        self.parts = [self._look_at(token) for token in vocab.tokens]
        texts = [self.parts[i] for i in self.ids if self.parts[i][0] not in ("", UNREADABLE)]
        self.any_glued = any(glued for _, glued, _ in texts)  # to its left
        self.cores = [collapse_spaces(core).strip() for core, _, _ in self.parts]
        self.in_order = sorted((core, i) for i, core in enumerate(self.cores))
        # Inside of these a word may end
        self.several = [i for i, core in enumerate(self.cores) if not all(map(is_word, core[1:]))]

    def _anchored(self) -> tuple[list[str], str]:
        """Tokens that are a word wherever they stand, and the word.

        A word that was cut is none with `-tokenizer space -detokenizer sentencepiece`: "a" stays
        `a`, without the mark of a word.  A token of the vocabulary has its marks.
        """
        cut = self.tokenizer.encode_target(ANCHOR)
        for tokens in (cut, *([self.vocab.tokens[i]] for i in self.ids)):
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

        token: its id, or a word of the line's own that a model copies.  joined: whether the token
        before joins it, or it begins the text.
        """
        core, glued, glues = self.parts[token] if isinstance(token, int) else self._look_at(token)
        return (core if glued or joined else f" {core}"), glues

    # ---- Tokens by their text ----

    @cached_property
    def goes_on(self) -> list[list[bool]]:
        """Whether each token goes on with the word before it, after a token that joins none, and
        after one that joins it (2, V)."""
        ids = range(len(self.parts))
        pieces = ([self.piece(i, joined)[0] for i in ids] for joined in (False, True))
        return [[text != "" and is_word(text[0]) for text in each] for each in pieces]

    def beginning(self, text: str) -> list[int]:
        """Tokens that may add this text and perhaps more after it."""
        start, end = (bisect_left(self.in_order, (bound,)) for bound in (text, text + LAST))
        return [i for _, i in self.in_order[start:end]]

    @cached_property
    def adding(self) -> dict[str, list[int]]:
        """Tokens by the texts that they may add."""
        found: dict[str, list[int]] = {}
        for i in self.ids:
            for text in {self.piece(i, joined)[0] for joined in (False, True)}:
                found.setdefault(text, []).append(i)
        return found

    # ---- Phrases by their tokens ----

    def spelt(self, phrase: str) -> tuple[int, ...]:
        """The tokens that say a phrase as whole words; none if the model cannot say it.

        They are the tokenizer's, or the fewest if it does not know the vocabulary.
        """
        ids = self._encoded(phrase)
        if self._says(ids, phrase):
            return ids
        for text in (phrase, f" {phrase}"):
            ways: list[tuple[int, bool, tuple[int, ...]]] = [(0, False, ())]
            seen = set()
            for n, joined, ids in ways:  # which grow: those of fewer tokens come first
                if n == len(text) and self._says(ids, phrase):
                    return ids
                for end in range(n + 1, len(text) + 1):
                    for token in self.adding.get(text[n:end], ()):
                        piece, joins = self.piece(token, joined)
                        if piece == text[n:end] and (end, joins) not in seen:
                            seen.add((end, joins))
                            ways.append((end, joins, (*ids, token)))
        return ()

    def _encoded(self, phrase: str) -> tuple[int, ...]:
        """The tokenizer's tokens of a phrase, if the model has them all."""
        lower = self.case is not str  # the model writes small letters, which become capitals
        tokens = self.tokenizer.encode_target(phrase.lower() if lower else phrase)
        if any(map(self.vocab.lacks, tokens)):
            return ()
        ids = self.vocab.encode(tokens)
        # Marks and scripts without spaces do without the mark of a word
        spare = len(ids) > 1 and not is_word(phrase[0]) and not self.parts[ids[0]][0]
        return tuple(ids[spare:])

    def _says(self, ids: Sequence[int], phrase: str) -> bool:
        """Whether tokens between two words are a phrase, of whole words."""
        text, joined = ANCHOR, False
        for token in ids:
            piece, joined = self.piece(token, joined)
            text += piece
        text += ANCHOR if joined else f" {ANCHOR}"
        return text[1:-1].strip() == phrase and contains_phrase(text, phrase)


class PhraseState(NamedTuple):
    """The longest end of the text of a row that a phrase begins with, and the character before.

    So few states occur that what follows from each is kept.
    """

    tail: str
    joined: bool  # whether the last token joins the next one
    matched: tuple[int, ...]  # of each forced phrase: how many tokens the row ends with, or MET


class PhraseEffects(NamedTuple):
    """Tokens that may follow a state, and their effect on phrases."""

    forbidden: Sequence[int] = ()
    # Tokens after which a banned phrase is complete, unless its last word goes on
    completing: Sequence[int] = ()
    # Whether the last word must go on, as it completes a banned phrase, or must not, as it
    # completes a forced one; None: it may
    goes_on: bool | None = None
    may_end: bool = True  # no forced phrase is missing, and no banned one is complete
    bank: int = 0  # tokens of forced phrases that the row holds
    # Tokens that bring a forced phrase further, each with the bank of the row then
    wanted: Sequence[tuple[int, int]] = ()


class PhraseAutomaton:
    """The forced and banned phrases of a line, for rows of its search."""

    def __init__(
        self,
        surface_forms: SurfaceForms,
        forced: Sequence[str],
        banned: Sequence[str],
        oov_words: Sequence[str] = (),
    ):
        """own_words: of the line, which a model that copies may say; see `Example`."""
        self.surface_forms, self.forced, self.banned = surface_forms, forced, banned
        self.oov_words, self.n_tokens = oov_words, len(surface_forms.parts)
        self.paths = [surface_forms.spelt(phrase) for phrase in forced]
        self.beginnings = {p[:n] for p in (*forced, *banned) for n in range(1, len(p) + 1)}
        self.longest = max(map(len, self.beginnings), default=0)
        self.start = PhraseState(" ", True, (0,) * len(forced))
        self.after = lru_cache(CACHED)(self._after)
        self.effects = lru_cache(CACHED)(self._effects)

    def _after(self, state: PhraseState, token: int) -> PhraseState:
        """The state of a row that goes on with a token."""
        text, joined = self._extended(state, token)
        matched = [self._matched(i, state, token, text) for i in range(len(self.forced))]
        starts = range(max(1, len(text) - self.longest), len(text))
        tails = (i for i in starts if text[i:] in self.beginnings and borders(text[i - 1], text[i]))
        return PhraseState(text[next(tails, len(text)) - 1 :], joined, tuple(matched))

    def _extended(self, state: PhraseState, token: int) -> tuple[str, bool]:
        """The end of the text with a token, and whether this joins the next one."""
        word = token if token < self.n_tokens else self.oov_words[token - self.n_tokens]
        piece, joined = self.surface_forms.piece(word, state.joined)
        # If no token is glued to its left, a space follows: the word has ended
        space = "" if joined or self.surface_forms.any_glued else " "
        return collapse_spaces(state.tail + piece + space), joined

    def _matched(self, i: int, state: PhraseState, token: int, text: str) -> int:
        """How many tokens of forced phrase i a row ends with after a token, or MET."""
        path, n = self.paths[i], state.matched[i]
        if n == MET or ended(text, self.forced[i]):
            return MET
        recent = (*path[:n], token)
        for m in range(min(len(recent), len(path)), 0, -1):
            if recent[-m:] == path[:m]:
                apart = not state.joined or borders(state.tail[-1], self.forced[i][0])
                return m if m > 1 or apart else 0
        return 0

    def _bank(self, state: PhraseState) -> int:
        """How many tokens of forced phrases a row holds.

        The end of the text counts for one phrase alone: with "cat" and "category" a row would else
        seem further after each "cat" than after the first.
        """
        met = sum(len(path) for path, n in zip(self.paths, state.matched) if n == MET)
        return met + max((*state.matched, 0))

    def _effects(self, state: PhraseState) -> PhraseEffects:
        """The effects of tokens that may follow a state."""
        forbidden, completing = [], []
        for token in self._critical(state.tail):
            text, _ = self._extended(state, token)
            if any(ended(text, phrase) for phrase in self.banned):
                forbidden.append(token)
            elif any(ends_with(text, phrase) for phrase in self.banned):
                completing.append(token)
        at_end = any(ends_with(state.tail, phrase) for phrase in self.banned)
        # A phrase that the model cannot say keeps no translation from ending
        pairs = [(path, n) for path, n in zip(self.paths, state.matched) if path and n != MET]
        complete = [n == len(path) for path, n in pairs]
        bank, wanted = self._bank(state), []
        for token in dict.fromkeys(path[m] for path, n in pairs for m in (0, n) if m < len(path)):
            then = self._bank(self.after(state, token))
            if then > bank and token not in forbidden:
                wanted.append((token, then))
        goes_on = True if at_end else False if any(complete) else None
        may_end = not at_end and all(complete)
        return PhraseEffects(forbidden, completing, goes_on, may_end, bank, wanted)

    def _critical(self, tail: str) -> list[int]:
        """Tokens after which a banned phrase may be complete."""
        if not self.banned:
            return []
        found = set(range(self.n_tokens, self.n_tokens + len(self.oov_words)))
        for phrase in self.banned:
            cores = self.surface_forms.cores
            found.update(i for i in self.surface_forms.several if phrase in cores[i])
            for n in range(len(phrase)):
                if n == 0 or ends_with(tail, phrase[:n]):
                    found.update(self.surface_forms.beginning(phrase[n:].lstrip()))
        return sorted(found)
