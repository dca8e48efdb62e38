"""-alternatives: the best words that may follow a prefix, and the best translation with each.

CTranslate2 (`return_alternatives`) tells alternatives apart by their first token; here they differ
by their first word, whichever tokens spell it.  A line is searched in three stages, all lines and
all their words in one batch each time:

1. `NextWords` expands what may follow the prefix token by token, the most probable beginnings of
   words first, until no other word can be among the N most probable ones.
2. One search for each of these words, which the translation begins with behind the prefix.
3. Where no hypothesis of that search has the word itself ("go" was asked for and all say "going"),
   one more, which begins with the word and the best token that ends it.
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from onmt_lite.inference.records import Chosen, Example, Found, Hypothesis
from onmt_lite.inference.search_setup import SearchRules

Decode = Callable[[list[Example], int, SearchRules], list[Found]]
Ids = tuple[int, ...]
Asked = tuple["NextWords", Ids]
Word = tuple[bool, str]  # whether it goes on with the last word of the prefix, and its letters
Spell = Callable[[Ids], tuple[Word, bool]]

NO_WORD = (False, "")

MOST_ROUNDS = 24  # of stage 1: tokens of a word
SPARE = 8  # tokens that are looked at beside two for each word
MARKS = ".,;:!?¡¿…\"'“”„‘’‚«»‹›()[]{}。，、；：！？「」『』（）《》·"  # around words
# Scripts without spaces (Thai, Lao, Tibetan, Burmese, Khmer, kana, Han): each letter is a word
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


def alternatives(
    group: list[Example], n_slots: int, rules: SearchRules, decode: Decode
) -> list[Found]:
    """What `decode` finds for each example with each of the best words that may follow its prefix.

    n_slots: sentences that run at once in a plain search, whose result an example has behind whose
    prefix no word can come.
    """
    lines = [NextWords(example, rules) for example in group]
    n_at_once = n_slots if rules.alone else n_slots * rules.n_alternatives
    searcher = Searcher(lines, n_at_once, decode)
    tokens = rules.next_tokens(2 * rules.n_alternatives + SPARE)
    for _ in range(MOST_ROUNDS):
        asked = [(line, ids) for line in lines for ids in line.due()]
        if not asked:
            break
        for (line, ids), found in searcher.search(asked, tokens):
            line.learn(ids, found)
    choices = [(line, choice) for line in lines for choice in line.best()]
    every = rules.keeping(rules.beam_size * rules.policy.candidates)
    searcher.complete(choices, lambda choice: choice.begin, every)
    searcher.complete(choices, lambda choice: choice.end, every)
    empty = [(line, Ids()) for line in lines if not line.hyps()]
    plain = {id(line): found for (line, _), found in searcher.search(empty, rules)}
    return [plain.get(id(line)) or line.found() for line in lines]


@dataclass
class Choice:
    """A word that may come next.

    begins  for each sequence of tokens that spells the word, the logarithm of the probability that
            the word is spelt so and ends
    ends    the most probable tokens of the word and what follows, and their log-probability
    ended   the translation that ends behind the word, where that is among the best
    hyp     the best translation
    """

    begins: dict[Ids, float] = field(default_factory=dict)
    ends: tuple[float, Ids] = (-math.inf, ())
    ended: Hypothesis | None = None
    hyp: Hypothesis | None = None
    note: str = ""
    word: Word = NO_WORD

    def add(self, ids: Ids, log_prob: float) -> None:
        self.begins[ids] = log_add(self.begins.get(ids, -math.inf), log_prob)

    @property
    def log_prob(self) -> float:
        total = -math.inf
        for log_prob in self.begins.values():
            total = log_add(total, log_prob)
        return total

    @property
    def begin(self) -> Ids:
        """The most probable spelling."""
        return max(self.begins, key=lambda ids: self.begins[ids])

    @property
    def end(self) -> Ids:
        return self.ends[1]


class NextWords:
    """The words that may follow the prefix of one example, as far as they are known.

    Beginnings of words are expanded in the order of their probabilities; a word counts what all its
    spellings have, with and without marks behind them, as far as the word ends there.
    """

    def __init__(self, example: Example, rules: SearchRules):
        self.example, self.n = example, rules.n_alternatives
        self.n_prefix = len(example.prefix_ids)
        self.room = rules.limits(example).max_steps - self.n_prefix
        self.spell = speller(example, rules)
        # Beginnings that wait, with their log_prob
        self.open: dict[Ids, float] = {(): 0.0} if self.room > 0 else {}
        self.log_probs: dict[Ids, float] = {}  # of all tokens behind the prefix, and the prefix
        self.words: dict[Word, Choice] = {}

    def due(self) -> list[Ids]:
        """Beginnings to expand next: the most probable ones that may be, or become, one of the N
        most probable words."""
        known = sorted((choice.log_prob for choice in self.words.values()), reverse=True)
        least = known[self.n - 1] if len(known) >= self.n else -math.inf
        able = [(p, ids) for ids, p in self.open.items() if p > least or not ids]
        able.sort(key=lambda pair: (-pair[0], pair[1]))
        return [ids for _, ids in able[: self.n]]

    def learn(self, ids: Ids, found: Found) -> None:
        """Take over the best tokens behind the prefix and `ids`, a hypothesis each."""
        del self.open[ids]
        if found.note or not found.hyps:
            return
        before = sum(found.hyps[0].token_log_probs[:-1])
        self.log_probs.setdefault(ids, before)
        (here, _), goes_on, ends = self.spell(ids), 0.0, 0.0
        for hyp in found.hyps:
            tail = hyp.ids[self.n_prefix :]
            probability = math.exp(hyp.token_log_probs[-1])
            word, complete = (here, True) if hyp.ended else self.spell(tail)
            if not hyp.ended:
                self.log_probs[tail] = hyp.log_prob
            if complete and word == here:
                ends += probability
                self._take_end(word, hyp, tail)
                continue
            goes_on += probability
            if complete or len(tail) >= self.room:  # begun and complete at once, or cut off
                self.words.setdefault(word, Choice()).add(self._begin(tail), hyp.log_prob)
            else:
                self.open[tail] = hyp.log_prob
        if ends and here != NO_WORD:
            share = min(1.0, max(ends, 1.0 - goes_on))
            self.words[here].add(self._begin(ids), before + math.log(share))

    def _take_end(self, word: Word, hyp: Hypothesis, tail: Ids) -> None:
        """Take note of how the word ends."""
        if word == NO_WORD:
            return
        choice = self.words.setdefault(word, Choice())
        if not hyp.ended:
            choice.ends = max(choice.ends, (hyp.log_prob, tail))
        elif choice.ended is None or hyp.score > choice.ended.score:
            choice.ended = hyp

    def _begin(self, ids: Ids) -> Ids:
        """The first of the tokens, as many as spell the same word: without marks behind it."""
        word, _ = self.spell(ids)
        return next(ids[:n] for n in range(len(ids) + 1) if self.spell(ids[:n])[0] == word)

    def begun(self, ids: Ids) -> Example:
        """The example with `ids` behind its prefix."""
        if not ids:
            return self.example
        chosen = Chosen(ids, self.log_probs[ids] - self.log_probs[()])
        return replace(self.example, chosen=chosen)

    def best(self) -> list[Choice]:
        """The most probable words."""
        known = sorted(self.words.items(), key=lambda pair: -pair[1].log_prob)
        chosen = [(word, choice) for word, choice in known if choice.begins][: self.n]
        for word, choice in chosen:
            choice.word = word
        self.words = dict(chosen)
        return [*self.words.values()]

    def choose(self, choice: Choice, found: Found) -> None:
        """Take over the best hypothesis that has the word itself."""
        for hyp in found.hyps:
            if hyp.token_log_probs and self.spell(hyp.ids[self.n_prefix :])[0] == choice.word:
                choice.hyp, choice.note = hyp, found.note
                return

    def hyps(self) -> list[tuple[Hypothesis, str]]:
        """A hypothesis for each word, best first, with a note on what went wrong."""
        both = [(choice.hyp or choice.ended, choice.note) for choice in self.words.values()]
        found = [(hyp, note) for hyp, note in both if hyp is not None]
        found.sort(key=lambda pair: -pair[0].score)
        texts: dict[str, tuple[Hypothesis, str]] = {}  # what was put back may be the same
        for hyp, note in found:
            texts.setdefault(hyp.text, (hyp, note))
        return [*texts.values()]

    def found(self) -> Found:
        found = self.hyps()
        return Found([hyp for hyp, _ in found], found[0][1], n_complete=len(found))


@dataclass
class Searcher:
    """Searches behind the prefixes of lines; `n_slots` sentences run at once."""

    lines: list[NextWords]
    n_slots: int
    decode: Decode

    def search(self, asked: list[Asked], rules: SearchRules) -> Iterator[tuple[Asked, Found]]:
        """What is found for each line with the tokens behind its prefix."""
        if asked:
            examples = [line.begun(ids) for line, ids in asked]
            n_slots = min(self.n_slots, len(examples))
            yield from zip(asked, self.decode(examples, n_slots, rules), strict=True)

    def complete(
        self,
        choices: list[tuple[NextWords, Choice]],
        tokens: Callable[[Choice], Ids],
        rules: SearchRules,
    ) -> None:
        """Search with these tokens of each choice that has no translation yet."""
        waiting = [pair for pair in choices if pair[1].hyp is None and tokens(pair[1])]
        asked = [(line, tokens(choice)) for line, choice in waiting]
        for (line, choice), (_, found) in zip(waiting, self.search(asked, rules), strict=False):
            line.choose(choice, found)


def speller(example: Example, rules: SearchRules) -> Spell:
    """What tokens behind the example's prefix begin with: the first word, and whether it is
    complete."""
    vocab = rules.checkpoint.tgt_vocab
    tokenizer = next(iter(rules.checkpoint.tokenizers.values()))
    case = str.upper if example.in_capitals else str

    def text(ids: Ids) -> str:
        return case(tokenizer.decode(vocab.decode([*ids], example.own_words)))

    before = text(example.prefix_ids)
    known: dict[Ids, tuple[Word, bool]] = {}

    def spell(ids: Ids) -> tuple[Word, bool]:
        if ids not in known:
            known[ids] = first_word(before, text((*example.prefix_ids, *ids)))
        return known[ids]

    return spell


def first_word(before: str, text: str) -> tuple[Word, bool]:
    """The first word of `text` that goes beyond `before`, and whether it is complete.

    Marks around a word are not part of it; where there are marks alone, they are the word.
    """
    same = os.path.commonprefix([before, text])
    rest = text[len(same) :]
    words = rest.split()
    if not words:
        return NO_WORD, False
    joined = bool(same) and not same[-1].isspace() and not rest[0].isspace()
    complete = len(words) > 1 or rest[-1].isspace()
    core = words[0].strip(MARKS)
    letter = UNSPACED.search(core)
    if letter:
        core, complete = core[: letter.start()].strip(MARKS) or letter.group(), True
    return (joined, core or words[0]), complete


def log_add(a: float, b: float) -> float:
    """The logarithm of the sum of two numbers from their logarithms."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
