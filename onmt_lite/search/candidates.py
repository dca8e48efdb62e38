"""From the logits of all rows to the candidates of each sentence, on the device."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.selection import Selection
from onmt_lite.search.masks import MaskRules, Masks, Scored, normaliser
from onmt_lite.search.ranking import Ranked, diverse, top, top_exactly, without_the_worst
from onmt_lite.search.records import Candidates
from onmt_lite.search.sampling import gumbel, keep_top_k, keep_top_p
from onmt_lite.search.scoring import coverage_penalty


@dataclass(frozen=True)
class CandidateRules:
    """How continuations are ranked or drawn; which there are, `masks` says.

    sums_to_one  what the model returns are logits; False: scores that count as they are
    aligns       tell which token of the source each row attends to most; those that stand around
                 a line, `around` many before and after it, do not count
    """

    masks: MaskRules
    beam_size: int
    coverage_penalty: str = "none"
    beta: float = 0.0
    stepwise_penalty: bool = False
    beam_groups: int = 1
    diversity_rate: float = 0.0
    topk: int = 0
    topp: float = 0.0
    sums_to_one: bool = True
    aligns: bool = False
    around: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Step:
    """What the beams say of a step, per row (R,) or per sentence (B,).

    tokens, scores   the newest token of each row (R,) and what the row counts; -inf: not expanded
    last             whose last step it is (B,), or None where that changes nothing
    forced           the token that each must have next (B,), ANY or NO_END; None: any may come
    seeds            of the sentences (B,), where tokens are drawn
    """

    tokens: Tensor
    scores: Tensor
    last: Tensor | None = None
    forced: Tensor | None = None
    seeds: Tensor | None = None


@dataclass(frozen=True)
class Beside:
    """What the host is told beside the candidates.

    plain        what the model itself said, by which each candidate's token is known
    cost, place  of each row (R,): its coverage penalty, and the token of the source that it
                 attends to most; None where nobody asks
    """

    plain: Scored
    cost: Tensor | None
    place: Tensor | None

    def at(self, rows: Tensor) -> "Beside":
        cost, place = (None if part is None else part[rows] for part in (self.cost, self.place))
        return Beside(self.plain.at(rows), cost, place)


# Candidates of a sentence, best first; then of each of its rows, where that is asked for, the
# coverage penalty and the token of the source that it attends to
Found = tuple[Candidates, list[float] | None, list[int] | None]


class CandidateSearch:
    """Ranks continuations; keeps per row what that needs (tokens so far, coverage).

    Its per-row tensors follow `select` as a model's state does.
    """

    def __init__(
        self, rules: CandidateRules, src_lengths: Tensor, n_tokens: int, width: int | None = None
    ):
        """n_tokens: V; width: V + X, where the model copies words of the source."""
        device, n = src_lengths.device, src_lengths.numel()
        self.rules, self.n_tokens = rules, n_tokens
        self.vocab_size = n_tokens if width is None else width
        self.masks = Masks(rules.masks, self.vocab_size, device)
        self.n_steps = 0
        self.history = torch.empty(n, 0, dtype=torch.long, device=device)  # (R, T)
        places = torch.arange(int(src_lengths.max()), device=device)
        self.inside = (places < src_lengths[:, None]).float()  # (R, S)
        before, after = rules.around
        self.readable = (places >= before) & (places < src_lengths[:, None] - after)  # (R, S)
        self.coverage = torch.zeros_like(self.inside)  # (R, S)

    def select(self, selection: Selection) -> "CandidateSearch":
        """Follow the rows; see `onmt_lite.models.base.State.select`."""
        of_rows = selection.of_rows
        if self.masks.needs_history:
            self.history = of_rows(self.history)
        if self.rules.coverage_penalty != "none":
            self.inside, self.coverage = of_rows(self.inside), of_rows(self.coverage)
        if self.rules.aligns:
            self.readable = of_rows(self.readable)
        return self

    def step(self, step: Step, logits: Tensor, attn: Tensor) -> list[Found]:
        """What the model said of what comes next, logits (R, V) and attn (R, S), as candidates
        of each sentence."""
        rules = self.rules
        self.n_steps += 1
        if self.masks.needs_history and self.n_steps > 1:
            self.history = torch.cat([self.history, step.tokens[:, None]], 1)
        cost = self._cover(attn)
        logits = logits.float()
        norm = normaliser(logits) if rules.sums_to_one else torch.zeros_like(logits[:, 0])
        plain = Scored(logits, norm)
        beside = Beside(plain, cost, self._places(attn))
        last, forced = (
            None if of_sentence is None else of_sentence.repeat_interleave(rules.beam_size)
            for of_sentence in (step.last, step.forced)
        )
        counts, blocked = self.masks.score(plain, self.history, self.n_steps, last, forced)
        steered = step.scores if cost is None or not rules.stepwise_penalty else step.scores - cost
        if rules.masks.sampling:
            return self._to_host(self._draw(counts, steered, step.seeds), beside)
        if blocked is None:
            return self._rank(counts, steered, beside)
        found = self._rank(counts.without(blocked), steered, beside)
        if any(of_sentence[0].score[0] == -math.inf for of_sentence in found):
            # A sentence whose every continuation repeats: the least bad one survives
            least_bad = self._rank(counts, steered, beside)
            found = [f if f[0].score[0] > -math.inf else b for f, b in zip(found, least_bad)]
        return found

    def _places(self, attn: Tensor) -> Tensor | None:
        """The token of the source that each row attends to most (R,)."""
        if not self.rules.aligns:
            return None
        return attn.masked_fill(~self.readable, -1.0).argmax(1)

    def _cover(self, attn: Tensor) -> Tensor | None:
        """Add this step's attention; the penalty of each row (R,)."""
        rules = self.rules
        if rules.coverage_penalty == "none":
            return None
        self.coverage = self.coverage + attn.float()
        return coverage_penalty(
            rules.coverage_penalty,
            rules.beta,
            self.coverage,
            self.inside,
            rules.masks.policy.skips_unattended,
        )

    def _rank(self, counts: Scored, scores: Tensor, beside: Beside) -> list[Found]:
        """The best candidates, in one transfer to the host."""
        rules, policy = self.rules, self.rules.masks.policy
        k, v = rules.beam_size, self.vocab_size
        values = counts.values.view(-1, k, v)
        norm, rows = counts.norm.view(-1, k), scores.view(-1, k)
        n = min(policy.candidates * k, k * v)
        first = self.n_steps == 1
        if rules.beam_groups > 1:
            found = diverse(
                values,
                norm,
                rows,
                rules.beam_groups,
                rules.diversity_rate,
                policy,
                rules.masks.eos_id,
                first,
                None if counts.slope is None else counts.slope.view(-1, k, v),
            )
            return self._to_host(found, beside)
        found = top(values, norm, rows, n + 1)  # one more than needed, to see equals at the cut
        sentences = self._to_host(self._spared(found), beside)
        tied = [b for b, (c, *_) in enumerate(sentences) if _tied_at_cut(c.score, n)]
        if tied:  # the rare sentence that needs a second look
            at = torch.tensor(tied, device=values.device)
            exact = self._spared(top_exactly(values[at], norm[at], rows[at], n))
            of_rows = (at[:, None] * k + torch.arange(k, device=at.device)).flatten()
            again = self._to_host(exact, beside.at(of_rows))
            for b, sentence in zip(tied, again):
                sentences[b] = sentence
        return sentences

    def _spared(self, found: Ranked) -> Ranked:
        if not self.rules.masks.policy.spares_one:
            return found
        return without_the_worst(
            found, 1 if self.n_steps == 1 else self.rules.beam_size, self.vocab_size
        )

    def _draw(self, counts: Scored, scores: Tensor, seeds: Tensor | None) -> Ranked:
        """Candidates drawn at random: one per row, or those of a sentence together."""
        rules, k, v = self.rules, self.rules.beam_size, self.vocab_size
        sampling = rules.masks.sampling
        assert sampling is not None and seeds is not None
        drawn = counts.values
        for name in sampling.filters:
            if name == "topk" and rules.topk > 0:
                drawn = keep_top_k(drawn, rules.topk, sampling.keep)
            elif name == "topp" and 0 < rules.topp < 1:
                drawn = keep_top_p(drawn, rules.topp, sampling.keep)
        noise = self._noise(seeds)
        totals = counts.values - counts.norm[:, None] + scores[:, None]
        totals = totals.view(-1, k * v)
        if sampling.draws == "rows":
            token = (drawn.double() + noise.view(-1, v)).argmax(1).view(-1, k)
            row = torch.arange(k, device=token.device).expand_as(token)
            return Ranked(totals.gather(1, row * v + token), row, token)
        totals = totals.masked_fill(drawn.view(-1, k * v) == -math.inf, -math.inf)
        n = min(rules.masks.policy.candidates * k, k * v)
        index = (totals.double() + noise).topk(n, dim=1).indices
        found = Ranked(totals.gather(1, index), index.div(v, rounding_mode="floor"), index % v)
        if sampling.ranked_by == "draw":
            return found
        return found.take(found.score.argsort(dim=1, descending=True, stable=True))

    def _noise(self, seeds: Tensor) -> Tensor:
        """Of each continuation (B, K*V): the same, however many words others copy."""
        k, n = self.rules.beam_size, self.n_tokens
        noise = gumbel(seeds, self.n_steps, k * self.vocab_size)
        of_tokens, of_words = noise[:, : k * n].view(-1, k, n), noise[:, k * n :]
        words = of_words.view(len(seeds), self.vocab_size - n, k).transpose(1, 2)
        return torch.cat([of_tokens, words], 2).flatten(1)

    def _to_host(self, found: Ranked, beside: Beside) -> list[Found]:
        """Candidates, the model's log-probability of each, and what is told of rows, in one piece.

        As float64, which holds float32 and every token id exactly.
        """
        k, v, plain = self.rules.beam_size, self.vocab_size, beside.plain
        log_prob = plain.values.view(-1, k * v).gather(1, found.row * v + found.token)
        log_prob = log_prob - plain.norm.view(-1, k).gather(1, found.row)
        of_rows = [
            F.pad(part.view(-1, k), (0, found.score.size(1) - k))
            for part in (beside.cost, beside.place)
            if part is not None
        ]
        parts = [found.score, found.row, found.token, log_prob, *of_rows]
        host = torch.stack([part.double() for part in parts]).cpu()
        return as_columns(host, beside.cost is not None, beside.place is not None, k)


def as_columns(host: Tensor, has_costs: bool, has_places: bool, k: int) -> list[Found]:
    """score, row, token, log-probability; costs and places, if any (4 to 6, B, N): by sentence."""
    score, log_prob = host[0].tolist(), host[3].tolist()
    row, token = host[1:3].long().tolist()
    nothing = [None] * len(score)
    costs = host[4, :, :k].tolist() if has_costs else nothing
    places = host[-1, :, :k].long().tolist() if has_places else nothing
    return list(zip(map(Candidates, score, row, token, log_prob), costs, places))


def _tied_at_cut(score: list[float], n: int) -> bool:
    return len(score) > n and score[n - 1] == score[n] > -math.inf
