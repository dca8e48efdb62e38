"""The beam of one sentence: plain numbers, no model, no device, no text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onmt_lite.search.spec import SearchSpec, SentenceLimits

NOT_A_NUMBER = "not-a-number"  # the model's output is NaN, so nothing can be ranked
SEARCH_EMPTY = "search-empty"  # the model allows no continuation before a hypothesis has finished


class CandidateList(NamedTuple):
    """Continuations of a sentence's rows on the host, best first, in columns.

    Columns are floats, as the device has sent them: most are never read.
    """

    score: list[float]  # sum of log-probabilities, less a stepwise penalty; -inf: impossible
    parent: Sequence[float]  # the row of this sentence that the candidate continues
    token: Sequence[float]
    log_prob: list[float]  # the model's log-probability of this token
    ended: Sequence[float]  # 1: the token is an end token

    def part(self, start: int, end: int) -> "CandidateList":
        return CandidateList(*(column[start:end] for column in self))  # type: ignore[arg-type]

    def exists(self, i: int) -> bool:
        return self.score[i] > -math.inf

    def has_ended(self, i: int) -> bool:
        """Return True if candidate i exists and is a complete hypothesis."""
        return bool(self.ended[i]) and self.score[i] > -math.inf

    def open_scores(self) -> list[float]:
        """Return the scores; -inf for candidates that ended."""
        return [-math.inf if end else score for score, end in zip(self.score, self.ended)]


class StepEvent(NamedTuple):
    """A step of one sentence that its `Beam` must see."""

    step: int  # number of the sentence's own step, from 1
    candidates: CandidateList  # as ranked; with groups that finish apart, group after group
    rows: CandidateList  # the candidates that became the K new rows
    penalties: list[float]  # coverage penalty of each old row, this step's attention included


class RowHistory(NamedTuple):
    """The rows that some steps made: (T, K) each, in the order of `Beam`'s tables."""

    scores: list[list[float]]
    prev_ks: list[list[int]]
    next_ys: list[list[int]]
    log_probs: list[list[float]]
    ended: list[list[bool]]
    attended: list[list[int]]  # (T, 0) if the spec does not track attention


@dataclass(slots=True)
class FinishedHypothesis:
    """A complete hypothesis: its last token, and the row of the step before that it continues."""

    score: float  # by which hypotheses are ranked
    step: int  # number of tokens; 0: none
    row: int
    token: int
    log_prob: float
    ended: bool  # with the end token; False: cut off by max_length


class FinishedPool:
    """The finished hypotheses of a beam, or of one of its groups if they finish apart."""

    def __init__(self, spec: SearchSpec):
        self.spec = spec
        self.finished: list[FinishedHypothesis] = []
        self.top_ended = False  # the best candidate of a step so far was an end token
        self.is_finished = False

    def add(self, hyp: FinishedHypothesis) -> None:
        """Keep a hypothesis if the policy does: all, the first k or the best k."""
        finished, policy = self.finished, self.spec.policy
        if policy.pool == "all" or len(finished) < self.spec.group_size:
            finished.append(hyp)
        elif policy.pool == "best":
            scores = [other.score for other in finished]
            worst, n = min(scores), len(scores) - 1
            if hyp.score > worst:
                # Of the equally bad, drop the last in the policy's order of ties
                later = policy.ties == "later"
                del finished[scores.index(worst) if later else n - scores[::-1].index(worst)]
                finished.append(hyp)


