"""The decode loop: the only place where a model and the beams of its sentences meet."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel
from onmt_lite.search.beam import Beam
from onmt_lite.search.frontier import Frontier
from onmt_lite.search.plan import Plan, Sentence

OnStep = Callable[[Frontier, Tensor], object]


@torch.inference_mode()
def decode(
    model: AnyModel,
    sentences: Sequence[Sentence],
    plan: Plan,
    n_slots: int | None = None,
    on_step: OnStep | None = None,
) -> Iterator[tuple[int, Beam]]:
    """Translate all sentences; yield the number and `Beam` of each when its search is over.

    n_slots  how many sentences run at once; the others wait, and join where one has ended.  None:
             all run, and the batch shrinks.
    on_step  called after each step with the frontier and what the step tells the host, see `Log`

    A sentence for which the model returns NaN leaves at that step, and its Beam has no hypothesis.
    """
    frontier = Frontier(model, plan, sentences, n_slots or len(sentences))
    while frontier.admit():
        packed = frontier.step()
        for beam, event in frontier.events(packed):
            beam.advance(event)
        if on_step is not None:
            on_step(frontier, packed)
        yield from frontier.over()
