"""The searches behind `-search`, told a second time: each as its original goes about it, for one
sentence, with lists and numbers.

Nothing in here comes from `onmt_lite.search`, its declarations in `presets` included.

k is the beam size, t counts steps from 1, T the tokens of a hypothesis with its end token.  A
candidate that an original marks with a large negative number, so that it cannot win, does not
exist here.  Only rows that do not exist yet keep their number (-1e9, -1e7): in a beam wider than
the vocabulary they are taken.  Where a model allows no continuation of any row, originals divide
by zero; here, as in DESIGN.md, the best row is then complete as it is.
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
HAIR = 2e-7  # more than the rounding error of a normaliser, too little to matter beside 4
TINY = 2.0**-126  # smallest normal float32: what a token without any attention counts as

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
# A max_length that is given replaces the limit by source length
ONE_LIMIT = ("tensor2tensor", "tensorflow", "marian")
ROOM = {"tensor2tensor": 50, "tensorflow": 50, "marian": 0}  # tokens beyond ratio times source


class Hyp(NamedTuple):
    tokens: tuple[int, ...]  # without the end token
    ended: bool
    score: float
    log_prob: float


@dataclass(frozen=True)
class Row:
    """A hypothesis on its way.

    total     what its tokens count
    log_prob  what the model gives them
    covered   the attention that each token of the source has received
    cost      the coverage penalty for that
    rank      what candidates are ordered by
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
    """Rounded to float32, so that what ties on the device ties here."""
    return struct.unpack("f", struct.pack("f", x))[0]


@lru_cache(maxsize=10_000)
def normaliser(logits: tuple[float, ...]) -> float:
    """The only tensor in here: this sum in the device's own rounding."""
    return torch.tensor([logits]).logsumexp(1).item()


def repeats(tokens: tuple[int, ...], n: int, exempt: Iterable[int] = ()) -> bool:
    """Whether the last n tokens stand in there before, and none of them is exempt."""
    earlier = [tokens[i : i + n] for i in range(len(tokens) - n)]
    return n > 0 and tokens[-n:] in earlier and not set(tokens[-n:]) & set(exempt)


def repelled(values: list[float], tokens: Iterable[int], penalty: float) -> list[float]:
    """Values of tokens that are there already, made worse (Keskar et al. 2019)."""
    worse = [x * penalty if x < 0 else x / penalty for x in values]
    return [worse[y] if y in tokens else x for y, x in enumerate(values)]


def best(rows: list[Row], n: int) -> list[Row]:
    """The n best; of equals, those of the earlier row, then of the lower token."""
    return sorted(rows, key=lambda row: -row.rank)[:n]


