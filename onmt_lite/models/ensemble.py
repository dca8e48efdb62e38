"""Ensembles: the averaged predictions of several models.

Shapes as in `onmt_lite.models.base`.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import (
    Constant,
    EncoderDecoder,
    HeadSelection,
    Selection,
    compute_logits,
)
from onmt_lite.models.output import CopyGenerator
from onmt_lite.models.seq2seq import Seq2SeqModel


class EnsembleState:
    """The decoder states of all members."""

    def __init__(self, members: list[Any]):
        self.members = members

    @property
    def positions(self) -> Tensor:
        """Number of tokens decoded so far (B,), int64."""
        return self.members[0].positions

    def select(self, selection: Selection, fresh: "EnsembleState | None" = None) -> "EnsembleState":
        """Tile, reorder, drop and add rows; see `onmt_lite.models.base.State.select`."""
        fresh_members = fresh.members if fresh else [None] * len(self.members)
        self.members = [m.select(selection, new) for m, new in zip(self.members, fresh_members)]
        return self


class Ensemble(nn.Module):
    """An ensemble of models that share a target vocabulary.

    Implements `onmt_lite.models.base.EncoderDecoder`.  Returns the weighted mean of the members'
    log-probabilities, as OpenNMT-py and Marian do; search may normalize it.  With `avg_raw_probs`,
    returns the logarithm of the weighted mean of probabilities, as fairseq does.  The memory is the
    list of the members' memories.
    """

    def __init__(
        self,
        members: Sequence[EncoderDecoder],
        weights: Sequence[float] = (),
        avg_raw_probs: bool = False,
        source_ids: Sequence[list[int] | None] = (),
    ):
        """Initialize the ensemble.

        Args:
            members: the models
            weights: weights of the members, scaled to sum to 1; empty: equal weights
            avg_raw_probs: average probabilities instead of log-probabilities
            source_ids: for each member, a list that maps source ids to its source ids, or None if
                its source vocabulary is the same
        """
        super().__init__()
        tables = [None if ids is None else Constant(torch.tensor(ids)) for ids in source_ids]
        self.source_ids = tables or [None] * len(members)
        self.members, self.avg_raw_probs = list(members), avg_raw_probs
        # Registered so that `to` moves all members; table models have nothing to move
        self.member_modules = nn.ModuleList(m for m in members if isinstance(m, nn.Module))
        weights = list(weights) or [1.0] * len(members)
        self.weights = [weight / sum(weights) for weight in weights]
        self.vocab_size = members[0].vocab_size
        copy_members = [member for member in members if member.has_copy_mechanism]
        # The mean of log-probabilities is finite only for tokens that all members can predict
        has_all = len(copy_members) == len(members)
        self.has_copy_mechanism = bool(copy_members) and (avg_raw_probs or has_all)
        self.unk_id = 0
        if copy_members:
            self.unk_id = cast(CopyGenerator, cast(Seq2SeqModel, copy_members[0]).output).unk_id
        self.has_attention = all(member.has_attention for member in members)
        self.max_positions = min(member.max_positions for member in members)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.members[0].device

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> list[Any]:
        """Encode source sentences; see `onmt_lite.models.base.EncoderDecoder.encode`.

        Args:
            src: padded source ids (B, S), int64
            src_lengths: lengths in tokens (B,), int64
            ids: source ids in the extended vocabulary (B, S), int64, for the copy mechanism
            width: V + X
        """
        sources = (src if table is None else table.to(src.device)[src] for table in self.source_ids)
        return [m.encode(x, src_lengths, ids, width) for m, x in zip(self.members, sources)]

    def init_state(self, memory: list[Any]) -> EnsembleState:
        """Return the initial states of all members."""
        return EnsembleState([m.init_state(x) for m, x in zip(self.members, memory)])

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, Tensor]:
        """Decode one step; see `onmt_lite.models.base.EncoderDecoder.step`."""
        ids = self._map_to_vocab(tokens)
        results = [member.step(ids, x) for member, x in zip(self.members, state.members)]
        logits, attn = zip(*results)
        weighted = [weight * x.float() for weight, x in zip(self.weights, attn)]
        return self._average([compute_logits(x) for x in logits]), torch.stack(weighted).sum(0)

    def forward(self, memory: list[Any], tgt: Tensor) -> Tensor:
        """Compute all log-probabilities; see `onmt_lite.models.base.EncoderDecoder.forward`."""
        ids = self._map_to_vocab(tgt)
        return self._average([m.forward(x, ids) for m, x in zip(self.members, memory)])

    def has_heads(self, heads: HeadSelection) -> bool:
        """Return True if any member has this layer."""
        return any(member.has_heads(heads) for member in self.members)

    def compute_attention(self, memory: list[Any], tgt: Tensor, heads: HeadSelection) -> Tensor:
        """Return the mean attention (B, T, S), float32, of the members that have this layer.

        Args:
            memory: the encoded batch
            tgt: decoder input (B, T), int64
            heads: the heads to average
        """
        ids, members = self._map_to_vocab(tgt), zip(self.weights, self.members, memory)
        selected = [(w, m, x) for w, m, x in members if m.has_heads(heads)]
        total = sum(weight for weight, _, _ in selected) or 1.0
        weights = [w / total * m.compute_attention(x, ids, heads) for w, m, x in selected]
        return torch.stack(weights).sum(0)  # (B, T, S)

    def _map_to_vocab(self, tokens: Tensor) -> Tensor:
        """Replace copied words by the unknown token, for ids (..), int64."""
        if not self.has_copy_mechanism:
            return tokens
        return tokens.masked_fill(tokens >= self.vocab_size, self.unk_id)

    def _average(self, logits: Sequence[Tensor]) -> Tensor:
        """Average the members' logits (.., V or V + X) to log-probabilities (.., V + X)."""
        width = max(x.size(-1) for x in logits)
        pairs = zip(self.weights, (log_softmax(x, width) for x in logits))
        if not self.avg_raw_probs:
            return torch.stack([log_probs * w for w, log_probs in pairs]).sum(0)
        weighted = [log_probs + math.log(w) for w, log_probs in pairs if w > 0]
        return torch.stack(weighted).logsumexp(0)


def log_softmax(logits: Tensor, width: int) -> Tensor:
    """Return log-probabilities (.., width), float32.

    Missing columns are -inf, as are rows in which all logits are -inf.
    """
    logits = logits.float()
    log_z = logits.logsumexp(-1, keepdim=True)  # (.., 1)
    log_z = log_z.masked_fill(log_z == -math.inf, 0.0)
    return F.pad(logits - log_z, (0, width - logits.size(-1)), value=-math.inf)
