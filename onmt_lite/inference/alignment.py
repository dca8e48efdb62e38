"""From which source tokens the tokens of a translation come: the attention of the model.

It is read off the translation that was found, all tokens at once, so that nothing here depends
on the search.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.search_options import AttentionOptions
from onmt_lite.inference.batching import longer_side, make_batches, pad_batch
from onmt_lite.inference.budget import Budget, Room
from onmt_lite.inference.fallbacks import Decode
from onmt_lite.inference.postprocess import Renderer
from onmt_lite.inference.records import Example, Found, Hypothesis, Pairs, Translation
from onmt_lite.inference.search_setup import SearchRules
from onmt_lite.models.base import LAST_LAYER, EncoderDecoder, Heads
from onmt_lite.search.forced import attend_targets
from onmt_lite.text.words import word_of_each


class Aligner:
    """Adds alignments to what one model has translated."""

    def __init__(
        self, model: EncoderDecoder, renderer: Renderer, device: torch.device, budget: Budget
    ):
        self.model, self.renderer, self.device, self.budget = model, renderer, device, budget
        self.checkpoint: Checkpoint = renderer.checkpoint
        self.room = Room("leave report_align out")

    def after(self, decode: Decode) -> Decode:
        """The search, after which texts differ where they must: if alignments decide on them, they
        are read at once."""

        def decode_and_align(group: list[Example], n: int, rules: SearchRules) -> list[Found]:
            found = decode(group, n, rules)
            return self._different(group, found, rules) if rules.differ_late else found

        return decode_and_align

    def hypotheses(
        self, examples: Sequence[Example], found: Sequence[Found], rules: SearchRules
    ) -> list[Found]:
        """The same hypotheses with their alignments, and without unknown tokens where these are
        to be replaced by them; as they are if the options do not ask for that, or if `after` has
        done it."""
        attention, made = rules.options.attention, list(found)
        if not attention.report_align and not rules.unk_later:
            return made
        left = [i for i, e in enumerate(examples) if not (rules.differ_late and e.src_ids)]
        aligned = self._aligned([examples[i] for i in left], [made[i] for i in left], rules.options)
        for i, each in zip(left, aligned):
            made[i] = each
        return made

    def _different(
        self, group: Sequence[Example], found: Sequence[Found], rules: SearchRules
    ) -> list[Found]:
        """The n_best hypotheses with different texts, after unknown tokens are replaced.

        As many are aligned at a time as are wanted, the best first."""
        texts = [dict[str, Hypothesis]() for _ in group]
        n, at, short = rules.search.n_best, 0, list(range(len(group)))
        while short:
            part = [replace(found[i], hyps=found[i].hyps[at : at + n]) for i in short]
            aligned = self._aligned([group[i] for i in short], part, rules.options)
            for i, each in zip(short, aligned):
                for hyp in each.hyps:
                    texts[i].setdefault(hyp.text, hyp)
            at += n
            short = [i for i in short if len(texts[i]) < n and at < len(found[i].hyps)]
        return [replace(f, hyps=list(own.values())[:n]) for f, own in zip(found, texts)]

    def _aligned(
        self, examples: Sequence[Example], found: Sequence[Found], options: TranslateOptions
    ) -> list[Found]:
        """With alignments, and what follows from them."""
        attention, replaces = options.attention, options.text.replace_unk
        made = [(example, hyp) for example, f in zip(examples, found) for hyp in f.hyps]
        targets = [replace(example, tgt_ids=list(hyp.ids)) for example, hyp in made]
        all_sources = self.sources(targets, heads_of(attention), options.speed.deterministic)
        hyps = []
        for (example, hyp), sources in zip(made, all_sources):
            if replaces:
                hyp = self.renderer.without_unk(hyp, example, sources)
            if attention.report_align:
                words = self.by_words(example, hyp.tokens, hyp.text, sources)
                hyp = replace(hyp, align=pairs_of(sources), word_align=words)
            hyps.append(hyp)
        rest = iter(hyps)
        return [replace(f, hyps=[next(rest) for _ in f.hyps]) for f in found]

    def tables(
        self, examples: Sequence[Example], made: Sequence[Translation], options: TranslateOptions
    ) -> list[Translation]:
        """With the weights of the best hypotheses for the log, if the options ask for them."""
        attention = options.attention
        if not attention.attn_debug:
            return list(made)
        heads = LAST_LAYER if attention.alignment_layer is None else heads_of(attention)
        best = [next(iter(t.hyps), None) for t in made]
        targets = [
            replace(e, tgt_ids=list(hyp.ids) if hyp and hyp.token_log_probs else None)
            for e, hyp in zip(examples, best)
        ]
        found = self.weights(targets, heads, options.speed.deterministic)
        tables = [
            table_of(own_tokens(e), [*hyp.tokens, "</s>"][: len(hyp.token_log_probs)], w.tolist())
            if hyp is not None and w is not None
            else ()
            for e, hyp, w in zip(examples, best, found)
        ]
        return [replace(t, attn_table=table) for t, table in zip(made, tables)]

    def gold(
        self, examples: Sequence[Example], made: Sequence[Translation], options: TranslateOptions
    ) -> list[Translation]:
        """With the alignments of the references, if the options ask for them."""
        if not options.attention.gold_align:
            return list(made)
        vocab, join = self.checkpoint.tgt_vocab, self.renderer.tokenizer.decode
        heads, alone = heads_of(options.attention), options.speed.deterministic
        found = []
        for e, t, sources in zip(examples, made, self.sources(examples, heads, alone)):
            tokens = vocab.decode(e.tgt_ids or [], e.own_words)
            words = self.by_words(e, tokens, join(tokens), sources)
            hyps = [replace(hyp, word_align=words) for hyp in t.hyps]
            found.append(replace(t, hyps=hyps, gold_align=pairs_of(sources)))
        return found

    def sources(self, targets: Sequence[Example], heads: Heads, alone: bool) -> list[list[int]]:
        """For each token of each target, the token of the line with the largest weight."""
        found = self.weights(targets, heads, alone)
        return [[] if w is None else w[:-1].argmax(1).tolist() for w in found]

    def weights(self, targets: Sequence[Example], heads: Heads, alone: bool) -> list[Tensor | None]:
        """For each example the weights (T + 1, S) that its line's own tokens have for the T tokens
        of its target and the end token; None where either side is missing.  `alone`: no batches."""
        place = {id(target): i for i, target in enumerate(targets)}
        found: list[Tensor | None] = [None] * len(targets)
        full = [t for t in targets if t.src_ids and t.tgt_ids is not None]
        most = 1 if alone else self.budget.scored_tokens
        for group in make_batches(full, most, "tokens", longer_side):
            work = partial(self._attend, heads)
            for target, weights in zip(
                group, self.room.run(group, len(group), longer_side, work), strict=True
            ):
                found[place[id(target)]] = self._own(target, weights)
        return found

    def _attend(
        self, heads: Heads, group: list[Example], n_at_once: int
    ) -> Iterator[tuple[int, Tensor]]:
        """The place of each example in the group and the weights of all its source ids."""
        for start in range(0, len(group), n_at_once):
            part = group[start : start + n_at_once]
            batch = pad_batch(part, self.checkpoint.src_vocab.pad_id or 0, self.device)
            weights = attend_targets(
                self.model,
                batch.src,
                batch.src_lengths,
                [e.tgt_ids or [] for e in part],
                [e.start for e in part],
                self.checkpoint.eos_id,
                heads,
                batch.copy_ids,
            )
            yield from enumerate(weights, start)

    def _own(self, example: Example, weights: Tensor) -> Tensor | None:
        """Without what stands around the line."""
        before, after = self.checkpoint.src_margins
        own = weights[:, before + example.n_tag : weights.size(1) - after]
        return own if own.size(1) else None

    def by_words(self, example: Example, tokens: list[str], text: str, sources: list[int]) -> Pairs:
        """The pairs, of words: of the line, as its tokens make it unless something was taken out,
        and of a translation."""
        decode = self.renderer.tokenizer.decode
        line = own_tokens(example)
        if not sources or not text.split():
            return []
        source = word_of_each(line, decode, example.line.text if example.reading else decode(line))
        target = word_of_each(tokens, decode, text)
        return sorted({(source[s], target[t]) for t, s in enumerate(sources)})


def heads_of(attention: AttentionOptions) -> Heads:
    """The attention that aligns."""
    return Heads(attention.alignment_layer, attention.alignment_heads)


def pairs_of(sources: Sequence[int]) -> Pairs:
    """(source, target) for each target token, in order."""
    return sorted((source, target) for target, source in enumerate(sources))


def own_tokens(example: Example) -> list[str]:
    """The tokens of the line itself."""
    return list(example.src_tokens[example.n_tag :])


def with_source(
    examples: Sequence[Example], made: Sequence[Translation], options: TranslateOptions
) -> list[Translation]:
    """With the tokens to which alignments refer, where there are any."""
    if not options.attention.report_align:
        return list(made)
    return [replace(t, src_tokens=own_tokens(e)) for e, t in zip(examples, made)]


def table_of(
    columns: Sequence[str], rows: Sequence[str], weights: Sequence[Sequence[float]]
) -> tuple[str, ...]:
    """Lines of text: the names of the columns, then each row with its weights, the largest of
    which has a star."""
    width = max(8, *map(len, columns)) + 2
    first = max(map(len, rows), default=0)
    lines = [" " * first + "".join(name.rjust(width) for name in columns)]
    for name, own in zip(rows, weights):
        cells = [f"{'*' * (weight == max(own))}{weight:.6f}".rjust(width) for weight in own]
        lines.append(name.rjust(first) + "".join(cells))
    return tuple(lines)
