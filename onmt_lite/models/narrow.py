"""Models that say only some tokens: the output layer multiplies by the rows of these alone.

U is the number of tokens that a batch may say at all, of which each sentence has its own.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from onmt_lite.models.base import AnyModel
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.models.family import Family
from onmt_lite.models.heads import Head
from onmt_lite.models.memory import Memory, Sentences


def can_narrow(model: AnyModel) -> bool:
    """Whether the model, or each member of an ensemble, ends in a plain output layer."""
    if isinstance(model, Ensemble):
        return all(map(can_narrow, model.members))
    return isinstance(model, Family) and isinstance(model.output, Head)


def narrowed(model: AnyModel, ids: Tensor, allowed: Tensor) -> AnyModel:
    """The model for one batch, whose tokens are places in `ids` instead of ids.

    ids (U,): tokens; allowed (B, U): which of them each sentence may say, in the order in which
    the sentences are encoded, all at once.  Shares its other layers with the model.
    """
    own = copy.copy(cast(Ensemble | Family[Any, Any], model))
    own.vocab_size = len(ids)
    if isinstance(own, Ensemble):
        own.members = [narrowed(member, ids, allowed) for member in own.members]
    else:
        head = NarrowHead(cast(Head, own.output), ids, allowed)
        own._modules = {**own._modules, "output": head}
    return own


@dataclass
class Barred(Sentences):
    """barred (B, 1, U): the tokens that a sentence may not say."""

    barred: Tensor


class NarrowHead(nn.Module):
    """The rows of a head that one batch needs."""

    copies = False

    def __init__(self, head: Head, ids: Tensor, allowed: Tensor):
        super().__init__()
        self.ids, self.allowed = ids, allowed
        self.rows = head.rows(ids)

    def read(self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None) -> Barred:
        """See `Head.read`."""
        return Barred(~self.allowed[:, None])

    def known(self, tokens: Tensor) -> Tensor:
        """Places as the ids that the decoder reads."""
        return self.ids[tokens]

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:
        """As `Head.forward`: logits (B, T, U), -inf for what a sentence may not say."""
        barred = cast(Barred, memory.of_head).barred
        logits: Tensor = self.rows(hidden)
        return logits.masked_fill_(barred, -math.inf)
