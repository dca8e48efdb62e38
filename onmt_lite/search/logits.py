"""What each token of a row counts before anything is ranked, on all rows at once: masks, repeated
n-grams, penalties, and the log-probabilities of targets that are known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import AnyModel, Heads, Sums
from onmt_lite.models.kernels import calls as kernels
from onmt_lite.search.constraints import Held
from onmt_lite.search.spec import NO_TOKEN, Plan
from onmt_lite.search.topk import Scored

MANY = 1024  # tokens
TINY = torch.finfo(torch.float32).tiny
FORCED = "the last step allows the end alone"  # unless the line has a prefix here


@dataclass(frozen=True)
class Forced:
    """The only token that a row may take: a given one, or the end token at the last step."""

    tokens: Tensor  # (R, 1); NO_TOKEN: the row is free to choose
    costless: Tensor  # (R,): the token counts 0, unless the model itself forbids it

    @property
    def places(self) -> Tensor:
        """Columns of the tokens (R, 1); any column for rows that are free."""
        return self.tokens.clamp(min=0)


@dataclass(frozen=True)
class StepRules:
    """Rules of one step; None if a rule concerns no row."""

    too_early: Tensor | None = None  # (R,): the end token may not follow yet
    forced: Forced | None = None
    held: Held | None = None  # phrases that must or must not follow


@dataclass
class Watched:
    """Inputs of the last top-k, kept only when a search is traced."""

    logits: Tensor  # (R, V): the model's own, before any mask
    norm: Tensor  # (R,): of these
    scored: Scored  # what was ranked
    scores: Tensor  # (B, K): of the rows that were continued
    attn: Tensor  # (R, S): of these rows
    # What -dump_beam says of each rule, {limits} being the sentence's, and the tokens masked after
    # it (R, W); rules in order, but first that of forced tokens
    masked: list[tuple[str, Tensor]]


class Masks:
    """Applies the rules of a plan about single tokens."""

    def __init__(self, plan: Plan, vocab_size: int, device: torch.device):
        self.plan = plan
        self.masked: list[tuple[str, Tensor]] = []  # see `Watched`
        # If masks act on logits, banned tokens leave their probability to the others
        on_logits = plan.policy.masks == "logits"
        banned = plan.banned_ids if on_logits else plan.banned_ids + plan.never_ids

        def ids(numbers: tuple[int, ...]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.long, device=device)

        self.banned = ids(banned) if banned else None
        self.never = ids(plan.never_ids) if on_logits and plan.never_ids else None
        self.blocks_ngrams = plan.block_ngram_repeat > (0 if plan.policy.ngrams_of_one else 1)
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for phrase in plan.banned_phrases:
            by_length.setdefault(len(phrase), []).append(phrase)
        self.phrases = [torch.tensor(p, device=device) for p in by_length.values()]  # (N, L) each
        self.needs_history = (
            self.blocks_ngrams or plan.repetition_penalty != 1.0 or bool(self.phrases)
        )
        if self.blocks_ngrams:
            exempt = torch.zeros(vocab_size, dtype=torch.bool)  # (V,)
            exempt[list(plan.exempt_ids)] = True
            self.exempt = exempt.to(device)
        # Whether a value that is not -inf is the model's own logit
        self.keeps_values = plan.repetition_penalty == 1.0
        if plan.sampling:
            self.keeps_values &= plan.sampling.temperature != "logits"
        # Whether no rule but those of phrases and forced tokens touches other columns than these
        self.only_columns = self.keeps_values and not self.needs_history and not plan.sampling
        self.columns = sorted({plan.eos_id, *plan.banned_ids, *plan.never_ids})
        # Whether it counts as the model's own log-probability, unless it is forced
        self.keeps_log_probs = (
            self.keeps_values
            and not (on_logits or plan.renormalizes or plan.sampling)
            and plan.beam_groups == 1
        )

    def score(
        self,
        logits: Tensor,
        scores: Tensor,
        history: Tensor,
        rules: StepRules,
        sums: Sums | None = None,
    ) -> tuple[Scored, Tensor]:
        """Return what tokens count, and the model's own normaliser (R,).

        logits (R, V): overwritten; scores (R,): of the rows, -inf if there is no such row;
        history (R, T): tokens of the rows, newest last, NO_TOKEN before the first; sums: of these
        logits, if the model has made them.
        """
        plan, temperature = self.plan, self.plan.sampling and self.plan.sampling.temperature
        if not plan.sums_to_one:
            plain_norm = torch.zeros_like(logits[:, 0])
        else:
            plain_norm = normaliser(logits) if sums is None else sums.norm
        values, norm, slope = logits, plain_norm, None  # (R, W), (R,)
        if self.needs_history:  # scattered writes without effect go to a spare column
            values = F.pad(logits, (0, 1), value=-math.inf)  # (R, V + 1)
        elif not self.keeps_values:  # the model's own are read later
            values = logits.clone()
        if temperature == "logits":
            values /= plan.temperature
            norm = normaliser(values)
        if plan.repetition_penalty != 1.0:
            values, norm, slope = self._repel(values, norm, history)
        before = values.gather(1, rules.forced.places) if rules.forced else None  # (R, 1)
        self._forbid(values, plain_norm, scores, history, rules)
        if plan.policy.masks == "logits":
            norm = normaliser(values)
        if self.never is not None:
            values.index_fill_(1, self.never, -math.inf)
            self._note("this token is banned", values)
        single = self.only_columns and rules.held is None and rules.forced is None
        scored = Scored(values, norm, slope, sums.maxima if sums and single else None)
        if rules.forced is not None and before is not None:
            scored = self._force(scored, rules.forced, before)
        if plan.renormalizes:
            scored = replace(scored, norm=normaliser(scored.values))
        if temperature == "log_probs":
            values, norm = scored.values / plan.temperature, scored.norm / plan.temperature
            scored = Scored(values, norm, scored.slope)
        return scored, plain_norm

    def _forbid(
        self, values: Tensor, norm: Tensor, scores: Tensor, history: Tensor, rules: StepRules
    ) -> None:
        """Write -inf into values (R, W) of tokens that may not follow."""
        self.masked = []
        self._note("a rule of the options or the model forbids it", values)
        if rules.too_early is not None:
            values[:, self.plan.eos_id].masked_fill_(rules.too_early, -math.inf)
            early = "too early to end; min_length allows it from token {limits.min_end} on"
            self._note(early, values)
        if self.banned is not None:
            values.index_fill_(1, self.banned, -math.inf)
        for phrases in self.phrases:
            self._ban_last(values, history, phrases)
        if self.banned is not None or self.phrases:
            self._note("this token is banned", values)
        if rules.held is not None:
            rules.held.forbid(values, norm)
            self._note("a phrase that is banned, or one that is forced, forbids it", values)
        if self.blocks_ngrams:  # last: is anything else left?
            self._block_ngrams(values, scores, history)
            n = self.plan.block_ngram_repeat
            repeated = "a token" if n == 1 else f"{n} tokens in a row"
            self._note(f"it would repeat {repeated} (block_ngram_repeat)", values)

    def _ban_last(self, values: Tensor, history: Tensor, phrases: Tensor) -> None:
        """Forbid the last token of each phrase (N, L) after the others.

        As in transformers, the first start token is none of these.
        """
        n = phrases.size(1)
        if history.size(1) < n:
            return
        ending, before = history[:, history.size(1) - n + 1 :], history[:, -n]  # (R, L-1), (R,)
        follows = (ending[:, None] == phrases[:, :-1]).all(2) & (before >= 0)[:, None]  # (R, N)
        spare = values.size(1) - 1
        values.scatter_(1, phrases[:, -1].where(follows, spare), -math.inf)

    def _note(self, why: str, values: Tensor) -> None:
        if self.plan.watched:
            self.masked.append((why, values == -math.inf))

    def _force(self, scored: Scored, forced: Forced, before: Tensor) -> Scored:
        """Forbid all but the forced tokens, with their values (R, 1) from before other rules."""
        values, norm, slope = scored.values, scored.norm, scored.slope
        is_forced = forced.tokens != NO_TOKEN  # (R, 1)
        new = before.where(is_forced, values.gather(1, forced.places))  # (R, 1)
        values.masked_fill_(is_forced, -math.inf)
        values.scatter_(1, forced.places, new)
        if self.plan.watched:
            self.masked.insert(0, (FORCED, is_forced & (values == -math.inf)))
        before = before[:, 0]
        is_possible = before - norm > -math.inf  # not for NaN, which must not be lost
        norm = before.where(forced.costless & is_possible, norm)  # (R,)
        if self.plan.beam_groups > 1:  # nor does a group pay for agreeing with another
            share = torch.ones_like(values) if slope is None else slope
            slope = share.masked_fill(forced.costless[:, None], 0.0)  # (R, W)
        return Scored(values, norm, slope)

    def _repel(
        self, values: Tensor, norm: Tensor, history: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Make tokens that a row holds less likely (Keskar et al. 2019)."""
        held = history.where(history >= 0, values.size(1) - 1)  # (R, T); a spare column
        on_logits, penalty = self.plan.policy.repetition == "logits", self.plan.repetition_penalty
        base = torch.zeros_like(norm) if on_logits else norm
        counts = values.gather(1, held) - base[:, None]  # (R, T)
        counts = torch.where(counts < 0, counts * penalty, counts / penalty) + base[:, None]
        values.scatter_(1, held, counts)
        if on_logits:
            return values, normaliser(values), None
        # transformers multiplies what diverse groups pay, too
        return values, norm, torch.ones_like(values).scatter_(1, held, penalty)

    def _block_ngrams(self, values: Tensor, scores: Tensor, history: Tensor) -> None:
        """Forbid tokens that would repeat an n-gram, or rows that have repeated one.

        With `least_bad`, a sentence (or chain) that has no other continuation may repeat.
        Worked example, n = 2: history [7 8 9 7] ends in 7; the window [7 8] starts with 7, so 8
        would repeat.
        """
        plan, n, by_row = self.plan, self.plan.block_ngram_repeat, self.plan.policy.ngrams == "row"
        if history.size(1) < n + by_row:
            return
        windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
        counts = (windows[:, :, 0] >= 0) & ~self.exempt[windows.clamp(min=0)].any(2)  # (R, T-n+1)
        if by_row:  # the last n tokens have occurred before in this order
            ended = (windows[:, :-1] == windows[:, -1:]).all(2).any(1) & counts[:, -1]  # (R,)
            values.masked_fill_(ended[:, None], -math.inf)
            return
        ending = history[:, history.size(1) - n + 1 :]  # (R, n-1): what the next token would extend
        repeats = (windows[:, :, :-1] == ending[:, None]).all(2) & counts  # (R, T-n+1)
        tokens = windows[:, :, -1].clamp(min=0)  # (R, T-n+1): they would complete the window again
        before = values.gather(1, tokens)
        spare = values.size(1) - 1
        values.scatter_(1, tokens.where(repeats, spare), -math.inf)
        if plan.policy.least_bad:
            alive = values.amax(1) + scores > -math.inf  # (R,)
            if not plan.chains:
                alive = alive.view(-1, plan.beam_size).any(1).repeat_interleave(plan.beam_size)
            back = repeats & ~alive[:, None]
            values.scatter_(1, tokens.where(back, spare), before.where(back, -math.inf))


