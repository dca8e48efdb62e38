"""What `opennmt-2018` did by accident, kept where it is to be reproduced bit for bit.

In OpenNMT-py of 2018 the scores of a beam were one tensor per step.  Where no length penalty
divided them, the scores of finished hypotheses were views of it, and the coverage penalty was
subtracted in place: from all rows, again for every hypothesis that was scored.
"""

from onmt_lite.search.records import BeamRules, Candidates, Finished


class Views:
    """The finished hypotheses of a beam's newest step, by the row whose score theirs is."""

    def __init__(self, rules: BeamRules):
        self.aliased = rules.policy.aliased and rules.length_penalty == "none"
        self.charges = self.aliased and not rules.stepwise_penalty
        self.of_step: list[tuple[Finished, int]] = []

    def look_at(self, finished: list[Finished], rows: Candidates) -> None:
        """`finished` has become complete in the step that has made these rows."""
        place = {key: k for k, key in enumerate(zip(rows.row, rows.token))}
        self.of_step = [(hyp, place[hyp.row, hyp.token]) for hyp in finished]

    def charge(
        self, times: int, rows: Candidates, costs: list[float], totals: list[float]
    ) -> list[float]:
        """All rows pay their coverage penalty so many times, and the views with them."""
        if not self.charges:
            return totals
        totals = [total - costs[row] * times for total, row in zip(totals, rows.row)]
        for hyp, k in self.of_step:
            hyp.score = totals[k]
        return totals
