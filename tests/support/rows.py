"""The rows of a state, followed through selections beside what they must agree with."""

import torch

from onmt_lite.models.base import EncoderDecoder, State
from onmt_lite.models.selection import Selection
from onmt_lite.models.table import TableModel
from tests.support import tiny

ATOL = 1e-5
LENGTHS = [5, 2, 4]


def select(state: State, beam_size: int, rows: list[list[int]]) -> State:
    """Which old sentence of `beam_size` rows a line continues, its rows tell."""
    slots, n_sentences = [line[0] // beam_size for line in rows], len(state.positions)
    return state.select(Selection.of(torch.tensor(rows), n_sentences, slots))


class Rows:
    """A model's state beside the plain lists that it must agree with."""

    def __init__(self, model: EncoderDecoder):
        self.model = model
        self.is_table = isinstance(model, TableModel)
        src = torch.full((3, max(LENGTHS)), tiny.PAD)
        for b, n in enumerate(LENGTHS):
            src[b, :n] = b if self.is_table else torch.arange(n) * (b + 3) % 30 + 4
        self.src = src
        self.state = model.init_state(model.encode(src, torch.tensor(LENGTHS)))
        self.sentences = [0, 1, 2]  # of each row
        self.prefixes: list[list[int]] = [[], [], []]  # decoder input of each row
        self.beam_size = 1

    def select(self, rows: list[list[int]]) -> None:
        self.state = select(self.state, self.beam_size, rows)
        self.beam_size = len(rows[0])
        flat = [r for line in rows for r in line]
        self.sentences = [self.sentences[r] for r in flat]
        self.prefixes = [list(self.prefixes[r]) for r in flat]

    def step(self, tokens: list[int]) -> None:
        """One step for all rows, and the same from scratch for each."""
        for prefix, token in zip(self.prefixes, tokens, strict=True):
            prefix.append(token)
        logits, attn = self.model.step(torch.tensor(tokens), self.state)
        for r, (b, prefix) in enumerate(zip(self.sentences, self.prefixes, strict=True)):
            n = LENGTHS[b]
            alone_logits, alone_attn = self.replay(self.src[b : b + 1, :n], prefix)
            torch.testing.assert_close(logits[r], alone_logits, atol=ATOL, rtol=0)
            torch.testing.assert_close(attn[r, :n], alone_attn, atol=ATOL, rtol=0)
            assert attn[r, n:].abs().sum() == 0

    def replay(self, src: torch.Tensor, prefix: list[int]):
        memory = self.model.encode(src, torch.tensor([src.size(1)]))
        state = self.model.init_state(memory)
        for token in prefix:
            logits, attn = self.model.step(torch.tensor([token]), state)
        return logits[0], attn[0]
