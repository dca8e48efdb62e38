"""The decode loop: the only place where a model and the beams of its sentences meet."""

import math
from array import array
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder, encode
from onmt_lite.models.selection import Selection
from onmt_lite.search.beam import Beam
from onmt_lite.search.candidates import CandidateRules, CandidateSearch, Step


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
    ids: Tensor | None = None,
) -> None:
    """Run the beams of a batch, one per sentence of src (B, S), until all are done.

    ids (B, S): for a model that copies, see `onmt_lite.models.base.CopyingModel`.

    All K rows of all sentences go through the decoder as one batch, row = b*K + k.
    """
    width = model.vocab_size if ids is None else max(model.vocab_size, int(ids.max()) + 1)
    state = model.init_state(encode(model, src, src_lengths, ids, width))
    search = CandidateSearch(rules, src_lengths, model.vocab_size, width)
    selection = Selection.of(tile(len(beams), rules.beam_size, src.device), len(beams))
    while not all(beam.done for beam in beams):
        state, search = state.select(selection), search.select(selection)
        step = next_step(beams, rules, src.device)
        logits, attn = model.step(step.tokens, state)
        for beam, found in zip(beams, search.step(step, logits, attn)):
            if math.isnan(sum(found[0].score)):
                raise NotANumber(beam)
            beam.advance(*found)
        selection = select(beams, src.device)
        beams = [beam for beam in beams if not beam.over]


def next_step(beams: list[Beam], rules: CandidateRules, device: torch.device) -> Step:
    """What the device must know of the beams for their next step."""
    tokens = flat_tensor("q", [beam.next_ys[-1] for beam in beams]).to(device)
    scores = flat_tensor("f", [beam.scores for beam in beams]).to(device)
    last = forced = seeds = None
    if rules.masks.force_end != "no":
        last = torch.tensor([beam.n_steps + 1 >= beam.max_steps for beam in beams], device=device)
    if any([beam.limits.prefix for beam in beams]):
        forced = torch.tensor([beam.forced for beam in beams], device=device)
    if rules.masks.sampling:
        seeds = torch.tensor([beam.limits.seed for beam in beams], device=device)
    return Step(tokens, scores, last, forced, seeds)


def flat_tensor(kind: Literal["q", "f"], lists: list[list]) -> Tensor:
    """Numbers of all lists in a row, as int64 or float32: an `array` is several times faster to
    make a tensor of than a list."""
    numbers = array(kind, chain.from_iterable(lists))
    return torch.frombuffer(numbers, dtype=torch.int64 if kind == "q" else torch.float32)


def tile(n_sentences: int, beam_size: int, device: torch.device) -> Tensor:
    """Rows (B, K) that give every sentence K copies of its only row: [[0, 0], [1, 1], ...]."""
    return torch.arange(n_sentences, device=device)[:, None].expand(-1, beam_size)


def select(beams: list[Beam], device: torch.device) -> Selection:
    """For each sentence that goes on, the rows (B', K) that its new rows continue.

    Three sentences, K = 2, the second one over, the third swapping its rows:
    [[0, 1], [5, 4]].
    """
    slots = [b for b, beam in enumerate(beams) if not beam.over]
    k = beams[0].rules.beam_size
    rows = [
        [b * k + prev for prev in beam.prev_ks[-1]] for b, beam in enumerate(beams) if not beam.over
    ]
    found = flat_tensor("q", rows).view(-1, k) if rows else torch.empty(0, k, dtype=torch.long)
    return Selection.of(found.to(device), len(beams), slots if len(slots) < len(beams) else None)
