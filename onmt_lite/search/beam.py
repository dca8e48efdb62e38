"""The beam of one sentence: plain numbers, no model, no device, no text."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onmt_lite.search.policy import Bound, Full, LengthRatio, TopEnded
from onmt_lite.search.spec import Limits, Plan

NOT_A_NUMBER = "not-a-number"  # the model's output is NaN, so nothing can be ranked
SEARCH_EMPTY = "search-empty"  # the model allows no continuation before a hypothesis has finished


class Candidates(NamedTuple):
    """Continuations of a sentence's rows, best first, in columns.

    All columns are floats, as the device has sent them: most are never read.
    """

    score: list[float]  # sum of log-probabilities, less a stepwise penalty; -inf: no candidate
    row: Sequence[float]  # the row of this sentence that the candidate continues
    token: Sequence[float]
    log_prob: list[float]  # the model's log-probability of this token

    def part(self, start: int, end: int) -> "Candidates":
        score, row, token, log_prob = self
        return Candidates(score[start:end], row[start:end], token[start:end], log_prob[start:end])


class Event(NamedTuple):
    """A step of one sentence that its `Beam` must see."""

    step: int  # number of the sentence's own step, from 1
    candidates: Candidates  # as ranked; with groups that finish apart, group after group
    rows: Candidates  # the candidates that became the K new rows
    costs: list[float]  # coverage penalty of each old row, this step's attention included


@dataclass(slots=True)
class Finished:
    """A complete hypothesis: its last token, and the row of the step before that it continues."""

    score: float  # by which hypotheses are ranked
    step: int  # number of tokens; 0: none
    row: int
    token: int
    log_prob: float
    ended: bool  # with the end token; False: cut off by max_length


@functools.lru_cache(maxsize=4096)  # the same few lengths, over and over
def length_norm(form: str, alpha: float, length: int) -> float:
    """The divisor of a sum of log-probabilities; `length` counts the end token, too.

    `wu` is equation 14 of Wu et al. 2016, `avg` OpenNMT's average raised to alpha.
    """
    if form == "wu":
        return float(((5 + length) / 6) ** alpha)
    if form == "avg":
        return float(max(1, length) ** alpha)
    return 1.0


class FinishedPool:
    """The finished hypotheses of a beam, or of one of its groups if they finish apart."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.finished: list[Finished] = []
        self.top_ended = False  # the best candidate of a step was an end token
        self.done = False

    def add(self, hyp: Finished) -> None:
        """Keep a hypothesis if the policy does: all, the first k or the best k."""
        finished, policy = self.finished, self.plan.policy
        if policy.pool == "all" or len(finished) < self.plan.width:
            finished.append(hyp)
        elif policy.pool == "best":
            scores = [other.score for other in finished]
            worst, n = min(scores), len(scores) - 1
            if hyp.score > worst:
                # Of the equally bad, drop the last in the policy's order of ties
                later = policy.ties == "later"
                del finished[scores.index(worst) if later else n - scores[::-1].index(worst)]
                finished.append(hyp)


def min_finished(plan: Plan) -> int:
    """Minimum number of finished hypotheses before the stop rule is checked."""
    if isinstance(plan.stop, TopEnded | LengthRatio):
        return plan.n_best if plan.stop.need == "n_best" else plan.beam_size
    if isinstance(plan.stop, Full):  # half is rounded up, as C++ does
        return math.floor(plan.width * plan.patience + 0.5)
    return 1 if isinstance(plan.stop, Bound) and plan.stop.finished == "one" else plan.width


