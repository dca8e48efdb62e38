"""Which target tokens may come in the translation of a line: a vocabulary shortlist."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

NGram = tuple[int, ...]


class Shortlist:
    """Target tokens by n-grams of source tokens, all of them ids.

    The candidates of a line are those of all n-grams that the line holds, and those of the empty
    one, which every line holds.
    """

    def __init__(self, targets: Mapping[NGram, Iterable[int]], vocab_size: int):
        """targets: the tokens of each n-gram; vocab_size: of the target, V."""
        self.vocab_size = vocab_size
        every = {(): targets.get((), ()), **targets}
        self.places = {ngram: i for i, ngram in enumerate(every)}
        self.longest = max(map(len, every))
        lists = [list(ids) for ids in every.values()]
        # The lists one after the other, how long each is and where each begins
        self.flat = torch.tensor([i for ids in lists for i in ids], dtype=torch.long)
        self.sizes = torch.tensor([len(ids) for ids in lists])
        self.starts = self.sizes.cumsum(0) - self.sizes

    def places_of(self, src: Sequence[int]) -> list[int]:
        """The n-grams of a line that have candidates, by their places; the empty one is first."""
        found = [self.places[()]]
        for n in range(1, self.longest + 1):
            ngrams = zip(*(src[i:] for i in range(n)))
            found += [self.places[ngram] for ngram in ngrams if ngram in self.places]
        return found

    def candidates(self, lines: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The candidates of each line of source ids: numbers of lines (N,) and tokens (N,)."""
        found = [self.places_of(src) for src in lines]
        places = torch.tensor([place for each in found for place in each])
        numbers = torch.arange(len(lines)).repeat_interleave(torch.tensor([*map(len, found)]))
        sizes = self.sizes[places]
        first = self.starts[places] - (sizes.cumsum(0) - sizes)
        tokens = torch.arange(int(sizes.sum())) + first.repeat_interleave(sizes)
        return numbers.repeat_interleave(sizes), self.flat[tokens]