def coverage_penalty(plan: Plan, coverage: Tensor, src_length: Tensor) -> Tensor:
    """The penalty of each row (R,) for the attention that source tokens have received.

    coverage (R, S): sum over the steps; src_length (R, 1).  `wu` is the coverage penalty of Wu et
    al. 2016, `summary` that of Gehrmann et al. 2018.  A token that received no attention at all
    costs a large finite amount instead of an infinite one, or nothing under CTranslate2.
    """
    inside = torch.arange(coverage.size(1), device=coverage.device) < src_length  # (R, S)
    if plan.coverage_penalty == "wu":
        per_token = -coverage.clamp(TINY, 1.0).log()  # (R, S)
        if plan.policy.skips_unattended:
            per_token = per_token * (coverage > 0)
    else:
        per_token = coverage.clamp(min=1.0) - 1.0  # (R, S)
    return plan.beta * (per_token * inside.float()).sum(1)


def most_attended(attn: Tensor, src_length: Tensor, margins: tuple[int, int]) -> Tensor:
    """The source token that each row attends to most (R,), margins aside.

    attn (R, S), src_length (R, 1)
    """
    before, after = margins
    place = torch.arange(attn.size(1), device=attn.device)  # (S,)
    outside = (place < before) | (place >= src_length - after)  # (R, S)
    return attn.masked_fill(outside, -1.0).argmax(1)


