"""Logits processors: masks and penalties for the next token, applied to all rows at once.

A processor receives the scores (R, V) and the `StepContext` of a step.  To add one, write a class
here (a `Mask` if it only forbids tokens, a `TokenMask` if these are always the same) and add it to
the list in `build_logits_processors`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from onmt_lite.models.kernels import bindings as kernels
from onmt_lite.search.context import StepContext
from onmt_lite.search.processor import LogitsProcessor, Mask, TokenMask, mask_columns
from onmt_lite.search.spec import NO_TOKEN, SearchSpec
from onmt_lite.search.topk import TokenScores

MIN_KERNEL_VOCAB = 1024  # tokens
MAX_GROWTH = 1e30  # larger factors may overflow in float32 sums


def build_logits_processors(
    spec: SearchSpec, vocab_size: int, device: torch.device
) -> list[LogitsProcessor]:
    """Return the logits processors of a search, in order.

    If masks apply to logits (CTranslate2), `Renormalize` follows them, and only tokens that are
    banned after the softmax come later.

    Args:
        spec: the search spec.
        vocab_size: V.
        device: the model's device.
    """
    rules, temperature = spec.token_rules, spec.sampling.temperature if spec.sampling else ""
    masks_logits = spec.policy.masks == "logits"
    begin, n_source = rules.begin_suppress_tokens, rules.encoder_no_repeat_ngram_size
    banned = spec.banned_ids if masks_logits else spec.banned_ids + spec.banned_after_softmax
    banned_late = spec.banned_after_softmax if masks_logits else ()
    penalty, on_logits = spec.repetition_penalty, spec.policy.repetition == "logits"
    processors = [
        Temperature(spec.temperature, True) if temperature == "logits" else None,
        SequenceBias(spec, vocab_size, device) if rules.sequence_bias else None,
        RepetitionPenalty(penalty, on_logits) if penalty != 1.0 else None,
        MinLength(spec.eos_ids, device),
        BannedTokens(banned, device) if banned else None,
        BannedPhrases(spec, device) if rules.banned_phrases else None,
        SuppressAtBegin(begin, device) if begin else None,
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
    """Temperature scaling of logits, followed by a log-softmax, or of log-probabilities."""

    def __init__(self, temperature: float, on_logits: bool):
        self.temperature, self.on_logits = temperature, on_logits

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        logits = token_scores.logits / self.temperature  # (R, V)
        log_z = log_sum_exp(logits) if self.on_logits else token_scores.log_z / self.temperature
        return replace(token_scores, logits=logits, log_z=log_z)


class Renormalize(LogitsProcessor):
    """Log-softmax over the tokens that are not masked."""

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        return replace(token_scores, log_z=log_sum_exp(token_scores.logits))


class RepetitionPenalty(LogitsProcessor):
    """Penalty on tokens that a row already contains (CTRL, Keskar et al. 2019)."""

    needs_history = True

    def __init__(self, penalty: float, on_logits: bool):
        self.penalty, self.on_logits = penalty, on_logits

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        logits, log_z = token_scores.logits.clone(), token_scores.log_z[:, None]  # (R, V), (R, 1)
        history = context.history
        seen = history.clamp(min=0)  # (R, T)
        before = logits.gather(1, seen) - (0.0 if self.on_logits else log_z)  # (R, T)
        after = torch.where(before < 0, before * self.penalty, before / self.penalty)  # (R, T)
        if not self.on_logits:
            after += log_z
        # Duplicates of a token write the same value; padding keeps the token's logit
        lower = self.penalty > 1
        after = after.where(history >= 0, math.inf if lower else -math.inf)  # (R, T)
        logits.scatter_reduce_(1, seen, after, "amin" if lower else "amax")
        if self.on_logits:
            return replace_logits(token_scores, logits, normalize=True)
        # transformers also applies the factor to the diversity penalty
        weight = torch.ones_like(logits)  # (R, V)
        factor = torch.full_like(after, self.penalty).where(history >= 0, 1.0)  # (R, T)
        weight.scatter_reduce_(1, seen, factor, "amax" if lower else "amin")
        return replace(token_scores, logits=logits, diversity_weight=weight)


class MinLength(TokenMask):
    """Mask on EOS until the minimum length."""

    reason = "EOS before the minimum length (min_length allows it from token {limits.min_eos_step})"

    def applies(self, context: StepContext) -> bool:
        return context.n_steps < max(slot.first_eos_step for slot in context.rows.slots)

    def find_rows(self, context: StepContext) -> Tensor:
        return context.sentence_steps < context.rows.table.min_eos_step


class BannedTokens(TokenMask):
    """Mask on tokens in every position."""

    reason = "this token is banned"


class BannedPhrases(Mask):
    """Mask on the last token of each phrase right after its other tokens (bad_words_ids)."""

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
    """Bias on the last token of each sequence right after its other tokens (sequence_bias).

    Args: as for `build_logits_processors`.
    """

    def __init__(self, spec: SearchSpec, vocab_size: int, device: torch.device):
        self.see_start = spec.phrases_see_start
        self.on_logits = spec.policy.repetition == "logits"
        always = torch.zeros(vocab_size)  # (V,)
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


class SuppressAtBegin(TokenMask):
    """Mask on tokens in the first position that is not forced (begin_suppress_tokens)."""

    reason = "a translation must not begin with this token (begin_suppress_tokens)"

    def applies(self, context: StepContext) -> bool:
        return any(slot.last_forced_step + 1 == context.n_steps for slot in context.rows.slots)

    def find_rows(self, context: StepContext) -> Tensor:
        return context.sentence_steps == context.rows.table.n_prefix + 1


class EncoderNoRepeatNgram(Mask):
    """Mask on tokens that complete an n-gram of the source (encoder_no_repeat_ngram_size)."""

    needs_history = True

    def __init__(self, n: int):
        self.n = n
        ngram = "a token" if n == 1 else f"a {n}-gram"
        self.reason = f"it would repeat {ngram} of the source (encoder_no_repeat_ngram_size)"

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        source, history, n = context.rows.table.source, context.history, self.n
        assert source is not None
        if min(source.size(1), history.size(1) + 1) < n:
            return
        windows = source.unfold(1, n, 1)  # (B, W, n)
        windows = windows.repeat_interleave(len(history) // len(source), 0)  # (R, W, n)
        suffix = history[:, history.size(1) - n + 1 :]  # (R, n-1)
        completing = windows[:, :, -1]  # (R, W) tokens that complete a window
        repeats = (windows[:, :, :-1] == suffix[:, None]).all(2) & (completing >= 0)  # (R, W)
        mask_columns(token_scores.logits, completing.clamp(min=0), repeats)


class ExponentialDecayLength(LogitsProcessor):
    """Exponential boost of EOS beyond a length (exponential_decay_length_penalty)."""

    def __init__(self, spec: SearchSpec, device: torch.device):
        assert spec.token_rules.exponential_decay_length_penalty is not None
        self.start, self.factor = spec.token_rules.exponential_decay_length_penalty
        self.n_counted_start = spec.n_counted_start
        self.on_logits = spec.policy.repetition == "logits"
        self.ids = torch.tensor(spec.eos_ids, device=device)  # (E,)

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        n_prefix = context.rows.table.n_prefix  # (B, 1)
        n_before = torch.where(n_prefix > 0, -n_prefix, self.n_counted_start)  # (B, 1)
        beyond = context.sentence_steps - 1 + n_before - self.start  # (B, 1)
        growth = torch.pow(self.factor, beyond.clamp(min=0)).clamp(max=MAX_GROWTH) - 1  # (B, 1)
        logits = token_scores.logits.clone()  # (R, V)
        before = logits[:, self.ids]  # (R, E)
        values = before if self.on_logits else before - token_scores.log_z[:, None]  # (R, E)
        increase = values.abs() * context.rows.expand_to_rows(growth)[:, None]  # (R, E)
        logits[:, self.ids] = before + increase.masked_fill(values == -math.inf, 0.0)
        return replace_logits(token_scores, logits, self.on_logits)


class PhraseConstraints(Mask):
    """Masks of -force_words and -ban_words, see `onmt_lite.search.constraints`."""

    reason = "excluded by force_words or ban_words"

    def applies(self, context: StepContext) -> bool:
        return context.phrases is not None

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        assert context.phrases is not None
        context.phrases.forbid(token_scores)


class NoRepeatNgram(Mask):
    """Mask on tokens that would repeat an n-gram, or on rows that have repeated one.

    OpenNMT-py of 2018 drops a row one step after the repetition; all later systems mask the token.
    Worked example with n = 2: the history [7 8 9 7] ends with 7, and the window [7 8] starts with
    7, so 8 is masked.

    With `Policy.allow_repeat_if_stuck`, n-grams may repeat if a sentence (or a row, if rows are
    independent samples) has no other continuation.

    Args: as for `build_logits_processors`.
    """

    needs_history = True

    def __init__(self, spec: SearchSpec, vocab_size: int, device: torch.device):
        self.n, self.by_row = spec.block_ngram_repeat, spec.policy.ngrams == "row"
        self.allow_repeat_if_stuck = spec.policy.allow_repeat_if_stuck
        self.beam_size = spec.beam_size
        self.has_independent_rows = spec.sampling is not None and spec.sampling.mode == "rows"
        ngram = "a token" if self.n == 1 else f"a {self.n}-gram"
        self.reason = f"it would repeat {ngram} (block_ngram_repeat)"
        exempt = torch.zeros(vocab_size, dtype=torch.bool)  # (V,)
        exempt[list(spec.exempt_ids)] = True
        self.exempt = exempt.to(device)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        logits, history, n = token_scores.logits, context.history, self.n
        if history.size(1) < n + self.by_row:
            return
        windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
        is_exempt = self.exempt[windows.clamp(min=0)].any(2)  # (R, T-n+1)
        is_counted = (windows[:, :, 0] >= 0) & ~is_exempt  # (R, T-n+1)
        if self.by_row:  # the last n tokens repeat an earlier window
            repeats = (windows[:, :-1] == windows[:, -1:]).all(2).any(1)  # (R,)
            logits.masked_fill_((repeats & is_counted[:, -1])[:, None], -math.inf)
            return
        suffix = history[:, history.size(1) - n + 1 :]  # (R, n-1)
        repeats = (windows[:, :, :-1] == suffix[:, None]).all(2) & is_counted  # (R, T-n+1)
        completing = windows[:, :, -1].clamp(min=0)  # (R, T-n+1) tokens that complete a window
        before = logits.gather(1, completing)  # (R, T-n+1)
        mask_columns(logits, completing, repeats)
        if self.allow_repeat_if_stuck:
            alive = logits.amax(1) + context.scores.flatten() > -math.inf  # (R,)
            if not self.has_independent_rows:
                alive = alive.view(-1, self.beam_size).any(1)  # (B,)
                alive = alive.repeat_interleave(self.beam_size)  # (R,)
            restored = before.where(repeats & ~alive[:, None], -math.inf)  # (R, T-n+1)
            logits.scatter_reduce_(1, completing, restored, "amax")


class ForceTokens(Mask):
    """Mask on all tokens except the forced one, in rows that have a forced token."""

    reason = "another token is forced here: prefix, language tag, or EOS at the limit"

    def __init__(self, has_groups: bool):
        self.has_groups = has_groups

    def applies(self, context: StepContext) -> bool:
        return context.forced is not None

    def __call__(self, token_scores: TokenScores, context: StepContext) -> TokenScores:
        forced, weight = context.forced, token_scores.diversity_weight
        assert forced is not None
        token_scores = super().__call__(token_scores, context)
        logit = token_scores.logits.gather(1, forced.columns)[:, 0]  # (R,)
        # False for NaN, so that NaN reaches the host
        is_possible = logit - token_scores.log_z > -math.inf  # (R,)
        log_z = logit.where(forced.is_free & is_possible, token_scores.log_z)  # (R,)
        if self.has_groups:  # free tokens have no diversity penalty
            factor = torch.ones_like(token_scores.logits) if weight is None else weight
            weight = factor.masked_fill(forced.is_free[:, None], 0.0)  # (R, V)
        return TokenScores(token_scores.logits, log_z, weight)

    def forbid(self, token_scores: TokenScores, context: StepContext) -> None:
        assert context.forced is not None
        token_scores.logits.masked_fill_(context.forced.tokens != NO_TOKEN, -math.inf)


def group_by_length(
    biases: Sequence[tuple[tuple[int, ...], float]], device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Group sequences by length L and return tokens (N, L) and biases (N,) of each group."""
    groups: dict[int, list[tuple[tuple[int, ...], float]]] = {}
    for phrase, bias in biases:
        groups.setdefault(len(phrase), []).append((phrase, bias))
    pairs = ([*zip(*group)] for group in groups.values())
    return [(torch.tensor(p, device=device), torch.tensor(b, device=device)) for p, b in pairs]


