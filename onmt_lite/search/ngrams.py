"""Repeated n-grams, for all rows at once.

`history` (R, T): the tokens of each row, newest last; NO_TOKEN before a row's first token.
`exempt` (V,): marks tokens that may be part of any repetition.
"""

from torch import Tensor


def completing_tokens(history: Tensor, n: int, exempt: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last token of each window of n tokens (R, T-n+1), and whether a row that produced
    this token now would repeat the window.  T must be n or more.

    Worked example, n = 2: history [7 8 9 7] ends in 7; the window [7 8] starts with 7, so 8 would
    repeat.
    """
    windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
    ending = history[:, history.size(1) - n + 1 :]  # (R, n-1): what the next token would extend
    repeats = (windows[:, :, :-1] == ending[:, None]).all(2)  # (R, T-n+1)
    repeats &= windows[:, :, 0] >= 0
    repeats &= ~exempt[windows.clamp(min=0)].any(2)
    return windows[:, :, -1].clamp(min=0), repeats


def ends_in_repetition(history: Tensor, n: int, exempt: Tensor) -> Tensor:
    """Whether the last n tokens of a row have occurred before in this order (R,); T exceeds n."""
    windows = history.unfold(1, n, 1)  # (R, T-n+1, n)
    last = windows[:, -1:]
    repeated = (windows[:, :-1] == last).all(2).any(1)
    return repeated & (last[:, 0, 0] >= 0) & ~exempt[last[:, 0].clamp(min=0)].any(1)
