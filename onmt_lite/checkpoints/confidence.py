"""How sure a model is that a translation is right."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Confidence:
    """How probable it is that a translation is right, by its mean log-probability per token: a
    logistic curve, fitted to translations of held-out text by `onmt_lite.train.calibrate`.

    at_zero   log-odds where the mean is 0
    per_nat   by how much they grow with each nat more, above 0
    """

    at_zero: float
    per_nat: float

    def of(self, hyp: Any) -> float | None:
        """From 0 to 1; None for a text that the model did not make."""
        return self.at(mean_log_prob(hyp)) if hyp.token_log_probs else None

    def at(self, mean: float) -> float:
        odds = self.at_zero + self.per_nat * mean
        return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0

    @property
    def threshold(self) -> float:
        """The mean log-probability from which on a translation is more probably right than not."""
        return -self.at_zero / self.per_nat


def mean_log_prob(hyp: Any) -> float:
    """In nats per token, the end token included."""
    return hyp.log_prob / len(hyp.token_log_probs)