class Beam:
    """The `Beam` of OpenNMT-py (2018), with policies for what later searches do otherwise.

    The device chooses the rows of each step.  A Beam sees a step only at events: a hypothesis ends,
    the step limit is reached, a stop rule must be checked, or no row is left.  Then `advance`
    collects what finished and decides whether the search is over; `read` takes over the rows of the
    steps in between.  Three steps with K = 2, of which the second swaps its rows:

        next_ys   [[<s>, <s>], [the, a], [cat, cat], [</s>, </s>]]    T + 1 lists of K tokens
        prev_ks   [[0, 0], [1, 0], [0, 1]]                            T lists of K back-pointers

        <s> ── the ─╮ ╭─ cat ── </s>      get_hyp(3, 0): prev_ks[2][0] = 0, prev_ks[1][0] = 1,
        <s> ── a  ──╯ ╰─ cat ── </s>      so it is "a cat </s>"

    next_ys[t][k]    token of row k after t steps; next_ys[0]: the last start token
    prev_ks[t][k]    row of step t that row k of step t+1 continues
    log_probs[t][k]  log-probability of next_ys[t+1][k]
    scores[t][k]     score of row k after t+1 steps; -inf: no such row
    ended[t][k]      True if next_ys[t+1][k] is an end token
    attended[t][k]   source token that row k of step t attended to most, if the spec tracks it
    finished         finished hypotheses, in the order in which they finished
    note             what went wrong: NOT_A_NUMBER, SEARCH_EMPTY or nothing

    Args:
        spec: SearchSpec, which all sentences share.
        limits: SentenceLimits: steps, and forced tokens.
    """

    needs_rows_at_events = False  # rows must be up to date whenever `advance` is called

    def __init__(self, spec: SearchSpec, limits: SentenceLimits):
        self.spec, self.limits = spec, limits
        self.start = (limits.start or (spec.bos_id,))[-1]
        self.next_ys = [[self.start] * spec.beam_size]
        self.prev_ks: list[list[int]] = []
        self.log_probs: list[list[float]] = []
        self.scores: list[list[float]] = []
        self.ended: list[list[bool]] = []
        self.attended: list[list[int]] = []
        # Tokens that count in the length of a hypothesis besides its own: start tokens.  Negative
        # if its prefix does not count; start tokens do not count then, either
        not_counted = spec.prefix_in_score == "nothing" and limits.prefix
        self.n_before = -len(limits.prefix) if not_counted else spec.n_counted_start
        self.offset = self.n_before + spec.policy.length_offset
        self.open_offset = self.n_before + spec.policy.open_length_offset
        self.min_finished = spec.stop_rule.min_finished(spec)
        self.pools = [FinishedPool(spec) for _ in range(spec.n_pools)]
        self.penalties = [0.0] * spec.beam_size
        self.n_steps = 0  # of the last event
        self.checks_every_step = False
        self.corrected_scores: list[float] | None = (
            None  # scores that the next step must start from
        )
        self.warning = ""

    @property
    def is_finished(self) -> bool:
        """Return True if the search of this sentence is over."""
        return all([pool.is_finished for pool in self.pools])

    @property
    def finished(self) -> list[FinishedHypothesis]:
        return [hyp for pool in self.pools for hyp in pool.finished]

    def append_rows(self, rows: RowHistory) -> None:
        """Take over the rows of the steps since the last call.

        Args:
            rows: RowHistory, of consecutive steps.
        """
        self.scores += rows.scores
        self.prev_ks += rows.prev_ks
        self.next_ys += rows.next_ys
        self.log_probs += rows.log_probs
        self.ended += rows.ended
        self.attended += rows.attended

    def advance(self, event: StepEvent) -> None:
        """Collect the hypotheses that a step finished, and decide whether the search is over.

        Args:
            event: StepEvent, what the device has sent about the step.
        """
        self.n_steps, candidates, rows, self.penalties = event
        n, size = len(candidates.score) // len(self.pools), self.spec.group_size
        for i, pool in enumerate(self.pools):
            if not pool.is_finished:
                own = candidates.part(i * n, (i + 1) * n)
                self._advance_pool(pool, own, rows.part(i * size, (i + 1) * size))
        self._close(rows)

    def fail(self) -> None:
        """End the search without a hypothesis: the model's output is NaN."""
        self.warning = NOT_A_NUMBER
        for pool in self.pools:
            pool.finished.clear()
            pool.is_finished = True

    def _advance_pool(
        self, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> None:
        """Add the hypotheses that ended to a pool, then check its stop rule."""
        spec, policy = self.spec, self.spec.policy
        at_max = self.n_steps >= self.limits.max_steps
        all_finish = at_max and policy.open_rows_at_limit == "rows"
        for rank, ended in enumerate(
            candidates.ended[: policy.eos_candidates_per_beam * spec.group_size]
        ):
            if ended or all_finish:
                self._finish(pool, candidates, rank)
        pool.top_ended = pool.top_ended or candidates.has_ended(0)
        enough = len(pool.finished) >= self.min_finished
        stopped = enough and spec.stop_rule.should_stop(self, pool, candidates, rows)
        if at_max and not stopped:
            self._finish_open(pool, rows)
        pool.is_finished = pool.is_finished or stopped or at_max

    def _finish(self, pool: FinishedPool, candidates: CandidateList, rank: int) -> None:
        if candidates.exists(rank):
            pool.add(self.make_hypothesis(candidates, rank, self.n_steps))

    def make_hypothesis(
        self,
        candidates: CandidateList,
        rank: int,
        step: int,
        total: float | None = None,
        penalty: float | None = None,
    ) -> FinishedHypothesis:
        """Score a hypothesis with its length and coverage penalties.

        Args:
            candidates: CandidateList, its last token among others.
            rank: int, which of them.
            step: int, how many tokens it has.
            total: float, the sum of its log-probabilities in nats; None: that of the last event.
            penalty: float, its coverage penalty in nats; None: that of the last event.

        Returns:
            FinishedHypothesis.
        """
        spec = self.spec
        row, token = int(candidates.parent[rank]), int(candidates.token[rank])
        penalty = self.penalties[row] if penalty is None else penalty
        if total is None:  # a stepwise penalty has steered the ranking and is not paid
            total = candidates.score[rank] + (penalty if spec.stepwise_penalty else 0.0)
        ended = bool(candidates.ended[rank])
        norm = spec.length_norm(step + (self.offset if ended else self.open_offset))
        if not spec.stepwise_penalty:
            score = total / norm - penalty
        else:
            score = (total - (penalty if step >= spec.policy.stepwise_penalty_from else 0.0)) / norm
        return FinishedHypothesis(score, step, row, token, candidates.log_prob[rank], ended)

    def _finish_open(self, pool: FinishedPool, rows: CandidateList) -> None:
        """Make hypotheses of the rows that are open at the last step, if the policy says so."""
        at_max = self.spec.policy.open_rows_at_limit
        if at_max == "compete" or (at_max == "if_none" and not pool.finished):
            for k, ended in enumerate(rows.ended):
                if not ended:
                    self._finish(pool, rows, k)
            if at_max == "if_none":  # without any penalty
                for hyp in pool.finished:
                    hyp.score = sum(self.backtrack(hyp)[1])

    def _close(self, rows: CandidateList) -> None:
        """Close groups that are done, end the search if no row is left, and decide whether the next
        steps must be checked without an event."""
        scores = rows.open_scores()
        if len(self.pools) > 1 and any(pool.is_finished for pool in self.pools):
            closed = [pool.is_finished for pool in self.pools for _ in range(self.spec.group_size)]
            scores = [-math.inf if c else score for score, c in zip(scores, closed)]
            self.corrected_scores = scores
        if max(scores) == -math.inf:
            if not self.finished:
                self._finish_best_row()
            for pool in self.pools:
                pool.is_finished = True
        if self.spec.stop_rule.checks_every_step:
            enough = [
                len(p.finished) >= self.min_finished and not p.is_finished for p in self.pools
            ]
            self.checks_every_step = any(enough)

    def _finish_best_row(self) -> None:
        """Finish the best row as it is: the model allows no continuation of any."""
        self.warning = SEARCH_EMPTY
        step = self.n_steps - 1
        if step == 0:  # not even a first token
            self.pools[0].add(FinishedHypothesis(0.0, 0, 0, self.start, 0.0, ended=False))
            return
        rows = self.get_rows(step)
        scores = rows.open_scores()
        k = scores.index(max(scores))
        self.pools[0].add(self.make_hypothesis(rows, k, step, rows.score[k], self.penalties[k]))

    def get_rows(self, step: int) -> CandidateList:
        """Return the rows that a step has made.

        Args:
            step: int, from 1 on.
        """
        t = step - 1
        columns = self.scores[t], self.prev_ks[t], self.next_ys[step], self.log_probs[t]
        return CandidateList(*columns, self.ended[t])

    def finalize(self) -> None:
        """Called when the search is over and all its rows have been read."""

    def rank_finished(self) -> list[FinishedHypothesis]:
        """Return all finished hypotheses, best first."""
        finished = self.finished[:: -1 if self.spec.policy.ties == "later" else 1]
        return sorted(finished, key=lambda hyp: -hyp.score)

    def backtrack(self, hyp: FinishedHypothesis) -> tuple[list[int], list[float]]:
        """Return the tokens of a hypothesis and their log-probabilities in nats, in order.

        Args:
            hyp: one of `finished`.
        """
        if hyp.step == 0:
            return [], []
        tokens, log_probs = self.get_hyp(hyp.step - 1, hyp.row)
        return [*tokens, hyp.token], [*log_probs, hyp.log_prob]

    def get_alignment(self, hyp: FinishedHypothesis) -> list[int]:
        """Return for each token of a hypothesis the source token that it attended to most.

        Args:
            hyp: one of `finished`.
        """
        positions, k = [], hyp.row
        for t in range(hyp.step - 1, -1, -1):
            positions.append(self.attended[t][k])
            k = self.prev_ks[t - 1][k] if t else 0
        return positions[::-1]

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
