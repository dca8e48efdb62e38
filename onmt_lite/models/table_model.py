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

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_lite.models.base import Constant, HeadSelection, Selection

Prefix = tuple[int, ...]
STAR, ID = re.compile(r"\*[0-9]{1,5}"), re.compile("[0-9]{1,9}")


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


class Tree:
    """The tables of all sources as nodes, each of which stands for prefixes.

    Each source has a node for every beginning of a key, its root first; one for all other prefixes
    of each length up to that of its longest "*n"; and one for all that are longer.
    """

    def __init__(self, sources: list[TableSource], vocab_size: int):
        self.vocab_size = vocab_size
        self.logits: list[list[float]] = []  # of each node
        self.attn: list[list[float]] = []
        self.next: list[list[int]] = []  # the node after each token
        self.roots = [self._add(source) for source in sources]

    def _add(self, source: TableSource) -> int:
        """Add the nodes of a source; return its root."""
        keys = {*source.rows, *source.attn}
        parsed = [parse_key(key, self.vocab_size) for key in keys]
        begun = {key[:n] for key in parsed if key is not None for n in range(len(key) + 1)}
        lengths = range(max((int(key[1:]) for key in keys if STAR.fullmatch(key)), default=0) + 2)
        root = len(self.logits)
        numbers = {prefix: root + i for i, prefix in enumerate(sorted({(), *begun}))}
        first_other = root + len(numbers)
        for prefix in numbers:
            self.logits.append(source.logits(prefix))
            self.attn.append(source.attention(prefix))
            other = first_other + min(len(prefix) + 1, lengths[-1])
            self.next.append([numbers.get((*prefix, y), other) for y in range(self.vocab_size)])
        for n in lengths:
            self.logits.append(source.rows.get(f"*{n}", source.default))
            self.attn.append(source.attn.get(f"*{n}", source.attn_default))
            self.next.append([first_other + min(n + 1, lengths[-1])] * self.vocab_size)
        return root


def parse_key(key: str, vocab_size: int) -> Prefix | None:
    """Return the prefix of ids that a key of a table is, None if no prefix looks like it."""
    ids = tuple(int(token) for token in key.split() if ID.fullmatch(token))
    is_prefix = key == " ".join(map(str, ids)) and all(y < vocab_size for y in ids)
    return ids if is_prefix else None


class TableState:
    """nodes (R,): of each row; width: S, the most source tokens of a sentence."""

    def __init__(self, nodes: Tensor, width: int):
        self.nodes, self.width = nodes, width
        self.positions = torch.zeros_like(nodes)
        self.logit_stats = None

    def select(self, selection: Selection, fresh: "TableState | None" = None) -> "TableState":
        self.nodes = selection.gather_rows(self.nodes, fresh.nodes if fresh else None)
        self.positions = selection.gather_sentences(
            self.positions, fresh.positions if fresh else None
        )
        self.width = max(self.width, fresh.width if fresh else 0)
        return self


class TableModel:
    """An `onmt_lite.models.base.EncoderDecoder` whose source ids are indices of sources."""

    max_positions = 100_000
    has_copy_mechanism, has_attention = False, True

    def __init__(self, sources: list[TableSource], vocab_size: int):
        self.sources, self.vocab_size = sources, vocab_size
        self.device = torch.device("cpu")
        tree = Tree(sources, vocab_size)
        self.roots, self.next = (Constant(torch.tensor(x)) for x in (tree.roots, tree.next))
        longest = max(len(source.attn_default) for source in sources)
        attn = [[*row, *[0.0] * (longest - len(row))] for row in tree.attn]
        numbers = (torch.tensor(x, dtype=torch.float32) for x in (tree.logits, attn))
        self.logits, self.attn = map(Constant, numbers)

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> tuple[Tensor, int]:
        """A memory holds the roots (B,) of the sources, and S."""
        for constant in (self.next, self.logits, self.attn):
            constant.to(src.device)  # now, so that no step has to move them
        return self.roots.to(src.device)[src[:, 0]], src.size(1)

    def init_state(self, memory: tuple[Tensor, int]) -> TableState:
        return TableState(*memory)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, Tensor]:
        # The start token, which may be no id, is not part of any prefix
        after = self.next.to(tokens.device)[state.nodes, tokens.clamp(min=0)]
        started = (state.positions > 0)[:, None].expand(-1, len(tokens) // len(state.positions))
        state.nodes = torch.where(started.flatten(), after, state.nodes)
        state.positions = state.positions + 1
        attn = self.attn.to(tokens.device)[state.nodes][:, : state.width]
        logits = self.logits.to(tokens.device)[state.nodes]
        return logits, F.pad(attn, (0, state.width - attn.size(1)))

    def forward(self, memory: tuple[Tensor, int], tgt: Tensor) -> Tensor:
        state = self.init_state(memory)
        return torch.stack([self.step(tokens, state)[0] for tokens in tgt.unbind(1)], 1)

    def has_heads(self, heads: HeadSelection) -> bool:
        return True

    def compute_attention(
        self, memory: tuple[Tensor, int], tgt: Tensor, heads: HeadSelection
    ) -> Tensor:
        state = self.init_state(memory)
        return torch.stack([self.step(tokens, state)[1] for tokens in tgt.unbind(1)], 1)
