"""The beam of one sentence: pure Python on the host, independent of model, device and text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onmt_lite.search.spec import SearchSpec, SentenceLimits

# Values of `Beam.warning`
NOT_A_NUMBER = "not-a-number"  # the model returned NaN: no candidates can be ranked
SEARCH_EMPTY = "search-empty"  # all continuations have probability 0, and no hypothesis finished


class CandidateList(NamedTuple):
    """`Candidates` of one sentence on the host, best first; one column per field.

    Integer columns stay floats, as copied from the device, because most are never used.
    """

    score: list[float]  # sum of log-probabilities, less a stepwise penalty; -inf: no candidate
    parent: Sequence[float]  # back-pointer: row of this sentence, from 0
    token: Sequence[float]
    log_prob: list[float]  # the model's log-probability of the token
    ended: Sequence[float]  # 1 if the token is EOS, else 0

    def select_range(self, start: int, end: int) -> "CandidateList":
        """Return candidates start to end - 1."""
        return CandidateList(*(column[start:end] for column in self))  # type: ignore[arg-type]

    def exists(self, i: int) -> bool:
        """Return True if candidate i has a score above -inf."""
        return self.score[i] > -math.inf

    def has_ended(self, i: int) -> bool:
        """Return True if candidate i exists and is a complete hypothesis."""
        return bool(self.ended[i]) and self.score[i] > -math.inf

    def get_open_scores(self) -> list[float]:
        """Return the scores, with -inf for candidates that took EOS."""
        return [-math.inf if end else score for score, end in zip(self.score, self.ended)]


class StepEvent(NamedTuple):
    """One step of one sentence, for its `Beam`."""

    step: int  # step of the sentence, from 1
    candidates: CandidateList  # N, best first; by group if diverse groups finish apart
    rows: CandidateList  # K, the candidates that became the new rows
    penalties: list[float]  # K coverage penalties of the old rows, this step's attention included


class RowHistory(NamedTuple):
    """Rows of T consecutive steps: the next T entries of each table in `Beam`, (T, K)."""

    scores: list[list[float]]
    prev_ks: list[list[int]]
    next_ys: list[list[int]]
    log_probs: list[list[float]]
    ended: list[list[bool]]
    attended: list[list[int]]  # [] unless the spec tracks attention


@dataclass(slots=True)
class FinishedHypothesis:
    """A finished hypothesis: its last token, and a back-pointer to the rest."""

    score: float  # normalized score, for ranking
    step: int  # number of tokens, EOS included; 0: empty
    row: int  # back-pointer: row of the previous step
    token: int  # last token
    log_prob: float  # of the last token
    ended: bool  # True: the last token is EOS; False: truncated at the limit


class FinishedPool:
    """Finished hypotheses of a beam, or of one diverse group if groups finish apart."""

    def __init__(self, spec: SearchSpec):
        self.spec = spec
        self.finished: list[FinishedHypothesis] = []
        self.top_ended = False  # True once the best candidate of a step has taken EOS
        self.is_finished = False

    def add(self, hyp: FinishedHypothesis) -> None:
        """Add a hypothesis if `Policy.pool` keeps it: all, the first k or the best k."""
        finished, policy = self.finished, self.spec.policy
        if policy.pool == "all" or len(finished) < self.spec.group_size:
            finished.append(hyp)
        elif policy.pool == "best":
            scores = [kept.score for kept in finished]
            worst, last = min(scores), len(scores) - 1
            if hyp.score > worst:
                # Of equal worst scores, drop the one that `Policy.ties` ranks last
                prefers_later = policy.ties == "later"
                first_worst, last_worst = scores.index(worst), last - scores[::-1].index(worst)
                del finished[first_worst if prefers_later else last_worst]
                finished.append(hyp)


class Beam:
    """The beam of one sentence, modeled on `onmt/translate/beam.py` of OpenNMT-py (2018).

    The device chooses the rows of each step.  A Beam processes only events: a candidate took EOS,
    no row is left, the limit was reached, or a stop rule must be checked.  `advance` then collects
    finished hypotheses and checks the stop rule; `append_rows` adds the rows of the steps since the
    last call.  Three steps with K = 2; the second one swaps the rows:

        next_ys   [[<s>, <s>], [the, a], [cat, cat], [</s>, </s>]]    T + 1 lists of K tokens
        prev_ks   [[0, 0], [1, 0], [0, 1]]                            T lists of K back-pointers

        <s> ── the ─╮ ╭─ cat ── </s>      get_hyp(3, 0): prev_ks[2][0] = 0, prev_ks[1][0] = 1,
        <s> ── a  ──╯ ╰─ cat ── </s>      so the tokens are "a cat </s>"

        next_ys[t][k]    token of row k after t steps; next_ys[0]: the last start token
        prev_ks[t][k]    back-pointer: row of step t that row k of step t+1 continues
        log_probs[t][k]  log-probability of next_ys[t+1][k]
        scores[t][k]     score of row k after t+1 steps; -inf: no such row
        ended[t][k]      True if next_ys[t+1][k] is EOS
        attended[t][k]   source token that row k of step t attends to most, if the spec tracks it
        finished         finished hypotheses, in the order in which they finished
        warning          NOT_A_NUMBER, SEARCH_EMPTY or ""

    Args:
        spec: SearchSpec, shared by all sentences.
        limits: SentenceLimits of this sentence.
    """

    needs_rows_at_events = False  # True: `append_rows` must precede every `advance`

    def __init__(self, spec: SearchSpec, limits: SentenceLimits):
        self.spec, self.limits = spec, limits
        self.start = (limits.start or (spec.bos_id,))[-1]
        self.next_ys = [[self.start] * spec.beam_size]
        self.prev_ks: list[list[int]] = []
        self.log_probs: list[list[float]] = []
        self.scores: list[list[float]] = []
        self.ended: list[list[bool]] = []
        self.attended: list[list[int]] = []
        # Length in the score = number of tokens + n_before: start tokens that count, or minus the
        # prefix tokens if they do not count (then start tokens do not count either)
        skips_prefix = spec.prefix_in_score == "nothing" and limits.prefix
        self.n_before = -len(limits.prefix) if skips_prefix else spec.n_counted_start
        self.offset = self.n_before + spec.policy.length_offset
        self.open_offset = self.n_before + spec.policy.open_length_offset
        self.min_finished = spec.stop_rule.get_min_finished(spec)
        self.pools = [FinishedPool(spec) for _ in range(spec.n_pools)]
        self.penalties = [0.0] * spec.beam_size
        self.n_steps = 0  # step of the last event
        self.checks_every_step = False
        self.corrected_scores: list[float] | None = None  # (K,), to upload before the next step
        self.warning = ""

    @property
    def is_finished(self) -> bool:
        """True if the search of this sentence is finished."""
        return all([pool.is_finished for pool in self.pools])

    @property
    def finished(self) -> list[FinishedHypothesis]:
        """Finished hypotheses of all pools."""
        return [hyp for pool in self.pools for hyp in pool.finished]

    def append_rows(self, rows: RowHistory) -> None:
        """Append rows to the tables.

        Args:
            rows: the rows of all steps since the last call.
        """
        self.scores += rows.scores
        self.prev_ks += rows.prev_ks
        self.next_ys += rows.next_ys
        self.log_probs += rows.log_probs
        self.ended += rows.ended
        self.attended += rows.attended

    def advance(self, event: StepEvent) -> None:
        """Collect the hypotheses that finished at a step, then check the stop rule.

        Args:
            event: the step, with its candidates and new rows.
        """
        self.n_steps, candidates, rows, self.penalties = event
        n, size = len(candidates.score) // len(self.pools), self.spec.group_size
        for g, pool in enumerate(self.pools):
            if not pool.is_finished:
                group_candidates = candidates.select_range(g * n, (g + 1) * n)
                group_rows = rows.select_range(g * size, (g + 1) * size)
                self._advance_pool(pool, group_candidates, group_rows)
        self._close(rows)

    def fail(self) -> None:
        """End the search without a hypothesis because the model returned NaN."""
        self.warning = NOT_A_NUMBER
        for pool in self.pools:
            pool.finished.clear()
            pool.is_finished = True

    def _advance_pool(
        self, pool: FinishedPool, candidates: CandidateList, rows: CandidateList
    ) -> None:
        """Add finished hypotheses to a pool, then check its stop rule.

        Args:
            pool: a pool that is not finished.
            candidates: its candidates at this step, best first.
            rows: its new rows.
        """
        spec, policy = self.spec, self.spec.policy
        at_limit = self.n_steps >= self.limits.max_steps
        all_finish = at_limit and policy.open_rows_at_limit == "rows"
        n_counted = policy.eos_candidates_per_beam * spec.group_size
        for rank, ended in enumerate(candidates.ended[:n_counted]):
            if ended or all_finish:
                self._finish(pool, candidates, rank)
        pool.top_ended = pool.top_ended or candidates.has_ended(0)
        enough = len(pool.finished) >= self.min_finished
        stopped = enough and spec.stop_rule.should_stop(self, pool, candidates, rows)
        if at_limit and not stopped:
            self._finish_open(pool, rows)
        pool.is_finished = pool.is_finished or stopped or at_limit

    def _finish(self, pool: FinishedPool, candidates: CandidateList, rank: int) -> None:
        """Add a candidate of this step to a pool if it exists.

        Args:
            pool: the pool.
            candidates: candidates of the step.
            rank: the candidate that finished.
        """
        if candidates.exists(rank):
            pool.add(self.make_hypothesis(candidates, rank, self.n_steps))

    def make_hypothesis(
        self,
        candidates: CandidateList,
        rank: int,
        step: int,
        sum_log_probs: float | None = None,
        penalty: float | None = None,
    ) -> FinishedHypothesis:
        """Return a finished hypothesis, scored with length and coverage penalties.

        Args:
            candidates: candidates or rows of a step.
            rank: the candidate that finished.
            step: number of tokens, EOS included.
            sum_log_probs: in nats; None: from the candidate's score.
            penalty: coverage penalty in nats; None: of the parent row at the last event.
        """
        spec = self.spec
        row, token = int(candidates.parent[rank]), int(candidates.token[rank])
        penalty = self.penalties[row] if penalty is None else penalty
        if sum_log_probs is None:  # a stepwise penalty affects only the ranking
            sum_log_probs = candidates.score[rank] + (penalty if spec.stepwise_penalty else 0.0)
        ended = bool(candidates.ended[rank])
        norm = spec.compute_length_norm(step + (self.offset if ended else self.open_offset))
        if not spec.stepwise_penalty:
            score = sum_log_probs / norm - penalty
        else:
            final_penalty = penalty if step >= spec.policy.stepwise_penalty_from else 0.0
            score = (sum_log_probs - final_penalty) / norm
        return FinishedHypothesis(score, step, row, token, candidates.log_prob[rank], ended)

    def _finish_open(self, pool: FinishedPool, rows: CandidateList) -> None:
        """Finish the open rows at the limit, as `Policy.open_rows_at_limit` defines."""
        mode = self.spec.policy.open_rows_at_limit
        if mode == "compete" or (mode == "if_none" and not pool.finished):
            for k, ended in enumerate(rows.ended):
                if not ended:
                    self._finish(pool, rows, k)
            if mode == "if_none":  # tensor2tensor ranks them by the sum of log-probabilities
                for hyp in pool.finished:
                    hyp.score = sum(self.backtrack(hyp)[1])

    def _close(self, rows: CandidateList) -> None:
        """Drop rows of finished groups, end the search without rows, set `checks_every_step`."""
        scores = rows.get_open_scores()
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
            running = [pool for pool in self.pools if not pool.is_finished]
            n_needed = self.min_finished
            self.checks_every_step = any(len(pool.finished) >= n_needed for pool in running)

    def _finish_best_row(self) -> None:
        """Finish the best old row without EOS, because every continuation has probability 0."""
        self.warning = SEARCH_EMPTY
        step = self.n_steps - 1
        if step == 0:  # no first token is possible
            self.pools[0].add(FinishedHypothesis(0.0, 0, 0, self.start, 0.0, ended=False))
            return
        rows = self.get_rows(step)
        scores = rows.get_open_scores()
        k = scores.index(max(scores))
        self.pools[0].add(self.make_hypothesis(rows, k, step, rows.score[k], self.penalties[k]))

    def get_rows(self, step: int) -> CandidateList:
        """Return the K rows that a step produced.

        Args:
            step: the step, from 1.
        """
        t = step - 1
        columns = self.scores[t], self.prev_ks[t], self.next_ys[step], self.log_probs[t]
        return CandidateList(*columns, self.ended[t])

    def finalize(self) -> None:
        """Complete the n-best list; called once, after all rows were appended."""

    def rank_finished(self) -> list[FinishedHypothesis]:
        """Return all finished hypotheses, best first."""
        finished = self.finished[:: -1 if self.spec.policy.ties == "later" else 1]
        return sorted(finished, key=lambda hyp: -hyp.score)

    def backtrack(self, hyp: FinishedHypothesis) -> tuple[list[int], list[float]]:
        """Return the tokens of a finished hypothesis and their log-probabilities in nats.

        Args:
            hyp: an element of `finished`.
        """
        if hyp.step == 0:
            return [], []
        tokens, log_probs = self.get_hyp(hyp.step - 1, hyp.row)
        return [*tokens, hyp.token], [*log_probs, hyp.log_prob]

    def get_alignment(self, hyp: FinishedHypothesis) -> list[int]:
        """Return the position of the most attended source token for each target token.

        Args:
            hyp: an element of `finished`.
        """
        positions, k = [], hyp.row
        for t in range(hyp.step - 1, -1, -1):
            positions.append(self.attended[t][k])
            k = self.prev_ks[t - 1][k] if t else 0
        return positions[::-1]

    def get_hyp(self, step: int, k: int) -> tuple[list[int], list[float]]:
        """Follow the back-pointers from a row.

        Args:
            step: step that produced the row, from 1.
            k: the row, from 0.

        Returns:
            The tokens of the row, first to last, and their log-probabilities in nats.
        """
        tokens, log_probs = [], []
        for t in range(step, 0, -1):
            tokens.append(self.next_ys[t][k])
            log_probs.append(self.log_probs[t - 1][k])
            k = self.prev_ks[t - 1][k]
        return tokens[::-1], log_probs[::-1]
