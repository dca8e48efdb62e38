"""Aligner: from which source tokens the tokens of a translation come, by the model's attention
to a finished translation, whichever search has found it."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.search_options import AttentionOptions
from onmt_lite.inference.postprocess import Renderer
from onmt_lite.inference.records import Example, Found, Hypothesis, Pairs
from onmt_lite.inference.runner import Runner
from onmt_lite.inference.search_setup import SearchConfig
from onmt_lite.models.base import LAST_LAYER, Heads
from onmt_lite.text.tokenizers import word_of_each


class Aligner:
    """Passes over examples and their results that add alignments."""

    def __init__(self, runner: Runner, renderer: Renderer):
        self.runner, self.renderer = runner, renderer

    def align(
        self, examples: Sequence[Example], found: Sequence[Found], config: SearchConfig
    ) -> list[Found]:
        """With alignments and with what replaces unknown tokens, if the options need them."""
        if not config.options.attention.report_align and not config.unk_later:
            return list(found)
        aligned = self.hypotheses(examples, found, config.options)
        if not config.differ_late:
            return aligned
        for i, each in enumerate(aligned):  # some texts are equal only now
            texts = dict[str, Hypothesis]()
            for hyp in each.hyps:
                texts.setdefault(hyp.text, hyp)
            aligned[i] = replace(each, hyps=[*texts.values()][: config.options.search.n_best])
        return aligned

    def hypotheses(
        self, examples: Sequence[Example], found: Sequence[Found], options: TranslateOptions
    ) -> list[Found]:
        """With the alignments of all hypotheses, and with what replaces their unknown tokens."""
        attention, replaces = options.attention, options.text.replace_unk
        made = [(example, hyp) for example, f in zip(examples, found) for hyp in f.hyps]
        targets = [replace(example, tgt_ids=list(hyp.ids)) for example, hyp in made]
        hyps = []
        for (example, hyp), sources in zip(made, self.sources(targets, options)):
            if replaces:
                hyp = self.renderer.without_unk(hyp, example, sources)
            if attention.report_align:
                words = self.by_words(example, hyp.tokens, hyp.text, sources)
                hyp = replace(hyp, align=pairs_of(sources), word_align=words)
            hyps.append(hyp)
        rest = iter(hyps)
        return [replace(f, hyps=[next(rest) for _ in f.hyps]) for f in found]

    def tables(
        self, examples: Sequence[Example], found: Sequence[Found], options: TranslateOptions
    ) -> list[Found]:
        """With the weights of the best hypotheses as tables for the log."""
        attention = options.attention
        heads = LAST_LAYER if attention.alignment_layer is None else heads_of(attention)
        best = [f.hyps[0] for f in found]
        targets = [
            replace(e, tgt_ids=list(hyp.ids) if hyp.token_log_probs else None)
            for e, hyp in zip(examples, best)
        ]
        tables = [
            table_of(own_tokens(e), [*hyp.tokens, "</s>"][: len(hyp.token_log_probs)], w.tolist())
            if w is not None
            else ()
            for e, hyp, w in zip(examples, best, self.weights(targets, heads, options))
        ]
        return [replace(f, attn_table=table) for f, table in zip(found, tables)]

    def references(
        self, examples: Sequence[Example], found: Sequence[Found], options: TranslateOptions
    ) -> list[Found]:
        """With the alignments of references, which the output has in place of the hypotheses'."""
        vocab, join = self.renderer.checkpoint.tgt_vocab, self.renderer.tokenizer.decode
        made = []
        for e, f, sources in zip(examples, found, self.sources(examples, options)):
            tokens = vocab.decode(e.tgt_ids or [], e.own_words)
            words = self.by_words(e, tokens, join(tokens), sources)
            hyps = [replace(hyp, word_align=words) for hyp in f.hyps]
            made.append(replace(f, hyps=hyps, gold_align=pairs_of(sources)))
        return made

    def sources(self, targets: Sequence[Example], options: TranslateOptions) -> list[list[int]]:
        """For each token of each target, the token of the line with the largest weight."""
        found = self.weights(targets, heads_of(options.attention), options)
        return [[] if w is None else w[:-1].argmax(1).tolist() for w in found]

    def weights(
        self, targets: Sequence[Example], heads: Heads, options: TranslateOptions
    ) -> list[Tensor | None]:
        """For each example the weights (T + 1, S) of its line's own tokens for the T tokens of its
        target and the end token; None if either is missing."""
        before, after = self.renderer.checkpoint.src_margins
        made = self.runner.attend(targets, heads, options.speed.deterministic)
        own = [
            w if w is None else w[:, before + e.n_tag : w.size(1) - after]
            for e, w in zip(targets, made)
        ]
        return [w if w is not None and w.size(1) else None for w in own]

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


def table_of(
    columns: Sequence[str], rows: Sequence[str], weights: Sequence[Sequence[float]]
) -> tuple[str, ...]:
    """A line with the names of the columns, then each row; its largest weight has a star."""
    width = max(8, *map(len, columns)) + 2
    first = max(map(len, rows), default=0)
    lines = [" " * first + "".join(name.rjust(width) for name in columns)]
    for name, own in zip(rows, weights):
        cells = [f"{'*' * (weight == max(own))}{weight:.6f}".rjust(width) for weight in own]
        lines.append(name.rjust(first) + "".join(cells))
    return tuple(lines)
