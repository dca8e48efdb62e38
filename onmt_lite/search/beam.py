"""The beam of one sentence: plain numbers, no model, no device, no text."""

import math

from onmt_lite.policy import LengthRatio
from onmt_lite.search.aliasing import Views
from onmt_lite.search.pool import Pool
from onmt_lite.search.records import ANY, NO_END, BeamRules, Candidates, Finished, Limits
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

    def __init__(self, rules: BeamRules, limits: Limits):
        self.rules, self.limits, self.max_steps = rules, limits, limits.max_steps
        self.policy, self.eos, self.width = rules.policy, rules.eos_id, rules.width
        self.next_ys = [[rules.bos_id] * rules.beam_size]
        self.prev_ks: list[list[int]] = []
        self.places: list[list[int]] = []  # per step and old row, if they are told
        self.log_probs: list[list[float]] = []  # of the token that next_ys holds, per step and row
        self.rows = Candidates([], [], [], [])  # what they were as candidates
        self.totals = self.scores = first_totals(rules)
        self.costs = [0.0] * rules.beam_size
        self.pools = [Pool(rules) for _ in range(rules.n_pools)]
        self.views = Views(rules)
        self.n_steps = 0
        self.done = self.over = False  # over: takes no step even in a batch that goes on

    @property
    def finished(self) -> list[Finished]:
        return [hyp for pool in self.pools for hyp in pool.finished]

    @property
    def forced(self) -> int:
        """The token that must come next, ANY or NO_END."""
        prefix = self.limits.prefix
        if self.n_steps < len(prefix):
            return prefix[self.n_steps]
        return NO_END if self.n_steps + 1 < self.limits.min_end else ANY

    def advance(
        self,
        found: Candidates,
        costs: list[float] | None = None,
        places: list[int] | None = None,
    ) -> None:
        """Take a step.

        found   best first, as many for each pool, pool after pool
        costs   coverage penalty of each old row, this step's attention included
        places  the token of the source that each old row attends to most
        """
        self.costs = costs or self.costs
        if places is not None:
            self.places.append(places)
        if self.views.aliased:
            self._move_views()
        self.n_steps += 1
        before = self.rows, self.scores
        rows = self._next_rows(found)
        self.rows, self.totals = rows, rows.score
        if self.rules.stepwise_penalty:
            self.totals = [self._total(rows, i) for i in range(len(rows.score))]
        self.next_ys.append(rows.token)
        self.prev_ks.append(rows.row)
        self.log_probs.append(rows.log_prob)
        if self.views.aliased:
            self._charge_ended()
        self.scores = self.totals
        if self.eos in rows.token:
            ended = [y == self.eos for y in rows.token]
            self.scores = [-math.inf if e else t for e, t in zip(ended, self.totals)]
        self._close(*before)

    def _next_rows(self, found: Candidates) -> Candidates:
        if len(self.pools) == 1:
            return self._advance_pool(0, self.pools[0], found)
        rows, size = Candidates([], [], [], []), len(found.score) // len(self.pools)
        for i, pool in enumerate(self.pools):
            part = found.part(i * size, (i + 1) * size)
            rows = rows.then(self._advance_pool(i, pool, part))
        return rows

    def _advance_pool(self, i: int, pool: Pool, found: Candidates) -> Candidates:
        """Collect what finishes; the pool's new rows, exactly `width` of them."""
        policy, eos, step = self.policy, self.eos, self.n_steps
        if pool.done and not policy.coupled:
            return self._filled(found.part(0, 0), i)
        at_max, limit = step >= self.max_steps, policy.ends_within * pool.width
        all_finish = at_max and policy.at_max == "rows"
        ended = [rank for rank, y in enumerate(found.token) if y == eos]
        for rank in range(min(limit, len(found.score))) if all_finish else ended:
            if rank < limit:
                self._finish(pool, found, rank)
        rows = found.part(0, pool.width)
        if policy.ended != "keep" and (self.rules.unordered or ended):
            rows = next_rows(policy.ended, found, pool.width, ended, self.rules.unordered)
        if policy.ended == "shrink":
            pool.width = len(rows.score)
        if len(rows.score) < self.width:
            rows = self._filled(rows, i)
        stopped = self._stopped(pool, found, rows, ended)
        if at_max and not stopped:
            self._finish_open(pool, rows)
        pool.done = pool.done or stopped or at_max
        # A group that is done leaves the others to race
        return rows if not pool.done or len(self.pools) == 1 else self._filled(found.part(0, 0), i)

    def _stopped(self, pool: Pool, found: Candidates, rows: Candidates, ended: list[int]) -> bool:
        stop, step = self.rules.stop, self.n_steps
        if not isinstance(stop, LengthRatio):
            return pool.stopped(found, rows, step, self.max_steps)
        if not any(found.score[rank] > -math.inf for rank in ended):
            return False
        first = self.complete(found, 0, self._total(found, 0), self.costs[found.row[0]], step)
        return pool.at_ratio(stop, first.score / self.limits.expected)

    def _filled(self, rows: Candidates, i: int) -> Candidates:
        """In the place of missing rows, some that do not exist."""
        n = self.width - len(rows.score)
        first = i * self.width
        return rows.then(Candidates([-math.inf] * n, [first] * n, [self.eos] * n, [0.0] * n))

    def _total(self, found: Candidates, rank: int) -> float:
        """What it counts, without the penalty that a stepwise one has steered by."""
        score = found.score[rank]
        return score + self.costs[found.row[rank]] if self.rules.stepwise_penalty else score

    def _finish(self, pool: Pool, found: Candidates, rank: int) -> None:
        if found.score[rank] > -math.inf:
            total, cost = self._total(found, rank), self.costs[found.row[rank]]
            pool.add(self.complete(found, rank, total, cost, self.n_steps))

    def complete(
        self, found: Candidates, rank: int, total: float, cost: float, step: int
    ) -> Finished:
        """A hypothesis of `step` tokens, ranked by what it counts and its coverage penalty."""
        rules, policy = self.rules, self.policy
        token = found.token[rank]
        ended = token == self.eos
        length = step + (policy.length_offset if ended else policy.open_length_offset)
        norm = length_norm(rules.length_penalty, rules.alpha, length)
        if rules.stepwise_penalty:
            score = (total - (cost if step >= policy.stepwise_from else 0.0)) / norm
        else:
            score = total / norm - cost
        return Finished(score, step, found.row[rank], token, found.log_prob[rank], ended)

    def _finish_open(self, pool: Pool, rows: Candidates) -> None:
        """What becomes of rows that are open at the last step, where that is a matter apart."""
        live = [i for i, y in enumerate(rows.token) if y != self.eos]
        if self.policy.at_max == "compete":
            for i in live:
                self._finish(pool, rows, i)
        elif self.policy.at_max == "if_none" and not pool.finished:
            for i in live:
                self._finish(pool, rows, i)
            for hyp in pool.finished:  # as they are, whatever their length
                hyp.score = sum(self.hypothesis(hyp)[1])

    def _close(self, rows_before: Candidates, scores_before: list[float]) -> None:
        """See whether anything is left to do."""
        exhausted = max(self.scores) == -math.inf
        if exhausted:
            for pool in self.pools:
                pool.done = True
            if not self.finished:
                self._end_where_it_is(rows_before, scores_before)
        self.done = self.over = all([pool.done for pool in self.pools])
        if self.policy.coupled:
            self.over = exhausted or self.n_steps >= self.max_steps

    def _end_where_it_is(self, rows: Candidates, scores: list[float]) -> None:
        """The model allows no continuation of any row: the best one is complete as it is."""
        if not rows.score:  # not even a first token
            self.pools[0].add(Finished(0.0, 0, 0, self.rules.bos_id, 0.0, ended=False))
            return
        k = scores.index(max(scores))
        hyp = self.complete(rows, k, scores[k], self.costs[k], self.n_steps - 1)
        self.pools[0].add(hyp)

    def _move_views(self) -> None:
        """A stepwise penalty is taken off what finished in the last step, too."""
        if self.rules.stepwise_penalty:
            for hyp, k in self.views.of_step:
                hyp.score = sum(self.hypothesis(hyp)[1]) - self.costs[k]

    def _charge_ended(self) -> None:
        ended = [hyp for hyp in self.finished if hyp.step == self.n_steps]
        self.views.look_at(ended, self.rows)
        self.totals = self.views.charge(len(ended), self.rows, self.costs, self.totals)

    def best(self) -> list[Finished]:
        """All complete hypotheses, best first."""
        if self.policy.at_max == "pad" and len(self.finished) < self.rules.n_best:
            self._pad(self.rules.n_best - len(self.finished))
        found = self.finished
        if self.policy.ties == "later":
            found.reverse()
        return sorted(found, key=lambda hyp: -hyp.score)

    def _pad(self, n: int) -> None:
        """Take the first n rows as hypotheses, those that are finished for a second time."""
        ranks = [k for k, score in enumerate(self.rows.score) if score > -math.inf][:n]
        self.totals = self.views.charge(len(ranks), self.rows, self.costs, self.totals)
        for k in ranks:
            cost = 0.0 if self.views.charges else self.costs[self.rows.row[k]]
            hyp = self.complete(self.rows, k, self.totals[k], cost, self.n_steps)
            self.pools[0].add(hyp)

    def hypothesis(self, hyp: Finished) -> tuple[list[int], list[float]]:
        """Its tokens and their log-probabilities, in order."""
        if hyp.step == 0:
            return [], []
        tokens, log_probs = self.get_hyp(hyp.step - 1, hyp.row)
        return [*tokens, hyp.token], [*log_probs, hyp.log_prob]

    def alignment(self, hyp: Finished) -> list[int]:
        """Which token of the source was attended to most when each of its tokens was made."""
        found, k = [], hyp.row
        for t in range(hyp.step - 1, -1, -1):
            found.append(self.places[t][k])
            k = self.prev_ks[t - 1][k] if t else 0
        return found[::-1]

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


def next_rows(
    kind: str, found: Candidates, width: int, ended: list[int], unordered: bool
) -> Candidates:
    """The candidates that become rows, in order, where some have `ended` (their ranks).

    refill   the best that did not, whatever the order they were drawn in
    in_slot  the first ones, each that ended replaced by the next one further down that did not
    shrink   those of the first ones that did not
    """
    score = found.score
    if kind == "refill" and not unordered:
        return found.without(ended).part(0, width)
    if kind == "shrink":
        return found.take([i for i in range(width) if i not in ended and score[i] > -math.inf])
    if kind == "refill":
        open_ones = [i for i in range(len(score)) if i not in ended]
        return found.take(sorted(open_ones, key=score.__getitem__, reverse=True)[:width])
    spare = (i for i in range(width, len(score)) if i not in ended)
    slots = [next(spare, None) if i in ended else i for i in range(width)]
    return found.take([i for i in slots if i is not None])
