"""Changes of the text that teach what a corpus of tidy short sentences does not.

Every function takes and returns a (src, tgt) pair or a list of pairs, and draws from a
`random.Random` alone.
"""

import re
from collections.abc import Sequence
from random import Random

from onmt_lite.train.data import Pair
from recipes.de_en.lexicon import word_pairs
from recipes.de_en.noise import no_commas, no_mark, plain_letters, typos
from recipes.de_en.options import ChangeOptions
from recipes.de_en.slots import decorate, fill, name, number
from recipes.de_en.words import WORD, Truecase, names_of, shared_words, with_rare_words

NUMBER = re.compile(r"\d+(?:[.:,]\d+)*")
FINAL = ".!?"


def drop_final(pair: Pair) -> Pair:
    """Remove the final mark of both sides, where it is the same."""
    src, tgt = pair
    if src[-1:] in FINAL and src[-1:] == tgt[-1:]:
        return src[:-1].rstrip(), tgt[:-1].rstrip()
    return pair


def renumber(pair: Pair, rng: Random) -> Pair:
    """Replace each number that both sides share by a random one."""
    src, tgt = pair
    shared = set(NUMBER.findall(src)) & set(NUMBER.findall(tgt))
    fresh = {old: _random_number(old, rng) for old in sorted(shared)}

    def swap(match: re.Match[str]) -> str:
        return fresh.get(match.group(), match.group())

    return NUMBER.sub(swap, src), NUMBER.sub(swap, tgt)


def _random_number(old: str, rng: Random) -> str:
    if ":" in old:
        return f"{rng.randrange(24)}:{rng.randrange(60):02d}"
    if not old.isdigit():  # 1.5 or 10,000: keep the marks, change the digits
        return "".join(str(rng.randrange(1, 10)) if c.isdigit() else c for c in old)
    if len(old) == 4 and rng.random() < 0.5:
        return str(rng.randrange(1500, 2100))
    return number(rng)


def rename(pair: Pair, names: list[str], rng: Random) -> Pair:
    """Replace a name that both sides share: by another name, or by a made-up one.

    A made-up name, every second one, is two halves of names or syllables: to be copied, not known.
    Every fifth has a last name.
    """
    src, tgt = pair
    shared = sorted(shared_words(src, tgt) & set(names))
    if not shared:
        return pair
    old, fresh, other = rng.choice(shared), rng.choice(names), rng.choice(names)
    if rng.random() < 0.5:
        fresh = rng.choice((fresh[: len(fresh) // 2] + other[len(other) // 2 :], name(rng)))
    if rng.random() < 0.2:
        fresh += " " + name(rng)

    def swap(match: re.Match[str]) -> str:
        return fresh if match.group() == old else match.group()

    return WORD.sub(swap, src), WORD.sub(swap, tgt)


def split_pairs(pairs: Sequence[str]) -> list[Pair]:
    """("a|b", ...) -> [("a", "b"), ...]"""
    return [(src, tgt) for src, tgt in (pair.split("|") for pair in pairs)]


class Augment:
    """Makes the text of any epoch: `augment(pairs, rng)`.

    pairs      the whole corpus, which words, names and numbers are taken from
    templates  pairs with slots, of which `n_filled` join each epoch, filled
    """

    def __init__(
        self,
        pairs: list[Pair],
        options: ChangeOptions,
        templates: Sequence[Pair] = (),
        n_filled: int = 0,
    ):
        self.options, self.templates, self.n_filled = options, templates, n_filled
        self.conjunctions = split_pairs(options.conjunctions)
        self.quotes = [(s.split("…"), t.split("…")) for s, t in split_pairs(options.quotes)]
        self.src_case = Truecase(src for src, _ in pairs)
        self.tgt_case = Truecase(tgt for _, tgt in pairs)
        self.names = names_of(pairs)
        self.words = word_pairs(pairs) if options.words else []
        self.rare = with_rare_words(pairs, options.rare)
        self.numbered = [p for p in pairs if set(NUMBER.findall(p[0])) & set(NUMBER.findall(p[1]))]

    def __call__(self, pairs: list[Pair], rng: Random) -> list[Pair]:
        """Make the text of one epoch of these pairs: add lines, shuffle, join, respell."""
        words = self.words * self.options.words
        numbered = self.numbered * self.options.numbers
        pairs = pairs + self.rare + words + [renumber(pair, rng) for pair in numbered]
        pairs += [fill(rng.choice(self.templates), rng) for _ in range(self.n_filled)]
        rng.shuffle(pairs)
        return [self._respell(pair, rng) for pair in self._join(pairs, rng)]

    def _join(self, pairs: list[Pair], rng: Random) -> list[Pair]:
        """Join neighbours to lines of several sentences, each pair used once."""
        joined, i = [], 0
        while i < len(pairs):
            alone = rng.random() >= self.options.join
            n = 1 if alone else rng.choice((2, 2, 2, 3, 3, 4, 5, 6, 8))
            bare = n > 1 and rng.random() < self.options.join_bare
            glue = self._run_on if bare else self._glue
            joined.append(glue(pairs[i : i + n], rng))
            i += n
        return joined

    def _glue(self, group: list[Pair], rng: Random) -> Pair:
        src, tgt = group[0]
        for src_next, tgt_next in group[1:]:
            stop = src[-1:] == tgt[-1:] == "."
            if stop and self.conjunctions and rng.random() < self.options.conjunction:
                link_src, link_tgt = rng.choice(self.conjunctions)
                src = src[:-1] + link_src + self.src_case.lower_first(src_next)
                tgt = tgt[:-1] + link_tgt + self.tgt_case.lower_first(tgt_next)
            else:
                src, tgt = f"{src} {src_next}", f"{tgt} {tgt_next}"
        return src, tgt

    def _run_on(self, group: list[Pair], rng: Random) -> Pair:
        """Join sentences whose sources lose the marks in between, and often their capitals."""
        lower = rng.random() < 0.3
        *others, last = [(no_mark(src), tgt) for src, tgt in group[:-1]] + group[-1:]
        if rng.random() < 0.5:
            last = drop_final(last)
        first, *more = (src for src, _ in (*others, last))
        src = " ".join([first, *map(self.src_case.lower_first, more)] if lower else [first, *more])
        return src, " ".join(tgt for _, tgt in (*others, last))

    def _respell(self, pair: Pair, rng: Random) -> Pair:
        options = self.options
        if rng.random() < options.names:
            pair = rename(pair, self.names, rng)
        if self.quotes and rng.random() < options.quote and '"' not in pair[1]:
            (src_open, src_close), (tgt_open, tgt_close) = rng.choice(self.quotes)
            pair = src_open + pair[0] + src_close, tgt_open + pair[1] + tgt_close
        elif rng.random() < options.no_final:
            pair = drop_final(pair)
        if rng.random() < options.marks:
            pair = decorate(pair, rng)
        if rng.random() < options.typos:
            pair = typos(pair, rng)
        if rng.random() < options.plain_letters:
            pair = plain_letters(pair, rng)
        if rng.random() < options.no_commas:
            pair = no_commas(pair)
        if rng.random() < options.upper:
            return pair[0].upper(), pair[1].upper()
        if rng.random() < options.lower_src:
            return pair[0].lower(), pair[1]
        return pair