class Beam:
    """The `Beam` of OpenNMT-py (2018), with policies for what later searches do otherwise.

    The device chooses the rows of each step.  A Beam is visited only at events: a hypothesis ends,
    the step limit is reached, a stop rule must be checked, or no row is left.  Then `advance`
    collects what finished and decides whether the search is over; `read` takes over the rows of the
    steps in between.

    next_ys[t][k]    token of row k after t steps; next_ys[0]: the last start token
    prev_ks[t][k]    row of step t that row k of step t+1 continues
    log_probs[t][k]  log-probability of next_ys[t+1][k]
    scores[t][k]     score of row k after t+1 steps; -inf: no such row
    places[t][k]     source token that row k of step t attended to most, if the plan aligns
    finished         finished hypotheses, in the order in which they finished
    note             what went wrong: NOT_A_NUMBER, SEARCH_EMPTY or nothing

    Args:
        plan: Plan of the search, which all sentences share.
        limits: Limits of this sentence: steps, and tokens that are given.
    """

    def __init__(self, plan: Plan, limits: Limits):
        self.plan, self.limits = plan, limits
        self.start = (limits.start or (plan.bos_id,))[-1]
        self.next_ys = [[self.start] * plan.beam_size]
        self.prev_ks: list[list[int]] = []
        self.log_probs: list[list[float]] = []
        self.scores: list[list[float]] = []
        self.places: list[list[int]] = []
        # Tokens that count in the length of a hypothesis beside its own: start tokens.  Negative if
        # its prefix does not count; start tokens do not count then, either
        not_counted = plan.prefix_counts == "nothing" and limits.prefix
        self.n_before = -len(limits.prefix) if not_counted else plan.n_given
        self.offset = self.n_before + plan.policy.length_offset
        self.open_offset = self.n_before + plan.policy.open_length_offset
        self.need = min_finished(plan)
        self.pools = [FinishedPool(plan) for _ in range(plan.n_pools)]
        self.costs = [0.0] * plan.beam_size
        self.n_steps = 0  # of the last event
        self.watching = False  # a stop rule must be checked at every step
        self.correction: list[float] | None = None  # scores that the next step must start from
        self.note = ""

    @property
    def done(self) -> bool:
        """Whether the search of this sentence is over."""
        return all([pool.done for pool in self.pools])

    @property
    def finished(self) -> list[Finished]:
        return [hyp for pool in self.pools for hyp in pool.finished]

    def read(self, lines: list[list[float]]) -> None:
        """Take over the rows of the steps since the last call.

        Args:
            lines: list of list of float, one for each step, see `Transfer.read`.
        """
        k = self.plan.beam_size
        for line in lines:
            ids = list(map(int, line[k : 3 * k]))
            self.prev_ks.append(ids[:k])
            self.next_ys.append(ids[k:])
            self.log_probs.append(line[3 * k : 4 * k])
            self.scores.append(line[:k])
            if self.plan.aligns:
                self.places.append(list(map(int, line[-k:])))

    def advance(self, event: Event) -> None:
        """Collect the hypotheses that a step finished, and decide whether the search is over.

        Args:
            event: what the device tells of the step.
        """
        self.n_steps, candidates, rows, self.costs = event
        n, width = len(candidates.score) // len(self.pools), self.plan.width
        for i, pool in enumerate(self.pools):
            if not pool.done:
                own = candidates.part(i * n, (i + 1) * n)
                self._advance_pool(pool, own, rows.part(i * width, (i + 1) * width))
        self._close(rows)

    def fail(self) -> None:
        """End the search without a hypothesis: the model's output is NaN."""
        self.note = NOT_A_NUMBER
        for pool in self.pools:
            pool.finished.clear()
            pool.done = True

    def _advance_pool(self, pool: FinishedPool, candidates: Candidates, rows: Candidates) -> None:
        policy, eos = self.plan.policy, self.plan.eos_id
        at_max = self.n_steps >= self.limits.max_steps
        first = candidates.token[: policy.ends_within * self.plan.width]
        if eos in first or at_max:
            all_finish = at_max and policy.at_max == "rows"
            for rank, token in enumerate(first):
                if token == eos or all_finish:
                    self._finish(pool, candidates, rank)
        stopped = self._stopped(pool, candidates, rows)
        if at_max and not stopped:
            self._finish_open(pool, rows)
        pool.done = pool.done or stopped or at_max

    def _stopped(self, pool: FinishedPool, candidates: Candidates, rows: Candidates) -> bool:
        """Whether the stop rule holds for a pool after a step with these candidates and rows."""
        stop, eos, enough = self.plan.stop, self.plan.eos_id, len(pool.finished) >= self.need
        if isinstance(stop, TopEnded):
            ended = candidates.token[0] == eos and candidates.score[0] > -math.inf
            pool.top_ended = ended or (stop.sticky and pool.top_ended)
            return enough and pool.top_ended
        if isinstance(stop, LengthRatio) and enough:
            tokens = zip(candidates.token, candidates.score)
            if not any(token == eos and score > -math.inf for token, score in tokens):
                return False
            per_token = self.complete(candidates, 0, self.n_steps).score / self.limits.expected
            best = max(hyp.score / (hyp.step + stop.offset) for hyp in pool.finished)
            return best >= per_token
        if isinstance(stop, Bound) and enough:
            racing = candidates if stop.best_of == "candidates" else rows
            return self._out_of_reach(stop, max(racing.score), pool)
        return enough and isinstance(stop, Full)

    def _out_of_reach(self, bound: Bound, best: float, pool: FinishedPool) -> bool:
        """Whether `best`, a sum of log-probabilities, is not expected to beat the finished ones."""
        plan = self.plan
        far = bound.horizon == "max" or (bound.horizon == "max_if_rewarded" and plan.alpha > 0)
        length = (self.limits.max_steps if far else self.n_steps) + self.n_before
        reach = best / length_norm(plan.length_penalty, plan.alpha, length)
        pick = min if bound.beats == "worst" else max
        rival = pick([hyp.score for hyp in pool.finished])
        return rival > reach if bound.strictly else rival >= reach

    def _finish(self, pool: FinishedPool, candidates: Candidates, rank: int) -> None:
        if candidates.score[rank] > -math.inf:
            pool.add(self.complete(candidates, rank, self.n_steps))

    def complete(
        self,
        candidates: Candidates,
        rank: int,
        step: int,
        total: float | None = None,
        cost: float | None = None,
    ) -> Finished:
        """Score a hypothesis with its length and coverage penalties.

        Args:
            candidates: its last token and others.
            rank: int, which of them.
            step: int, how many tokens it has.
            total: float, the sum of its log-probabilities in nats; None: that of the last event.
            cost: float, its coverage penalty in nats; None: that of the last event.

        Returns:
            The finished hypothesis.
        """
        plan, row, token = self.plan, int(candidates.row[rank]), int(candidates.token[rank])
        cost = self.costs[row] if cost is None else cost
        if total is None:  # a stepwise penalty has steered the ranking and is not paid
            total = candidates.score[rank] + (cost if plan.stepwise_penalty else 0.0)
        ended = token == plan.eos_id
        length = step + (self.offset if ended else self.open_offset)
        norm = length_norm(plan.length_penalty, plan.alpha, length)
        if not plan.stepwise_penalty:
            score = total / norm - cost
        else:
            score = (total - (cost if step >= plan.policy.stepwise_from else 0.0)) / norm
        return Finished(score, step, row, token, candidates.log_prob[rank], ended)

    def _finish_open(self, pool: FinishedPool, rows: Candidates) -> None:
        """Make hypotheses of the rows that are open at the last step, if the policy says so."""
        at_max = self.plan.policy.at_max
        if at_max == "compete" or (at_max == "if_none" and not pool.finished):
            for k, token in enumerate(rows.token):
                if token != self.plan.eos_id:
                    self._finish(pool, rows, k)
            if at_max == "if_none":  # without any penalty
                for hyp in pool.finished:
                    hyp.score = sum(self.hypothesis(hyp)[1])

    def _close(self, rows: Candidates) -> None:
        """End the search if no row is left."""
        n_ended = rows.token.count(self.plan.eos_id)
        scores = self._open_scores(rows) if n_ended else rows.score
        if len(self.pools) > 1 and any(pool.done for pool in self.pools):
            # A group that is done leaves the others to race
            closed = [pool.done for pool in self.pools for _ in range(self.plan.width)]
            scores = [-math.inf if c else score for score, c in zip(scores, closed)]
            self.correction = scores
        if max(scores) == -math.inf:
            if not self.finished:
                self._end_where_it_is()
            for pool in self.pools:
                pool.done = True
        if isinstance(self.plan.stop, Bound):
            enough = [len(pool.finished) >= self.need and not pool.done for pool in self.pools]
            self.watching = any(enough)

    def _open_scores(self, rows: Candidates) -> list[float]:
        """Scores of rows; -inf if they ended."""
        pairs, eos = zip(rows.score, rows.token), self.plan.eos_id
        return [-math.inf if token == eos else score for score, token in pairs]

    def _end_where_it_is(self) -> None:
        """Finish the best row as it is: the model allows no continuation of any."""
        self.note = SEARCH_EMPTY
        step = self.n_steps - 1
        if step == 0:  # not even a first token
            self.pools[0].add(Finished(0.0, 0, 0, self.start, 0.0, ended=False))
            return
        rows = self.rows(step)
        open_scores = self._open_scores(rows)
        k = open_scores.index(max(open_scores))
        self.pools[0].add(self.complete(rows, k, step, rows.score[k], self.costs[k]))

    def rows(self, step: int) -> Candidates:
        """Return the rows that a step has made.

        Args:
            step: int, from 1 on.
        """
        t = step - 1
        return Candidates(self.scores[t], self.prev_ks[t], self.next_ys[step], self.log_probs[t])

    def end(self) -> None:
        """Called when the search is over and all its rows have been read."""

    def best(self) -> list[Finished]:
        """Return all finished hypotheses, best first."""
        finished = self.finished
        if self.plan.policy.ties == "later":
            finished.reverse()
        return sorted(finished, key=lambda hyp: -hyp.score)

    def hypothesis(self, hyp: Finished) -> tuple[list[int], list[float]]:
        """Return the tokens of a hypothesis and their log-probabilities in nats, in order.

        Args:
            hyp: one of `finished`.
        """
        if hyp.step == 0:
            return [], []
        tokens, log_probs = self.get_hyp(hyp.step - 1, hyp.row)
        return [*tokens, hyp.token], [*log_probs, hyp.log_prob]

    def alignment(self, hyp: Finished) -> list[int]:
        """Return for each token of a hypothesis the source token that it attended to most.

        Args:
            hyp: one of `finished`.
        """
        places, k = [], hyp.row
        for t in range(hyp.step - 1, -1, -1):
            places.append(self.places[t][k])
            k = self.prev_ks[t - 1][k] if t else 0
        return places[::-1]

    def get_hyp(self, step: int, k: int) -> tuple[list[int], list[float]]:
        """Walk back from a row: its tokens and their log-probabilities in nats, in order.

        Args:
            step: int, the step that made the row, from 1 on.
            k: int, the row, from 0.
        """
        tokens, log_probs = [], []
        for t in range(step, 0, -1):
            tokens.append(self.next_ys[t][k])
            log_probs.append(self.log_probs[t - 1][k])
            k = self.prev_ks[t - 1][k]
        return tokens[::-1], log_probs[::-1]


