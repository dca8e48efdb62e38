"""Data augmentation: joined lines, missing punctuation, new names and numbers, case and noise.

All functions take and return (src, tgt) pairs or lists of pairs.  The `random.Random` argument is
the only source of randomness.
"""

import re
from collections.abc import Sequence
from random import Random

from onmt_lite.train.data import Pair
from recipes.de_en.lexicon import find_word_pairs
from recipes.de_en.noise import add_typos, drop_commas, drop_final_marks, replace_umlauts
from recipes.de_en.options import ChangeOptions
from recipes.de_en.slots import decorate, fill, name, number
from recipes.de_en.words import WORD, Truecase, find_names, find_shared_words, select_rare

NUMBER = re.compile(r"\d+(?:[.:,]\d+)*")
FINAL = ".!?"


def drop_final(pair: Pair) -> Pair:
    """Remove the final punctuation mark if it is the same on both sides."""
    src, tgt = pair
    if src[-1:] in FINAL and src[-1:] == tgt[-1:]:
        return src[:-1].rstrip(), tgt[:-1].rstrip()
    return pair


def renumber(pair: Pair, rng: Random) -> Pair:
    """Replace each number that both sides share with a random number."""
    src, tgt = pair
    shared = set(NUMBER.findall(src)) & set(NUMBER.findall(tgt))
    replacements = {old: _random_number(old, rng) for old in sorted(shared)}

    def replace(match: re.Match[str]) -> str:
        return replacements.get(match.group(), match.group())

    return NUMBER.sub(replace, src), NUMBER.sub(replace, tgt)


def _random_number(old: str, rng: Random) -> str:
    if ":" in old:
        return f"{rng.randrange(24)}:{rng.randrange(60):02d}"
    if not old.isdigit():  # 1.5 or 10,000: keep the separators, change the digits
        return "".join(str(rng.randrange(1, 10)) if c.isdigit() else c for c in old)
    if len(old) == 4 and rng.random() < 0.5:
        return str(rng.randrange(1500, 2100))
    return number(rng)


def rename(pair: Pair, names: list[str], rng: Random) -> Pair:
    """Replace a name that both sides share with a known or invented name.

    Half of the new names are invented, from halves of two names or from syllables, so that the
    model learns to copy unknown names.  A fifth get a last name.

    Args:
        pair: source and target sentence
        names: first names to choose from
        rng: source of randomness

    Returns:
        The changed pair, or the same pair if the sides share no name.
    """
    src, tgt = pair
    shared = sorted(find_shared_words(src, tgt) & set(names))
    if not shared:
        return pair
    old, new, second = rng.choice(shared), rng.choice(names), rng.choice(names)
    if rng.random() < 0.5:
        new = rng.choice((new[: len(new) // 2] + second[len(second) // 2 :], name(rng)))
    if rng.random() < 0.2:
        new += " " + name(rng)

    def replace(match: re.Match[str]) -> str:
        return new if match.group() == old else match.group()

    return WORD.sub(replace, src), WORD.sub(replace, tgt)


def split_pairs(pairs: Sequence[str]) -> list[Pair]:
    """Split "source|target" strings: ("a|b", ...) -> [("a", "b"), ...]."""
    return [(src, tgt) for src, tgt in (pair.split("|") for pair in pairs)]


class Augment:
    """The augmentation of one epoch: `augment(pairs, rng)`.

    Args:
        pairs: the whole corpus; words, names and numbers are collected from it
        options: shares of lines to change and numbers of lines to add
        templates: pairs with slots to fill
        n_filled: filled templates to add to each epoch
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
        self.names = find_names(pairs)
        self.words = find_word_pairs(pairs) if options.words else []
        self.rare = select_rare(pairs, options.rare)
        self.numbered = [p for p in pairs if set(NUMBER.findall(p[0])) & set(NUMBER.findall(p[1]))]

    def __call__(self, pairs: list[Pair], rng: Random) -> list[Pair]:
        """Return the training pairs of one epoch: add lines, shuffle, join, add noise."""
        words = self.words * self.options.words
        numbered = self.numbered * self.options.numbers
        pairs = pairs + self.rare + words + [renumber(pair, rng) for pair in numbered]
        pairs += [fill(rng.choice(self.templates), rng) for _ in range(self.n_filled)]
        rng.shuffle(pairs)
        return [self._add_noise(pair, rng) for pair in self._join_lines(pairs, rng)]

    def _join_lines(self, pairs: list[Pair], rng: Random) -> list[Pair]:
        """Join consecutive pairs into lines of several sentences; each pair is used once."""
        joined, i = [], 0
        while i < len(pairs):
            is_single = rng.random() >= self.options.join
            n = 1 if is_single else rng.choice((2, 2, 2, 3, 3, 4, 5, 6, 8))
            drops_marks = n > 1 and rng.random() < self.options.join_bare
            join = self._join_without_marks if drops_marks else self._join_sentences
            joined.append(join(pairs[i : i + n], rng))
            i += n
        return joined

    def _join_sentences(self, group: list[Pair], rng: Random) -> Pair:
        """Join sentences with spaces or, with the configured probability, a conjunction."""
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

    def _join_without_marks(self, group: list[Pair], rng: Random) -> Pair:
        """Join sentences; the sources lose final punctuation, and some lose initial capitals."""
        lowercase = rng.random() < 0.3
        *head, last = [(drop_final_marks(src), tgt) for src, tgt in group[:-1]] + group[-1:]
        if rng.random() < 0.5:
            last = drop_final(last)
        first, *rest = (src for src, _ in (*head, last))
        if lowercase:
            rest = [self.src_case.lower_first(src) for src in rest]
        return " ".join([first, *rest]), " ".join(tgt for _, tgt in (*head, last))

    def _add_noise(self, pair: Pair, rng: Random) -> Pair:
        """Change names, quotation marks, spelling and case with the configured probabilities."""
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
            pair = add_typos(pair, rng)
        if rng.random() < options.plain_letters:
            pair = replace_umlauts(pair, rng)
        if rng.random() < options.no_commas:
            pair = drop_commas(pair)
        if rng.random() < options.upper:
            return pair[0].upper(), pair[1].upper()
        if rng.random() < options.lower_src:
            return pair[0].lower(), pair[1]
        return pair
