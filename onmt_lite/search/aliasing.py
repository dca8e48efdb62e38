"""What `opennmt-2018` did by accident, kept where it is to be reproduced bit for bit.

In OpenNMT-py of 2018 the scores of a beam were one tensor per step.  Where no length penalty
divided them, the scores of finished hypotheses were views of it, and the coverage penalty was
subtracted in place: from all rows, again for every hypothesis that was scored.
"""

import math
from typing import TYPE_CHECKING

from onmt_lite.search.records import Finished

if TYPE_CHECKING:
    from onmt_lite.search.beam import Beam


class Views:
    """The finished hypotheses of a beam's newest step, by the row whose score theirs is."""

    def __init__(self, beam: "Beam"):
        rules = beam.rules
        self.beam = beam
        self.pads = rules.policy.at_max == "pad"
        self.aliased = rules.policy.aliased and rules.length_penalty == "none"
        self.stepwise = rules.stepwise_penalty
        self.of_step: list[tuple[Finished, int]] = []
        self.padded: list[Finished] | None = None

    def follow(self) -> None:
        """A stepwise penalty of the next step is taken off the views of the last one, too."""
        if self.stepwise:
            for hyp, k in self.of_step:
                hyp.score = sum(self.beam.hypothesis(hyp)[1]) - self.beam.costs[k]

    def lower(self) -> None:
        """After a step: as many times as a hypothesis ended, all rows pay their penalty."""
        beam = self.beam
        place = {key: k for k, key in enumerate(zip(beam.rows.row, beam.rows.token))}
        self.of_step = [
            (hyp, place[hyp.row, hyp.token]) for hyp in beam.finished if hyp.step == beam.n_steps
        ]
        self._charge(len(self.of_step))

    def _charge(self, times: int) -> None:
        if not self.aliased or self.stepwise:
            return
        beam = self.beam
        costs = [beam.costs[row] * times for row in beam.rows.row]
        beam.totals = [total - cost for total, cost in zip(beam.totals, costs)]
        for hyp, k in self.of_step:
            hyp.score = beam.totals[k]

    def padding(self) -> list[Finished]:
        """Rows from the first on, finished ones again too, until there are n_best hypotheses."""
        if self.padded is None:
            self.padded = self._padding() if self.pads else []
        return self.padded

    def _padding(self) -> list[Finished]:
        beam = self.beam
        missing = max(0, beam.rules.n_best - len(beam.finished))
        rows = [k for k, score in enumerate(beam.rows.score) if score > -math.inf][:missing]
        self._charge(len(rows))
        hyps = []
        for k in rows:
            cost = beam.costs[beam.rows.row[k]]
            charged = 0.0 if self.aliased and not self.stepwise else cost
            hyps.append(beam.complete(beam.rows, k, beam.totals[k], charged, beam.n_steps))
        return hyps
