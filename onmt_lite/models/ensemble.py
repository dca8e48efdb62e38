"""Several models as one: they read the same line, and each next token is judged by all of them.

Letters: M members, B sentences, K beams per sentence, R = B*K rows, S source tokens, T target
tokens, V target vocabulary, X words that copying members take from the sources of the batch.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import EncoderDecoder, Heads
from onmt_lite.models.family import Family
from onmt_lite.models.heads import CopyHead
from onmt_lite.models.memory import Constant
from onmt_lite.models.selection import Selection


class EnsembleState:
    """The members' own states, whose rows move together."""

    def __init__(self, members: list[Any]):
        self.members = members

    @property
    def positions(self) -> Tensor:
        return self.members[0].positions

    def select(self, selection: Selection, fresh: "EnsembleState | None" = None) -> "EnsembleState":
        """See `onmt_lite.models.base.State.select`."""
        joining = fresh.members if fresh else [None] * len(self.members)
        self.members = [own.select(selection, new) for own, new in zip(self.members, joining)]
        return self


class Ensemble(nn.Module):
    """Models of any families with one target vocabulary: an `onmt_lite.models.base.EncoderDecoder`.

    What it returns are weighted means over the members, for weights that are scaled to add up to
    one; equal ones, if there are none:

        of log-probabilities, as in OpenNMT-py and Marian; they are scores as they stand, and what
            they are the logarithms of does not add up to one, unless a search makes it so
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
        tables = [None if ids is None else Constant(torch.tensor(ids)) for ids in own_ids]
        self.own_ids = tables or [None] * len(members)
        self.members, self.of_probs = list(members), of_probs
        # Registered, so that the ensemble moves to a device as one; a table has nothing to move
        self.modules_of_members = nn.ModuleList(m for m in members if isinstance(m, nn.Module))
        weights = list(weights) or [1.0] * len(members)
        self.weights = [weight / sum(weights) for weight in weights]
        self.vocab_size = members[0].vocab_size
        copying = [member for member in members if member.copies]
        # A mean of log-probabilities allows only what all members can say
        self.copies = bool(copying) and (of_probs or len(copying) == len(members))
        self.unk_id = cast(CopyHead, cast(Family, copying[0]).output).unk_id if copying else 0
        self.attends = all(member.attends for member in members)
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
    ) -> list[Any]:
        """src (B, S) padded ids, src_lengths (B,) -> the memories of all members."""
        sources = (src if table is None else table.on(src.device)[src] for table in self.own_ids)
        return [m.encode(own, src_lengths, ids, width) for m, own in zip(self.members, sources)]

    def init_state(self, memory: list[Any]) -> EnsembleState:
        """One row per sentence, nothing decoded yet; `select` tiles it to K rows."""
        return EnsembleState([m.init_state(own) for m, own in zip(self.members, memory)])

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> mean log-probs (R, V + X), mean attention (R, S).

        Advances `state` in place.
        """
        known = self._known(tokens)
        pairs = [member.step(known, own) for member, own in zip(self.members, state.members)]
        attn = [weight * attn.float() for weight, (_, attn) in zip(self.weights, pairs)]
        return self._mean([logits for logits, _ in pairs]), torch.stack(attn).sum(0)

    def prefill(
        self, tokens: Tensor, lengths: Tensor, state: EnsembleState, first: int, at_once: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """See `onmt_lite.models.base.EncoderDecoder.prefill`: mean attention, mean log-probs."""
        given = self._known(tokens), lengths
        pairs = [
            m.prefill(*given, own, first, at_once) for m, own in zip(self.members, state.members)
        ]
        attn = [weight * attn.float() for weight, (attn, _) in zip(self.weights, pairs)]
        parts = zip(*(logits for _, logits in pairs))
        return torch.stack(attn).sum(0), map(self._mean, parts)

    def forward(self, memory: list[Any], tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> mean log-probs (B, T, V + X)."""
        known = self._known(tgt)
        return self._mean([m.forward(own, known) for m, own in zip(self.members, memory)])

    def has(self, heads: Heads) -> bool:
        """Whether a member has such a layer."""
        return any(member.has(heads) for member in self.members)

    def attention(self, memory: list[Any], tgt: Tensor, heads: Heads) -> Tensor:
        """Decoder input tgt (B, T), start token first -> the weighted mean of the weights on the
        source (B, T, S), of the members that have such a layer."""
        known, members = self._known(tgt), zip(self.weights, self.members, memory)
        having = [each for each in members if each[1].has(heads)]
        total = sum(weight for weight, _, _ in having) or 1.0
        weights = [w / total * m.attention(own, known, heads) for w, m, own in having]
        return torch.stack(weights).sum(0)

    def _known(self, tokens: Tensor) -> Tensor:
        """What the members are fed: a copied word is to all of them the unknown one."""
        return tokens.masked_fill(tokens >= self.vocab_size, self.unk_id) if self.copies else tokens

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        """Logits of each member (.., V or V + X) -> what the ensemble says (.., V + X)."""
        width = max(x.size(-1) for x in logits)
        pairs = zip(self.weights, (log_softmax(x, width) for x in logits))
        if not self.of_probs:
            return torch.stack([log_probs * w for w, log_probs in pairs]).sum(0)
        weighted = [log_probs + math.log(w) for w, log_probs in pairs if w > 0]
        return torch.stack(weighted).logsumexp(0)


def log_softmax(logits: Tensor, width: int) -> Tensor:
    """In float32, widened by words that a member cannot say.

    A row that allows nothing stays at -inf.
    """
    logits = logits.float()
    norm = logits.logsumexp(-1, keepdim=True)
    norm = norm.masked_fill(norm == -math.inf, 0.0)
    return F.pad(logits - norm, (0, width - logits.size(-1)), value=-math.inf)