class Beam2018(Beam):
    """A `Beam` with the bugs of OpenNMT-py of 2018, bit for bit.

    Coupling: a sentence that was done went on until its batch was done.  Aliasing: the scores of a
    beam were one tensor per step.  Unless a length penalty divided them, the scores of finished
    hypotheses were views of this tensor, and the coverage penalty was subtracted in place: from all
    rows, again for every hypothesis that was scored.  Padding: open rows filled up the n-best list.

    open    the beams of the batch whose stop rule has not held yet, this one among them
    totals  scores of the newest rows, after the subtractions in place
    views   finished hypotheses of the newest step, each with the row whose score it shares
    """

    def __init__(self, plan: Plan, limits: Limits, open_beams: "set[Beam2018]"):
        super().__init__(plan, limits)
        open_beams.add(self)
        self.open = open_beams
        # Nothing is subtracted without a coverage penalty
        self.aliased = self.watching = plan.length_penalty == "none" and plan.has_costs
        self.charges = self.aliased and not plan.stepwise_penalty
        self.views: list[tuple[Finished, int]] = []
        self.totals = plan.first_scores()
        self.exhausted = False

    @property
    def done(self) -> bool:
        at_max = self.n_steps >= self.limits.max_steps
        return self.exhausted or at_max or not self.open

    def advance(self, event: Event) -> None:
        pool = self.pools[0]
        pool.done = False
        if self.aliased and self.plan.stepwise_penalty:
            for hyp, k in self.views:
                hyp.score = sum(self.hypothesis(hyp)[1]) - event.costs[k]
        super().advance(event)
        self.watching = self.aliased
        if pool.done:
            self.open.discard(self)
        eos, rows = self.plan.eos_id, zip(event.rows.score, event.rows.token)
        self.exhausted = not any([score > -math.inf and token != eos for score, token in rows])
        if self.aliased:
            self._share_scores(event.rows)

    def fail(self) -> None:
        super().fail()
        self.open.discard(self)
        self.exhausted = True

    def _share_scores(self, rows: Candidates) -> None:
        ended = [hyp for hyp in self.finished if hyp.step == self.n_steps]
        place = {key: k for k, key in enumerate(zip(rows.row, rows.token))}
        self.views = [(hyp, place[hyp.row, hyp.token]) for hyp in ended]
        self.totals = rows.score
        self._charge(len(ended), rows)
        self.scores[self.n_steps - 1] = self.totals
        self.correction = self._open_scores(rows._replace(score=self.totals))

    def _charge(self, times: int, rows: Candidates) -> None:
        """Subtract the coverage penalty from all rows `times` times, and from their views."""
        if self.charges:
            self.totals = [
                total - self.costs[int(row)] * times for total, row in zip(self.totals, rows.row)
            ]
            for hyp, k in self.views:
                hyp.score = self.totals[k]

    def end(self) -> None:
        """Fill up the n-best list with rows, even those that are in it already."""
        if self.note == NOT_A_NUMBER:
            return
        n, n_steps = max(0, self.plan.n_best - len(self.finished)), len(self.prev_ks)
        if n == 0 or n_steps == 0:
            return
        rows = self.rows(n_steps)
        if not self.aliased:
            self.totals = rows.score
        ranks = [k for k, score in enumerate(rows.score) if score > -math.inf][:n]
        self._charge(len(ranks), rows)
        for k in ranks:
            cost = 0.0 if self.charges else self.costs[int(rows.row[k])]
            self.pools[0].add(self.complete(rows, k, n_steps, self.totals[k], cost))
