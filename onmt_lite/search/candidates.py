"""From the logits of all rows to the best candidates of each sentence, on the device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_lite.search.beam import Candidate
from onmt_lite.search.ngrams import repeating_tokens
from onmt_lite.search.scoring import coverage_penalty


@dataclass(frozen=True)
class CandidateRules:
    """Which tokens may follow, and what steers their ranking."""

    beam_size: int
    eos_id: int
    never_ids: tuple[int, ...] = ()  # tokens that are not text, and <unk> if it is banned
    min_length: int = 0
    block_ngram_repeat: int = 0
    exempt_ids: tuple[int, ...] = ()
    coverage_penalty: str = "none"
    beta: float = 0.0
    stepwise_penalty: bool = False


class CandidateSearch:
    """Ranks continuations; keeps per row what that needs (tokens so far, coverage).

    Its per-row tensors follow `select` as a model's state does.
    """

    def __init__(self, rules: CandidateRules, src_lengths: Tensor, vocab_size: int):
        device, n = src_lengths.device, src_lengths.numel()
        self.rules, self.vocab_size = rules, vocab_size
        self.never = torch.tensor(rules.never_ids, dtype=torch.long, device=device)
        self.exempt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.exempt[list(rules.exempt_ids)] = True
        self.n_steps = 0
        self.history = torch.empty(n, 0, dtype=torch.long, device=device)  # (R, T)
        inside = torch.arange(int(src_lengths.max()), device=device) < src_lengths[:, None]
        self.inside = inside.float()  # (R, S)
        self.coverage = torch.zeros_like(self.inside)  # (R, S)

    def select(self, rows: Tensor) -> "CandidateSearch":
        """Follow the rows (B', K'); see `onmt_lite.models.base.State.select`."""
        flat = rows.flatten().to(self.history.device)
        if self.rules.block_ngram_repeat:
            self.history = self.history[flat]
        if self.rules.coverage_penalty != "none":
            self.inside, self.coverage = self.inside[flat], self.coverage[flat]
        return self

    def step(
        self, tokens: Tensor, scores: Tensor, logits: Tensor, attn: Tensor
    ) -> list[list[Candidate]]:
        """Newest token and score of each row (R,), and what the model said of what comes next:
        logits (R, V), attn (R, S).

        Returns per sentence its `beam_size` candidates, best first.  Equal scores are ordered
        by row, then by token.
        """
        rules = self.rules
        self.n_steps += 1
        if rules.block_ngram_repeat and self.n_steps > 1:
            self.history = torch.cat([self.history, tokens[:, None]], 1)
        cost = self._cover(attn)
        logits = logits.float()
        # Normalised before anything is masked: a mask takes a token away, it does not lift others
        rows = Rows(logits.logsumexp(1), scores - cost if rules.stepwise_penalty else scores, cost)
        logits = self._mask(logits)
        blocked = self._block(logits)
        sentences = self._rank(blocked, rows)
        if blocked is not logits and any(best[0].score == -math.inf for best in sentences):
            # A sentence whose every continuation repeats: the least bad one survives
            unblocked = self._rank(logits, rows)
            sentences = [b if b[0].score > -math.inf else u for b, u in zip(sentences, unblocked)]
        return sentences

    def _cover(self, attn: Tensor) -> Tensor:
        """Add this step's attention; the penalty of each row (R,)."""
        rules = self.rules
        if rules.coverage_penalty == "none":
            return attn.new_zeros(attn.size(0), dtype=torch.float32)
        self.coverage = self.coverage + attn.float()
        return coverage_penalty(rules.coverage_penalty, rules.beta, self.coverage, self.inside)

    def _mask(self, logits: Tensor) -> Tensor:
        logits = logits.index_fill(1, self.never, -math.inf)
        if self.n_steps <= self.rules.min_length:
            logits[:, self.rules.eos_id] = -math.inf
        return logits

    def _block(self, logits: Tensor) -> Tensor:
        """The same tensor where nothing is blocked, else a masked copy."""
        n = self.rules.block_ngram_repeat
        repeats = repeating_tokens(self.history, n, self.exempt, self.vocab_size) if n else None
        return logits if repeats is None else logits.masked_fill(repeats, -math.inf)

    def _rank(self, logits: Tensor, rows: "Rows") -> list[list[Candidate]]:
        """Top candidates per sentence, in one transfer to the host."""
        k = self.rules.beam_size
        # One more than needed per row and per sentence, to see ties at the cut
        width = min(k + 1, self.vocab_size)
        log_probs, tokens = logits.topk(width, dim=1)
        log_probs = log_probs - rows.log_norm[:, None]
        totals = (log_probs + rows.score[:, None]).view(-1, k * width)
        best, index = totals.topk(min(k + 1, k * width), dim=1)
        row = index.div(width, rounding_mode="floor")
        parts = [
            best,
            row,
            tokens.view(-1, k * width).gather(1, index),
            log_probs.view(-1, k * width).gather(1, index),
            rows.cost.view(-1, k).gather(1, row),
        ]
        sentences = to_host(parts)
        if any(_tied_at_cut(found, k) for found in sentences):
            return self._rank_all(logits, rows)
        # topk leaves equals in any order; NaN, which it puts first, stays in
        return [sorted(found[:k], key=lambda c: (-c.score, c.row, c.token)) for found in sentences]

    def _rank_all(self, logits: Tensor, rows: "Rows") -> list[list[Candidate]]:
        """As `_rank`, for the rare step where equals straddle the cut: a stable sort of all."""
        k, v = self.rules.beam_size, self.vocab_size
        log_probs = logits - rows.log_norm[:, None]
        totals = (log_probs + rows.score[:, None]).view(-1, k * v)
        best, index = totals.sort(dim=1, descending=True, stable=True)
        best, index = best[:, :k], index[:, :k]
        row = index.div(v, rounding_mode="floor")
        chosen = log_probs.view(-1, k * v).gather(1, index)
        return to_host([best, row, index % v, chosen, rows.cost.view(-1, k).gather(1, row)])


@dataclass(frozen=True)
class Rows:
    """Per row (R,): the normaliser of its logits, its score so far, its coverage penalty."""

    log_norm: Tensor
    score: Tensor
    cost: Tensor


def to_host(parts: list[Tensor]) -> list[list[Candidate]]:
    """score, row, token, log_prob and cost, each (B, C), to the host in one piece.

    As float64, which holds float32 and every token id exactly.
    """
    return [
        [Candidate(score, int(row), int(token), *rest) for score, row, token, *rest in zip(*found)]
        for found in torch.stack([part.double() for part in parts], 1).tolist()
    ]


def _tied_at_cut(found: list[Candidate], k: int) -> bool:
    return len(found) > k and found[k - 1].score == found[k].score > -math.inf
