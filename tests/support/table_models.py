"""Small table models, and two searches for them that share no code with `onmt_lite.search`."""

import itertools
import math
import struct
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.models.table_model import TableModel, TableSource
from onmt_lite.search.beam import Beam
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SearchSpec, SentenceLimits
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

EOS, START = 0, -1
TINY = 2.0**-126  # smallest normal float32, used as the attention of unattended tokens
WORDS = "$ a b c d e f".split()


@dataclass(frozen=True)
class Settings:
    """Options of the searches in this file."""

    beam_size: int
    max_length: int
    min_length: int = 0
    length_penalty: str = "avg"
    alpha: float = 1.0
    block_ngram_repeat: int = 0
    exempt: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    coverage_penalty: str = "none"
    beta: float = 0.0
    stepwise: bool = False
    ratio: float = 0.0
    prefix: tuple[int, ...] = ()


class Hyp(NamedTuple):
    tokens: tuple[int, ...]  # EOS included
    score: float
    ended: bool


def logits(*probabilities: float) -> list[float]:
    """Return the logarithms of probabilities."""
    return [math.log(p) if p else -math.inf for p in probabilities]


def make_source(rows: dict, default: list[float], attn: dict | None = None, length: int = 2):
    """Return a table with uniform attention by default.

    Args:
        rows: logits by prefix
        default: logits for other prefixes
        attn: attention by prefix
        length: source tokens
    """
    return TableSource(length, rows, default, attn or {}, [1 / length] * length)


def make_checkpoint(sources: list[TableSource]) -> Checkpoint:
    """Return a checkpoint; source i is the line `s<i>`, and target tokens are WORDS."""
    vocab_size = len(sources[0].default)
    return Checkpoint(
        TableModel(sources, vocab_size),
        src_vocab=Vocab([f"s{i}" for i in range(len(sources))]),
        tgt_vocab=Vocab(WORDS[:vocab_size], eos_id=EOS),
        tokenizers={"space": SpaceTokenizer()},
        start_id=START,
    )


def make_spec(s: Settings) -> SearchSpec:
    """Return the spec of the default search."""
    preset = PRESETS["opennmt"]
    return SearchSpec(
        preset.policy,
        preset.stop_rules["" if s.ratio else "ratio=0.0"],
        s.beam_size,
        START,
        EOS,
        length_penalty=s.length_penalty,
        alpha=s.alpha,
        coverage_penalty=s.coverage_penalty,
        beta=s.beta,
        stepwise_penalty=s.stepwise,
        banned_after_softmax=s.banned,
        block_ngram_repeat=s.block_ngram_repeat,
        exempt_ids=s.exempt,
    )


def search(sources: list[TableSource], settings: Settings) -> list[Beam]:
    """Run the search under test with all sources in one batch."""
    s, model = settings, TableModel(sources, len(sources[0].default))
    sentences = [
        Sentence(
            [i] * source.length,
            SentenceLimits(
                s.max_length,
                min_eos_step=s.min_length + 1,
                expected_length=s.ratio * source.length,
                prefix=s.prefix,
            ),
        )
        for i, source in enumerate(sources)
    ]
    return [beam for _, beam in sorted(decode(model, sentences, make_spec(s)), key=lambda x: x[0])]


def hypotheses(beam: Beam) -> list[Hyp]:
    """Return the finished hypotheses of a beam, best first."""
    return [Hyp(tuple(beam.backtrack(f)[0]), f.score, f.ended) for f in beam.rank_finished()]


def f32(x: float) -> float:
    """Round to float32, so that scores tie exactly as on the device."""
    return struct.unpack("f", struct.pack("f", x))[0]


def log_softmax(row: list[float]) -> list[float]:
    """Return log-probabilities, with torch's log-sum-exp for the same rounding as on the device."""
    log_z = torch.tensor([row]).logsumexp(1).item()
    return [f32(f32(x) - log_z) for x in row]


def normalize(settings: Settings, log_prob: float, cost: float, length: int) -> float:
    """Return a normalized score.

    Args:
        settings: options
        log_prob: sum of log-probabilities
        cost: coverage penalty
        length: tokens, EOS included
    """
    norms = {"none": 1.0, "avg": length, "wu": (5 + length) / 6}
    norm = norms[settings.length_penalty] ** settings.alpha
    return (log_prob - cost) / norm if settings.stepwise else log_prob / norm - cost


def compute_coverage(settings: Settings, covered: list[float]) -> float:
    """Return the coverage penalty for the attention that each source token has received."""
    if settings.coverage_penalty == "wu":
        return settings.beta * sum(-math.log(max(min(c, 1.0), TINY)) for c in covered)
    if settings.coverage_penalty == "summary":
        return settings.beta * (sum(max(c, 1.0) for c in covered) - len(covered))
    return 0.0


def brute_force(source: TableSource, settings: Settings) -> list[Hyp]:
    """Return all possible hypotheses, best first.  Without ties, n-gram blocking and coverage."""
    found = []
    for length in range(1, settings.max_length + 1):
        for words in itertools.product(range(1, len(source.default)), repeat=length - 1):
            last_tokens = range(len(source.default)) if length == settings.max_length else [EOS]
            for last in last_tokens:
                tokens = (*words, last)
                steps = [log_softmax(source.logits(tokens[:t]))[y] for t, y in enumerate(tokens)]
                score = normalize(settings, sum(steps), 0.0, length)
                is_allowed = last != EOS or length > settings.min_length
                if is_allowed and score > -math.inf:
                    found.append(Hyp(tokens, score, last == EOS))
    return sorted(found, key=lambda hyp: -hyp.score)


