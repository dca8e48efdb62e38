"""Aligner: from which source tokens the tokens of a translation come, by the model's attention
to a finished translation, whichever search has found it."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.search_options import AttentionOptions
from onmt_lite.inference.records import Example, Hypothesis, Pairs, SearchResult, Translation
from onmt_lite.inference.runner import Runner
from onmt_lite.inference.search_setup import SearchConfig
from onmt_lite.models.base import LAST_LAYER, HeadSelection
from onmt_lite.text.tokenizers import token_word_ids


class Aligner:
    """Passes over examples and their results that add alignments."""

    def __init__(self, runner: Runner):
        self.runner, self.postprocessor = runner, runner.postprocessor

    def align(
        self, examples: Sequence[Example], results: Sequence[SearchResult], config: SearchConfig
    ) -> list[SearchResult]:
        """With the alignments of all hypotheses and with what replaces their unknown tokens, if the
        options need them."""
        options = config.options
        if not options.attention.report_align and not config.replaces_unk_later:
            return list(results)
        pairs = [(e, hyp) for e, result in zip(examples, results) for hyp in result.hyps]
        targets = [with_target(example, hyp) for example, hyp in pairs]
        aligned = []
        for (example, hyp), sources in zip(pairs, self.sources(targets, options)):
            sources = sources[: len(hyp.ids)]
            if options.text.replace_unk:
                hyp = self.postprocessor.without_unk(hyp, example, sources)
            if options.attention.report_align:
                words = self.by_words(example, hyp.tokens, hyp.text, sources)
                hyp = replace(hyp, align=pairs_of(sources), word_align=words)
            aligned.append(hyp)
        hyps = iter(aligned)
        lists = [[next(hyps) for _ in result.hyps] for result in results]
        if config.dedups_text_later:  # some texts are equal only now
            lists = [distinct_texts(own)[: options.search.n_best] for own in lists]
        return [replace(result, hyps=own) for result, own in zip(results, lists)]

    def add_tables(
        self,
        examples: Sequence[Example],
        translations: Sequence[Translation],
        options: TranslateOptions,
    ) -> list[Translation]:
        """With the weights of the best hypotheses as tables for the log."""
        attention = options.attention
        heads = LAST_LAYER if attention.alignment_layer is None else heads_of(attention)
        best = [translation.hyps[0] for translation in translations]
        made = list(translations)
        targets = [with_target(*pair) for pair in zip(examples, best)]
        for i, weights in enumerate(self.weights(targets, heads, options)):
            if weights is not None and best[i].token_log_probs:
                rows = [*best[i].tokens, "</s>"][: len(best[i].token_log_probs)]
                table = table_of(line_tokens(examples[i]), rows, weights.tolist())
                made[i] = replace(made[i], attn_table=table)
        return made

    def add_references(
        self,
        examples: Sequence[Example],
        translations: Sequence[Translation],
        options: TranslateOptions,
    ) -> list[Translation]:
        """With the alignments of references, which the output has in place of the hypotheses'."""
        vocab, join = self.postprocessor.checkpoint.tgt_vocab, self.postprocessor.tokenizer.decode
        made = []
        for e, t, sources in zip(examples, translations, self.sources(examples, options)):
            tokens = vocab.decode(e.tgt_ids or [], e.oov_words)
            sources = sources[: len(tokens)]
            words = self.by_words(e, tokens, join(tokens), sources)
            hyps = [replace(hyp, word_align=words) for hyp in t.hyps]
            made.append(replace(t, hyps=hyps, gold_align=pairs_of(sources)))
        return made

    def sources(self, targets: Sequence[Example], options: TranslateOptions) -> list[list[int]]:
        """For each token of each target, and for what follows, the token of the line with the
        largest weight."""
        found = self.weights(targets, heads_of(options.attention), options)
        return [[] if w is None else w.argmax(1).tolist() for w in found]

    def weights(
        self, targets: Sequence[Example], heads: HeadSelection, options: TranslateOptions
    ) -> list[Tensor | None]:
        """For each example the weights (T + 1, S) of its line's own tokens for the T tokens of its
        target and the end token; None if either is missing."""
        before, after = self.postprocessor.checkpoint.src_margins
        made = self.runner.attend(targets, heads, options.speed.deterministic)
        own = [
            w if w is None else w[:, before + e.n_tag : w.size(1) - after]
            for e, w in zip(targets, made)
        ]
        return [w if w is not None and w.size(1) else None for w in own]

    def by_words(self, example: Example, tokens: list[str], text: str, sources: list[int]) -> Pairs:
        """The pairs, of words: of the line, as its tokens make it unless something was taken out,
        and of a translation."""
        decode = self.postprocessor.tokenizer.decode
        line = line_tokens(example)
        if not sources or not text.split():
            return []
        source = token_word_ids(
            line, decode, example.line.text if example.masked_line else decode(line)
        )
        target = token_word_ids(tokens, decode, text)
        return sorted({(source[s], target[t]) for t, s in enumerate(sources)})


def with_target(example: Example, hyp: Hypothesis) -> Example:
    """The example with the tokens of a hypothesis that its decoder has read as the target."""
    return replace(example, tgt_ids=list(hyp.ids if hyp.ended else hyp.ids[:-1]))


def distinct_texts(hyps: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The first hypothesis of each text."""
    texts = dict[str, Hypothesis]()
    for hyp in hyps:
        texts.setdefault(hyp.text, hyp)
    return list(texts.values())


def heads_of(attention: AttentionOptions) -> HeadSelection:
    """The attention that aligns."""
    return HeadSelection(attention.alignment_layer, attention.alignment_heads)


def pairs_of(sources: Sequence[int]) -> Pairs:
    """(source, target) for each target token, in order."""
    return sorted((source, target) for target, source in enumerate(sources))


def line_tokens(example: Example) -> list[str]:
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
