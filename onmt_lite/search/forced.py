"""Teacher forcing: the log-probability a model gives to a target that is known."""

import torch
from torch import Tensor

from onmt_lite.models.base import EncoderDecoder, encode


@torch.inference_mode()
def score_targets(
    model: EncoderDecoder,
    src: Tensor,
    src_lengths: Tensor,
    targets: list[list[int]],
    bos_id: int,
    eos_id: int,
    sums_to_one: bool = True,
    ids: Tensor | None = None,
) -> list[float]:
    """Sum of the log-probabilities of each target's tokens and of the end token after them.

    sums_to_one: what the model returns are logits; False: scores that count as they are.
    ids (B, S): for a model that copies, see `onmt_lite.models.base.CopyingModel`.
    """
    width = max(map(len, targets)) + 1
    padding = [[eos_id] * (width - len(target)) for target in targets]
    out = torch.tensor([t + p for t, p in zip(targets, padding)], device=src.device)  # (B, T)
    start = torch.full_like(out[:, :1], bos_id)
    memory = encode(model, src, src_lengths, ids)
    logits = model.forward(memory, torch.cat([start, out[:, :-1]], 1))
    scores = logits.float().log_softmax(2) if sums_to_one else logits.float()
    log_probs = scores.gather(2, out[:, :, None])[:, :, 0]
    n_scored = torch.tensor([len(target) + 1 for target in targets], device=src.device)
    inside = torch.arange(width, device=src.device) < n_scored[:, None]
    return log_probs.where(inside, 0.0).sum(1).tolist()
