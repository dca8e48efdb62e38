"""Teacher forcing: log-probabilities and attention of reference translations."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel, HeadSelection, compute_logits
from onmt_lite.search.logits import log_sum_exp


@torch.inference_mode()
def score_targets(
    model: AnyModel,
    src: Tensor,
    src_lengths: Tensor,
    targets: list[list[int]],
    starts: Sequence[Sequence[int]],
    eos_id: int,
    needs_log_softmax: bool = True,
    ids: Tensor | None = None,
    max_logits: float = math.inf,
) -> list[list[float]]:
    """Return the log-probabilities of each target's tokens and of EOS after them.

    Args:
        model: the model, on its device.
        src: (B, S) source tokens, padded.
        src_lengths: (B,) number of source tokens.
        targets: B lists of target tokens, without EOS.
        starts: B lists of first decoder inputs, all of the same length.
        eos_id: the EOS token.
        needs_log_softmax: False: the model returns log-probabilities.
        ids: (B, S) target IDs of the source tokens, for copy models only.
        max_logits: maximum number of logits (B * T * V) in memory; above it, decode step by step.

    Returns:
        B lists of log-probabilities in nats, one more than target tokens.
    """
    # (B, N + T), (B, T), N
    inputs, out, n_before = _make_decoder_input(targets, starts, eos_id, src.device)
    memory = model.encode(src, src_lengths, ids)
    if out.numel() * model.vocab_size <= max_logits:
        log_probs = _gather_log_probs(
            model.forward(memory, inputs)[:, n_before:], out, needs_log_softmax
        )
    else:
        state = model.init_state(memory)
        for tokens in inputs[:, :n_before].unbind(1):
            model.step(tokens, state)
        steps = (
            compute_logits(model.step(tokens, state)[0])
            for tokens in inputs[:, n_before:].unbind(1)
        )
        by_step = [
            _gather_log_probs(logits, tokens, needs_log_softmax)
            for logits, tokens in zip(steps, out.unbind(1))
        ]
        log_probs = torch.stack(by_step, 1)  # (B, T)
    return [row[: len(target) + 1] for row, target in zip(log_probs.tolist(), targets)]


@torch.inference_mode()
def compute_target_attention(
    model: AnyModel,
    src: Tensor,
    src_lengths: Tensor,
    targets: list[list[int]],
    starts: Sequence[Sequence[int]],
    eos_id: int,
    heads: HeadSelection,
    ids: Tensor | None = None,
) -> list[Tensor]:
    """Return the attention from each target's tokens, and EOS after them, to its source.

    Args:
        model: the model, on its device.
        src: (B, S) source tokens, padded.
        src_lengths: (B,) number of source tokens.
        targets: B lists of target tokens, without EOS.
        starts: B lists of first decoder inputs, all of the same length.
        eos_id: the EOS token.
        heads: attention heads to average.
        ids: (B, S) target IDs of the source tokens, for copy models only.

    Returns:
        B tensors (T + 1, S) on the host, T target tokens and S source tokens of each sentence.
    """
    inputs, _, n_before = _make_decoder_input(targets, starts, eos_id, src.device)
    memory = model.encode(src, src_lengths, ids)
    weights = model.compute_attention(memory, inputs, heads)[:, n_before:].cpu()
    sizes = zip(map(len, targets), src_lengths.tolist())
    return [attn[: t + 1, :s].clone() for attn, (t, s) in zip(weights, sizes)]


def _make_decoder_input(
    targets: list[list[int]], starts: Sequence[Sequence[int]], eos_id: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Build decoder inputs and expected outputs.

    Args:
        targets: B lists of target tokens, without EOS.
        starts: B lists of first decoder inputs, all of the same length N + 1.
        eos_id: the EOS token, also used as padding.
        device: the model's device.

    Returns:
        Decoder inputs (B, N + T), expected tokens (B, T) at the last T positions, and N.
    """
    width = max(map(len, targets)) + 1
    padding = [[eos_id] * (width - len(target)) for target in targets]
    out = torch.tensor([t + p for t, p in zip(targets, padding)], device=device)  # (B, T)
    start = torch.tensor(starts, device=device)  # (B, N + 1)
    return torch.cat([start, out[:, :-1]], 1), out, start.size(1) - 1


def _gather_log_probs(logits: Tensor, tokens: Tensor, needs_log_softmax: bool) -> Tensor:
    """Return the log-probability of each token.

    Args:
        logits: (..., V) logits, or log-probabilities.
        tokens: (...) token IDs.
        needs_log_softmax: False: `logits` are log-probabilities.
    """
    logits = logits.float()
    chosen = logits.gather(-1, tokens[..., None])[..., 0]  # (...)
    return chosen - log_sum_exp(logits) if needs_log_softmax else chosen
