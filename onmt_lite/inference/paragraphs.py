"""Long lines: each of their sentences is translated by itself, and the translations are joined.

A model learns from lines of one sentence or a few.  Of a line of many it leaves some out: of 30
lines of sixteen test sentences each, the shipped one translated 61 % of the words (BLEU 29.8), and
one by one 96 % (BLEU 55.7).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

from onmt_lite.inference.postprocess import confidence_in
from onmt_lite.inference.preprocess import TAG
from onmt_lite.inference.records import Hypothesis, Pairs, ProgressDelta, Translation
from onmt_lite.inference.search_setup import SearchConfig
from onmt_lite.text.lines import Line
from onmt_lite.text.sentence_splitter import MARKS, split_sentences

END_INSIDE = re.compile(rf"[{MARKS}]\S*\s")


def longest(config: SearchConfig) -> int:
    """The most characters of a line that stays whole; 0: all lines do, as if limits are those of
    the whole translation, or tokens are drawn, which would be the same in each sentence."""
    options = config.options
    n = options.text.split_longer
    if n is None:  # other searches equal their originals
        n = config.checkpoint.split_longer if options.search.search == "opennmt" else 0
    whole = options.attention.gold_align or options.data.score_only
    return 0 if whole or options.search.min_length or config.spec.sampling is not None else n


class Paragraphs:
    """Lines, of which each long one becomes its sentences: `lines` has these and whole lines, in
    order, and `prefixes` theirs, none if there are none."""

    def __init__(
        self,
        lines: Sequence[Line],
        config: SearchConfig,
        prefixes: Sequence[Line] | None = None,
    ):
        most = longest(config)

        def cut(line: Line, prefix: Line | None) -> list[Line]:
            """A line that has a prefix, is to hold phrases or says its language stays whole; so
            does one that must not hold a phrase in which a sentence ends, as joined ones might."""
            is_short = not 0 < most < len(line.text)
            begins = prefix is not None and prefix.text.strip()
            tagged = config.checkpoint.languages is not None and TAG.match(line.text)
            banned = any(map(END_INSIDE.search, line.banned))
            if is_short or line.forced or begins or tagged or banned:
                return [line]
            return [replace(line, text=sentence) for sentence in split_sentences(line.text)]

        self.whole, self.config = lines, config
        begin = repeat(None) if prefixes is None else prefixes
        self.parts = [cut(line, prefix) for line, prefix in zip(lines, begin)]
        self.lines = [*chain(*self.parts)]
        self.prefixes = [p for p, own in zip(prefixes or (), self.parts) for _ in own]
        self.are_cut = len(self.lines) > len(lines)

    def counting(self, progress: ProgressDelta) -> ProgressDelta:
        """A progress of parts, which tells the given one of as many whole lines as their share."""
        n_parts = n_told = 0
        n_whole, n_all = len(self.whole), max(1, len(self.lines))

        def tell(n_lines: int, n_tokens: int) -> object:
            nonlocal n_parts, n_told
            n_parts += n_lines
            before, n_told = n_told, n_parts * n_whole // n_all
            return progress(n_told - before, n_tokens)

        return tell

    def joined(self, made: Sequence[Translation]) -> list[Translation]:
        """The translations of the whole lines, from the translations of `lines`."""
        each = iter(made)
        groups = [[next(each) for _ in parts] for parts in self.parts]
        return [
            found[0] if len(found) == 1 else join(line, found, self.config)
            for line, found in zip(self.whole, groups)
        ]


def join(line: Line, parts: Sequence[Translation], config: SearchConfig) -> Translation:
    """A line's translation from those of its parts: hypotheses from the best of each part, from the
    second of each, and so on, from its last if it has fewer."""
    n_best = max(len(part.hyps) for part in parts)
    summed = config.options.search.length_penalty == "none"
    flawed = any(note in part.notes for part in parts for note in ("unfinished", "repeats"))
    best = [part.hyps[0] for part in parts]
    confidence = confidence_in(best, config.checkpoint.confidence, flawed)
    is_sure = confidence is not None and confidence >= 0.5
    notes = dict.fromkeys(chain(*(part.notes for part in parts)))
    tokens = [part.src_tokens for part in parts if part.src_tokens is not None]
    return Translation(
        line.id,
        line.text,
        sorted((join_hyps(parts, i, summed) for i in range(n_best)), key=lambda hyp: -hyp.score),
        tuple(note for note in notes if note != "unsure" or not is_sure),
        n_src_tokens=sum(part.n_src_tokens for part in parts),
        n_unknown=sum(part.n_unknown for part in parts),
        confidence=confidence,
        calibrated=parts[0].calibrated,
        fields=line.fields,
        src_tokens=[*chain(*tokens)] if tokens else None,
        attn_table=tuple(chain(*(part.attn_table for part in parts))),
    )


def join_hyps(parts: Sequence[Translation], i: int, summed: bool) -> Hypothesis:
    """Hypothesis i of a line: texts joined with spaces, numbers moved on.

    The score is the sum of the parts' (`summed`, without a length penalty), or their mean, each
    counted as often as it has tokens: with `-length_penalty avg` that is what a whole line has.
    """
    hyps = [part.hyps[min(i, len(part.hyps) - 1)] for part in parts]
    n_words = [(len(part.src.split()), len(hyp.text.split())) for part, hyp in zip(parts, hyps)]
    n_tokens = [(len(part.src_tokens or ()), len(hyp.tokens)) for part, hyp in zip(parts, hyps)]
    score = sum(hyp.score for hyp in hyps)
    if not summed:
        counts = [len(hyp.token_log_probs) for hyp in hyps]
        score = sum(hyp.score * n for hyp, n in zip(hyps, counts)) / max(1, sum(counts))
    return Hypothesis(
        " ".join(hyp.text for hyp in hyps if hyp.text),
        [*chain(*(hyp.tokens for hyp in hyps))],
        score,
        sum(hyp.log_prob for hyp in hyps),
        [*chain(*(hyp.token_log_probs for hyp in hyps))],
        all(hyp.ended for hyp in hyps),
        align=moved_on([hyp.align for hyp in hyps], n_tokens),
        word_align=moved_on([hyp.word_align for hyp in hyps], n_words),
        ids=tuple(chain(*(hyp.ids for hyp in hyps))),
        n_replaced=sum(hyp.n_replaced for hyp in hyps),
    )


def moved_on(pairs: Sequence[Pairs | None], sizes: Sequence[tuple[int, int]]) -> Pairs | None:
    """Alignments of parts as one, each moved past the source and target words before it."""
    moved: Pairs = []
    n_src = n_tgt = 0
    for part, (of_src, of_tgt) in zip(pairs, sizes):
        moved += [(i + n_src, j + n_tgt) for i, j in part or ()]
        n_src, n_tgt = n_src + of_src, n_tgt + of_tgt
    return None if all(part is None for part in pairs) else moved
