"""The beam of one sentence: plain numbers, no model, no device, no text."""

import math

from onmt_lite.search.aliasing import Views
from onmt_lite.search.pool import Pool
from onmt_lite.search.records import BeamRules, Candidate, Finished
from onmt_lite.search.scoring import length_norm


class Beam:
    """The `Beam` of OpenNMT-py (2018), with policies for what later searches do otherwise.

    At each step some of the candidates become the new rows, and those that end become finished
    hypotheses.  Which, and until when, `rules.policy` and `rules.stop` say.

    next_ys[t][k]    token of row k after t steps; next_ys[0] is all start tokens
    prev_ks[t][k]    row of step t that row k of step t+1 continues
    totals[k]        what row k counts, ended or not; -inf: there is no such row
    scores[k]        the same, but -inf where it ended: nothing follows the end token
    """

    def __init__(self, rules: BeamRules, max_steps: int, seed: int = 0):
        self.rules, self.max_steps = rules, max_steps
        self.seed = seed  # of what is drawn for this sentence
        self.next_ys = [[rules.bos_id] * rules.beam_size]
        self.prev_ks: list[list[int]] = []
        self.log_probs: list[list[float]] = []  # of the token that next_ys holds, per step and row
        self.rows: list[Candidate] = []  # what they were as candidates
        self.totals = self.scores = first_totals(rules)
        self.costs = [0.0] * rules.beam_size
        self.pools = [Pool(rules) for _ in range(rules.n_pools)]
        self.views = Views(self)

    @property
    def n_steps(self) -> int:
        return len(self.prev_ks)

    @property
    def finished(self) -> list[Finished]:
        return [hyp for pool in self.pools for hyp in pool.finished]

    @property
    def done(self) -> bool:
        return all(pool.done for pool in self.pools)

    @property
    def over(self) -> bool:
        """Whether it takes no further step, even in a batch that goes on."""
        if not self.rules.policy.coupled:
            return self.done
        return self.n_steps >= self.max_steps or max(self.scores) == -math.inf

    def advance(self, candidates: list[Candidate], costs: list[float] | None = None) -> None:
        """Take a step.

        candidates  best first, as many for each pool, pool after pool
        costs       coverage penalty of each old row, this step's attention included
        """
        self.costs = costs or self.costs
        self.views.follow()
        before, rows = (self.rows, self.scores), []
        size = len(candidates) // len(self.pools)
        for i, pool in enumerate(self.pools):
            rows += self._advance_pool(i, pool, candidates[i * size : (i + 1) * size])
        self.rows, self.totals = rows, [self._total(c) for c in rows]
        self.next_ys.append([c.token for c in rows])
        self.prev_ks.append([c.row for c in rows])
        self.log_probs.append([c.log_prob for c in rows])
        self.views.lower()
        eos = self.rules.eos_id
        self.scores = [-math.inf if c.token == eos else t for c, t in zip(rows, self.totals)]
        if max(self.scores) == -math.inf:
            for pool in self.pools:
                pool.done = True
            if not self.finished:
                self._end_where_it_is(*before)

    def _advance_pool(self, i: int, pool: Pool, found: list[Candidate]) -> list[Candidate]:
        """Collect what finishes; the pool's new rows, exactly `width` of them."""
        policy, eos, step = self.rules.policy, self.rules.eos_id, self.n_steps + 1
        if pool.done and not policy.coupled:
            return self._filled([], i)
        at_max = step >= self.max_steps
        all_finish = at_max and policy.at_max == "rows"
        for c in found[: policy.ends_within * pool.width]:
            if c.score > -math.inf and (c.token == eos or all_finish):
                self._finish(pool, c, step)
        rows = next_rows(policy.ended, found, pool.width, eos)
        if policy.ended == "shrink":
            pool.width = len(rows)
        rows = self._filled(rows, i)
        stopped = pool.stopped(found, rows, step, self.max_steps)
        if at_max and not stopped:
            self._finish_open(pool, rows, step)
        pool.done = pool.done or stopped or at_max
        # A group that is done leaves the others to race
        return rows if not pool.done or len(self.pools) == 1 else self._filled([], i)

    def _filled(self, rows: list[Candidate], i: int) -> list[Candidate]:
        """In the place of missing rows, some that do not exist."""
        missing = self.rules.width - len(rows)
        if not missing:
            return rows
        return rows + [Candidate(-math.inf, i * self.rules.width, self.rules.eos_id, 0.0)] * missing

    def _total(self, c: Candidate) -> float:
        """What it counts, without the penalty that a stepwise one has steered by."""
        return c.score + self.costs[c.row] if self.rules.stepwise_penalty else c.score

    def _finish(self, pool: Pool, c: Candidate, step: int) -> None:
        pool.add(self.complete(c, self._total(c), self.costs[c.row], step))

    def complete(self, c: Candidate, total: float, cost: float, step: int) -> Finished:
        """A hypothesis of `step` tokens, ranked by what it counts and its coverage penalty."""
        rules, policy = self.rules, self.rules.policy
        ended = c.token == rules.eos_id
        length = step + (policy.length_offset if ended else policy.open_length_offset)
        norm = length_norm(rules.length_penalty, rules.alpha, length)
        if rules.stepwise_penalty:
            score = (total - (cost if step >= policy.stepwise_from else 0.0)) / norm
        else:
            score = total / norm - cost
        return Finished(score, step, c.row, c.token, c.log_prob, ended)

    def _finish_open(self, pool: Pool, rows: list[Candidate], step: int) -> None:
        """What becomes of rows that are open at the last step, where that is a matter apart."""
        live = [c for c in rows if c.score > -math.inf and c.token != self.rules.eos_id]
        if self.rules.policy.at_max == "compete":
            for c in live:
                self._finish(pool, c, step)
        elif self.rules.policy.at_max == "if_none" and not pool.finished:
            for c in live:  # whatever their length
                pool.add(Finished(c.score, step, c.row, c.token, c.log_prob, ended=False))

    def _end_where_it_is(self, rows: list[Candidate], scores: list[float]) -> None:
        """The model allows no continuation of any row: the best one is complete as it is."""
        if not rows:  # not even a first token
            self.pools[0].add(Finished(0.0, 0, 0, self.rules.bos_id, 0.0, ended=False))
            return
        k = scores.index(max(scores))
        hyp = self.complete(rows[k], scores[k], self.costs[k], self.n_steps - 1)
        self.pools[0].add(hyp)

    def best(self) -> list[Finished]:
        """All complete hypotheses, best first."""
        found = self.finished + self.views.padding()
        if self.rules.policy.ties == "later":
            found.reverse()
        return sorted(found, key=lambda hyp: -hyp.score)

    def hypothesis(self, hyp: Finished) -> tuple[list[int], list[float]]:
        """Its tokens and their log-probabilities, in order."""
        if hyp.step == 0:
            return [], []
        tokens, log_probs = self.get_hyp(hyp.step - 1, hyp.row)
        return [*tokens, hyp.token], [*log_probs, hyp.log_prob]

    def get_hyp(self, step: int, k: int) -> tuple[list[int], list[float]]:
        """Walk back from row k of `step`: its tokens and their log-probabilities, in order."""
        tokens, log_probs = [], []
        for t in range(step, 0, -1):
            tokens.append(self.next_ys[t][k])
            log_probs.append(self.log_probs[t - 1][k])
            k = self.prev_ks[t - 1][k]
        return tokens[::-1], log_probs[::-1]


def first_totals(rules: BeamRules) -> list[float]:
    """Before the first step all rows are equal: only the first of each group takes part, unless
    rows are drawn apart."""
    idle, groups = rules.policy.idle_score, rules.beam_groups
    rest = rules.beam_size // groups - 1
    if rules.policy.groups == "apart":
        return ([0.0] + [idle] * rest) * groups
    return [0.0] * groups + [idle] * rest * groups


def next_rows(ended: str, found: list[Candidate], width: int, eos: int) -> list[Candidate]:
    """Which candidates become rows, in order.

    keep     the first k; an ended one stays as a row that is not expanded
    refill   the best k that did not end (by score, whatever the order they were drawn in)
    in_slot  the first k, each that ended replaced by the next that did not
    shrink   those of the first `width` that did not end
    """
    if ended == "keep":
        return found[:width]
    if ended == "shrink":
        return [c for c in found[:width] if c.token != eos and c.score > -math.inf]
    if ended == "refill":
        open_ones = [c for c in found if c.token != eos]
        return sorted(open_ones, key=lambda c: -c.score)[:width]
    spare = (c for c in found[width:] if c.token != eos)
    slots = [c if c.token != eos else next(spare, None) for c in found[:width]]
    return [c for c in slots if c is not None]
