"""Text-level augmentation: what a corpus of tidy short sentences does not teach.

Every function takes and returns a (src, tgt) pair or a list of them and draws from the
`random.Random` it is given, so an epoch is decided by its seed.
"""

import re
from collections import Counter
from collections.abc import Iterable
from random import Random

from onmt_lite.training.options import AugmentOptions, split_pairs

Pair = tuple[str, str]

NUMBER = re.compile(r"\d+(?:[.:,]\d+)*")
WORD = re.compile(r"\w+")
FINAL = ".!?"


def drop_final(pair: Pair) -> Pair:
    """Without the closing mark on either side; as it is where the sides close differently."""
    src, tgt = pair
    if src[-1:] in FINAL and src[-1:] == tgt[-1:]:
        return src[:-1].rstrip(), tgt[:-1].rstrip()
    return pair


def renumber(pair: Pair, rng: Random) -> Pair:
    """Replace each number that both sides share by a random one of the same or another size."""
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
    digits = rng.choice((1, 2, 2, 3, 3, 4, 5, len(old)))
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def with_rare_words(pairs: list[Pair], at_most: int) -> list[Pair]:
    """Those whose source has a word that is in at most so many sources; case does not count."""
    words = [set(WORD.findall(src.casefold())) for src, _ in pairs]
    counts = Counter(word for found in words for word in found)
    return [p for p, found in zip(pairs, words) if any(counts[w] <= at_most for w in found)]


class Truecase:
    """The form words have inside sentences, for a first word that moves inside."""

    def __init__(self, sentences: Iterable[str]):
        inside: Counter[str] = Counter()
        for sentence in sentences:
            inside.update(sentence.split()[1:])
        self.inside = inside

    def lower_first(self, sentence: str) -> str:
        word, space, rest = sentence.partition(" ")
        lowered = word[:1].lower() + word[1:]
        return (lowered if self.inside[lowered] > self.inside[word] else word) + space + rest


class Augment:
    """Applies all of the above, at the rates that the options give."""

    def __init__(self, pairs: list[Pair], options: AugmentOptions):
        self.options = options
        self.conjunctions = split_pairs(options.conjunctions)
        self.quotes = [(s.split("…"), t.split("…")) for s, t in split_pairs(options.quotes)]
        self.src_case = Truecase(src for src, _ in pairs)
        self.tgt_case = Truecase(tgt for _, tgt in pairs)
        self.rare = with_rare_words(pairs, options.augment_rare)
        self.numbered = [p for p in pairs if set(NUMBER.findall(p[0])) & set(NUMBER.findall(p[1]))]

    def __call__(self, pairs: list[Pair], rng: Random) -> list[Pair]:
        """One epoch: shuffled, joined, and with its share of odd spellings."""
        numbered = self.numbered * self.options.augment_numbers
        pairs = pairs + self.rare + [renumber(pair, rng) for pair in numbered]
        rng.shuffle(pairs)
        return [self._respell(pair, rng) for pair in self._join(pairs, rng)]

    def _join(self, pairs: list[Pair], rng: Random) -> list[Pair]:
        """Make lines of several sentences out of neighbours, each pair used once."""
        joined, i = [], 0
        while i < len(pairs):
            alone = rng.random() >= self.options.augment_join
            n = 1 if alone else rng.choice((2, 2, 2, 3, 3, 4, 5, 6, 8))
            joined.append(self._glue(pairs[i : i + n], rng))
            i += n
        return joined

    def _glue(self, group: list[Pair], rng: Random) -> Pair:
        src, tgt = group[0]
        for src_next, tgt_next in group[1:]:
            stop = src[-1:] == tgt[-1:] == "."
            if stop and self.conjunctions and rng.random() < self.options.augment_conjunction:
                link_src, link_tgt = rng.choice(self.conjunctions)
                src = src[:-1] + link_src + self.src_case.lower_first(src_next)
                tgt = tgt[:-1] + link_tgt + self.tgt_case.lower_first(tgt_next)
            else:
                src, tgt = f"{src} {src_next}", f"{tgt} {tgt_next}"
        return src, tgt

    def _respell(self, pair: Pair, rng: Random) -> Pair:
        options = self.options
        if self.quotes and rng.random() < options.augment_quote and '"' not in pair[1]:
            (src_open, src_close), (tgt_open, tgt_close) = rng.choice(self.quotes)
            pair = src_open + pair[0] + src_close, tgt_open + pair[1] + tgt_close
        elif rng.random() < options.augment_no_final:
            pair = drop_final(pair)
        if rng.random() < options.augment_upper:
            return pair[0].upper(), pair[1].upper()
        if rng.random() < options.augment_lower_src:
            return pair[0].lower(), pair[1]
        return pair
