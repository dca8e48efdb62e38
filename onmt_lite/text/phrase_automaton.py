"""The automaton that reads the rows of a search for forced and banned phrases.

A banned phrase is told by the text, so that no other tokens can spell it.  A forced phrase is a
path of tokens that a row follows; the text says whether it stands there as whole words.  Of the
text, a state keeps its longest end that a phrase begins with, and the character before that.  So
few states occur, and what follows from each is kept.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from onmt_lite.text.phrases import borders, is_word, neighbours, single_spaced
from onmt_lite.text.surfaces import Surfaces

CACHED = 1 << 16  # states and tokens
MET = -1
GOES_ON = 2  # a class of `Surfaces`


class State(NamedTuple):
    """The end of the text of a row, as far as phrases depend on it.

    tail     the end of the text
    joined   whether its last token joins the next one
    matched  of each forced phrase: how many of its tokens the row ends with, or MET
    """

    tail: str
    joined: bool
    matched: tuple[int, ...]


class Effects(NamedTuple):
    """Tokens that may follow a state, and their effect on phrases.

    forbidden   tokens that may not follow
    completing  tokens after which a banned phrase is complete, unless its last word goes on
    closed      the class of tokens that may not follow, see `Surfaces.classes`
    may_end     no forced phrase is missing, and no banned one is complete
    bank        tokens of forced phrases that the row holds
    wanted      tokens that bring a forced phrase further, each with the bank of the row then
    """

    forbidden: tuple[int, ...] = ()
    completing: tuple[int, ...] = ()
    closed: int | None = None
    may_end: bool = True
    bank: int = 0
    wanted: tuple[tuple[int, int], ...] = ()


class PhraseAutomaton:
    """The forced and banned phrases of a line, for rows of its search."""

    def __init__(
        self,
        surfaces: Surfaces,
        forced: Sequence[str],
        banned: Sequence[str],
        own_words: Sequence[str] = (),
    ):
        """own_words: of the line, which a model that copies may say; see `Example`."""
        self.surfaces, self.forced, self.banned = surfaces, forced, banned
        self.own_words, self.n_tokens = own_words, len(surfaces.parts)
        self.paths = [tuple(surfaces.spelt(phrase)) for phrase in forced]
        all_phrases = (*forced, *banned)
        self.beginnings = {p[:n] for p in all_phrases for n in range(1, len(p) + 1)}
        self.longest = max(map(len, all_phrases), default=0)
        self.start = State(" ", True, (0,) * len(forced))
        self.after = lru_cache(CACHED)(self._after)
        self.effects = lru_cache(CACHED)(self._effects)

    @property
    def steers(self) -> bool:
        """Whether the model can say a forced phrase."""
        return any(self.paths)

    def _after(self, state: State, token: int) -> State:
        """The state of a row that goes on with a token."""
        text, joined = self._extended(state, token)
        matched = (self._matched(i, state, token, text) for i in range(len(self.forced)))
        return State(self._tail(text), joined, tuple(matched))

    def _extended(self, state: State, token: int) -> tuple[str, bool]:
        """The end of the text with a token, and whether this joins the next one."""
        word = token if token < self.n_tokens else self.own_words[token - self.n_tokens]
        piece, joined = self.surfaces.piece(word, state.joined)
        return single_spaced(state.tail + piece), joined

    def _tail(self, text: str) -> str:
        """The longest end of a text that a phrase begins with, and the character before it."""
        for i in range(max(1, len(text) - self.longest), len(text)):
            if borders(text[i - 1], text[i]) and text[i:] in self.beginnings:
                return text[i - 1 :]
        return text[-1]

    def _effects(self, state: State) -> Effects:
        """The effects of tokens that may follow a state."""
        forbidden, completing = self._banned_after(state)
        at_end = any(complete(state.tail, phrase) for phrase in self.banned)
        # A phrase that the model cannot say keeps no translation from ending
        missing = [i for i, path in enumerate(self.paths) if path and state.matched[i] != MET]
        waiting = [i for i in missing if state.matched[i] == len(self.paths[i])]
        bank, wanted = self._bank(state), []
        for token in self._next_tokens(state, missing):
            then = self._bank(self.after(state, token))
            if then > bank and token not in forbidden:
                wanted.append((token, then))
        return Effects(
            forbidden,
            completing,
            int(state.joined) if at_end else GOES_ON if waiting else None,
            not at_end and missing == waiting,
            bank,
            tuple(wanted),
        )

    # ---- Banned phrases ----

    def _banned_after(self, state: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens after which a banned phrase has ended, and tokens after which it is complete."""
        ended_by, completed_by = [], []
        for token in self._critical(state.tail):
            text, _ = self._extended(state, token)
            if any(ended(text, phrase) for phrase in self.banned):
                ended_by.append(token)
            elif any(complete(text, phrase) for phrase in self.banned):
                completed_by.append(token)
        return tuple(ended_by), tuple(completed_by)

    def _critical(self, tail: str) -> list[int]:
        """Tokens after which a banned phrase may be complete."""
        if not self.banned:
            return []
        found = {*self.surfaces.several}
        found.update(range(self.n_tokens, self.n_tokens + len(self.own_words)))
        for phrase in self.banned:
            rests = [phrase[n:] for n in range(1, len(phrase)) if ends_with(tail, phrase[:n])]
            for rest in (*rests, phrase, f" {phrase}"):
                found.update(self.surfaces.beginning(rest))
        return sorted(found)

    # ---- Forced phrases ----

    def _matched(self, i: int, state: State, token: int, text: str) -> int:
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

    def _next_tokens(self, state: State, missing: Sequence[int]) -> list[int]:
        """The tokens that begin a missing phrase or go on with it."""
        pairs = [(self.paths[i], state.matched[i]) for i in missing]
        tokens = [path[m] for path, n in pairs for m in (0, n) if m < len(path)]
        return list(dict.fromkeys(tokens))

    def _bank(self, state: State) -> int:
        """How many tokens of forced phrases a row holds.

        The end of the text counts for one phrase alone: with "cat" and "category" a row would else
        seem further after each "cat" than after the first.
        """
        met = sum(len(path) for path, n in zip(self.paths, state.matched) if n == MET)
        return met + max((*state.matched, 0))


def ends_with(text: str, words: str) -> bool:
    """Whether a text ends with some words, after its first character."""
    n = len(words)
    return len(text) > n and text.endswith(words) and borders(text[-n - 1], words[0])


def complete(text: str, phrase: str) -> bool:
    """Whether a text ends with a phrase, the last word of which may go on."""
    return is_word(phrase[-1]) and ends_with(text, phrase)


def ended(text: str, phrase: str) -> bool:
    """Whether a text holds a phrase after its first character that ends, whatever follows."""
    last_is_mark = not is_word(phrase[-1])
    nexts = (after for _, after in neighbours(text, phrase))
    return any(last_is_mark or (after != "" and borders(phrase[-1], after)) for after in nexts)