class Task:
    """One sentence, the options of its search, and what all searches do alike."""

    def __init__(
        self,
        name: str,
        source: TableSource,
        given: dict,
        prefix: tuple[int, ...],
        words: list[str],
        unk: int | None,
        otherwise: bool,
    ):
        self.name, self.source, self.prefix, self.otherwise = name, source, prefix, otherwise
        defaults = {**DEFAULTS[""], **DEFAULTS.get(name, {})}
        if name in ONE_LIMIT and "max_length" in given:
            defaults["max_length_ratio"] = 0.0
        self.options = o = SimpleNamespace(**{**defaults, **given})
        self.k, self.n_best, self.n = o.beam_size, o.n_best, o.block_ngram_repeat
        self.alpha = 0.0 if o.length_penalty == "none" else o.alpha
        self.beta = 0.0 if o.coverage_penalty == "none" else o.beta
        self.stepwise = o.stepwise_penalty and o.coverage_penalty != "none"
        self.exempt = [words.index(w) for w in o.ignore_when_blocking if w in words]
        self.unk = unk if o.ban_unk_token else None

    def steps(self, more: int = 0) -> int:
        """How many tokens there may be: max_length, or what the source allows, and `more`."""
        o, limit = self.options, self.options.max_length
        if o.max_length_ratio:
            of_source = o.max_length_ratio * self.source.length + ROOM.get(self.name, 5)
            limit = min(limit, math.ceil(of_source) if self.name == "marian" else int(of_source))
        return max(1, limit + more, len(self.prefix) + 1)

    def rounded(self, x: float) -> float:
        """Rows that do not exist yet drown in their own number in any arithmetic."""
        return x if self.otherwise and x > -1e5 else f32(x)

    def log_softmax(self, row: Row, logits: list[float]) -> list[float]:
        norm = normaliser(tuple(logits))
        if self.otherwise:
            norm += HAIR if hash(row.tokens) % 2 else -HAIR
        return [f32(f32(x) - norm) if x > -math.inf else x for x in logits]

    def log_probs(self, row: Row) -> list[float]:
        return self.log_softmax(row, self.source.logits(row.tokens))

    def allowed(self, row: Row, values: list[float], min_words: int = 0, n: int = 0) -> list[float]:
        """-inf for what may not come next: the prefix excludes all else; then there are the end
        before min_words, the unknown token, and what would repeat n tokens."""
        at = len(row.tokens)

        def may_come(y: int) -> bool:
            if at < len(self.prefix):
                return y == self.prefix[at]
            if y == self.unk or (y == EOS and at < min_words):
                return False
            return not repeats((*row.tokens, y), n, self.exempt)

        return [x if may_come(y) else -math.inf for y, x in enumerate(values)]

    def diverse(self, counts: list[float], chosen: Counter[int]) -> list[float]:
        """Tokens pay for each time that earlier groups have chosen them."""
        rate = self.options.diversity_rate
        return [self.rounded(x - rate * chosen[y]) for y, x in enumerate(counts)]

    def attended(self, row: Row) -> Row:
        """The row with the attention of its next step counted."""
        attention = self.source.attention(row.tokens)
        covered = row.covered or (0.0,) * len(attention)
        covered = tuple(c + a for c, a in zip(covered, attention, strict=True))
        return replace(row, covered=covered, cost=self.cost(covered))

    def cost(self, covered: tuple[float, ...]) -> float:
        if self.options.coverage_penalty == "wu":
            if self.name == "ctranslate2":
                covered = tuple(c for c in covered if c > 0)
            return self.beta * sum(-math.log(max(min(c, 1.0), TINY)) for c in covered)
        if self.options.coverage_penalty == "summary":
            return self.beta * (sum(max(c, 1.0) for c in covered) - len(covered))
        return 0.0

    def children(self, row: Row, counts: list[float], charged: bool = False) -> list[Row]:
        """One for each token that may come next; charged: ranked by its coverage, too."""
        here, log_probs = self.attended(row), self.log_probs(row)
        found = []
        for y, count in enumerate(counts):
            if count > -math.inf:
                total = self.rounded(row.total + count)
                rank = total - here.cost if self.stepwise and charged else total
                child = (*row.tokens, y), total, row.log_prob + log_probs[y]
                found.append(Row(*child, here.covered, here.cost, rank))
        return found

    def norm(self, length: int) -> float:
        forms = {"none": 1.0, "avg": float(max(1, length)), "wu": (5 + length) / 6}
        return self.rounded(forms[self.options.length_penalty] ** self.alpha)

    def reach(self, rows: list[Row], length: int) -> float:
        """What the best of some rows would score at a length."""
        top = max((row.total for row in rows), default=-math.inf)
        return self.rounded(top / self.norm(length)) if rows else top

    def score(self, row: Row, length: int, charged: bool = True) -> Finished:
        """Sum by length; a stepwise coverage penalty is part of the sum, if it was charged."""
        if self.stepwise:
            score = (row.total - (row.cost if charged else 0.0)) / self.norm(length)
        else:
            score = row.total / self.norm(length) - row.cost
        return Finished(self.rounded(score), row)

    def dead_end(self, rows: list[Row], more: int = 0, since: int = 1) -> list[Finished]:
        """Nothing can follow any row, nor has anything finished.  A stepwise penalty is charged
        since that step."""
        row = self.attended(max(rows, key=lambda row: row.total))
        if not row.tokens:
            return [Finished(0.0, row)]
        length = len(row.tokens)
        return [self.score(row, length + more, charged=length >= since)]


