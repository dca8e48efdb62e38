"""How the tensors of a state follow `State.select`."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """Which rows and which sentences go on, in which order.

    rows (R',), sentences (B',): indices on the state's device; None where all stay as they are.
    """

    rows: Tensor | None
    sentences: Tensor | None

    @classmethod
    def of(cls, rows: Tensor, n_rows: int, n_sentences: int, device: torch.device) -> "Selection":
        """From the rows (B', K') that `onmt_lite.models.base.State.select` is given."""
        flat, sentences = rows.flatten(), rows[:, 0] // (n_rows // n_sentences)
        return cls(_moved(flat, n_rows, device), _moved(sentences, n_sentences, device))

    def of_rows(self, x: Tensor, dim: int = 0) -> Tensor:
        """Of hypotheses: copied as soon as a row moves, so that no two rows share one."""
        return x if self.rows is None else x.index_select(dim, self.rows)

    def of_sentences(self, x: Tensor) -> Tensor:
        """Of sentences, whose hypotheses share it: copied only where one is dropped or moves."""
        return x if self.sentences is None else x.index_select(0, self.sentences)


def _moved(indices: Tensor, n: int, device: torch.device) -> Tensor | None:
    """The indices on the device, or None where they are 0, 1, ... n-1."""
    return None if torch.equal(indices, torch.arange(n)) else indices.to(device)
