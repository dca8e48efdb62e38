"""A decoder state with its expected rows; both are updated by selections."""

from collections.abc import Sequence
from copy import deepcopy

import torch

from onmt_lite.models.base import EncoderDecoder, Selection, State
from onmt_lite.models.table_model import TableModel
from tests.support import tiny

ATOL = 1e-5
LENGTHS = [5, 2, 4, 7, 1, 3]  # source tokens per sentence
N_FIRST = 3  # sentences in the first batch


def select(
    state: State, beam_size: int, rows: list[list[int]], fresh: State | None = None
) -> State:
    """Select rows of a state.

    Args:
        state: the old state
        beam_size: rows per sentence in it
        rows: old rows by new sentence; numbers from R on are rows of new sentences
        fresh: state of new sentences
    """
    n_sentences = len(state.positions)
    n_rows = n_sentences * beam_size
    slots = [row // beam_size if row < n_rows else n_sentences + row - n_rows for row, *_ in rows]
    return state.select(Selection.build(torch.tensor(rows), n_sentences, slots), fresh)


@torch.inference_mode()
def compute_step(
    model: EncoderDecoder, tokens: list[int], state: State
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a step; return logits (R, V) and attention (R, S)."""
    logits, attn = model.step(torch.tensor(tokens), state)
    return logits if isinstance(logits, torch.Tensor) else logits.compute()[0], attn


class Rows:
    """A model's state, and the expected decoder inputs of its rows as plain lists."""

    def __init__(self, model: EncoderDecoder):
        self.model = model
        self.is_table = isinstance(model, TableModel)
        self.src = torch.full((len(LENGTHS), max(LENGTHS)), tiny.PAD)
        for b, n in enumerate(LENGTHS):
            self.src[b, :n] = b if self.is_table else torch.arange(n) * (b + 3) % 30 + 4
        self.sentences = list(range(N_FIRST))  # sentence of each row
        self.state = self.encode(self.sentences)
        self.beam_size = 1
        self.cached_states: dict[tuple[int, ...], State] = {}
        self.prefixes: list[list[int]] = [[] for _ in self.sentences]  # decoder input of each row

    @torch.inference_mode()
    def encode(self, sentences: Sequence[int]) -> State:
        lengths = [LENGTHS[b] for b in sentences]
        src = self.src[list(sentences), : max(lengths)]
        return self.model.init_state(self.model.encode(src, torch.tensor(lengths)))

    @torch.inference_mode()
    def select(self, rows: list[list[int]], joining: Sequence[int] = ()) -> None:
        """Select rows; numbers from R on are rows of the joining sentences."""
        fresh = self.encode(joining) if joining else None
        self.state = select(self.state, self.beam_size, rows, fresh)
        self.beam_size = len(rows[0])
        flat = [r for sentence_rows in rows for r in sentence_rows]
        sentences = [*self.sentences, *joining]
        prefixes = [*self.prefixes, *([] for _ in joining)]
        self.sentences = [sentences[r] for r in flat]
        self.prefixes = [list(prefixes[r]) for r in flat]
        lengths = [len(prefix) for prefix in self.prefixes[:: self.beam_size]]
        assert self.state.positions.tolist() == lengths

    def step(self, tokens: list[int]) -> None:
        """Run a step for all rows, and compare each row with a separate decoder."""
        for prefix, token in zip(self.prefixes, tokens, strict=True):
            prefix.append(token)
        logits, attn = compute_step(self.model, tokens, self.state)
        for r, (b, prefix) in enumerate(zip(self.sentences, self.prefixes, strict=True)):
            n = LENGTHS[b]
            expected_logits, expected_attn = self.replay(b, prefix)
            torch.testing.assert_close(logits[r], expected_logits, atol=ATOL, rtol=0)
            torch.testing.assert_close(attn[r, :n], expected_attn, atol=ATOL, rtol=0)
            assert attn[r, n:].abs().sum() == 0

    def replay(self, sentence: int, prefix: list[int]):
        """Decode one row from its start, with a cache of states."""
        *before, token = prefix
        cached = self.cached_states.get((sentence, *before))
        if cached is None:
            state = self.encode([sentence])
            for earlier in before:
                compute_step(self.model, [earlier], state)
        else:
            state = deepcopy(cached)
        logits, attn = compute_step(self.model, [token], state)
        self.cached_states[(sentence, *prefix)] = state
        return logits[0], attn[0]
