"""What the phrases of a line ask of its translation, token by token.

The text of a row is read as it grows.  Of it, a state keeps what may become a phrase: its longest
end that is the beginning of one, and the character before that.  Few states occur, so that what
follows from each is worked out once.
"""

from collections.abc import Iterable, Iterator, Sequence

from onmt_lite.text.effects import Effects
from onmt_lite.text.phrases import borders, is_word, single_spaced
from onmt_lite.text.surfaces import Surfaces

# (which forced phrases are met, as bits; the end of the text; whether its last token joins the
# next one; whether that token has completed a banned phrase)
State = tuple[int, str, bool, bool]
START: State = (0, " ", True, False)
LETTER, MARK, SPACE = "a", ".", " "  # what may stand before a phrase


class Wishes:
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
        self.paths = [surfaces.spelt(phrase) for phrase in forced]
        all_phrases = (*forced, *banned)
        self.beginnings = {p[:n] for p in all_phrases for n in range(1, len(p) + 1)}
        self.longest = max(map(len, all_phrases), default=0)
        # A phrase that the model cannot say keeps no translation from ending
        self.possible = sum(1 << i for i, path in enumerate(self.paths) if path)
        self.moves: dict[tuple[State, int], State] = {}
        self.known: dict[State, Effects] = {}
        self.start = START
        self.classes = surfaces.classes

    @property
    def steers(self) -> bool:
        """Whether phrases are forced, not only banned."""
        return self.possible > 0

    def after(self, state: State, token: int) -> State:
        """The state of a row that goes on with a token."""
        found = self.moves.get((state, token))
        if found is None:
            found = self.moves[state, token] = self._after(state, token)
        return found

    def effects(self, state: State) -> Effects:
        """What the state says of the tokens that may follow."""
        found = self.known.get(state)
        if found is None:
            found = self.known[state] = self._effects(state)
        return found

    def _after(self, state: State, token: int) -> State:
        met, tail, joined, _ = state
        word = token if token < self.n_tokens else self.own_words[token - self.n_tokens]
        piece, joined = self.surfaces.piece(word, joined)
        text = single_spaced(tail + piece)
        for i, phrase in enumerate(self.forced):
            if ended(text, phrase):
                met |= 1 << i
        broken = any(ended(text, phrase) for phrase in self.banned)
        return met, self._tail(text), joined, broken

    def _tail(self, text: str) -> str:
        """The longest end of a text that may become a phrase, and what stands before it."""
        for i in range(max(1, len(text) - self.longest), len(text)):
            if borders(text[i - 1], text[i]) and text[i:] in self.beginnings:
                return kind_of(text[i - 1]) + text[i:]
        return kind_of(text[-1])

    def _effects(self, state: State) -> Effects:
        met, tail, joined, _ = state
        at_end = any(complete(tail, phrase) for phrase in self.banned)
        closed = [int(joined)] if at_end else []
        forbidden, completing = [], []
        for token in self._critical(tail):
            _, then, _, broken = self.after(state, token)
            if broken:
                forbidden.append(token)
            elif any(complete(then, phrase) for phrase in self.banned):
                completing.append(token)
        missing = self.possible & ~met
        waiting = [i for i in self._bits(missing) if self._waits(i, tail, joined)]
        if waiting:  # a word that is complete is to end
            closed.append(2)
        bank = self._bank(state)
        wanted = {token: self._bank(self.after(state, token)) for token in self._next(state)}
        bad = {*forbidden}
        return Effects(
            tuple(forbidden),
            tuple(completing),
            tuple(closed),
            not at_end and missing == sum(1 << i for i in waiting),
            bank,
            tuple((t, then) for t, then in wanted.items() if then > bank and t not in bad),
        )

    # ---- Banned phrases ----

    def _critical(self, tail: str) -> list[int]:
        """Tokens after which a banned phrase may be complete."""
        found = set[int]()
        for phrase in self.banned:
            rests = [phrase[n:] for n in begun(tail, phrase) if n < len(phrase)]
            for rest in (*rests, phrase, f" {phrase}"):
                found.update(self.surfaces.beginning(rest))
        if self.banned:
            found.update(self.surfaces.several)
            found.update(range(self.n_tokens, self.n_tokens + len(self.own_words)))
        return sorted(found)

    # ---- Forced phrases ----

    def _bits(self, met: int) -> Iterable[int]:
        return (i for i in range(len(self.forced)) if met >> i & 1)

    def _waits(self, i: int, tail: str, joined: bool) -> bool:
        """Whether a forced phrase is complete and the next token must end its last word."""
        can_wait = not joined and not self.surfaces.spaced_behind
        return can_wait and complete(tail, self.forced[i])

    def _bank(self, state: State) -> int:
        """How many tokens of forced phrases a row holds.

        The end of the text counts for one phrase alone: with "cat" and "category" a row would else
        seem further after each "cat" than after the first.
        """
        met, tail, joined, _ = state
        bank, best = 0, 0
        for i in self._bits(self.possible):
            path = self.paths[i]
            if met >> i & 1:
                bank += len(path)
            elif self._waits(i, tail, joined):
                best = max(best, len(path))
            else:
                ends = (sum(end <= n for _, end in path) for n in self._places(tail, i))
                best = max(best, *ends, 0)
        return bank + best

    def _next(self, state: State) -> Iterator[int]:
        """The tokens that begin a forced phrase that is missing, or go on with it."""
        met, tail, _, _ = state
        for i in self._bits(self.possible & ~met):
            phrase, path = self.forced[i], self.paths[i]
            yield path[0][0]
            places = {end: token for (_, end), (token, _) in zip(path, path[1:])}
            for n in self._places(tail, i):
                token = places.get(n, self.surfaces.longest(phrase[n:]))
                if token is not None:
                    yield token

    def _places(self, tail: str, i: int) -> Iterator[int]:
        """How many characters of a forced phrase a text may end with, not all; 0 where the space
        before it is a token of its own."""
        phrase = self.forced[i]
        if tail.endswith(SPACE) and self.paths[i][0][1] == 0:
            yield 0
        yield from (n for n in begun(tail, phrase) if n < len(phrase))


def kind_of(char: str) -> str:
    """All that matters of the character before a phrase."""
    return LETTER if is_word(char) else SPACE if char.isspace() else MARK


def begun(tail: str, phrase: str) -> list[int]:
    """How many characters of a phrase stand at the end of a text, in each way to read it."""
    most = min(len(phrase), len(tail) - 1)
    return [
        n
        for n in range(1, most + 1)
        if tail.endswith(phrase[:n]) and borders(tail[-n - 1], phrase[0])
    ]


def complete(tail: str, phrase: str) -> bool:
    """Whether a text ends with a phrase, the last word of which may go on."""
    return is_word(phrase[-1]) and len(phrase) in begun(tail, phrase)


def ended(text: str, phrase: str) -> bool:
    """Whether a text, of which the first character is known by its kind, holds a phrase that has
    ended, whatever follows."""
    start = text.find(phrase, 1)
    while start > 0:
        end = start + len(phrase)
        over = not is_word(phrase[-1]) or (end < len(text) and borders(phrase[-1], text[end]))
        if over and borders(text[start - 1], phrase[0]):
            return True
        start = text.find(phrase, start + 1)
    return False
