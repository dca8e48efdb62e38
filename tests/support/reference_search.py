"""Reference implementations of all searches, for one sentence, with lists and floats.

Each follows the control flow of its original.  No code comes from `onmt_lite.search`, not even from
its `presets`.

k is the beam size, t counts steps from 1, and T is the number of tokens of a hypothesis, EOS
included.  Candidates that an original masks with a large negative number do not exist here.  Only
rows that do not exist yet keep their score (-1e9, -1e7), because a beam wider than the vocabulary
selects them.  If no row has a possible continuation, the originals fail; here the best row is
finished without EOS.
"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import NamedTuple

import torch

from onmt_lite.models.table_model import TableSource

EOS = 0
PERTURBATION = 2e-7  # above the rounding error of a log-sum-exp, too small to matter for scores
TINY = 2.0**-126  # smallest normal float32, used as the attention of unattended tokens

DEFAULTS = {
    "": dict(
        beam_size=5,
        n_best=1,
        min_length=0,
        max_length=250,
        max_length_ratio=2.0,
        length_penalty="avg",
        alpha=1.0,
        coverage_penalty="none",
        beta=0.0,
        stepwise_penalty=False,
        block_ngram_repeat=0,
        ignore_when_blocking=(),
        repetition_penalty=1.0,
        ban_unk_token=False,
        early_stopping="false",
        patience=1.0,
        ratio=0.0,
        beam_groups=1,
        diversity_rate=0.0,
    ),
    "opennmt-2018": dict(length_penalty="none", alpha=0.0, max_length=100, max_length_ratio=0.0),
    "opennmt-3": dict(max_length_ratio=1.25),
    "tensor2tensor": dict(
        beam_size=4, length_penalty="wu", alpha=0.6, max_length=100_000, max_length_ratio=1.0
    ),
    "tensorflow": dict(
        beam_size=4, length_penalty="wu", alpha=0.6, max_length=100_000, max_length_ratio=1.0
    ),
    "transformers-2": dict(max_length_ratio=0.0),
    "transformers": dict(max_length_ratio=0.0),
    "transformers-5": dict(max_length_ratio=0.0),
    "fairseq": dict(min_length=1, max_length=200, max_length_ratio=0.0),
    "ctranslate2": dict(beam_size=2, min_length=1, max_length=256, max_length_ratio=0.0),
    "marian": dict(
        beam_size=12, alpha=0.0, max_length=100_000, max_length_ratio=3.0, ban_unk_token=True
    ),
}
# If max_length is set, the limit by source length is disabled
MAX_LENGTH_REPLACES_RATIO = ("tensor2tensor", "tensorflow", "marian")
EXTRA_TOKENS = {
    "tensor2tensor": 50,
    "tensorflow": 50,
    "marian": 0,
}  # added to ratio * source tokens


class Hyp(NamedTuple):
    tokens: tuple[int, ...]  # without EOS
    ended: bool
    score: float
    log_prob: float


@dataclass(frozen=True)
class Row:
    """An open hypothesis.

    total     sum of processed log-probabilities
    log_prob  sum of the model's log-probabilities
    covered   sum of attention that each source token has received
    cost      coverage penalty
    rank      score for ranking candidates
    """

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    log_prob: float = 0.0
    covered: tuple[float, ...] = ()
    cost: float = 0.0
    rank: float = 0.0

    @property
    def ended(self) -> bool:
        return self.tokens[-1:] == (EOS,)


class Finished(NamedTuple):
    score: float
    row: Row


def f32(x: float) -> float:
    """Round to float32, so that scores tie exactly as on the device."""
    return struct.unpack("f", struct.pack("f", x))[0]


@lru_cache(maxsize=10_000)
def log_sum_exp(logits: tuple[float, ...]) -> float:
    """Return the log-sum-exp, with torch for the same rounding as the search under test."""
    return torch.tensor([logits]).logsumexp(1).item()


def repeats(tokens: tuple[int, ...], n: int, exempt: Iterable[int] = ()) -> bool:
    """Return True if the last n tokens occur earlier, and none of them is exempt.

    Args:
        tokens: tokens of a row
        n: length of the n-gram; 0: never
        exempt: tokens whose n-grams may repeat
    """
    earlier = [tokens[i : i + n] for i in range(len(tokens) - n)]
    return n > 0 and tokens[-n:] in earlier and not set(tokens[-n:]) & set(exempt)


def penalize_repetition(values: list[float], tokens: Iterable[int], penalty: float) -> list[float]:
    """Return logits or log-probabilities with a repetition penalty (Keskar et al. 2019).

    Args:
        values: one per token of the vocabulary
        tokens: tokens of the row
        penalty: above 1: repetition is less likely
    """
    penalized = [x * penalty if x < 0 else x / penalty for x in values]
    return [penalized[y] if y in tokens else x for y, x in enumerate(values)]


def take_best(rows: list[Row], n: int) -> list[Row]:
    """Return the n best rows; ties by earlier parent, then by lower token."""
    return sorted(rows, key=lambda row: -row.rank)[:n]


class Task:
    """One sentence with its options, and helpers that all searches share.

    Args: as for `reference`.
    """

    def __init__(
        self,
        name: str,
        source: TableSource,
        given: dict,
        prefix: tuple[int, ...],
        words: list[str],
        unk: int | None,
        round_differently: bool,
    ):
        self.name, self.source, self.prefix = name, source, prefix
        self.round_differently = round_differently
        defaults = {**DEFAULTS[""], **DEFAULTS.get(name, {})}
        if name in MAX_LENGTH_REPLACES_RATIO and "max_length" in given:
            defaults["max_length_ratio"] = 0.0
        self.options = o = SimpleNamespace(**{**defaults, **given})
        self.k, self.n_best, self.n = o.beam_size, o.n_best, o.block_ngram_repeat
        self.alpha = 0.0 if o.length_penalty == "none" else o.alpha
        self.beta = 0.0 if o.coverage_penalty == "none" else o.beta
        self.stepwise = o.stepwise_penalty and o.coverage_penalty != "none"
        self.exempt = [words.index(w) for w in o.ignore_when_blocking if w in words]
        self.unk = unk if o.ban_unk_token else None

    def count_steps(self, extra: int = 0) -> int:
        """Return the maximum number of tokens: max_length or the limit by source, plus `extra`."""
        o, limit = self.options, self.options.max_length
        if o.max_length_ratio:
            by_source = o.max_length_ratio * self.source.length + EXTRA_TOKENS.get(self.name, 5)
            limit = min(limit, math.ceil(by_source) if self.name == "marian" else int(by_source))
        return max(1, limit + extra, len(self.prefix) + 1)

    def round(self, x: float) -> float:
        """Round to float32; always for rows that do not exist yet (-1e9), where rounding ties."""
        return x if self.round_differently and x > -1e5 else f32(x)

    def log_softmax(self, row: Row, logits: list[float]) -> list[float]:
        log_z = log_sum_exp(tuple(logits))
        if self.round_differently:
            log_z += PERTURBATION if hash(row.tokens) % 2 else -PERTURBATION
        return [f32(f32(x) - log_z) if x > -math.inf else x for x in logits]

    def compute_log_probs(self, row: Row) -> list[float]:
        return self.log_softmax(row, self.source.logits(row.tokens))

    def mask(self, row: Row, values: list[float], min_words: int = 0, n: int = 0) -> list[float]:
        """Return values with -inf for masked tokens.

        Args:
            row: the row to extend
            values: logits or log-probabilities
            min_words: EOS is masked before this number of tokens
            n: mask tokens that would repeat an n-gram
        """
        step = len(row.tokens)

        def is_allowed(y: int) -> bool:
            if step < len(self.prefix):
                return y == self.prefix[step]
            if y == self.unk or (y == EOS and step < min_words):
                return False
            return not repeats((*row.tokens, y), n, self.exempt)

        return [x if is_allowed(y) else -math.inf for y, x in enumerate(values)]

    def penalize_chosen(self, log_probs: list[float], chosen: Counter[int]) -> list[float]:
        """Subtract the diversity penalty for each time that earlier groups chose a token."""
        rate = self.options.diversity_rate
        return [self.round(x - rate * chosen[y]) for y, x in enumerate(log_probs)]

    def attend(self, row: Row) -> Row:
        """Return the row with the attention of its next step added."""
        attention = self.source.attention(row.tokens)
        covered = row.covered or (0.0,) * len(attention)
        covered = tuple(c + a for c, a in zip(covered, attention, strict=True))
        return replace(row, covered=covered, cost=self.compute_coverage(covered))

    def compute_coverage(self, covered: tuple[float, ...]) -> float:
        if self.options.coverage_penalty == "wu":
            if self.name == "ctranslate2":
                covered = tuple(c for c in covered if c > 0)
            return self.beta * sum(-math.log(max(min(c, 1.0), TINY)) for c in covered)
        if self.options.coverage_penalty == "summary":
            return self.beta * (sum(max(c, 1.0) for c in covered) - len(covered))
        return 0.0

    def extend(self, row: Row, counts: list[float], charged: bool = False) -> list[Row]:
        """Return the row extended by each possible token.

        Args:
            row: the row to extend
            counts: processed log-probabilities; -inf: masked
            charged: True: rank by the score less the stepwise coverage penalty
        """
        parent, log_probs = self.attend(row), self.compute_log_probs(row)
        found = []
        for y, count in enumerate(counts):
            if count > -math.inf:
                total = self.round(row.total + count)
                rank = total - parent.cost if self.stepwise and charged else total
                child = (*row.tokens, y), total, row.log_prob + log_probs[y]
                found.append(Row(*child, parent.covered, parent.cost, rank))
        return found

    def compute_norm(self, length: int) -> float:
        """Return the length norm."""
        norms = {"none": 1.0, "avg": float(max(1, length)), "wu": (5 + length) / 6}
        return self.round(norms[self.options.length_penalty] ** self.alpha)

    def bound(self, rows: list[Row], length: int) -> float:
        """Return the score of the best row, normalized for a length."""
        top = max((row.total for row in rows), default=-math.inf)
        return self.round(top / self.compute_norm(length)) if rows else top

    def finish(self, row: Row, length: int, charged: bool = True) -> Finished:
        """Return the finished hypothesis with its normalized score.

        Args:
            row: the row that finished
            length: its length for the norm
            charged: False: ignore a stepwise coverage penalty
        """
        if self.stepwise:
            score = (row.total - (row.cost if charged else 0.0)) / self.compute_norm(length)
        else:
            score = row.total / self.compute_norm(length) - row.cost
        return Finished(self.round(score), row)

    def finish_best(self, rows: list[Row], extra: int = 0, since: int = 1) -> list[Finished]:
        """Finish the best row without EOS, because no row has a possible continuation.

        Args:
            rows: the open rows
            extra: added to the length
            since: first step with a stepwise coverage penalty
        """
        row = self.attend(max(rows, key=lambda row: row.total))
        if not row.tokens:
            return [Finished(0.0, row)]
        length = len(row.tokens)
        return [self.finish(row, length + extra, charged=length >= since)]


def opennmt(task: Task) -> list[Finished]:
    """The default search.

    A sentence is finished when the best candidate of any step has taken EOS and beam_size
    hypotheses have finished.
    """
    o, rows, finished = task.options, [Row()], []
    steps, top_ended = task.count_steps(), False
    for t in range(1, steps + 1):
        fresh, repeating = [], []
        for row in rows:
            counts = task.mask(row, task.compute_log_probs(row), o.min_length)
            for child in task.extend(row, counts, charged=True):
                repeated = t > len(task.prefix) and repeats(child.tokens, task.n, task.exempt)
                (repeating if repeated else fresh).append(child)
        found = take_best(fresh or repeating, task.k)
        if not found:
            return finished or task.finish_best(rows)
        finished += [task.finish(row, t) for row in found if row.ended or t == steps]
        rows = [row for row in found if not row.ended]
        top_ended = top_ended or found[0].ended
        done = top_ended
        if o.ratio:
            first = task.finish(found[0], t).score / (o.ratio * task.source.length)
            reached = [f.score / len(f.row.tokens) for f in finished]
            done = len(rows) < len(found) and max(reached) >= first
        if not rows or (done and len(finished) >= task.k):
            break
    return finished


def opennmt_2018(task: Task) -> list[Finished]:
    """OpenNMT-py of November 2018, `Beam` and `GNMTGlobalScorer`, for a batch of one sentence.

    Rows with EOS stay in the beam.  Without a length penalty, scores of finished hypotheses are
    views of the rows' scores, from which coverage penalties are subtracted in place.  So each step
    has a list of scores, and each finished hypothesis an index into such a list.
    """
    o, rows, scores = task.options, [Row()], [0.0]
    views: list[tuple[list[float], int, Row]] = []
    top_ended = False

    def compute_norm(length: int) -> float:
        return {"none": 1.0, "avg": length, "wu": ((5 + length) / 6) ** o.alpha}[o.length_penalty]

    def finish(i: int, t: int) -> None:
        if o.length_penalty == "none":
            if not task.stepwise:
                for j, row in enumerate(rows):
                    scores[j] -= row.cost
            views.append((scores, i, rows[i]))
            return
        cost = 0.0 if task.stepwise else rows[i].cost
        views.append(([task.round(scores[i] / compute_norm(t + 1) - cost)], 0, rows[i]))

    steps = task.count_steps()
    for t in range(1, steps + 1):
        attended = [task.attend(row) for row in rows]
        if task.stepwise and t > 1:
            for i, row in enumerate(rows):
                scores[i] += (row.cost if t > 2 else 0.0) - attended[i].cost
        found = []
        for i, row in enumerate(rows):
            repeated = any(repeats(row.tokens[:n], task.n, task.exempt) for n in range(t))
            if not row.ended and not repeated:
                counts = task.mask(row, task.compute_log_probs(row), o.min_length - 1)
                found += task.extend(replace(row, total=scores[i]), counts)
        found = take_best(found, task.k)
        if not found and not views:
            i = max(range(len(rows)), key=lambda i: rows[i].log_prob)
            cost = 0.0 if task.stepwise else attended[i].cost
            length = len(rows[i].tokens)
            before = rows[i].log_prob if length < 2 else scores[i]  # no penalty yet for one token
            return [Finished(before / compute_norm(length + 1) - cost if length else 0.0, rows[i])]
        rows, scores = found, [row.total for row in found]
        for i, row in enumerate(rows):
            if row.ended:
                finish(i, t)
        top_ended = top_ended or (bool(rows) and rows[0].ended)
        if all(row.ended for row in rows) or (top_ended and len(views) >= task.n_best):
            break
    for i in range(min(len(rows), task.n_best - len(views))):
        finish(i, t)
    return [Finished(found[i], row) for found, i, row in views]


def opennmt_3(task: Task) -> list[Finished]:
    """OpenNMT-py 3.5.1, `BeamSearch`: the best candidate of the current step must have taken EOS.

    Lengths include the start token; limits do not include the prefix except its last token.
    """
    o, rows, finished = task.options, [Row()], []
    uncounted = max(0, len(task.prefix) - 1)
    steps = task.count_steps(uncounted)
    for t in range(1, steps + 1):
        found, charged = [], t > 1
        for row in rows:
            n = task.n if task.n > 1 else 0
            counts = task.mask(row, task.compute_log_probs(row), o.min_length + uncounted, n)
            found += task.extend(row, counts, charged)
        found = take_best(found, task.k)
        if not found:
            return finished or task.finish_best(rows, 1, since=2)
        finished += [task.finish(row, t + 1, charged) for row in found if row.ended or t == steps]
        rows = [row for row in found if not row.ended]
        done = found[0].ended
        if o.ratio:
            first = task.finish(found[0], t + 1, charged).score / (o.ratio * task.source.length)
            reached = [f.score / (len(f.row.tokens) + 2) for f in finished]
            done = len(rows) < len(found) and first <= max(reached)
        if not rows or (done and len(finished) >= task.n_best):
            break
    return finished


def tensor2tensor(task: Task) -> list[Finished]:
    """tensor2tensor: of 2k candidates, the k best without EOS stay alive, and the k best with EOS
    compete with the finished hypotheses.

    The search stops when the best finished hypothesis (the worst of k if n_best > 1) beats the
    bound of the best alive row.
    """
    alive = [Row()] + [Row(total=-1e7)] * (task.k - 1)
    finished = [Finished(-1e7, Row())] * task.k
    steps = task.count_steps()
    for t in range(1, steps + 1):
        found = [child for row in alive for child in task.extend(row, task.compute_log_probs(row))]
        found, before = take_best(found, 2 * task.k), alive
        alive = [row for row in found if not row.ended][: task.k]
        finished += [task.finish(row, t) for row in found if row.ended]
        finished = sorted(finished, key=lambda f: -f.score)[: task.k]
        if not alive:
            break
        select = max if task.n_best == 1 else min
        if select(f.score for f in finished) > task.bound(alive, steps):
            break
    real = [f for f in finished if f.row.tokens]
    unfinished = [Finished(row.total, row) for row in alive]  # raw sums, not normalized
    return real or unfinished or task.finish_best(before)


def tensorflow(task: Task) -> list[Finished]:
    """tf-models-official: as tensor2tensor, but the worst finished hypothesis counts even if there
    is only one.
    """
    alive, finished = [Row()], []
    steps = task.count_steps()
    for t in range(1, steps + 1):
        found = [child for row in alive for child in task.extend(row, task.compute_log_probs(row))]
        found, before = take_best(found, 2 * task.k), alive
        alive = [row for row in found if not row.ended][: task.k]
        finished += [task.finish(row, t) for row in found if row.ended]
        finished = sorted(finished, key=lambda f: -f.score)[: task.k]
        if not alive or (finished and finished[-1].score > task.bound(alive, steps)):
            break
    unfinished = [Finished(row.total, row) for row in alive]
    return finished or unfinished or task.finish_best(before)


class BeamHypotheses:
    """The n best finished hypotheses, as in transformers 2 to 4."""

    def __init__(self, n: int):
        self.n = n
        self.beams: list[Finished] = []

    def add(self, new: Finished) -> None:
        if len(self.beams) < self.n or new.score > min(f.score for f in self.beams):
            self.beams.append(new)
            if len(self.beams) > self.n:
                worst = min(range(self.n + 1), key=lambda i: self.beams[i].score)
                del self.beams[worst]

    def is_done(self, early_stopping: str, bound: float) -> bool:
        if len(self.beams) < self.n:
            return False
        return early_stopping == "true" or min(f.score for f in self.beams) >= bound


def transformers(task: Task) -> list[Finished]:
    """transformers 4.46, `BeamSearchScorer`: EOS counts among the first k candidates, and finished
    hypotheses must beat the best of all 2k candidates, EOS included.

    Each diverse group has its own k and its own finished hypotheses.
    """
    o, n_groups, width = task.options, task.options.beam_groups, task.k // task.options.beam_groups
    groups = [[Row()] + [Row(total=-1e9)] * (width - 1) for _ in range(n_groups)]
    pools, done = [BeamHypotheses(width) for _ in groups], [False] * n_groups
    steps = task.count_steps(-1)
    for t in range(1, steps + 1):
        chosen: Counter[int] = Counter()  # tokens of earlier groups at this step
        before = [row for rows in groups for row in rows]
        for g, rows in enumerate(groups):
            if done[g]:
                continue
            found = []
            for row in rows:
                counts = process_transformers(task, row, chosen)
                found += task.extend(row, counts)
            found = take_best(found, 2 * width)
            for row in found[:width]:
                if row.ended:
                    pools[g].add(task.finish(row, t))
            groups[g] = [row for row in found if not row.ended][:width]
            chosen.update(row.tokens[-1] for row in groups[g])
            horizon = steps if o.early_stopping == "never" and task.alpha > 0 else t
            done[g] = pools[g].is_done(o.early_stopping, task.bound(found, horizon))
        if all(done) or not any(groups):
            break
    for g, rows in enumerate(groups):
        for row in rows if not done[g] else ():
            # 2.11 counts the start token of hypotheses without EOS
            pools[g].add(task.finish(row, t + (task.name == "transformers-2")))
    found = sorted((f for pool in pools for f in pool.beams), key=lambda f: f.score)[::-1]
    extra = int(task.name == "transformers-2")
    return found or task.finish_best(before, extra)


def process_transformers(task: Task, row: Row, chosen: Counter[int]) -> list[float]:
    """Return log-probabilities after diversity penalty, repetition penalty and masks.

    The repetition penalty applies to logits in 2.11, and in the greedy loop of later versions.

    Args:
        task: the sentence
        row: the row to extend
        chosen: tokens of earlier groups at this step
    """
    o = task.options
    if task.name == "transformers-2" or task.k == 1:
        logits = penalize_repetition(
            task.source.logits(row.tokens), row.tokens, o.repetition_penalty
        )
        counts = task.log_softmax(row, logits)
    else:
        counts = task.penalize_chosen(task.compute_log_probs(row), chosen)
        counts = penalize_repetition(counts, row.tokens, o.repetition_penalty)
    return task.mask(row, counts, o.min_length - 1, task.n)


def transformers_5(task: Task) -> list[Finished]:
    """transformers 5.23: finished hypotheses must beat the best candidate without EOS; at the limit
    the first k candidates finish.
    """
    o, running = task.options, [Row()] + [Row(total=-1e9)] * (task.k - 1)
    finished: list[Finished] = []
    steps = task.count_steps(-1)
    for t in range(1, steps + 1):
        found = []
        for row in running:
            found += task.extend(row, process_transformers(task, row, Counter()))
        found, before = take_best(found, 2 * task.k), running
        finished += [task.finish(row, t) for row in found[: task.k] if row.ended or t == steps]
        finished = sorted(finished, key=lambda f: -f.score)[: task.k]
        running = [row for row in found if not row.ended][: task.k]
        if not running:
            break
        if len(finished) == task.k:
            horizon = steps if o.early_stopping == "never" and task.alpha > 0 else t
            improves = task.bound(running, horizon) > finished[-1].score
            if o.early_stopping == "true" or not improves:
                break
    return finished or task.finish_best(before)


def fairseq(task: Task) -> list[Finished]:
    """fairseq, `SequenceGenerator`: the first k finished hypotheses win; at the limit all rows must
    take EOS, at the cost of its log-probability.

    With groups, row i is in group i modulo their number.  Each group ranks its own candidates, and
    the lists are interleaved; so a row keeps its position even without a continuation.
    """
    n_groups, width = task.options.beam_groups, task.k // task.options.beam_groups
    rows: list[Row | None] = [Row()] * n_groups
    finished: list[Finished] = []
    steps = task.count_steps(1)
    for t in range(1, steps + 1):
        chosen: Counter[int] = Counter()
        lists: list[list[Row | None]] = []
        for g in range(n_groups):
            found = []
            for row in rows[g::n_groups]:
                if row is not None:
                    counts = process_fairseq(task, row, t == steps)
                    found += task.extend(row, task.penalize_chosen(counts, chosen))
            # Never the last of all continuations
            n_all = (1 if t == 1 else width) * len(task.source.default)
            found = take_best(found, min(2 * width, n_all - 1))
            chosen.update(row.tokens[-1] for row in found)
            lists.append([*found, *[None] * (2 * width - len(found))])
        interleaved = [row for rank in zip(*lists) for row in rank]
        for row in interleaved[: task.k]:
            if row is not None and row.ended and len(finished) < task.k:
                finished.append(task.finish(row, t))
        before = [row for row in rows if row is not None]
        rows = [row for row in interleaved if row is None or not row.ended][: task.k]
        if len(finished) == task.k or not any(rows):
            break
    return finished or task.finish_best(before)


def process_fairseq(task: Task, row: Row, is_last: bool) -> list[float]:
    """Return log-probabilities after masks.

    Args:
        task: the sentence
        row: the row to extend
        is_last: True at the limit, where EOS is forced
    """
    counts = task.compute_log_probs(row)
    if is_last:
        return [x if y == EOS else -math.inf for y, x in enumerate(counts)]
    return task.mask(row, counts, task.options.min_length, task.n if task.n > 1 else 0)


def ctranslate2(task: Task) -> list[Finished]:
    """CTranslate2, `BeamSearch`: masks apply before the softmax, and a row with EOS is replaced by
    the next candidate in the same position.

    All finished hypotheses are kept; the search stops at k * patience of them.
    """
    o, rows, finished = task.options, [Row()], []
    stops_early, top_ended = task.alpha == 0 and task.beta == 0, False
    enough = math.floor(task.k * (o.patience or 1.0) + 0.5)
    steps = task.count_steps()
    for t in range(1, steps + 1):
        found = []
        for row in rows:
            logits = penalize_repetition(
                task.source.logits(row.tokens), row.tokens, o.repetition_penalty
            )
            counts = task.log_softmax(row, task.mask(row, logits, o.min_length, task.n))
            found += task.extend(row, counts)
        found = take_best(found, 2 * task.k)
        if not found:
            break
        spare = (row for row in found[task.k :] if not row.ended)
        slots: list[Row | None] = []
        for row in found[: task.k]:
            if row.ended or t == steps:
                finished.append(task.finish(row, t))
            slots.append(next(spare, None) if row.ended else row)
        rows = [row for row in slots if row is not None]
        top_ended = top_ended or found[0].ended
        if stops_early and top_ended and len(finished) >= task.n_best:
            break
        if not rows or (not stops_early and len(finished) >= enough):
            break
    return finished or task.finish_best(rows)


def marian(task: Task) -> list[Finished]:
    """Marian: the beam shrinks to the number of open rows; all finished hypotheses are kept."""
    rows, finished, width = [Row()], [], task.k
    steps = task.count_steps()
    for t in range(1, steps + 1):
        found = []
        for row in rows:
            found += task.extend(row, task.mask(row, task.compute_log_probs(row)))
        found, before = take_best(found, width), rows
        finished += [task.finish(row, t) for row in found if row.ended or t == steps]
        rows = [row for row in found if not row.ended]
        width = len(rows)
        if not rows:
            break
    return finished or task.finish_best(before)


SEARCHES: dict[str, Callable[[Task], list[Finished]]] = {
    "opennmt": opennmt,
    "opennmt-2018": opennmt_2018,
    "opennmt-3": opennmt_3,
    "tensor2tensor": tensor2tensor,
    "tensorflow": tensorflow,
    "transformers-2": transformers,
    "transformers": transformers,
    "transformers-5": transformers_5,
    "fairseq": fairseq,
    "ctranslate2": ctranslate2,
    "marian": marian,
}


def reference(
    name: str,
    source: TableSource,
    options: dict,
    words: list[str],
    prefix: tuple[int, ...] = (),
    unk: int | None = None,
    round_differently: bool = False,
) -> list[Hyp]:
    """Return the n best hypotheses of a source.

    Args:
        name: the search
        source: the table
        options: command-line options that are set
        words: the vocabulary
        prefix: target prefix
        unk: the unknown token, or None
        round_differently: True: sums in float64, and each log-sum-exp slightly perturbed.  If the
            result differs, it depends on rounding.
    """
    task = Task(name, source, options, prefix, words, unk, round_differently)
    found = SEARCHES[name](task)
    if name not in ("transformers", "transformers-2"):  # already sorted, ties in their own order
        found = sorted(found, key=lambda f: -f.score)
    hyps, seen = [], set()
    for score, row in found:
        if row.tokens not in seen or name == "opennmt-2018":
            tokens = row.tokens[:-1] if row.ended else row.tokens
            hyps.append(Hyp(tokens, row.ended, score, row.log_prob))
        seen.add(row.tokens)
    return hyps[: task.n_best]
