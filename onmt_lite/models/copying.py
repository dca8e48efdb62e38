"""Copying source tokens: a pointer-generator around a model of any family.

See et al. 2017, "Get To The Point", as OpenNMT-py has it: a gate z weighs the vocabulary's
distribution against the attention to the source, P(w) = (1 - z) P_vocab(w) + z P_attn(w).

Letters: B sentences, K beams per sentence, R = B*K rows, S source tokens, T target tokens,
D model width, V vocabulary, X words that a source of the batch has beyond the vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.rnn_attention import AttentionWeights
from onmt_lite.models.selection import Selection


class Pointing(EncoderDecoder, Protocol):
    """What copying needs of a model.  Its memories have a `bank` (B, S, D)."""

    cfg: Any
    output: nn.Linear

    def state_dict(self) -> dict[str, Any]: ...

    def step_hidden(self, tokens: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """As `step`: what the output layer reads (R, D), attention (R, S)."""
        ...

    def forward_hidden(self, memory: Any, tgt: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`: what the output layer reads (B, T, D), attention (B, T, S)."""
        ...


@dataclass(frozen=True)
class Source:
    """What copying reads of each sentence.

    ids (B, S)      the token of the extended vocabulary that each source token is
    keys (B, S, D)  what the copy attention compares with; None where the model's own attention
                    is the copy attention
    mask (B, 1, S)  0 on tokens, -inf on padding; added to attention scores
    width           V + X
    """

    ids: Tensor
    keys: Tensor | None
    mask: Tensor
    width: int


@dataclass(frozen=True)
class CopyMemory:
    """An encoded batch: the model's own memory, and what copying reads."""

    inner: Any
    source: Source

    @property
    def width(self) -> int:
        """V + X: how wide the logits of the batch are."""
        return self.source.width


class CopyState:
    """The model's own state, and what copying reads of each sentence."""

    def __init__(self, inner: Any, source: Source):
        self.inner, self.source = inner, source

    @property
    def positions(self) -> Tensor:
        return self.inner.positions

    def select(self, selection: Selection, fresh: "CopyState | None" = None) -> "CopyState":
        """See `onmt_lite.models.base.State.select`."""
        kept, source, new = selection.of_sentences, self.source, fresh.source if fresh else None
        self.inner = self.inner.select(selection, fresh.inner if fresh else None)
        keys = None if source.keys is None else kept(source.keys, new.keys if new else None)
        ids = kept(source.ids, new.ids if new else None)
        mask = kept(source.mask, new.mask if new else None, fill=-math.inf)
        self.source = Source(ids, keys, mask, max(source.width, new.width if new else 0))
        return self


class CopyModel(nn.Module):
    """A model that may copy: an `onmt_lite.models.base.EncoderDecoder`.

    Its logits are log-probabilities, (.., V + X) wide.  Ids from V on are words outside the
    vocabulary, of which each sentence has its own; they come in through `encode`, and fed back
    to the decoder they are unknown words.

    inner      the model, whose output layer makes P_vocab
    table      the target token that each source token is, by id (Vsrc,)
    attention  what the copy attention is computed with; None: the model's own attention copies
    """

    table: Tensor
    copies = True

    def __init__(
        self,
        inner: Pointing,
        table: Tensor,
        pad_id: int,
        unk_id: int,
        attention: AttentionWeights | None = None,
    ):
        super().__init__()
        self.inner, self.attention = inner, attention
        self.gate = nn.Linear(inner.output.in_features, 1)
        self.register_buffer("table", table, persistent=False)
        self.pad_id, self.unk_id = pad_id, unk_id
        self.cfg, self.vocab_size = inner.cfg, inner.vocab_size
        self.max_positions = inner.max_positions

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def encode(
        self,
        src: Tensor,
        src_lengths: Tensor,
        ids: Tensor | None = None,
        width: int | None = None,
    ) -> CopyMemory:
        """src (B, S) padded ids, src_lengths (B,) -> the memory that decoding reads.

        ids (B, S): the token of the extended vocabulary that each source token is, any id on
        padding; see `onmt_lite.text.copying`.  Without it words outside the target vocabulary
        count as copies of the unknown word.
        width: V + X, read off the ids where it is None.
        """
        memory = self.inner.encode(src, src_lengths)
        if ids is None:
            own, width = self.table[src], self.vocab_size
        else:
            own = ids.clone()  # the caller's stay as they are when sentences change places
        if width is None:
            width = max(self.vocab_size, int(own.max()) + 1)
        outside = torch.arange(src.size(1), device=src.device) >= src_lengths[:, None]
        mask = torch.zeros(outside.shape, device=src.device).masked_fill_(outside, -math.inf)
        keys = None if self.attention is None else self.attention.keys(memory.bank).clone()
        return CopyMemory(memory, Source(own, keys, mask[:, None], width))

    def init_state(self, memory: CopyMemory) -> CopyState:
        """One row per sentence, nothing decoded yet; `select` tiles it to K rows."""
        return CopyState(self.inner.init_state(memory.inner), memory.source)

    def step(self, tokens: Tensor, state: CopyState) -> tuple[Tensor, Tensor]:
        """The newest token of each row (R,) -> log-probs (R, V + X), attention (R, S).

        Advances `state` in place.
        """
        hidden, attn = self.inner.step_hidden(self._known(tokens), state.inner)
        n = state.source.ids.size(0)  # (R, ..) -> (B, K, ..)
        log_probs = self._mix(
            hidden.view(n, -1, hidden.size(1)), attn.view(n, -1, attn.size(1)), state.source
        )
        return log_probs.flatten(0, 1), attn

    def forward(self, memory: CopyMemory, tgt: Tensor) -> Tensor:
        """Decoder input tgt (B, T), start token first -> log-probs (B, T, V + X)."""
        hidden, attn = self.inner.forward_hidden(memory.inner, self._known(tgt))
        return self._mix(hidden, attn, memory.source)

    def _known(self, tokens: Tensor) -> Tensor:
        """The decoder has no vector for a word outside the vocabulary."""
        return tokens.masked_fill(tokens >= self.vocab_size, self.unk_id)

    def _mix(self, hidden: Tensor, attn: Tensor, source: Source) -> Tensor:
        """hidden (B, T, D), attn (B, T, S) -> log-probs (B, T, V + X); T may count beams."""
        if self.attention is not None and source.keys is not None:
            attn = self.attention.weights(hidden, source.keys, source.mask)
        z = self.gate(hidden).float().sigmoid()  # (B, T, 1)
        logits = self.inner.output(hidden).float()
        logits[:, :, self.pad_id] = -math.inf
        probs = F.pad(logits.softmax(-1) * (1 - z), (0, source.width - self.vocab_size))
        ids = source.ids[:, None].expand_as(attn)
        return probs.scatter_add(2, ids, attn.float() * z).log()