def opennmt(task: Task) -> list[Finished]:
    """DESIGN.md 3.1: a sentence is done when the first row has ended, now or before, and
    beam_size hypotheses are finished."""
    o, rows, finished = task.options, [Row()], []
    steps, top_ended = task.steps(), False
    for t in range(1, steps + 1):
        fresh, repeating = [], []
        for row in rows:
            counts = task.allowed(row, task.log_probs(row), o.min_length)
            for child in task.children(row, counts, charged=True):
                repeated = t > len(task.prefix) and repeats(child.tokens, task.n, task.exempt)
                (repeating if repeated else fresh).append(child)
        found = best(fresh or repeating, task.k)
        if not found:
            return finished or task.dead_end(rows)
        finished += [task.score(row, t) for row in found if row.ended or t == steps]
        rows = [row for row in found if not row.ended]
        top_ended = top_ended or found[0].ended
        done = top_ended
        if o.ratio:
            first = task.score(found[0], t).score / (o.ratio * task.source.length)
            reached = [f.score / len(f.row.tokens) for f in finished]
            done = len(rows) < len(found) and max(reached) >= first
        if not rows or (done and len(finished) >= task.k):
            break
    return finished


def opennmt_2018(task: Task) -> list[Finished]:
    """`Beam` and `GNMTGlobalScorer` of November 2018, alone in a batch.

    Rows that end stay in the beam.  Where no length penalty divides, the finished scores are
    views of the running ones, from which coverage penalties are taken in place: hence a list of
    scores for each step, and a place in one for each finished hypothesis.
    """
    o, rows, scores = task.options, [Row()], [0.0]
    views: list[tuple[list[float], int, Row]] = []
    top_ended = False

    def norm(length: int) -> float:
        return {"none": 1.0, "avg": length, "wu": ((5 + length) / 6) ** o.alpha}[o.length_penalty]

    def finish(i: int, t: int) -> None:
        if o.length_penalty == "none":
            if not task.stepwise:
                for j, row in enumerate(rows):
                    scores[j] -= row.cost
            views.append((scores, i, rows[i]))
            return
        cost = 0.0 if task.stepwise else rows[i].cost
        views.append(([task.rounded(scores[i] / norm(t + 1) - cost)], 0, rows[i]))

    steps = task.steps()
    for t in range(1, steps + 1):
        now = [task.attended(row) for row in rows]
        if task.stepwise and t > 1:
            for i, row in enumerate(rows):
                scores[i] += (row.cost if t > 2 else 0.0) - now[i].cost
        found = []
        for i, row in enumerate(rows):
            repeated = any(repeats(row.tokens[:n], task.n, task.exempt) for n in range(t))
            if not row.ended and not repeated:
                counts = task.allowed(row, task.log_probs(row), o.min_length - 1)
                found += task.children(replace(row, total=scores[i]), counts)
        found = best(found, task.k)
        if not found and not views:
            i = max(range(len(rows)), key=lambda i: rows[i].log_prob)
            cost = 0.0 if task.stepwise else now[i].cost
            length = len(rows[i].tokens)
            before = rows[i].log_prob if length < 2 else scores[i]  # of one token, not charged yet
            return [Finished(before / norm(length + 1) - cost if length else 0.0, rows[i])]
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
    """`BeamSearch` of 3.5.1: the first row must have ended in this very step.  Lengths count the
    start token, too; limits do not count a prefix, except its last token."""
    o, rows, finished = task.options, [Row()], []
    apart = max(0, len(task.prefix) - 1)
    steps = task.steps(apart)
    for t in range(1, steps + 1):
        found, charged = [], t > 1
        for row in rows:
            n = task.n if task.n > 1 else 0
            counts = task.allowed(row, task.log_probs(row), o.min_length + apart, n)
            found += task.children(row, counts, charged)
        found = best(found, task.k)
        if not found:
            return finished or task.dead_end(rows, 1, since=2)
        finished += [task.score(row, t + 1, charged) for row in found if row.ended or t == steps]
        rows = [row for row in found if not row.ended]
        done = found[0].ended
        if o.ratio:
            first = task.score(found[0], t + 1, charged).score / (o.ratio * task.source.length)
            reached = [f.score / (len(f.row.tokens) + 2) for f in finished]
            done = len(rows) < len(found) and first <= max(reached)
        if not rows or (done and len(finished) >= task.n_best):
            break
    return finished


