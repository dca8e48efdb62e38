"""Repeated n-grams, for all rows at once.

`history` (R, T) holds the tokens of each row, newest last; -1 stands before a row's first token.
`exempt` (V,) marks tokens that may be part of any repetition.
"""

from torch import Tensor


def completing_tokens(history: Tensor, n: int, exempt: Tensor) -> tuple[Tensor, Tensor]:
    """The last token of each window of n tokens (R, T-n+1), and where a row that produced this
    token now would repeat the window.  T must be n or more.

    Worked example, n = 2: history [7 8 9 7] ends in 7; the window [7 8] starts with 7, so 8 would
    repeat.
    """
    windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
    ending = history[:, history.size(1) - n + 1 :]  # (R, n-1): what the next token would extend
    repeats = (windows[:, :, :-1] == ending[:, None]).all(2) & (windows[:, :, 0] >= 0)
    repeats &= ~exempt[windows.clamp(min=0)].any(2)
    return windows[:, :, -1].clamp(min=0), repeats


def ends_in_repetition(history: Tensor, n: int, exempt: Tensor) -> Tensor:
    """(R,) True where the last n tokens have occurred before in this order.  T must exceed n."""
    windows = history.unfold(1, n, 1)
    last = windows[:, -1:]
    repeated = (windows[:, :-1] == last).all(2).any(1)
    return repeated & (last[:, 0, 0] >= 0) & ~exempt[last[:, 0].clamp(min=0)].any(1)
