"""Log-probabilities and attention of targets that are known."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onmt_lite.models.base import AnyModel, HeadSelection
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
    at_once: float = math.inf,
) -> list[list[float]]:
    """For each target the log-probabilities of its tokens and of the end token after them.

    starts: tokens that the decoder reads before each target, all of one length.
    needs_log_softmax: the model returns logits; False: log-probabilities.
    ids (B, S): for a model that copies, see `onmt_lite.models.base.EncoderDecoder`.
    at_once: if there are more logits (B * T * V), they are computed one position at a time.
    """
    read, out, before = _fed(targets, starts, eos_id, src.device)  # (B, N + T), (B, T)
    memory = model.encode(src, src_lengths, ids)
    if out.numel() * model.vocab_size <= at_once:
        log_probs = _chosen(model.forward(memory, read)[:, before:], out, needs_log_softmax)
    else:
        state = model.init_state(memory)
        for tokens in read[:, :before].unbind(1):
            model.step(tokens, state)
        steps = (model.step(tokens, state)[0] for tokens in read[:, before:].unbind(1))
        chosen = [
            _chosen(logits, ids, needs_log_softmax) for logits, ids in zip(steps, out.unbind(1))
        ]
        log_probs = torch.stack(chosen, 1)
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
    """For each target, the attention to its source (T + 1, S) from its T tokens and the end token
    after them; on the host.  Arguments as above."""
    read, _, before = _fed(targets, starts, eos_id, src.device)
    memory = model.encode(src, src_lengths, ids)
    weights = model.compute_attention(memory, read, heads)[:, before:].cpu()
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


def _chosen(logits: Tensor, tokens: Tensor, needs_log_softmax: bool) -> Tensor:
    """logits (.., V), tokens (..) -> the log-probability of each token (..)."""
    logits = logits.float()
    chosen = logits.gather(-1, tokens[..., None])[..., 0]
    return chosen - log_sum_exp(logits) if needs_log_softmax else chosen