def tensor2tensor(task: Task) -> list[Finished]:
    """2k candidates; of them the k best that go on are alive, and the k best that ended compete
    with what has finished.  A finished one that beats all that the first alive one can become
    ends the search, or all k of them do, if more than one hypothesis is wanted."""
    alive = [Row()] + [Row(total=-1e7)] * (task.k - 1)
    finished = [Finished(-1e7, Row())] * task.k
    steps = task.steps()
    for t in range(1, steps + 1):
        found = [child for row in alive for child in task.children(row, task.log_probs(row))]
        found, before = best(found, 2 * task.k), alive
        alive = [row for row in found if not row.ended][: task.k]
        finished += [task.score(row, t) for row in found if row.ended]
        finished = sorted(finished, key=lambda f: -f.score)[: task.k]
        if not alive:
            break
        pick = max if task.n_best == 1 else min
        if pick(f.score for f in finished) > task.reach(alive, steps):
            break
    real = [f for f in finished if f.row.tokens]
    unfinished = [Finished(row.total, row) for row in alive]  # as they are, whatever their length
    return real or unfinished or task.dead_end(before)


def tensorflow(task: Task) -> list[Finished]:
    """The same, but one finished hypothesis is enough for the worst of them to end the search."""
    alive, finished = [Row()], []
    steps = task.steps()
    for t in range(1, steps + 1):
        found = [child for row in alive for child in task.children(row, task.log_probs(row))]
        found, before = best(found, 2 * task.k), alive
        alive = [row for row in found if not row.ended][: task.k]
        finished += [task.score(row, t) for row in found if row.ended]
        finished = sorted(finished, key=lambda f: -f.score)[: task.k]
        if not alive or (finished and finished[-1].score > task.reach(alive, steps)):
            break
    unfinished = [Finished(row.total, row) for row in alive]
    return finished or unfinished or task.dead_end(before)


class BeamHypotheses:
    """The n best that have finished, as transformers 2 to 4 keep them."""

    def __init__(self, n: int):
        self.n = n
        self.beams: list[Finished] = []

    def add(self, new: Finished) -> None:
        if len(self.beams) < self.n or new.score > min(f.score for f in self.beams):
            self.beams.append(new)
            if len(self.beams) > self.n:
                worst = min(range(self.n + 1), key=lambda i: self.beams[i].score)
                del self.beams[worst]

    def is_done(self, early_stopping: str, attainable: float) -> bool:
        if len(self.beams) < self.n:
            return False
        return early_stopping == "true" or min(f.score for f in self.beams) >= attainable


