"""The rows of a state, followed through selections beside what they must agree with."""

from collections.abc import Sequence
from copy import deepcopy

import torch

from onmt_lite.models.base import EncoderDecoder, Selection, State
from onmt_lite.models.table_model import TableModel
from tests.support import tiny

ATOL = 1e-5
LENGTHS = [5, 2, 4, 7, 1, 3]  # of the source sentences
N_FIRST = 3  # so many are there from the start


def select(
    state: State, beam_size: int, rows: list[list[int]], fresh: State | None = None
) -> State:
    """Which old sentence of `beam_size` rows a line continues or which one joins, its rows tell."""
    n_sentences = len(state.positions)
    n_rows = n_sentences * beam_size
    slots = [row // beam_size if row < n_rows else n_sentences + row - n_rows for row, *_ in rows]
    return state.select(Selection.build(torch.tensor(rows), n_sentences, slots), fresh)


class Rows:
    """A model's state beside the plain lists that it must agree with."""

    def __init__(self, model: EncoderDecoder):
        self.model = model
        self.is_table = isinstance(model, TableModel)
        self.src = torch.full((len(LENGTHS), max(LENGTHS)), tiny.PAD)
        for b, n in enumerate(LENGTHS):
            self.src[b, :n] = b if self.is_table else torch.arange(n) * (b + 3) % 30 + 4
        self.sentences = list(range(N_FIRST))  # of each row
        self.state = self.encoded(self.sentences)
        self.beam_size = 1
        self.replayed: dict[tuple[int, ...], State] = {}
        self.prefixes: list[list[int]] = [[] for _ in self.sentences]  # decoder input of each row

    def encoded(self, sentences: Sequence[int]) -> State:
        lengths = [LENGTHS[b] for b in sentences]
        src = self.src[list(sentences), : max(lengths)]
        return self.model.init_state(self.model.encode(src, torch.tensor(lengths)))

    def select(self, rows: list[list[int]], joining: Sequence[int] = ()) -> None:
        """Rows from R on are of the sentences that join."""
        fresh = self.encoded(joining) if joining else None
        self.state = select(self.state, self.beam_size, rows, fresh)
        self.beam_size = len(rows[0])
        flat = [r for line in rows for r in line]
        sentences = [*self.sentences, *joining]
        prefixes = [*self.prefixes, *([] for _ in joining)]
        self.sentences = [sentences[r] for r in flat]
        self.prefixes = [list(prefixes[r]) for r in flat]
        read = [len(prefix) for prefix in self.prefixes[:: self.beam_size]]
        assert self.state.positions.tolist() == read

    def step(self, tokens: list[int]) -> None:
        """One step for all rows, and the same from scratch for each."""
        for prefix, token in zip(self.prefixes, tokens, strict=True):
            prefix.append(token)
        logits, attn = self.model.step(torch.tensor(tokens), self.state)
        for r, (b, prefix) in enumerate(zip(self.sentences, self.prefixes, strict=True)):
            n = LENGTHS[b]
            alone_logits, alone_attn = self.replay(b, prefix)
            torch.testing.assert_close(logits[r], alone_logits, atol=ATOL, rtol=0)
            torch.testing.assert_close(attn[r, :n], alone_attn, atol=ATOL, rtol=0)
            assert attn[r, n:].abs().sum() == 0

    def replay(self, sentence: int, prefix: list[int]):
        """Alone from the start, as far as it has not been done before."""
        *before, token = prefix
        known = self.replayed.get((sentence, *before))
        if known is None:
            state = self.encoded([sentence])
            for earlier in before:
                self.model.step(torch.tensor([earlier]), state)
        else:
            state = deepcopy(known)
        logits, attn = self.model.step(torch.tensor([token]), state)
        self.replayed[(sentence, *prefix)] = state
        return logits[0], attn[0]
