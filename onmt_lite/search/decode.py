"""The decode loop: the only place where a model and the beams of its sentences meet."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.search.beam import Beam
from onmt_lite.search.beam_batch import BeamBatch
from onmt_lite.search.plan import Plan, Sentence

OnStep = Callable[[BeamBatch, Tensor], object]


@torch.inference_mode()
def decode(
    model: AnyModel,
    sentences: Sequence[Sentence],
    plan: Plan,
    n_slots: int | None = None,
    on_step: OnStep | None = None,
    n_batches: int = 1,
) -> Iterator[tuple[int, Beam]]:
    """Translate all sentences; yield the number and `Beam` of each when its search is over.

    n_slots    number of sentences that run at once; the others wait, and join when one has ended.
               None: all run, and the batch shrinks.
    on_step    called after each step with the batch and the numbers of the step, see `Transfer`
    n_batches  batches that share the slots and take turns: while the host reads the numbers of one,
               a GPU is at a step of another

    A sentence for which the model returns NaN leaves at that step, and its Beam has no hypothesis.
    """
    n_slots = n_slots or len(sentences)
    n = min(n_batches, n_slots, len(sentences))
    batches = [BeamBatch(model, plan, sentences[i::n], n_slots // n) for i in range(n)]
    runs = [run(batch, on_step) for batch in batches]
    running = list(range(n))
    while running:
        for i in list(running):
            for over in runs[i]:
                if over is None:
                    break
                yield i + n * over[0], over[1]
            else:
                running.remove(i)


def run(batch: BeamBatch, on_step: OnStep | None) -> Iterator[tuple[int, Beam] | None]:
    """Yield sentences of a batch whose search is over; None when it is another batch's turn."""
    while batch.admit():
        packed = batch.step()
        yield None
        for beam, event in batch.events():
            beam.advance(event)
        if on_step is not None:
            on_step(batch, packed)
        yield from batch.over()
