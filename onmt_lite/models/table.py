"""A model without weights: a table of next-token logits, to test and explain searches.

The format is one JSON object:

    {"format": "onmt_lite-table-1",
     "vocab": ["</s>", "a", ...],            id 0 is the end token; no start, pad or unknown
     "sources": {"s0": {"length": 3,
                        "rows": {"": [...], "1": [...], "1 2": [...], "*3": [...]},
                        "default": [...],
                        "attn": {...like rows...}, "attn_default": [...]}, ...}}

A key is the output so far, ids joined by a blank.  Looked up are the exact prefix, then "*n"
for its length n, then the default.  A source line is a source's name, once per source token.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.selection import Selection

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class TableSource:
    """One source sentence: logits and attention by prefix."""

    length: int
    rows: dict[str, list[float]]
    default: list[float]
    attn: dict[str, list[float]]
    attn_default: list[float]

    def logits(self, prefix: Prefix) -> list[float]:
        return _look_up(self.rows, prefix, self.default)

    def attention(self, prefix: Prefix) -> list[float]:
        return _look_up(self.attn, prefix, self.attn_default)


def _look_up(table: dict[str, list[float]], prefix: Prefix, default: list[float]) -> list[float]:
    exact = table.get(" ".join(map(str, prefix)))
    return exact if exact is not None else table.get(f"*{len(prefix)}", default)


@dataclass(frozen=True)
class TableMemory:
    """The source of each sentence, and S, the width of the batch, which is on `device`."""

    sources: list[TableSource]
    width: int
    device: torch.device


class TableState:
    """The prefix of each row, and the source of each sentence."""

    def __init__(self, memory: TableMemory):
        self.sources, self.width = memory.sources, memory.width
        self.prefixes: list[Prefix] = [()] * len(memory.sources)
        self.positions = torch.zeros(len(memory.sources), dtype=torch.long, device=memory.device)

    def select(self, selection: Selection, fresh: "TableState | None" = None) -> "TableState":
        """See `onmt_lite.models.base.State.select`."""
        sources = self.sources + (fresh.sources if fresh else [])
        prefixes = self.prefixes + (fresh.prefixes if fresh else [])
        if selection.slots is not None:
            self.sources = [sources[b] for b in selection.slots]
        self.prefixes = [prefixes[row] for row in selection.rows.flatten().tolist()]
        self.width = max(self.width, fresh.width if fresh else 0)
        self.positions = selection.of_sentences(self.positions, fresh.positions if fresh else None)
        return self


class TableModel:
    """An `onmt_lite.models.base.EncoderDecoder` whose source ids are indices of sources.

    The host looks up, whatever device the batch is on.
    """

    max_positions = 100_000
    copies, attends = False, True

    def __init__(self, sources: list[TableSource], vocab_size: int):
        self.sources, self.vocab_size = sources, vocab_size
        self.device = torch.device("cpu")

    def encode(
        self,
        src: Tensor,
        src_lengths: Tensor,
        ids: Tensor | None = None,
        width: int | None = None,
    ) -> TableMemory:
        return TableMemory([self.sources[i] for i in src[:, 0].tolist()], src.size(1), src.device)

    def init_state(self, memory: TableMemory) -> TableState:
        return TableState(memory)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, Tensor]:
        beam_size = len(state.prefixes) // len(state.sources)
        started = state.positions.tolist()  # the start token is not part of any prefix
        state.prefixes = [
            (*p, y) if started[r // beam_size] else p
            for r, (p, y) in enumerate(zip(state.prefixes, tokens.tolist()))
        ]
        state.positions = state.positions + 1
        found = [(state.sources[r // beam_size], p) for r, p in enumerate(state.prefixes)]
        logits = torch.tensor([source.logits(p) for source, p in found])
        attn = torch.zeros(len(found), state.width)
        for r, (source, p) in enumerate(found):
            weights = torch.tensor(source.attention(p)[: state.width])
            attn[r, : len(weights)] = weights
        return logits.to(tokens.device), attn.to(tokens.device)

    def forward(self, memory: TableMemory, tgt: Tensor) -> Tensor:
        rows: list[Any] = []
        for source, (_, *ids) in zip(memory.sources, tgt.tolist()):
            rows.append([source.logits(tuple(ids[:t])) for t in range(len(ids) + 1)])
        return torch.tensor(rows, device=tgt.device)
