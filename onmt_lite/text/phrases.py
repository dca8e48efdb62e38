"""Forced and banned phrases: whole words in exact spelling, in texts and in hypotheses.

A word ends where the next character is not a letter, digit or underscore: "cat" is in "The cat."
and in "cat's", but not in "category". Scripts written without spaces have no such boundaries; there
a phrase matches anywhere.

The search tracks the text of each hypothesis. A banned phrase is detected in that text, so that no
other tokenization can spell it. A forced phrase is a token sequence that a hypothesis follows; the
text decides whether it occurs as whole words.
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
from onmt_lite.text.lines import Line, make_line_from_text, make_lines_from_texts
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.vocab import Vocab

SPACES = re.compile(r"\s+")
# Thai, Lao, Burmese, Khmer, kana, Chinese characters
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
INVALID_TEXT = (
    "\ufffd"  # text of a token that is not valid text, such as a byte; counts as part of a word
)
MAX_CHAR = chr(0x10FFFF)
ANCHOR = "a"  # a word between whose copies the text of a token is determined
CACHE_SIZE = 1 << 16  # cached (state, token) pairs
MET = -1

# Tab-separated phrases, as in a file: one string for all lines, or one for each line
Phrases = str | Iterable[str] | None


@lru_cache(maxsize=1 << 16)
def is_word_char(char: str) -> bool:
    """Return True if a character is part of a word in a script with word boundaries."""
    if UNSPACED.match(char):
        return False
    return char in ("_", INVALID_TEXT) or char.isalnum() or unicodedata.category(char)[0] == "M"


def is_word_boundary(before: str, after: str) -> bool:
    """Return True if a word may end between two characters and another begin."""
    return not (is_word_char(before) and is_word_char(after))


def contains_after_first(text: str, phrase: str, standalone: bool = False) -> bool:
    """Return True if a phrase occurs after the first character of a text that may continue.

    Args:
        text: the text; what follows it is unknown.
        phrase: the phrase.
        standalone: no letter may touch the phrase, even if it begins or ends with punctuation.
    """
    start = text.find(phrase, 1)
    while start > 0:
        before, after = text[start - 1], text[start + len(phrase) :][:1] or INVALID_TEXT
        if is_word_boundary(before, phrase[0]) and is_word_boundary(phrase[-1], after):
            if not (standalone and (is_word_char(before) or is_word_char(after))):
                return True
        start = text.find(phrase, start + 1)
    return False


def contains_phrase(text: str, phrase: str, standalone: bool = False) -> bool:
    """Return True if a phrase occurs in a complete text.

    Args:
        text: the text.
        phrase: the phrase.
        standalone: see `contains_after_first`.
    """
    return contains_after_first(f" {text} ", phrase, standalone)


def ends_with_words(text: str, words: str) -> bool:
    """Return True if a text ends with whole words that begin after its first character."""
    n = len(words)
    return len(text) > n and text.endswith(words) and is_word_boundary(text[-n - 1], words[0])


def parse_phrases(line: str) -> tuple[str, ...]:
    """Return the distinct phrases of a tab-separated line of -force_words or -ban_words."""
    phrases = (collapse_spaces(part).strip() for part in line.split("\t"))
    return tuple(dict.fromkeys(filter(None, phrases)))


def iter_phrases(name: str, phrases: Phrases) -> Iterator[tuple[str, ...]]:
    """Yield the phrases of each line.

    Args:
        name: name of the argument in a TypeError.
        phrases: one string for all lines, or one for each line.
    """
    if isinstance(phrases, str | None):
        return repeat(parse_phrases(make_line_from_text(phrases or "", 0).text))
    return (parse_phrases(line.text) for line in make_lines_from_texts(phrases, name))


def collapse_spaces(text: str) -> str:
    """Replace each run of white space by one space."""
    return SPACES.sub(" ", text)


# -- hypotheses ------------------------------------------------------------------------------------


def with_phrases(line: Line, forced: tuple[str, ...], banned: tuple[str, ...]) -> Line:
    """Return the line with its phrases.

    Args:
        line: the line.
        forced: phrases that its translation must contain.
        banned: phrases that it must not contain.

    Raises:
        DataError: if a forced phrase is, or contains, a banned phrase.
    """
    for phrase in forced:
        for banned_phrase in banned:
            if contains_phrase(phrase, banned_phrase):
                problem = "is both forced and banned"
                if phrase != banned_phrase:
                    problem = f"is forced and contains {banned_phrase[:50]!r}, which is banned"
                raise DataError(
                    f"line {line.id + 1}: {phrase[:50]!r} {problem}; "
                    "change force_words or ban_words"
                )
    return replace(line, forced=forced, banned=banned) if forced or banned else line


class SurfaceForms:
    """The text that each token of a vocabulary adds, for any tokenizer.

    There is a space between two tokens unless one is attached to the other: on its left, as `s` in
    `▁cat s`, or on its right, as `cat@@` in `cat@@ s`.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: Vocab, case: Callable[[str], str] = str):
        """
        Args:
            tokenizer: detokenizes the tokens.
            vocab: the target vocabulary.
            case: maps the text of tokens to the text of the translation.
        """
        self.tokenizer, self.vocab, self.case = tokenizer, vocab, case
        self.ids = [i for i in range(len(vocab)) if not vocab.is_special(i)]
        self.anchor, self.word = self._find_anchor()
        self.surfaces = [self._get_surface(token) for token in vocab.tokens]
        texts = [
            self.surfaces[i] for i in self.ids if self.surfaces[i][0] not in ("", INVALID_TEXT)
        ]
        self.any_attaches_left = any(attaches_left for _, attaches_left, _ in texts)
        self.cores = [collapse_spaces(text).strip() for text, _, _ in self.surfaces]
        self.by_text = sorted((text, i) for i, text in enumerate(self.cores))
        # Tokens inside which a word may end
        self.with_inner_boundary = [
            i for i, text in enumerate(self.cores) if not all(map(is_word_char, text[1:]))
        ]

    def _find_anchor(self) -> tuple[list[str], str]:
        """Return tokens that are a complete word in any context, and that word.

        With `-tokenizer space -detokenizer sentencepiece`, "a" is tokenized as `a` without the
        space marker, which is not a complete word. A token of the vocabulary has its markers.
        """
        encoded = self.tokenizer.encode_target(ANCHOR)
        for tokens in (encoded, *([self.vocab.tokens[i]] for i in self.ids)):
            word = self.tokenizer.decode(tokens).strip()
            two = self.tokenizer.decode([*tokens, *tokens]).strip()
            if word.isalpha() and two == f"{word} {word}":
                return tokens, word
        return encoded, ANCHOR

    def _get_surface(self, token: str) -> tuple[str, bool, bool]:
        """Return the surface of a token, determined between two anchor words.

        Returns:
            Its text, whether it attaches to the token on its left, and whether the token on its
            right attaches to it. INVALID_TEXT if it cannot be determined.
        """
        text = self.tokenizer.decode([*self.anchor, token, *self.anchor]).strip()
        word, n = self.word, len(self.word)
        inner = text[n:-n]
        framed = text.startswith(word) and text.endswith(word) and len(text) >= 2 * n
        if not framed or INVALID_TEXT in inner:
            return INVALID_TEXT, True, False
        if inner == " ":  # it adds no text
            return "", True, False
        attaches_left, attaches_right = not inner.startswith(" "), not inner.endswith(" ")
        text = inner[0 if attaches_left else 1 : None if attaches_right else -1]
        return self.case(text), attaches_left, attaches_right

    def get_added_text(self, token: str | int, joined: bool) -> tuple[str, bool]:
        """Return the text that a token adds and whether it attaches to the next token.

        Args:
            token: its id, or an out-of-vocabulary word that the model copies.
            joined: the previous token attaches to it, or it is the first token.
        """
        text, attaches_left, attaches_right = (
            self.surfaces[token] if isinstance(token, int) else self._get_surface(token)
        )
        return (text if attaches_left or joined else f" {text}"), attaches_right

    # ---- tokens by text ----

    @cached_property
    def continues_word(self) -> list[list[bool]]:
        """Return whether each token continues the previous word (2, V).

        Row 0: the previous token does not attach to the next token; row 1: it does.
        """
        ids = range(len(self.surfaces))
        texts = ([self.get_added_text(i, joined)[0] for i in ids] for joined in (False, True))
        return [[text != "" and is_word_char(text[0]) for text in row] for row in texts]

    def find_starting_with(self, text: str) -> list[int]:
        """Return the tokens whose text starts with `text`."""
        start, end = (bisect_left(self.by_text, (bound,)) for bound in (text, text + MAX_CHAR))
        return [i for _, i in self.by_text[start:end]]

    @cached_property
    def by_added_text(self) -> dict[str, list[int]]:
        """The tokens that can add each text."""
        tokens_by_text: dict[str, list[int]] = {}
        for i in self.ids:
            for text in {self.get_added_text(i, joined)[0] for joined in (False, True)}:
                tokens_by_text.setdefault(text, []).append(i)
        return tokens_by_text

    # ---- tokenization of phrases ----

    def tokenize_phrase(self, phrase: str) -> tuple[int, ...]:
        """Return tokens that spell a phrase as whole words; () if there are none.

        The tokenization of the tokenizer is preferred. If the vocabulary lacks it, the shortest one
        is searched for.
        """
        ids = self._encode(phrase)
        if self._spells(ids, phrase):
            return ids
        for text in (phrase, f" {phrase}"):
            queue: list[tuple[int, bool, tuple[int, ...]]] = [(0, False, ())]
            seen = set()
            # The list grows; breadth first, so fewer tokens come first
            for n, joined, ids in queue:
                if n == len(text) and self._spells(ids, phrase):
                    return ids
                for end in range(n + 1, len(text) + 1):
                    for token in self.by_added_text.get(text[n:end], ()):
                        get_added_text, joins = self.get_added_text(token, joined)
                        if get_added_text == text[n:end] and (end, joins) not in seen:
                            seen.add((end, joins))
                            queue.append((end, joins, (*ids, token)))
        return ()

    def _encode(self, phrase: str) -> tuple[int, ...]:
        """Return the ids of the tokenizer for a phrase; () if the vocabulary lacks a token."""
        lower = self.case is not str  # the model writes lowercase, which is uppercased later
        tokens = self.tokenizer.encode_target(phrase.lower() if lower else phrase)
        if any(map(self.vocab.lacks, tokens)):
            return ()
        ids = self.vocab.encode(tokens)
        # Punctuation and scripts without spaces need no space marker
        n_skipped = len(ids) > 1 and not is_word_char(phrase[0]) and not self.surfaces[ids[0]][0]
        return tuple(ids[n_skipped:])

    def _spells(self, ids: Sequence[int], phrase: str) -> bool:
        """Return True if tokens between two words are exactly a phrase of whole words."""
        text, joined = ANCHOR, False
        for token in ids:
            get_added_text, joined = self.get_added_text(token, joined)
            text += get_added_text
        text += ANCHOR if joined else f" {ANCHOR}"
        return text[1:-1].strip() == phrase and contains_phrase(text, phrase)


