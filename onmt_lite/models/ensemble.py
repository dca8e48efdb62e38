"""Several models as one: they read the same line, and their predictions are averaged.

Letters as in `onmt_lite.models.base`.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import Constant, EncoderDecoder, HeadSelection, Selection
from onmt_lite.models.seq2seq import CopyGenerator, Seq2SeqModel


class EnsembleState:
    """The members' own states, whose rows move together."""

    logit_stats = None

    def __init__(self, members: list[Any]):
        self.members = members

    @property
    def positions(self) -> Tensor:
        return self.members[0].positions

    def select(self, selection: Selection, fresh: "EnsembleState | None" = None) -> "EnsembleState":
        joining = fresh.members if fresh else [None] * len(self.members)
        self.members = [own.select(selection, new) for own, new in zip(self.members, joining)]
        return self


class Ensemble(nn.Module):
    """Models of any families with one target vocabulary: an `onmt_lite.models.base.EncoderDecoder`.

    Returns the members' weighted mean log-probabilities, as OpenNMT-py and Marian, not normalised
    again unless a search does so; or, if `avg_raw_probs`, the logarithms of mean probabilities, as
    fairseq.  A memory is the list of the members' memories.
    """

    def __init__(
        self,
        members: Sequence[EncoderDecoder],
        weights: Sequence[float] = (),
        avg_raw_probs: bool = False,
        source_ids: Sequence[list[int] | None] = (),
    ):
        """weights: scaled to add up to one; none: equal.  source_ids: what each source id is to a
        member that has a source vocabulary of its own."""
        super().__init__()
        tables = [None if ids is None else Constant(torch.tensor(ids)) for ids in source_ids]
        self.source_ids = tables or [None] * len(members)
        self.members, self.avg_raw_probs = list(members), avg_raw_probs
        # Registered, so that the ensemble moves to a device as one; a table has nothing to move
        self.member_modules = nn.ModuleList(m for m in members if isinstance(m, nn.Module))
        weights = list(weights) or [1.0] * len(members)
        self.weights = [weight / sum(weights) for weight in weights]
        self.vocab_size = members[0].vocab_size
        copying = [member for member in members if member.has_copy_mechanism]
        # A mean of log-probabilities allows only what all members can say
        self.has_copy_mechanism = bool(copying) and (avg_raw_probs or len(copying) == len(members))
        self.unk_id = (
            cast(CopyGenerator, cast(Seq2SeqModel, copying[0]).output).unk_id if copying else 0
        )
        self.has_attention = all(member.has_attention for member in members)
        self.max_positions = min(member.max_positions for member in members)

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> list[Any]:
        sources = (src if table is None else table.to(src.device)[src] for table in self.source_ids)
        return [m.encode(own, src_lengths, ids, width) for m, own in zip(self.members, sources)]

    def init_state(self, memory: list[Any]) -> EnsembleState:
        return EnsembleState([m.init_state(own) for m, own in zip(self.members, memory)])

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, Tensor]:
        known = self._known(tokens)
        pairs = [member.step(known, own) for member, own in zip(self.members, state.members)]
        logits, attn = zip(*pairs)
        weighted = [weight * own.float() for weight, own in zip(self.weights, attn)]
        return self._mean(logits), torch.stack(weighted).sum(0)

    def forward(self, memory: list[Any], tgt: Tensor) -> Tensor:
        known = self._known(tgt)
        return self._mean([m.forward(own, known) for m, own in zip(self.members, memory)])

    def has_heads(self, heads: HeadSelection) -> bool:
        return any(member.has_heads(heads) for member in self.members)

    def compute_attention(self, memory: list[Any], tgt: Tensor, heads: HeadSelection) -> Tensor:
        """The mean over the members that have such a layer."""
        known, members = self._known(tgt), zip(self.weights, self.members, memory)
        having = [each for each in members if each[1].has_heads(heads)]
        total = sum(weight for weight, _, _ in having) or 1.0
        weights = [w / total * m.compute_attention(own, known, heads) for w, m, own in having]
        return torch.stack(weights).sum(0)  # (B, T, S)

    def _known(self, tokens: Tensor) -> Tensor:
        """Tokens as the members can read them: a copied word is unknown to all of them."""
        return (
            tokens.masked_fill(tokens >= self.vocab_size, self.unk_id)
            if self.has_copy_mechanism
            else tokens
        )

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        """Logits (.., V or V + X) of each member -> mean log-probabilities (.., V + X)."""
        width = max(x.size(-1) for x in logits)
        pairs = zip(self.weights, (log_softmax(x, width) for x in logits))
        if not self.avg_raw_probs:
            return torch.stack([log_probs * w for w, log_probs in pairs]).sum(0)
        weighted = [log_probs + math.log(w) for w, log_probs in pairs if w > 0]
        return torch.stack(weighted).logsumexp(0)


def log_softmax(logits: Tensor, width: int) -> Tensor:
    """Log-probabilities in float32 (.., width), -inf for words that a member cannot say, and for
    all words of a row that allows nothing."""
    logits = logits.float()
    norm = logits.logsumexp(-1, keepdim=True)  # (.., 1)
    norm = norm.masked_fill(norm == -math.inf, 0.0)
    return F.pad(logits - norm, (0, width - logits.size(-1)), value=-math.inf)
