"""A model without weights: a table of next-token logits, for testing and explaining searches.

The format is one JSON object:

    {"format": "onmt_lite-table-1",
     "vocab": ["</s>", "a", ...],            id 0 is the end token; no start, pad or unknown
     "sources": {"s0": {"length": 3,
                        "rows": {"": [...], "1": [...], "1 2": [...], "*3": [...]},
                        "default": [...],
                        "attn": {...like rows...}, "attn_default": [...]}, ...}}

A key is a target prefix, ids joined by spaces.  The lookup tries the exact prefix, then "*n" for
a prefix of length n, then the default.  A source line is the name of a source, repeated once per
source token.
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
        """Return the V next-token logits after a prefix."""
        return _look_up(self.rows, prefix, self.default)

    def attention(self, prefix: Prefix) -> list[float]:
        """Return the attention to the source tokens after a prefix."""
        return _look_up(self.attn, prefix, self.attn_default)


def _look_up(table: dict[str, list[float]], prefix: Prefix, default: list[float]) -> list[float]:
    """Return the value of the exact prefix, or else of its length, or else the default.

    Args:
        table: values by key
        prefix: target ids
        default: the value if neither key exists
    """
    exact = table.get(" ".join(map(str, prefix)))
    return exact if exact is not None else table.get(f"*{len(prefix)}", default)


class PrefixTrie:
    """The tables of all sources as a trie.  Each node represents one or more target prefixes.

    Each source has a node for every prefix of a key, with its root first; a node for all remaining
    prefixes of each length up to its longest "*n"; and a node for all longer prefixes.
    """

    def __init__(self, sources: list[TableSource], vocab_size: int):
        self.vocab_size = vocab_size
        self.logits: list[list[float]] = []  # by node
        self.attn: list[list[float]] = []
        self.next: list[list[int]] = []  # by node and token
        self.roots = [self._add(source) for source in sources]

    def _add(self, source: TableSource) -> int:
        """Add the nodes of a source.  Returns its root."""
        keys = {*source.rows, *source.attn}
        parsed = [parse_key(key, self.vocab_size) for key in keys]
        prefixes = {key[:n] for key in parsed if key is not None for n in range(len(key) + 1)}
        lengths = range(max((int(key[1:]) for key in keys if STAR.fullmatch(key)), default=0) + 2)
        root = len(self.logits)
        nodes = {prefix: root + i for i, prefix in enumerate(sorted({(), *prefixes}))}
        first_shared = root + len(nodes)
        for prefix in nodes:
            self.logits.append(source.logits(prefix))
            self.attn.append(source.attention(prefix))
            shared = first_shared + min(len(prefix) + 1, lengths[-1])
            self.next.append([nodes.get((*prefix, y), shared) for y in range(self.vocab_size)])
        for n in lengths:
            self.logits.append(source.rows.get(f"*{n}", source.default))
            self.attn.append(source.attn.get(f"*{n}", source.attn_default))
            self.next.append([first_shared + min(n + 1, lengths[-1])] * self.vocab_size)
        return root


def parse_key(key: str, vocab_size: int) -> Prefix | None:
    """Parse a key of a table as target ids.  Returns None if it is not a prefix."""
    ids = tuple(int(token) for token in key.split() if ID.fullmatch(token))
    is_prefix = key == " ".join(map(str, ids)) and all(y < vocab_size for y in ids)
    return ids if is_prefix else None


class TableState:
    """Decoder state: the node of each row."""

    def __init__(self, nodes: Tensor, width: int):
        """Initialize the state.

        Args:
            nodes: node of each row (R,), int64
            width: the number of source tokens of the longest sentence, S
        """
        self.nodes, self.width = nodes, width
        self.positions = torch.zeros_like(nodes)

    def select(self, selection: Selection, fresh: "TableState | None" = None) -> "TableState":
        """Tile, reorder, drop and add rows; see `onmt_lite.models.base.State.select`."""
        self.nodes = selection.gather_rows(self.nodes, fresh.nodes if fresh else None)
        self.positions = selection.gather_sentences(
            self.positions, fresh.positions if fresh else None
        )
        self.width = max(self.width, fresh.width if fresh else 0)
        return self


class TableModel:
    """A table as an `onmt_lite.models.base.EncoderDecoder`; source ids are indices of sources."""

    max_positions = 100_000
    has_copy_mechanism, has_attention = False, True

    def __init__(self, sources: list[TableSource], vocab_size: int):
        self.sources, self.vocab_size = sources, vocab_size
        self.device = torch.device("cpu")
        trie = PrefixTrie(sources, vocab_size)
        self.roots, self.next = (Constant(torch.tensor(x)) for x in (trie.roots, trie.next))
        longest = max(len(source.attn_default) for source in sources)
        attn = [[*row, *[0.0] * (longest - len(row))] for row in trie.attn]
        tables = (torch.tensor(x, dtype=torch.float32) for x in (trie.logits, attn))
        self.logits, self.attn = map(Constant, tables)

    def encode(
        self, src: Tensor, src_lengths: Tensor, ids: Tensor | None = None, width: int | None = None
    ) -> tuple[Tensor, int]:
        """Look up the sources.

        Args:
            src: indices of sources (B, S), int64
            src_lengths: ignored
            ids: ignored
            width: ignored

        Returns:
            The roots of the sources (B,), int64, and S.
        """
        for constant in (self.next, self.logits, self.attn):
            constant.to(src.device)  # upload now, so that no step waits for it
        return self.roots.to(src.device)[src[:, 0]], src.size(1)

    def init_state(self, memory: tuple[Tensor, int]) -> TableState:
        """Return the initial state; see `onmt_lite.models.base.EncoderDecoder.init_state`."""
        return TableState(*memory)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, Tensor]:
        """Decode one step; see `onmt_lite.models.base.EncoderDecoder.step`."""
        # The start token is not part of any prefix, and may be -1
        following = self.next.to(tokens.device)[state.nodes, tokens.clamp(min=0)]
        started = (state.positions > 0)[:, None].expand(-1, len(tokens) // len(state.positions))
        state.nodes = torch.where(started.flatten(), following, state.nodes)
        state.positions = state.positions + 1
        attn = self.attn.to(tokens.device)[state.nodes][:, : state.width]
        logits = self.logits.to(tokens.device)[state.nodes]
        return logits, F.pad(attn, (0, state.width - attn.size(1)))

    def forward(self, memory: tuple[Tensor, int], tgt: Tensor) -> Tensor:
        """Compute all logits; see `onmt_lite.models.base.EncoderDecoder.forward`."""
        state = self.init_state(memory)
        return torch.stack([self.step(tokens, state)[0] for tokens in tgt.unbind(1)], 1)

    def has_heads(self, heads: HeadSelection) -> bool:
        """Return True, because a table has only one attention."""
        return True

    def compute_attention(
        self, memory: tuple[Tensor, int], tgt: Tensor, heads: HeadSelection
    ) -> Tensor:
        """Return attention (B, T, S), float32.

        Args:
            memory: the result of `encode`
            tgt: decoder input (B, T), int64
            heads: ignored
        """
        state = self.init_state(memory)
        return torch.stack([self.step(tokens, state)[1] for tokens in tgt.unbind(1)], 1)
