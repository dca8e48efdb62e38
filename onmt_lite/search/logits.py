"""Logits processors: masks and penalties for the next token, applied to all rows at once.

To add a rule, write a class here and add it to the list in `build_logits_processors`.  `-dump_beam`
prints its `reason`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.search.context import StepContext
from onmt_lite.search.spec import NO_TOKEN, SearchSpec
from onmt_lite.search.topk import TokenScores

MIN_KERNEL_VOCAB = 1024  # tokens
MAX_GROWTH = 1e30  # beyond it, sums in float32 may overflow


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

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        """Return new scores of the tokens; the logits given may be needed later, see `Mask`."""
        raise NotImplementedError


class Mask(LogitsProcessor):
    """A rule that forbids tokens: it writes -inf into the logits, in place.

    A forced token stays as it is, whatever the rules.
    """

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        forced = context.forced
        if forced is None:
            self.forbid(token_scores, context)
            return token_scores
        before = token_scores.logits.gather(1, forced.columns)  # (R, 1)
        self.forbid(token_scores, context)
        after = token_scores.logits.gather(1, forced.columns)
        kept = before.where(forced.tokens != NO_TOKEN, after)
        token_scores.logits.scatter_(1, forced.columns, kept)
        return token_scores

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        """Write -inf into `token_scores.logits` (R, V)."""
        raise NotImplementedError


def build_logits_processors(
    spec: SearchSpec, vocab_size: int, device: torch.device
) -> list[LogitsProcessor]:
    """Return the rules of a search, in order.

    Where masks act on logits (CTranslate2), `Renormalize` follows them, and only tokens that are
    banned after the softmax come later.
    """
    rules, temperature = spec.token_rules, spec.sampling.temperature if spec.sampling else ""
    masks_logits = spec.policy.masks == "logits"
    n_source = rules.encoder_no_repeat_ngram_size
    banned = spec.banned_ids if masks_logits else spec.banned_ids + spec.banned_after_softmax
    banned_late = spec.banned_after_softmax if masks_logits else ()
    penalty, on_logits = spec.repetition_penalty, spec.policy.repetition == "logits"
    processors = [
        Temperature(spec.temperature, True) if temperature == "logits" else None,
        SequenceBias(spec, vocab_size, device) if rules.sequence_bias else None,
        RepetitionPenalty(penalty, on_logits) if penalty != 1.0 else None,
        MinLength(spec.eos_ids),
        BannedTokens(banned, device) if banned else None,
        BannedPhrases(spec, device) if rules.banned_phrases else None,
        SuppressAtBegin(rules.begin_suppress_tokens, device)
        if rules.begin_suppress_tokens
        else None,
        PhraseConstraints(),
        NoRepeatNgram(spec, vocab_size, device) if spec.blocks_ngrams else None,
        EncoderNoRepeatNgram(n_source) if n_source else None,
        Renormalize() if masks_logits else None,
        BannedTokens(banned_late, device) if banned_late else None,
        ForceTokens(spec.beam_groups > 1),
        ExponentialDecayLength(spec, device) if rules.exponential_decay_length_penalty else None,
        Renormalize() if rules.renormalize else None,
        Temperature(spec.temperature, False) if temperature == "log_probs" else None,
    ]
    return [processor for processor in processors if processor is not None]


class Temperature(LogitsProcessor):
    """Divide logits by a temperature and normalize again, or divide log-probabilities."""

    def __init__(self, temperature: float, on_logits: bool):
        self.temperature, self.on_logits = temperature, on_logits

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        logits = token_scores.logits / self.temperature
        log_z = log_sum_exp(logits) if self.on_logits else token_scores.log_z / self.temperature
        return replace(token_scores, logits=logits, log_z=log_z)


class Renormalize(LogitsProcessor):
    """Let the tokens that are left share all the probability."""

    columns = ()

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        return replace(token_scores, log_z=log_sum_exp(token_scores.logits))


class RepetitionPenalty(LogitsProcessor):
    """Make tokens that a row contains less likely (Keskar et al. 2019)."""

    needs_history = True

    def __init__(self, penalty: float, on_logits: bool):
        self.penalty, self.on_logits = penalty, on_logits

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        logits, log_z = token_scores.logits.clone(), token_scores.log_z[:, None]
        history = context.history
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
            return replace_logits(token_scores, logits, normalize=True)
        # transformers multiplies what diverse groups pay, too
        weight = torch.ones_like(logits)
        share = torch.full_like(after, self.penalty).where(history >= 0, 1.0)
        weight.scatter_reduce_(1, seen, share, "amax" if lower else "amin")
        return replace(token_scores, logits=logits, diversity_weight=weight)


class MinLength(Mask):
    """Forbid EOS while a hypothesis is too short."""

    reason = "too early to end; min_length allows it from token {limits.min_eos_step} on"

    def __init__(self, eos_ids: Sequence[int]):
        self.columns = tuple(eos_ids)

    def applies(self, context: StepContext) -> bool:
        return context.n_steps < max(slot.first_eos_step for slot in context.rows.slots)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        rows = context.rows
        too_early = rows.expand_to_rows(context.steps < rows.table.min_eos_step)  # (R,)
        for column in self.columns or ():
            token_scores.logits[:, column].masked_fill_(too_early, -math.inf)


class BannedTokens(Mask):
    """Forbid tokens everywhere."""

    reason = "this token is banned"

    def __init__(self, ids: Sequence[int], device: torch.device):
        self.columns = tuple(ids)
        self.ids = torch.tensor(self.columns, dtype=torch.long, device=device)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        token_scores.logits.index_fill_(1, self.ids, -math.inf)


class BannedPhrases(Mask):
    """Forbid the last token of each phrase after its other tokens."""

    reason = "this token is banned"
    needs_history = True

    def __init__(self, spec: SearchSpec, device: torch.device):
        self.see_start = spec.phrases_see_start
        self.phrases = group_by_length(
            [(phrase, -math.inf) for phrase in spec.token_rules.banned_phrases], device
        )

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        for phrases, _ in self.phrases:
            matches = match_phrases(context.history, phrases, self.see_start)  # (R, N)
            mask_columns(token_scores.logits, phrases[:, -1].expand_as(matches), matches)


class SequenceBias(LogitsProcessor):
    """Add the bias of each sequence to its last token after its other tokens."""

    def __init__(self, spec: SearchSpec, vocab_size: int, device: torch.device):
        self.see_start = spec.phrases_see_start
        self.on_logits = spec.policy.repetition == "logits"
        self.columns = tuple({tokens[-1] for tokens, _ in spec.token_rules.sequence_bias})
        always = torch.zeros(vocab_size)
        for tokens, bias in spec.token_rules.sequence_bias:
            if len(tokens) == 1:
                always[tokens[0]] = bias
        self.always = always.to(device)  # (V,)
        longer = [pair for pair in spec.token_rules.sequence_bias if len(pair[0]) > 1]
        self.longer = group_by_length(longer, device)
        self.needs_history = bool(self.longer)

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        logits = token_scores.logits + self.always  # (R, V)
        for phrases, biases in self.longer:
            matches = match_phrases(context.history, phrases, self.see_start)  # (R, N)
            logits.index_add_(1, phrases[:, -1], biases.where(matches, 0.0))
        return replace_logits(token_scores, logits, self.on_logits)


class SuppressAtBegin(Mask):
    """Forbid tokens as the first that a row may choose."""

    reason = "a translation must not begin with this token (begin_suppress_tokens)"

    def __init__(self, ids: Sequence[int], device: torch.device):
        self.columns = tuple(ids)
        self.ids = torch.tensor(self.columns, device=device)  # (N,)

    def applies(self, context: StepContext) -> bool:
        return any(slot.last_forced_step + 1 == context.n_steps for slot in context.rows.slots)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        first = context.steps == context.rows.table.n_prefix + 1  # (B, 1)
        is_first = context.rows.expand_to_rows(first)[:, None].expand(-1, len(self.ids))  # (R, N)
        mask_columns(token_scores.logits, self.ids.expand_as(is_first), is_first)


class EncoderNoRepeatNgram(Mask):
    """Forbid tokens that would complete an n-gram of the source."""

    needs_history = True

    def __init__(self, n: int):
        self.n = n
        copied = "a token" if n == 1 else f"{n} tokens in a row"
        self.reason = f"it would repeat {copied} of the source (encoder_no_repeat_ngram_size)"

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        source, history, n = context.rows.table.source, context.history, self.n
        assert source is not None
        if min(source.size(1), history.size(1) + 1) < n:
            return
        windows = source.unfold(1, n, 1)  # (B, W, n)
        windows = windows.repeat_interleave(len(history) // len(source), 0)  # (R, W, n)
        ending = history[:, history.size(1) - n + 1 :]  # (R, n-1): what the next token would extend
        repeats = (windows[:, :, :-1] == ending[:, None]).all(2) & (windows[:, :, -1] >= 0)
        mask_columns(token_scores.logits, windows[:, :, -1].clamp(min=0), repeats)  # (R, W)


class ExponentialDecayLength(LogitsProcessor):
    """Make the end more likely with each token beyond a length, exponentially."""

    def __init__(self, spec: SearchSpec, device: torch.device):
        assert spec.token_rules.exponential_decay_length_penalty is not None
        self.start, self.factor = spec.token_rules.exponential_decay_length_penalty
        self.n_counted_start, self.columns = spec.n_counted_start, spec.eos_ids
        self.on_logits = spec.policy.repetition == "logits"
        self.ids = torch.tensor(spec.eos_ids, device=device)  # (E,)

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        n_prefix = context.rows.table.n_prefix  # (B, 1)
        n_before = torch.where(n_prefix > 0, -n_prefix, self.n_counted_start)
        beyond = context.steps - 1 + n_before - self.start  # (B, 1)
        growth = torch.pow(self.factor, beyond.clamp(min=0)).clamp(max=MAX_GROWTH) - 1
        logits = token_scores.logits.clone()
        before = logits[:, self.ids]  # (R, E)
        values = before if self.on_logits else before - token_scores.log_z[:, None]
        more = values.abs() * context.rows.expand_to_rows(growth)[:, None]
        logits[:, self.ids] = before + more.masked_fill(values == -math.inf, 0.0)
        return replace_logits(token_scores, logits, self.on_logits)


class PhraseConstraints(Mask):
    """Follow the phrases that a sentence must or must not contain."""

    reason = "a phrase that is banned, or one that is forced, forbids it"

    def applies(self, context: StepContext) -> bool:
        return context.phrases is not None

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        assert context.phrases is not None
        context.phrases.forbid(token_scores)


class NoRepeatNgram(Mask):
    """Forbid tokens that would repeat an n-gram, or rows that have repeated one.

    With `allow_repeat_if_stuck`, a sentence (or independent row) without other continuations may
    repeat.
    Worked example, n = 2: history [7 8 9 7] ends in 7; the window [7 8] starts with 7, so 8 would
    repeat.
    """

    needs_history = True

    def __init__(self, spec: SearchSpec, vocab_size: int, device: torch.device):
        self.n, self.by_row = spec.block_ngram_repeat, spec.policy.ngrams == "row"
        self.allow_repeat_if_stuck, self.beam_size = (
            spec.policy.allow_repeat_if_stuck,
            spec.beam_size,
        )
        self.rows_apart = spec.sampling is not None and spec.sampling.mode == "rows"
        repeated = "a token" if self.n == 1 else f"{self.n} tokens in a row"
        self.reason = f"it would repeat {repeated} (block_ngram_repeat)"
        exempt = torch.zeros(vocab_size, dtype=torch.bool)  # (V,)
        exempt[list(spec.exempt_ids)] = True
        self.exempt = exempt.to(device)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        logits, history, n = token_scores.logits, context.history, self.n
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
        mask_columns(logits, completing, repeats)
        if self.allow_repeat_if_stuck:
            alive = logits.amax(1) + context.scores.flatten() > -math.inf  # (R,)
            if not self.rows_apart:
                alive = alive.view(-1, self.beam_size).any(1).repeat_interleave(self.beam_size)
            back = before.where(repeats & ~alive[:, None], -math.inf)
            logits.scatter_reduce_(1, completing, back, "amax")


class ForceTokens(Mask):
    """Forbid all tokens but the forced one, in rows that have one."""

    reason = "another token is forced here: by the prefix or language of the line, or as its end"

    def __init__(self, has_groups: bool):
        self.has_groups = has_groups

    def applies(self, context: StepContext) -> bool:
        return context.forced is not None

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        forced, weight = context.forced, token_scores.diversity_weight
        assert forced is not None
        token_scores = super().__call__(token_scores, context)
        logit = token_scores.logits.gather(1, forced.columns)[:, 0]  # (R,)
        is_possible = logit - token_scores.log_z > -math.inf  # not for NaN, which must not be lost
        log_z = logit.where(forced.is_free & is_possible, token_scores.log_z)
        if self.has_groups:  # nor does a group pay for agreeing with another
            share = torch.ones_like(token_scores.logits) if weight is None else weight
            weight = share.masked_fill(forced.is_free[:, None], 0.0)  # (R, V)
        return TokenScores(token_scores.logits, log_z, weight)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        assert context.forced is not None
        token_scores.logits.masked_fill_(context.forced.tokens != NO_TOKEN, -math.inf)


def group_by_length(
    biases: Sequence[tuple[tuple[int, ...], float]], device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Group sequences of tokens by length: (N, L), and their biases (N,)."""
    groups: dict[int, list[tuple[tuple[int, ...], float]]] = {}
    for phrase, bias in biases:
        groups.setdefault(len(phrase), []).append((phrase, bias))
    pairs = ([*zip(*group)] for group in groups.values())
    return [(torch.tensor(p, device=device), torch.tensor(b, device=device)) for p, b in pairs]


