"""Several models as one: they read the same line, and each next token is judged by all of them.

Letters: M members, B sentences, K beams per sentence, R = B*K rows, S source tokens, T target
tokens, V target vocabulary, X words that copying members take from the sources of the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.copying import CopyMemory, CopyModel
from onmt_lite.models.selection import Selection


@dataclass(frozen=True)
class EnsembleMemory:
    """A batch as each member has encoded it; `width` (V + X) is that of the widest output."""

    members: list[Any]
    width: int


class EnsembleState:
    """The members' own states, whose rows move together."""

    def __init__(self, members: list[Any], width: int):
        self.members, self.width = members, width

    @property
    def positions(self) -> Tensor:
        return self.members[0].positions

    def select(self, selection: Selection, fresh: "EnsembleState | None" = None) -> "EnsembleState":
        """See `onmt_lite.models.base.State.select`."""
        joining = [None] * len(self.members) if fresh is None else fresh.members
        self.members = [own.select(selection, new) for own, new in zip(self.members, joining)]
        self.width = max(self.width, fresh.width if fresh else 0)
        return self


class Ensemble(nn.Module):
    """Models of any families with one target vocabulary: an `onmt_lite.models.base.EncoderDecoder`.

    What it returns are weighted means over the members, for weights that are scaled to add up to
    one; equal ones, if there are none:

        of log-probabilities, as in OpenNMT-py and Marian; they are scores as they stand, and what
            they are the logarithms of does not add up to one
        of probabilities, if `of_probs`, as in fairseq; returned are the logarithms of the means
    """

    def __init__(
        self,
        members: Sequence[EncoderDecoder],
        weights: Sequence[float] = (),
        of_probs: bool = False,
        own_ids: Sequence[list[int] | None] = (),
    ):
        """own_ids: what each source id is to a member that has a source vocabulary of its own."""
        super().__init__()
        self.own_ids = [None if ids is None else torch.tensor(ids) for ids in own_ids]
        self.own_ids = self.own_ids or [None] * len(members)
        self.members, self.of_probs = list(members), of_probs
        # Registered, so that the ensemble moves to a device as one; a table has nothing to move
        self.modules_of_members = nn.ModuleList(m for m in members if isinstance(m, nn.Module))
        weights = list(weights) or [1.0] * len(members)
        self.weights = [weight / sum(weights) for weight in weights]
        self.vocab_size = members[0].vocab_size
        copying = [member for member in members if isinstance(member, CopyModel)]
        # A mean of log-probabilities allows only what all members can say
        self.copies = bool(copying) and (of_probs or len(copying) == len(members))
        self.unk_id = copying[0].unk_id if copying else 0
        self.attends = all(getattr(member, "attends", True) for member in members)
        self.max_positions = min(member.max_positions for member in members)

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def encode(
        self,
        src: Tensor,
        src_lengths: Tensor,
        ids: Tensor | None = None,
        width: int | None = None,
    ) -> EnsembleMemory:
        """src (B, S) padded ids, src_lengths (B,) -> the memories of all members.

        ids (B, S), width: for the members that copy, as `CopyModel.encode` has them.
        """
        memories = []
        for member, table in zip(self.members, self.own_ids):
            own = src if table is None else table.to(src.device)[src]
            copied = (ids, width) if isinstance(member, CopyModel) else ()
            memories.append(member.encode(own, src_lengths, *copied))
        widths = [memory.width for memory in memories if isinstance(memory, CopyMemory)]
        return EnsembleMemory(memories, max([self.vocab_size, *widths]))

    def init_state(self, memory: EnsembleMemory) -> EnsembleState:
        """One row per sentence, nothing decoded yet; `select` tiles it to K rows."""
        pairs = zip(self.members, memory.members)
        return EnsembleState([member.init_state(own) for member, own in pairs], memory.width)

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> mean log-probs (R, V + X), mean attention (R, S).

        Advances `state` in place.
        """
        pairs, known = zip(self.members, state.members), self._known(tokens)
        logits, attn = zip(*(member.step(known, own) for member, own in pairs))
        weighted = [weight * a.float() for weight, a in zip(self.weights, attn)]
        return self._mean(logits, state.width), torch.stack(weighted).sum(0)

    def forward(self, memory: EnsembleMemory, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> mean log-probs (B, T, V + X)."""
        pairs, known = zip(self.members, memory.members), self._known(tgt)
        return self._mean([member.forward(own, known) for member, own in pairs], memory.width)

    def _known(self, tokens: Tensor) -> Tensor:
        """What the members are fed: a copied word is to all of them the unknown one."""
        return tokens.masked_fill(tokens >= self.vocab_size, self.unk_id) if self.copies else tokens

    def _mean(self, logits: Sequence[Tensor], width: int) -> Tensor:
        """Logits of each member (.., V or V + X) -> what the ensemble says (.., width)."""
        log_probs = torch.stack([log_softmax(x, width) for x in logits])  # (M, .., width)
        weights = log_probs.new_tensor(self.weights).view(-1, *[1] * (log_probs.dim() - 1))
        if self.of_probs:
            return (log_probs + weights.log()).logsumexp(0)
        return (log_probs * weights).sum(0)


def log_softmax(logits: Tensor, width: int) -> Tensor:
    """In float32, widened by words that a member cannot say.

    A row that allows nothing stays at -inf.
    """
    logits = logits.float()
    norm = logits.logsumexp(-1, keepdim=True)
    norm = norm.masked_fill(norm == -math.inf, 0.0)
    return F.pad(logits - norm, (0, width - logits.size(-1)), value=-math.inf)