def normaliser(logits: Tensor) -> Tensor:
    """Logits (.., V) -> (..) logsumexp; finite for a row of -inf, which then stays at -inf.

    Few tokens are left to torch, to the last bit: scores of a small table tie.
    """
    rows = logits.flatten(0, -2).float()
    if rows.is_cpu and rows.size(1) >= MANY and kernels.kernels() is not None:
        return kernels.log_sums(rows).view(logits.shape[:-1])
    if rows.is_cpu and len(rows) == 1:  # a sum alone would be split among threads
        rows = rows.expand(2, -1)
    sums = rows.logsumexp(-1).clamp(min=torch.finfo(torch.float32).min)
    return sums[: logits[..., 0].numel()].view(logits.shape[:-1])


@torch.inference_mode()
def score_targets(
    model: AnyModel,
    src: Tensor,
    src_lengths: Tensor,
    targets: list[list[int]],
    starts: Sequence[Sequence[int]],
    eos_id: int,
    sums_to_one: bool = True,
    ids: Tensor | None = None,
    at_once: float = math.inf,
) -> list[list[float]]:
    """For each target the log-probabilities of its tokens and of the end token after them.

    starts: tokens that the decoder reads before each target, all of one length.
    sums_to_one: the model returns logits; False: log-probabilities that are not normalised again.
    ids (B, S): for a model that copies, see `onmt_lite.models.base.EncoderDecoder`.
    at_once: if there are more logits (B * T * V), they are computed one position at a time.
    """
    read, out, before = _fed(targets, starts, eos_id, src.device)  # (B, N + T), (B, T)
    memory = model.encode(src, src_lengths, ids)
    if out.numel() * model.vocab_size <= at_once:
        log_probs = _chosen(model.forward(memory, read)[:, before:], out, sums_to_one)
    else:
        state = model.init_state(memory)
        for tokens in read[:, :before].unbind(1):
            model.step(tokens, state)
        steps = (model.step(tokens, state)[0] for tokens in read[:, before:].unbind(1))
        chosen = [_chosen(logits, ids, sums_to_one) for logits, ids in zip(steps, out.unbind(1))]
        log_probs = torch.stack(chosen, 1)
    return [row[: len(target) + 1] for row, target in zip(log_probs.tolist(), targets)]