def match_phrases(history: Tensor, phrases: Tensor, see_start: bool) -> Tensor:
    """Return whether a history (R, T) ends with all but the last token of phrases (N, L): (R, N).

    The first start token is part of no phrase unless phrases may `see_start`.
    """
    n = phrases.size(1) - 1
    if history.size(1) < n + (not see_start):
        return history.new_zeros(len(history), len(phrases), dtype=torch.bool)
    matches = (history[:, None, history.size(1) - n :] == phrases[:, :-1]).all(2)
    return matches if see_start else matches & (history[:, -n - 1] >= 0)[:, None]


def replace_logits(token_scores: TokenScores, logits: Tensor, normalize: bool) -> TokenScores:
    """Return scores with other logits (R, V), whose probabilities sum to 1 if `normalize`."""
    log_z = log_sum_exp(logits) if normalize else token_scores.log_z
    return replace(token_scores, logits=logits, log_z=log_z)


def mask_columns(logits: Tensor, columns: Tensor, forbidden: Tensor) -> None:
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
    if rows.is_cpu and rows.size(1) >= MIN_KERNEL_VOCAB and kernels.get_library() is not None:
        return kernels.logsumexp(rows).view(logits.shape[:-1])
    if rows.is_cpu and len(rows) == 1:  # a sum alone would be split among threads
        rows = rows.expand(2, -1)
    sums = rows.logsumexp(-1).clamp(min=torch.finfo(torch.float32).min)
    return sums[: logits[..., 0].numel()].view(logits.shape[:-1])