def transformers(task: Task) -> list[Finished]:
    """`BeamSearchScorer` of 4.46: an end token among the first k candidates finishes, and the
    best of all 2k candidates, one that ended included, is what the finished must beat.  With
    groups, each has its own k and its own hypotheses."""
    o, n_groups, width = task.options, task.options.beam_groups, task.k // task.options.beam_groups
    groups = [[Row()] + [Row(total=-1e9)] * (width - 1) for _ in range(n_groups)]
    pools, done = [BeamHypotheses(width) for _ in groups], [False] * n_groups
    steps = task.steps(-1)
    for t in range(1, steps + 1):
        chosen: Counter[int] = Counter()  # by earlier groups in this step
        before = [row for rows in groups for row in rows]
        for g, rows in enumerate(groups):
            if done[g]:
                continue
            found = []
            for row in rows:
                counts = transformers_counts(task, row, chosen)
                found += task.children(row, counts)
            found = best(found, 2 * width)
            for row in found[:width]:
                if row.ended:
                    pools[g].add(task.score(row, t))
            groups[g] = [row for row in found if not row.ended][:width]
            chosen.update(row.tokens[-1] for row in groups[g])
            horizon = steps if o.early_stopping == "never" and task.alpha > 0 else t
            done[g] = pools[g].is_done(o.early_stopping, task.reach(found, horizon))
        if all(done) or not any(groups):
            break
    for g, rows in enumerate(groups):
        for row in rows if not done[g] else ():
            # 2.11 counts the start token of what has not ended
            pools[g].add(task.score(row, t + (task.name == "transformers-2")))
    found = sorted((f for pool in pools for f in pool.beams), key=lambda f: f.score)[::-1]
    more = int(task.name == "transformers-2")
    return found or task.dead_end(before, more)


def transformers_counts(task: Task, row: Row, chosen: Counter[int]) -> list[float]:
    """Log-probabilities after diversity, repetition and the bans; 2.11 and, for one beam, the
    greedy loop of later versions repel logits."""
    o = task.options
    if task.name == "transformers-2" or task.k == 1:
        logits = repelled(task.source.logits(row.tokens), row.tokens, o.repetition_penalty)
        counts = task.log_softmax(row, logits)
    else:
        counts = task.diverse(task.log_probs(row), chosen)
        counts = repelled(counts, row.tokens, o.repetition_penalty)
    return task.allowed(row, counts, o.min_length - 1, task.n)


def transformers_5(task: Task) -> list[Finished]:
    """5.23: what the finished must beat is the best row that goes on; at the limit the first k
    candidates finish, whatever they end with."""
    o, running = task.options, [Row()] + [Row(total=-1e9)] * (task.k - 1)
    finished: list[Finished] = []
    steps = task.steps(-1)
    for t in range(1, steps + 1):
        found = []
        for row in running:
            found += task.children(row, transformers_counts(task, row, Counter()))
        found, before = best(found, 2 * task.k), running
        finished += [task.score(row, t) for row in found[: task.k] if row.ended or t == steps]
        finished = sorted(finished, key=lambda f: -f.score)[: task.k]
        running = [row for row in found if not row.ended][: task.k]
        if not running:
            break
        if len(finished) == task.k:
            horizon = steps if o.early_stopping == "never" and task.alpha > 0 else t
            improves = task.reach(running, horizon) > finished[-1].score
            if o.early_stopping == "true" or not improves:
                break
    return finished or task.dead_end(before)


def fairseq(task: Task) -> list[Finished]:
    """`SequenceGenerator`: the first k to finish win; at the limit all rows end and pay for it.

    With groups, row i is of group i modulo their number.  Each group ranks its own candidates,
    and the groups' lists are taken by turns; so a row keeps its place even if nothing may follow.
    """
    n_groups, width = task.options.beam_groups, task.k // task.options.beam_groups
    rows: list[Row | None] = [Row()] * n_groups
    finished: list[Finished] = []
    steps = task.steps(1)
    for t in range(1, steps + 1):
        chosen: Counter[int] = Counter()
        lists: list[list[Row | None]] = []
        for g in range(n_groups):
            found = []
            for row in rows[g::n_groups]:
                if row is not None:
                    counts = fairseq_counts(task, row, t == steps)
                    found += task.children(row, task.diverse(counts, chosen))
            # Never the very last of all candidates
            n_all = (1 if t == 1 else width) * len(task.source.default)
            found = best(found, min(2 * width, n_all - 1))
            chosen.update(row.tokens[-1] for row in found)
            lists.append([*found, *[None] * (2 * width - len(found))])
        turns = [row for rank in zip(*lists) for row in rank]
        for row in turns[: task.k]:
            if row is not None and row.ended and len(finished) < task.k:
                finished.append(task.score(row, t))
        before = [row for row in rows if row is not None]
        rows = [row for row in turns if row is None or not row.ended][: task.k]
        if len(finished) == task.k or not any(rows):
            break
    return finished or task.dead_end(before)


