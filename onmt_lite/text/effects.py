"""What phrases say of the tokens that may follow a hypothesis."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effects:
    """What phrases that are forced or banned say of the tokens that may follow a row.

    forbidden   tokens that may not follow; the end token is one of them unless `may_end`
    completing  tokens after which a banned phrase is complete, unless its last word goes on
    closed      numbers of classes of tokens that may not follow, see `onmt_lite.text.surfaces`
    may_end     no forced phrase is missing, and no banned one is complete
    bank        tokens of forced phrases that the row holds
    wanted      tokens that bring a forced phrase further, each with the bank of the row then
    """

    forbidden: tuple[int, ...] = ()
    completing: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    may_end: bool = True
    bank: int = 0
    wanted: tuple[tuple[int, int], ...] = ()