def match_phrases(history: Tensor, phrases: Tensor, see_start: bool) -> Tensor:
    """Return a mask (R, N): True if a row ends with all but the last token of a phrase.

    Args:
        history: (R, T) tokens of the rows.
        phrases: (N, L) sequences of tokens.
        see_start: True if the match may include the first start token.
    """
    n = phrases.size(1) - 1
    if history.size(1) < n + (not see_start):
        return history.new_zeros(len(history), len(phrases), dtype=torch.bool)
    matches = (history[:, None, history.size(1) - n :] == phrases[:, :-1]).all(2)  # (R, N)
    return matches if see_start else matches & (history[:, -n - 1] >= 0)[:, None]


def replace_logits(token_scores: TokenScores, logits: Tensor, normalize: bool) -> TokenScores:
    """Return scores with new logits.

    Args:
        token_scores: the old scores.
        logits: (R, V) the new logits.
        normalize: True: recompute `log_z`, so that probabilities sum to 1.
    """
    log_z = log_sum_exp(logits) if normalize else token_scores.log_z
    return replace(token_scores, logits=logits, log_z=log_z)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return the log-sum-exp (...) of logits (..., V).

    Rows of -inf get a finite value, so that log-probabilities stay -inf.  Small vocabularies always
    use torch, because tests with table models rely on the exact ties of its rounding.
    """
    rows = logits.flatten(0, -2).float()  # (N, V)
    if rows.is_cpu and rows.size(1) >= MIN_KERNEL_VOCAB and kernels.get_library() is not None:
        return kernels.logsumexp(rows).view(logits.shape[:-1])
    if rows.is_cpu and len(rows) == 1:  # torch splits the sum of a single row among threads
        rows = rows.expand(2, -1)  # (2, V)
    sums = rows.logsumexp(-1).clamp(min=torch.finfo(torch.float32).min)  # (N,)
    return sums[: logits[..., 0].numel()].view(logits.shape[:-1])