@torch.inference_mode()
def attend_targets(
    model: AnyModel,
    src: Tensor,
    src_lengths: Tensor,
    targets: list[list[int]],
    starts: Sequence[Sequence[int]],
    eos_id: int,
    heads: Heads,
    ids: Tensor | None = None,
) -> list[Tensor]:
    """For each target, the attention to its source (T + 1, S) from its T tokens and the end token
    after them; on the host.  Arguments as above."""
    read, _, before = _fed(targets, starts, eos_id, src.device)
    weights = model.attention(model.encode(src, src_lengths, ids), read, heads)[:, before:].cpu()
    sizes = zip(map(len, targets), src_lengths.tolist())
    return [own[: t + 1, :s].clone() for own, (t, s) in zip(weights, sizes)]


def _fed(
    targets: list[list[int]], starts: Sequence[Sequence[int]], eos_id: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Decoder input (B, N + T), the tokens that follow its last T positions (B, T), and N: the
    number of tokens before the first position that counts."""
    width = max(map(len, targets)) + 1
    padding = [[eos_id] * (width - len(target)) for target in targets]
    out = torch.tensor([t + p for t, p in zip(targets, padding)], device=device)
    start = torch.tensor(starts, device=device)
    return torch.cat([start, out[:, :-1]], 1), out, start.size(1) - 1


def _chosen(logits: Tensor, tokens: Tensor, sums_to_one: bool) -> Tensor:
    """logits (.., V), tokens (..) -> the log-probability of each token (..)."""
    logits = logits.float()
    chosen = logits.gather(-1, tokens[..., None])[..., 0]
    return chosen - normaliser(logits) if sums_to_one else chosen
