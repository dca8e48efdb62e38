"""Repeated n-grams, for all rows at once."""

import torch
from torch import Tensor


def repeating_tokens(history: Tensor, n: int, exempt: Tensor, vocab_size: int) -> Tensor | None:
    """history (R, T) of tokens so far -> (R, V), True where the token would complete an n-gram
    that the row already holds.  None while no row is long enough.

    exempt (V,) marks tokens that may be part of any repetition.  Worked example, n = 2:
    history [7 8 9 7] ends in 7; the window [7 8] starts with 7, so 8 is marked.
    """
    if history.size(1) < n:
        return None
    windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
    ending = history[:, history.size(1) - n + 1 :]  # (R, n-1): what the next token would extend
    match = (windows[:, :, :-1] == ending[:, None]).all(2)
    match &= ~exempt[windows].any(2)
    completing = torch.where(match, windows[:, :, -1], vocab_size)  # column V takes the rest
    marked = torch.zeros(history.size(0), vocab_size + 1, dtype=torch.bool, device=history.device)
    return marked.scatter_(1, completing, True)[:, :vocab_size]


def ends_in_repetition(history: Tensor, n: int, exempt: Tensor) -> Tensor | None:
    """history (R, T) -> (R, 1), True where its last n-gram has occurred before.

    `exempt` as above.  None while no row is long enough.
    """
    if history.size(1) <= n:
        return None
    windows = history.unfold(1, n, 1)
    last = windows[:, -1:]
    repeated = (windows[:, :-1] == last).all(2).any(1, keepdim=True)
    return repeated & ~exempt[last].any(2)
