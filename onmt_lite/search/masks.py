"""Which tokens may follow, and how they count, before anything is ranked: on all rows at once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_lite.policy import Policy, Sampling
from onmt_lite.search.ngrams import ends_in_repetition, repeating_tokens
from onmt_lite.search.records import NO_END


@dataclass(frozen=True)
class MaskRules:
    """Options of a job that decide about single tokens.

    force_end  the last step allows the end token alone: for its probability (`paid`), for
               nothing (`free`), or not (`no`)
    """

    policy: Policy
    eos_id: int
    never_ids: tuple[int, ...] = ()  # tokens that are not text: what they have is lost
    banned_ids: tuple[int, ...] = ()  # other tokens that may not be produced
    start_ids: tuple[int, ...] = ()  # the start token, where it is one of the vocabulary
    min_length: int = 0
    block_ngram_repeat: int = 0
    exempt_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    force_end: str = "no"
    sampling: Sampling | None = None
    temperature: float = 1.0


@dataclass(frozen=True)
class Scored:
    """What tokens count: values (R, V) less norm (R,); -inf what may not follow.

    slope (R, V) is how much of a further penalty they pay, where that is not all of it.
    """

    values: Tensor
    norm: Tensor
    slope: Tensor | None = None

    def at(self, rows: Tensor) -> "Scored":
        return Scored(self.values[rows], self.norm[rows])

    def without(self, banned: Tensor) -> "Scored":
        """banned (R, V) or (R, 1)"""
        return Scored(self.values.masked_fill(banned, -math.inf), self.norm, self.slope)


class Masks:
    """Turns logits into what tokens count, by the rules of a job and the rows' tokens so far."""

    def __init__(self, rules: MaskRules, vocab_size: int, device: torch.device):
        self.rules, self.vocab_size = rules, vocab_size
        # Where masks act on logits, what is banned leaves its probability to the others
        apart = rules.policy.masks == "logits"
        banned = rules.banned_ids if apart else rules.banned_ids + rules.never_ids

        def ids(numbers: tuple[int, ...]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.long, device=device)

        self.banned, self.banned_or_end = ids(banned), ids((*banned, rules.eos_id))
        self.never = ids(rules.never_ids if apart else ())
        self.start = ids(rules.start_ids)
        self.exempt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.exempt[list(rules.exempt_ids)] = True
        blocks = rules.block_ngram_repeat > (0 if rules.policy.ngrams_of_one else 1)
        self.ngram = rules.block_ngram_repeat if blocks else 0
        # Tokens so far, where a rule looks at them
        self.needs_history = bool(self.ngram) or rules.repetition_penalty != 1.0

    def score(
        self,
        raw: Scored,
        history: Tensor,
        step: int,
        last: Tensor | None = None,
        forced: Tensor | None = None,
    ) -> tuple[Scored, Tensor | None]:
        """From what the model says of step `step` (from 1) after the tokens of each row so far,
        `history` (R, step-1), to what tokens count.

        last (R,) says whose last step this is, where that matters; forced (R,) which token must
        come, ANY or NO_END.  The second result is where
        n-grams are blocked (R, V), if that may be undone.
        """
        rules, policy = self.rules, self.rules.policy
        if rules.sampling and rules.sampling.temperature == "logits":
            logits = raw.values / rules.temperature
            raw = Scored(logits, normaliser(logits))
        if rules.repetition_penalty != 1.0:
            raw = self._repelled(raw, history)
        values = self._masked(raw.values, step)
        blocked = self._repeats(history) if self.ngram else None
        if blocked is not None and not policy.least_bad:
            values, blocked = values.masked_fill(blocked, -math.inf), None
        if last is not None and rules.force_end != "no":
            values = self._end_forced(values, raw, last)
        if forced is not None:
            values = self._only(values, raw, forced)
            blocked = None if blocked is None else blocked & (forced < 0)[:, None]
        norm = normaliser(values) if policy.masks == "logits" else raw.norm
        if self.never.numel():
            values = values.index_fill(1, self.never, -math.inf)
        scored = Scored(values, norm, raw.slope)
        if rules.sampling and rules.sampling.temperature == "log_probs":
            scored = Scored(scored.values / rules.temperature, scored.norm / rules.temperature)
        return scored, blocked

    def _repelled(self, raw: Scored, history: Tensor) -> Scored:
        """Tokens that a row holds made less likely (Keskar et al. 2019)."""
        held = torch.cat([self.start.expand(history.size(0), -1), history], 1)
        if held.size(1) == 0:
            return raw
        on_logits = self.rules.policy.repetition == "logits"
        norm = torch.zeros_like(raw.norm) if on_logits else raw.norm
        counts = raw.values.gather(1, held) - norm[:, None]
        penalty = self.rules.repetition_penalty
        counts = torch.where(counts < 0, counts * penalty, counts / penalty) + norm[:, None]
        values = raw.values.scatter(1, held, counts)
        if on_logits:
            return Scored(values, normaliser(values))
        # transformers multiplies what diverse groups pay, too
        return Scored(values, norm, torch.ones_like(values).scatter(1, held, penalty))

    def _masked(self, values: Tensor, step: int) -> Tensor:
        """Without tokens that are banned, nor the end token where it is too early."""
        too_early = step <= self.rules.min_length + self.rules.policy.min_length_offset
        banned = self.banned_or_end if too_early else self.banned
        return values.index_fill(1, banned, -math.inf) if banned.numel() else values

    def _end_forced(self, values: Tensor, raw: Scored, last: Tensor) -> Tensor:
        """Rows at their last step end; `free` of charge, or for what the end token costs."""
        eos, free = self.rules.eos_id, self.rules.force_end == "free"
        end = torch.full_like(values, -math.inf)
        end[:, eos] = raw.norm if free else raw.values[:, eos]
        return torch.where(last[:, None], end, values)

    def _only(self, values: Tensor, raw: Scored, forced: Tensor) -> Tensor:
        """A token of a prefix comes even where another rule forbids it."""
        token, eos = forced.clamp(min=0)[:, None], self.rules.eos_id
        only = torch.full_like(values, -math.inf).scatter(1, token, raw.values.gather(1, token))
        values = torch.where(forced[:, None] >= 0, only, values)
        values[:, eos].masked_fill_(forced == NO_END, -math.inf)
        return values

    def _repeats(self, history: Tensor) -> Tensor | None:
        """True where a token is blocked, (R, V) or (R, 1)."""
        if self.rules.policy.ngrams == "row":
            return ends_in_repetition(history, self.ngram, self.exempt)
        return repeating_tokens(history, self.ngram, self.exempt, self.vocab_size)


def normaliser(logits: Tensor) -> Tensor:
    """(R, V) -> (R,); zero for a row that allows nothing, which then stays at -inf."""
    norm = logits.logsumexp(1)
    return norm.masked_fill(norm == -math.inf, 0.0)