def fairseq_counts(task: Task, row: Row, last: bool) -> list[float]:
    counts = task.log_probs(row)
    if last:
        return [x if y == EOS else -math.inf for y, x in enumerate(counts)]
    return task.allowed(row, counts, task.options.min_length, task.n if task.n > 1 else 0)


def ctranslate2(task: Task) -> list[Finished]:
    """`BeamSearch`: masks act before the softmax; a row that ends is replaced in its place by the
    next candidate; all that finishes is kept, until there are k times patience."""
    o, rows, finished = task.options, [Row()], []
    early, top_ended = task.alpha == 0 and task.beta == 0, False
    enough = math.floor(task.k * (o.patience or 1.0) + 0.5)
    steps = task.steps()
    for t in range(1, steps + 1):
        found = []
        for row in rows:
            logits = repelled(task.source.logits(row.tokens), row.tokens, o.repetition_penalty)
            counts = task.log_softmax(row, task.allowed(row, logits, o.min_length, task.n))
            found += task.children(row, counts)
        found = best(found, 2 * task.k)
        if not found:
            break
        spare = (row for row in found[task.k :] if not row.ended)
        slots: list[Row | None] = []
        for row in found[: task.k]:
            if row.ended or t == steps:
                finished.append(task.score(row, t))
            slots.append(next(spare, None) if row.ended else row)
        rows = [row for row in slots if row is not None]
        top_ended = top_ended or found[0].ended
        if early and top_ended and len(finished) >= task.n_best:
            break
        if not rows or (not early and len(finished) >= enough):
            break
    return finished or task.dead_end(rows)


def marian(task: Task) -> list[Finished]:
    """The beam is as wide as there are rows left; all that ends is kept."""
    rows, finished, width = [Row()], [], task.k
    steps = task.steps()
    for t in range(1, steps + 1):
        found = []
        for row in rows:
            found += task.children(row, task.allowed(row, task.log_probs(row)))
        found, before = best(found, width), rows
        finished += [task.score(row, t) for row in found if row.ended or t == steps]
        rows = [row for row in found if not row.ended]
        width = len(rows)
        if not rows:
            break
    return finished or task.dead_end(before)


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
    otherwise: bool = False,
) -> list[Hyp]:
    """The n best hypotheses of a source under the search `name`.

    options    those of the command line that are given; words: the vocabulary, by id
    prefix     what the output begins with; unk: the unknown token, if there is one
    otherwise  in another arithmetic: sums in float64, each normaliser a hair off.  Where that
               gives other hypotheses, rounding decides which ones are right
    """
    task = Task(name, source, options, prefix, words, unk, otherwise)
    found = SEARCHES[name](task)
    if name not in ("transformers", "transformers-2"):  # which are in their own order
        found = sorted(found, key=lambda f: -f.score)
    hyps, seen = [], set()
    for score, row in found:
        if row.tokens not in seen or name == "opennmt-2018":
            tokens = row.tokens[:-1] if row.ended else row.tokens
            hyps.append(Hyp(tokens, row.ended, score, row.log_prob))
        seen.add(row.tokens)
    return hyps[: task.n_best]
