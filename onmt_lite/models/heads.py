"""Heads: output layers that make next-token logits of a decoder's hidden states.

Letters: B sentences, S source tokens, T target tokens (in step-by-step decoding the hypotheses of
a sentence), D model width, V vocabulary, X source words outside the vocabulary.
"""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from onmt_lite.models.linear import Linear
from onmt_lite.models.memory import Memory, Sentences
from onmt_lite.models.rnn_attention import AttentionWeights


class Head(Linear):
    """One layer: the logits of the vocabulary."""

    copies = False

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:  # type: ignore[override]
        """Hidden states (B, T, D) and attention to the source (B, T, S) -> logits (B, T, V)."""
        return super().forward(hidden)

    def read(self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None) -> None:
        """Return what the head reads of each sentence: nothing."""

    def known(self, tokens: Tensor) -> Tensor:
        """Tokens as the decoder can read them: as they are."""
        return tokens


@dataclass
class Copied(Sentences):
    """Input of a `CopyHead` beside the memory.

    ids (B, S)      each source token as a token of the extended vocabulary
    keys (B, S, D)  keys of the copy attention; None: the memory's bank
    width           V + X
    """

    ids: Tensor
    keys: Tensor | None
    width: int


class CopyHead(nn.Module):
    """The pointer-generator of See et al. 2017, "Get To The Point", as OpenNMT-py has it.

    A gate z weighs the vocabulary's distribution against the attention to the source:
    P(w) = (1 - z) P_vocab(w) + z P_attn(w).

    Returns log-probabilities (B, T, V + X).  Ids from V on are words outside the vocabulary; each
    sentence has its own.  Fed back to the decoder, they are unknown words.

    vocabulary  makes the logits of P_vocab
    table       the target token of each source token, by id (Vsrc,)
    attention   the copy attention; None: the model's own attention copies
    """

    table: Tensor
    copies = True

    def __init__(
        self,
        vocabulary: Head,
        table: Tensor,
        pad_id: int,
        unk_id: int,
        attention: AttentionWeights | None = None,
    ):
        super().__init__()
        self.vocabulary, self.attention = vocabulary, attention
        self.gate = nn.Linear(vocabulary.in_features, 1)
        self.register_buffer("table", table, persistent=False)
        self.pad_id, self.unk_id = pad_id, unk_id

    def read(self, src: Tensor, memory: Memory, ids: Tensor | None, width: int | None) -> Copied:
        """Prepare copying from src (B, S); ids and width as in `EncoderDecoder.encode`.

        Without ids, words outside the target vocabulary are copied as the unknown word.
        """
        n = self.vocabulary.out_features
        if ids is None:
            ids, width = self.table[src], n
        elif width is None:
            width = max(n, int(ids.max()) + 1)
        keys = None if self.attention is None else self.attention.keys(memory.bank)
        return Copied(ids.clone(), keys, width)  # sentences that move write into their tensors

    def known(self, tokens: Tensor) -> Tensor:
        """Words outside the vocabulary become the unknown word."""
        return tokens.masked_fill(tokens >= self.vocabulary.out_features, self.unk_id)

    def forward(self, hidden: Tensor, attn: Tensor, memory: Memory) -> Tensor:
        """As `Head.forward`, with log-probabilities (B, T, V + X)."""
        copied = memory.of_head
        assert isinstance(copied, Copied)
        if self.attention is not None:
            keys = memory.bank if copied.keys is None else copied.keys
            attn = self.attention.weights(hidden, keys, memory.mask)
        z = self.gate(hidden).float().sigmoid()  # (B, T, 1)
        logits = self.vocabulary(hidden, attn, memory).float()  # (B, T, V)
        logits[:, :, self.pad_id] = -math.inf
        n_own = copied.width - self.vocabulary.out_features
        probs = F.pad(logits.softmax(-1) * (1 - z), (0, n_own))  # (B, T, V + X)
        ids = copied.ids[:, None].expand_as(attn)  # (B, T, S)
        return probs.scatter_add(2, ids, attn.float() * z).log()