class PhraseState(NamedTuple):
    """State of a hypothesis: the longest suffix of its text that starts a phrase.

    The character before that suffix is part of `tail`. There are few different states, so their
    effects are cached.
    """

    tail: str
    joined: bool  # the last token attaches to the next one
    matched: tuple[int, ...]  # per forced phrase: number of matched tokens, or MET


class PhraseEffects(NamedTuple):
    """Effects of the tokens that may follow a state."""

    forbidden: Sequence[int] = ()
    # Tokens that complete a banned phrase unless the next token continues its last word
    completing: Sequence[int] = ()
    # True: the last word must continue, because it completes a banned phrase; False: it must not,
    # because it completes a forced phrase; None: no restriction
    continues_word: bool | None = None
    may_end: bool = True  # all forced phrases are met, and no banned phrase is complete
    bank: int = 0  # number of forced phrase tokens in the hypothesis
    # (token that advances a forced phrase, bank after it)
    advances: Sequence[tuple[int, int]] = ()


class PhraseAutomaton:
    """The forced and banned phrases of a line, as an automaton over target tokens."""

    def __init__(
        self,
        surface_forms: SurfaceForms,
        forced: Sequence[str],
        banned: Sequence[str],
        oov_words: Sequence[str] = (),
    ):
        """
        Args:
            surface_forms: text of the target tokens.
            forced: phrases that must occur.
            banned: phrases that must not occur.
            oov_words: words of the line that a model with copy attention may copy; see `Example`.
        """
        self.surface_forms, self.forced, self.banned = surface_forms, forced, banned
        self.oov_words, self.n_tokens = oov_words, len(surface_forms.surfaces)
        self.paths = [surface_forms.tokenize_phrase(phrase) for phrase in forced]
        self.phrase_prefixes = {p[:n] for p in (*forced, *banned) for n in range(1, len(p) + 1)}
        self.max_prefix_length = max(map(len, self.phrase_prefixes), default=0)
        self.start = PhraseState(" ", True, (0,) * len(forced))
        self.after = lru_cache(CACHE_SIZE)(self._next_state)
        self.effects = lru_cache(CACHE_SIZE)(self._effects)

    def _next_state(self, state: PhraseState, token: int) -> PhraseState:
        """Return the state after a token."""
        text, joined = self._append(state, token)
        matched = [self._count_matched(i, state, token, text) for i in range(len(self.forced))]
        starts = range(max(1, len(text) - self.max_prefix_length), len(text))
        tails = (
            i
            for i in starts
            if text[i:] in self.phrase_prefixes and is_word_boundary(text[i - 1], text[i])
        )
        return PhraseState(text[next(tails, len(text)) - 1 :], joined, tuple(matched))

    def _append(self, state: PhraseState, token: int) -> tuple[str, bool]:
        """Return the tail of the text with a token, and whether it attaches to the next token."""
        word = token if token < self.n_tokens else self.oov_words[token - self.n_tokens]
        added, joined = self.surface_forms.get_added_text(word, state.joined)
        # If no token attaches to its left, a space follows and the word is complete
        space = "" if joined or self.surface_forms.any_attaches_left else " "
        return collapse_spaces(state.tail + added + space), joined

    def _count_matched(self, i: int, state: PhraseState, token: int, text: str) -> int:
        """Return how many tokens of forced phrase i are matched after a token, or MET.

        Args:
            i: index of the phrase.
            state: state before the token.
            token: the token.
            text: tail of the text with the token.
        """
        path, n = self.paths[i], state.matched[i]
        if n == MET or contains_after_first(text, self.forced[i]):
            return MET
        recent = (*path[:n], token)
        for m in range(min(len(recent), len(path)), 0, -1):
            if recent[-m:] == path[:m]:
                at_boundary = not state.joined or is_word_boundary(
                    state.tail[-1], self.forced[i][0]
                )
                return m if m > 1 or at_boundary else 0
        return 0

    def _count_bank(self, state: PhraseState) -> int:
        """Return the number of forced phrase tokens in a hypothesis.

        A partial match counts for one phrase only. Otherwise, with "cat" and "category", a
        hypothesis would seem to advance after each "cat".
        """
        met = sum(len(path) for path, n in zip(self.paths, state.matched) if n == MET)
        return met + max((*state.matched, 0))

    def _effects(self, state: PhraseState) -> PhraseEffects:
        """Return the effects of the tokens that may follow a state."""
        forbidden, completing = [], []
        for token in self._find_critical_tokens(state.tail):
            text, _ = self._append(state, token)
            if any(contains_after_first(text, phrase) for phrase in self.banned):
                forbidden.append(token)
            elif any(ends_with_words(text, phrase) for phrase in self.banned):
                completing.append(token)
        at_end = any(ends_with_words(state.tail, phrase) for phrase in self.banned)
        # A phrase that the vocabulary cannot spell does not block the end of a translation
        pairs = [(path, n) for path, n in zip(self.paths, state.matched) if path and n != MET]
        complete = [n == len(path) for path, n in pairs]
        bank, advances = self._count_bank(state), []
        for token in dict.fromkeys(path[m] for path, n in pairs for m in (0, n) if m < len(path)):
            next_bank = self._count_bank(self.after(state, token))
            if next_bank > bank and token not in forbidden:
                advances.append((token, next_bank))
        continues_word = True if at_end else False if any(complete) else None
        may_end = not at_end and all(complete)
        return PhraseEffects(forbidden, completing, continues_word, may_end, bank, advances)

    def _find_critical_tokens(self, tail: str) -> list[int]:
        """Return the tokens after which a banned phrase may be complete."""
        if not self.banned:
            return []
        tokens = set(range(self.n_tokens, self.n_tokens + len(self.oov_words)))
        for phrase in self.banned:
            texts = self.surface_forms.cores
            tokens.update(i for i in self.surface_forms.with_inner_boundary if phrase in texts[i])
            for n in range(len(phrase)):
                if n == 0 or ends_with_words(tail, phrase[:n]):
                    tokens.update(self.surface_forms.find_starting_with(phrase[n:].lstrip()))
        return sorted(tokens)