def reference(source: TableSource, settings: Settings) -> list[Hyp]:
    """Return the n-best list of the default search, written as directly as possible."""
    rows = [{"tokens": (), "sum": 0.0, "covered": [0.0] * source.length}]
    finished: list[Hyp] = []
    top_ended = False
    expected = settings.ratio * source.length
    for length in range(1, settings.max_length + 1):
        fresh, repeating = [], []
        for row in rows:
            for candidate in extend(source, settings, row, length):
                blocked = repeats(settings, candidate["tokens"])
                (repeating if blocked else fresh).append(candidate)
        # Candidates are in flat order and the sort is stable, so ties go to the lower index
        best = sorted(fresh or repeating, key=lambda c: -c["rank"])[: settings.beam_size]
        rows = []
        for rank, c in enumerate(best):
            ended = c["tokens"][-1] == EOS
            if ended or length == settings.max_length:
                score = normalize(settings, c["sum"], c["cost"], length)
                finished.append(Hyp(c["tokens"], score, ended))
                top_ended |= ended and rank == 0
            else:
                rows.append(c)
        is_finished = top_ended
        if settings.ratio:
            first = normalize(settings, best[0]["sum"], best[0]["cost"], length)
            reached = max((h.score / len(h.tokens) for h in finished), default=-math.inf)
            any_ended = any(c["tokens"][-1] == EOS for c in best)
            is_finished = any_ended and reached >= first / expected
        if not rows or (is_finished and len(finished) >= settings.beam_size):
            break
    return sorted(finished, key=lambda hyp: -hyp.score)


def extend(source: TableSource, settings: Settings, row: dict, length: int) -> list[dict]:
    """Return the row extended by each possible token.

    Args:
        source: the table
        settings: options
        row: an open hypothesis
        length: tokens of the extended rows
    """
    attention = source.attention(row["tokens"])
    covered = [c + a for c, a in zip(row["covered"], attention, strict=True)]
    cost = compute_coverage(settings, covered)
    found = []
    prefix = settings.prefix[length - 1 : length]
    for token, log_prob in enumerate(log_softmax(source.logits(row["tokens"]))):
        is_too_early = token == EOS and length - 1 < settings.min_length
        is_banned = token in settings.banned or is_too_early
        if prefix:
            is_banned = token not in prefix
        if log_prob == -math.inf or is_banned:
            continue
        total = f32(row["sum"] + log_prob)
        rank = total - cost if settings.stepwise else total
        tokens = (*row["tokens"], token)
        found.append(
            {"tokens": tokens, "sum": total, "covered": covered, "cost": cost, "rank": rank}
        )
    return found


def compute_reference_score(
    source: TableSource, settings: Settings, tokens: tuple[int, ...]
) -> float:
    """Return the normalized score of any hypothesis, or -inf if the settings do not allow it.

    Args:
        source: the table.
        settings: options.
        tokens: tokens of the hypothesis, EOS included.
    """
    row = {"tokens": (), "sum": 0.0, "covered": [0.0] * source.length, "cost": 0.0}
    for length, token in enumerate(tokens, 1):
        extended = {c["tokens"][-1]: c for c in extend(source, settings, row, length)}
        if token not in extended or repeats(settings, tokens[:length]):
            return -math.inf
        row = extended[token]
    return normalize(settings, row["sum"], row["cost"], len(tokens))


def repeats(settings: Settings, tokens: tuple[int, ...]) -> bool:
    """Return True if the newest token completes a repeated n-gram."""
    n = settings.block_ngram_repeat
    if n == 0 or len(tokens) <= max(n, len(settings.prefix)):
        return False
    newest = tokens[-n:]
    earlier = {tokens[i : i + n] for i in range(len(tokens) - n)}
    return newest in earlier and not set(newest) & set(settings.exempt)


@st.composite
def sources(draw, vocab_sizes=range(2, 6), tied=False, holes=True, depth=2):
    """Draw a random table with a row for every prefix up to `depth` tokens.

    Args:
        draw: from hypothesis
        vocab_sizes: values of V
        tied: True: few different logits, so that scores tie
        holes: True: some logits are -inf, except that of token 1
        depth: length of the longest prefix with its own row
    """
    random = Random(draw(st.integers(0, 2**32)))
    vocab_size = draw(st.sampled_from(vocab_sizes))
    length = random.randint(1, 4)

    def row() -> list[float]:
        values = [
            random.choice([-2.0, -1.0, 0.0]) if tied else random.gauss(0, 2)
            for _ in range(vocab_size)
        ]
        return [
            -math.inf if holes and i != 1 and random.random() < 0.15 else x
            for i, x in enumerate(values)
        ]

    def attention() -> list[float]:
        weights = [random.random() + 0.05 for _ in range(length)]
        return [w / sum(weights) for w in weights]

    words = range(1, vocab_size)
    prefixes = [p for n in range(depth + 1) for p in itertools.product(words, repeat=n)]
    keys = [" ".join(map(str, p)) for p in prefixes] + [f"*{depth + 1}"]
    rows, attn = {key: row() for key in keys}, {key: attention() for key in keys}
    return TableSource(length, rows, row(), attn, attention())
