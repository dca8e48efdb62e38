"""Logits processors: the rules about the next token, applied to all rows at once.

A search applies its list of processors in order (`logits_processors`).  To add a rule, write its
class here and append it to the list; `-dump_beam` prints its `reason`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from onmt_lite.models.kernels import calls as kernels
from onmt_lite.search.context import StepContext
from onmt_lite.search.spec import NO_TOKEN, SearchSpec
from onmt_lite.search.topk import TokenScores

MANY = 1024  # tokens


class LogitsProcessor:
    """One rule about the next token.

    reason         why it forbids tokens, for -dump_beam; "" if it forbids none
    columns        the only tokens whose logits it changes; None: any
    needs_history  whether it reads the tokens of the rows
    """

    reason = ""
    columns: tuple[int, ...] | None = None
    needs_history = False

    def applies(self, context: StepContext) -> bool:
        """Return True if the rule concerns any row in this step."""
        return True

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        """Return new scores of the tokens; the logits given may be needed later, see `Mask`."""
        raise NotImplementedError


class Mask(LogitsProcessor):
    """A rule that forbids tokens: it writes -inf into the logits, in place.

    A forced token stays as it is, whatever the rules.
    """

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        forced = context.forced
        if forced is None:
            self.forbid(tokens, context)
            return tokens
        before = tokens.logits.gather(1, forced.columns)  # (R, 1)
        self.forbid(tokens, context)
        after = tokens.logits.gather(1, forced.columns)
        tokens.logits.scatter_(1, forced.columns, before.where(forced.tokens != NO_TOKEN, after))
        return tokens

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        """Write -inf into `tokens.logits` (R, V)."""
        raise NotImplementedError


def logits_processors(
    spec: SearchSpec, vocab_size: int, device: torch.device
) -> list[LogitsProcessor]:
    """Return the rules of a search, in order.

    Where masks act on logits (CTranslate2), `Renormalize` follows them, and only tokens that are
    banned after the softmax come later.
    """
    temperature = spec.sampling.temperature if spec.sampling else ""
    masks_logits = spec.policy.masks == "logits"
    banned = spec.banned_ids if masks_logits else spec.banned_ids + spec.banned_after_softmax
    penalty_on_logits = spec.policy.repetition == "logits"
    processors = [
        Temperature(spec.temperature) if temperature == "logits" else None,
        RepetitionPenalty(spec.repetition_penalty, penalty_on_logits)
        if spec.repetition_penalty != 1.0
        else None,
        MinLength(spec.eos_id),
        BannedTokens(banned, device) if banned else None,
        BannedPhrases(spec.banned_phrases, device) if spec.banned_phrases else None,
        PhraseConstraints(),
        NoRepeatNgram(spec, vocab_size, device) if spec.blocks_ngrams else None,
        Renormalize() if masks_logits else None,
        BannedTokens(spec.banned_after_softmax, device)
        if masks_logits and spec.banned_after_softmax
        else None,
        OnlyForced(spec.beam_groups > 1),
        Renormalize() if spec.renormalize else None,
        TemperatureOfLogProbs(spec.temperature) if temperature == "log_probs" else None,
    ]
    return [processor for processor in processors if processor is not None]


class Temperature(LogitsProcessor):
    """Divide logits by a temperature, and normalize again."""

    def __init__(self, temperature: float):
        self.temperature = temperature

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        logits = tokens.logits / self.temperature
        return replace(tokens, logits=logits, log_z=log_sum_exp(logits))


class TemperatureOfLogProbs(LogitsProcessor):
    """Divide log-probabilities by a temperature; they do not sum to one any more."""

    def __init__(self, temperature: float):
        self.temperature = temperature

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        logits, log_z = tokens.logits / self.temperature, tokens.log_z / self.temperature
        return replace(tokens, logits=logits, log_z=log_z)


class Renormalize(LogitsProcessor):
    """Let the tokens that are left share all the probability."""

    columns = ()

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        return replace(tokens, log_z=log_sum_exp(tokens.logits))


class RepetitionPenalty(LogitsProcessor):
    """Make tokens that a row contains less likely (Keskar et al. 2019)."""

    needs_history = True

    def __init__(self, penalty: float, on_logits: bool):
        self.penalty, self.on_logits = penalty, on_logits

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        logits, log_z, history = tokens.logits.clone(), tokens.log_z[:, None], context.history
        assert history is not None
        seen = history.clamp(min=0)  # (R, T)
        before = logits.gather(1, seen) - (0.0 if self.on_logits else log_z)  # (R, T)
        after = torch.where(before < 0, before * self.penalty, before / self.penalty)
        if not self.on_logits:
            after += log_z
        # Equal tokens get equal values, and a place without a token the one that it has
        lower = self.penalty > 1
        after = after.where(history >= 0, math.inf if lower else -math.inf)
        logits.scatter_reduce_(1, seen, after, "amin" if lower else "amax")
        if self.on_logits:
            return replace(tokens, logits=logits, log_z=log_sum_exp(logits))
        # transformers multiplies what diverse groups pay, too
        weight = torch.ones_like(logits)
        share = torch.full_like(after, self.penalty).where(history >= 0, 1.0)
        weight.scatter_reduce_(1, seen, share, "amax" if lower else "amin")
        return replace(tokens, logits=logits, diversity_weight=weight)


class MinLength(Mask):
    """Forbid EOS while a hypothesis is too short."""

    reason = "too early to end; min_length allows it from token {limits.min_eos_step} on"

    def __init__(self, eos_id: int):
        self.columns = (eos_id,)

    def applies(self, context: StepContext) -> bool:
        return context.too_early is not None

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        assert context.too_early is not None
        for column in self.columns or ():
            tokens.logits[:, column].masked_fill_(context.too_early, -math.inf)


class BannedTokens(Mask):
    """Forbid tokens everywhere."""

    reason = "this token is banned"

    def __init__(self, ids: Sequence[int], device: torch.device):
        self.columns = tuple(ids)
        self.ids = torch.tensor(self.columns, dtype=torch.long, device=device)

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        tokens.logits.index_fill_(1, self.ids, -math.inf)


class BannedPhrases(Mask):
    """Forbid the last token of each phrase after its other tokens.

    As in transformers, the first start token is none of these.
    """

    reason = "this token is banned"
    needs_history = True

    def __init__(self, phrases: Sequence[tuple[int, ...]], device: torch.device):
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for phrase in phrases:
            by_length.setdefault(len(phrase), []).append(phrase)
        self.phrases = [torch.tensor(p, device=device) for p in by_length.values()]  # (N, L) each

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        history = context.history
        assert history is not None
        for phrases in self.phrases:
            n = phrases.size(1)
            if history.size(1) < n:
                continue
            ending, first = history[:, history.size(1) - n + 1 :], history[:, -n]
            follows = (ending[:, None] == phrases[:, :-1]).all(2) & (first >= 0)[:, None]  # (R, N)
            forbid_where(tokens.logits, phrases[:, -1].expand_as(follows), follows)


class PhraseConstraints(Mask):
    """Follow the phrases that a sentence must or must not contain."""

    reason = "a phrase that is banned, or one that is forced, forbids it"

    def applies(self, context: StepContext) -> bool:
        return context.phrases is not None

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        assert context.phrases is not None
        context.phrases.forbid(tokens)


class NoRepeatNgram(Mask):
    """Forbid tokens that would repeat an n-gram, or rows that have repeated one.

    With `least_bad`, a sentence (or independent row) that has no other continuation may repeat.
    Worked example, n = 2: history [7 8 9 7] ends in 7; the window [7 8] starts with 7, so 8 would
    repeat.
    """

    needs_history = True

    def __init__(self, spec: SearchSpec, vocab_size: int, device: torch.device):
        self.n, self.by_row = spec.block_ngram_repeat, spec.policy.ngrams == "row"
        self.least_bad, self.beam_size = spec.policy.least_bad, spec.beam_size
        self.rows_apart = spec.sampling is not None and spec.sampling.draws == "rows"
        repeated = "a token" if self.n == 1 else f"{self.n} tokens in a row"
        self.reason = f"it would repeat {repeated} (block_ngram_repeat)"
        exempt = torch.zeros(vocab_size, dtype=torch.bool)  # (V,)
        exempt[list(spec.exempt_ids)] = True
        self.exempt = exempt.to(device)

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        logits, history, n = tokens.logits, context.history, self.n
        assert history is not None
        if history.size(1) < n + self.by_row:
            return
        windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
        counts = (windows[:, :, 0] >= 0) & ~self.exempt[windows.clamp(min=0)].any(2)  # (R, T-n+1)
        if self.by_row:  # the last n tokens have occurred before in this order
            ended = (windows[:, :-1] == windows[:, -1:]).all(2).any(1) & counts[:, -1]  # (R,)
            logits.masked_fill_(ended[:, None], -math.inf)
            return
        ending = history[:, history.size(1) - n + 1 :]  # (R, n-1): what the next token would extend
        repeats = (windows[:, :, :-1] == ending[:, None]).all(2) & counts  # (R, T-n+1)
        completing = windows[:, :, -1].clamp(min=0)  # (R, T-n+1): they complete the window again
        before = logits.gather(1, completing)
        forbid_where(logits, completing, repeats)
        if self.least_bad:
            alive = logits.amax(1) + context.scores.flatten() > -math.inf  # (R,)
            if not self.rows_apart:
                alive = alive.view(-1, self.beam_size).any(1).repeat_interleave(self.beam_size)
            back = before.where(repeats & ~alive[:, None], -math.inf)
            logits.scatter_reduce_(1, completing, back, "amax")


class OnlyForced(Mask):
    """Forbid all tokens but the forced one, in rows that have one."""

    reason = "another token is forced here: by the prefix or language of the line, or as its end"

    def __init__(self, has_groups: bool):
        self.has_groups = has_groups

    def applies(self, context: StepContext) -> bool:
        return context.forced is not None

    def __call__(self, tokens: TokenScores, context: StepContext) -> TokenScores:
        forced, weight = context.forced, tokens.diversity_weight
        assert forced is not None
        tokens = super().__call__(tokens, context)
        logit = tokens.logits.gather(1, forced.columns)[:, 0]  # (R,)
        is_possible = logit - tokens.log_z > -math.inf  # not for NaN, which must not be lost
        log_z = logit.where(forced.is_free & is_possible, tokens.log_z)
        if self.has_groups:  # nor does a group pay for agreeing with another
            share = torch.ones_like(tokens.logits) if weight is None else weight
            weight = share.masked_fill(forced.is_free[:, None], 0.0)  # (R, V)
        return TokenScores(tokens.logits, log_z, weight)

    def forbid(self, tokens: TokenScores, context: StepContext) -> None:
        assert context.forced is not None
        tokens.logits.masked_fill_(context.forced.tokens != NO_TOKEN, -math.inf)


def forbid_where(logits: Tensor, columns: Tensor, forbidden: Tensor) -> None:
    """Write -inf into the columns (R, N) of logits (R, V) where forbidden (R, N); columns may
    repeat."""
    values = torch.zeros_like(columns, dtype=logits.dtype)
    values = values.masked_fill_(forbidden, -math.inf).masked_fill_(~forbidden, math.inf)
    logits.scatter_reduce_(1, columns, values, "amin")


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return the log-sum-exp (..) of logits (.., V); finite for a row of -inf, which then stays.

    Few tokens are left to torch, to the last bit: scores of a small table tie.
    """
    rows = logits.flatten(0, -2).float()
    if rows.is_cpu and rows.size(1) >= MANY and kernels.kernels() is not None:
        return kernels.log_sums(rows).view(logits.shape[:-1])
    if rows.is_cpu and len(rows) == 1:  # a sum alone would be split among threads
        rows = rows.expand(2, -1)
    sums = rows.logsumexp(-1).clamp(min=torch.finfo(torch.float32).min)
    return sums[: logits[..., 0].numel()].view(logits.shape[:-1])
