"""The decode loop: the only place where a model and the beams of its sentences meet."""

import math

import torch
from torch import Tensor

from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.search.beam import Beam
from onmt_lite.search.candidates import CandidateRules, CandidateSearch


class NotANumber(CheckpointError):
    """The model's output for one sentence is NaN, so nothing can be ranked."""

    def __init__(self, beam: Beam, line: int | None = None):
        where = (
            f"step {beam.n_steps + 1}" if line is None else f"line {line}, step {beam.n_steps + 1}"
        )
        super().__init__(f"the model returned NaN ({where}); try -precision fp32")
        self.beam = beam


@torch.inference_mode()
def decode(
    model: EncoderDecoder,
    src: Tensor,
    src_lengths: Tensor,
    beams: list[Beam],
    rules: CandidateRules,
) -> None:
    """Run the beams of a batch, one per sentence of src (B, S), until all are done.

    All K rows of all sentences go through the decoder as one batch, row = b*K + k.
    """
    memory = model.encode(src, src_lengths)
    state = model.init_state(memory)
    search = CandidateSearch(rules, src_lengths, model.vocab_size)
    rows = tile(len(beams), rules.beam_size)
    while beams:
        state, search = state.select(rows), search.select(rows)
        tokens = torch.tensor([y for beam in beams for y in beam.next_ys[-1]], device=src.device)
        scores = torch.tensor([s for beam in beams for s in beam.scores], device=src.device)
        logits, attn = model.step(tokens, state)
        candidates = search.step(tokens, scores, logits, attn)
        for beam, found in zip(beams, candidates):
            if any(math.isnan(candidate.score) for candidate in found):
                raise NotANumber(beam)
            beam.advance(found)
        rows = select_indices(beams)
        beams = [beam for beam in beams if not beam.done]


def tile(n_sentences: int, beam_size: int) -> Tensor:
    """Rows (B, K) that give every sentence K copies of its only row: [[0, 0], [1, 1], ...]."""
    return torch.arange(n_sentences)[:, None].expand(-1, beam_size)


def select_indices(beams: list[Beam]) -> Tensor:
    """Rows (B', K): for each sentence that goes on, the rows that its new rows continue.

    Three sentences, K = 2, the second one done, the third swapping its rows:
    [[0, 1], [5, 4]].
    """
    k = beams[0].rules.beam_size
    rows = [
        [b * k + prev for prev in beam.prev_ks[-1]] for b, beam in enumerate(beams) if not beam.done
    ]
    return torch.tensor(rows, dtype=torch.long).view(-1, k)
