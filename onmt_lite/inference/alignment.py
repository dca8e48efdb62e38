"""Word alignment by attention.

The model attends to a finished translation by teacher forcing, so alignments do not depend on the
search that produced it.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.search_options import AttentionOptions
from onmt_lite.inference.records import Example, Hypothesis, Pairs, SearchResult, Translation
from onmt_lite.inference.runner import Runner
from onmt_lite.inference.search_setup import SearchConfig
from onmt_lite.models.base import LAST_LAYER, HeadSelection
from onmt_lite.text.tokenizers import compute_token_word_ids


class Aligner:
    """Adds alignments to the results of examples."""

    def __init__(self, runner: Runner):
        self.runner, self.postprocessor = runner, runner.postprocessor

    def align(
        self, examples: Sequence[Example], results: Sequence[SearchResult], config: SearchConfig
    ) -> list[SearchResult]:
        """Add alignments to all hypotheses and replace unknown tokens, if the options require it.

        Args:
            examples: the lines.
            results: their search results.
            config: the search configuration.
        """
        options = config.options
        if not options.attention.report_align and not config.replaces_unk_later:
            return list(results)
        pairs = [(e, hyp) for e, result in zip(examples, results) for hyp in result.hyps]
        targets = [with_target(example, hyp) for example, hyp in pairs]
        aligned = []
        for (example, hyp), sources in zip(pairs, self._find_best_sources(targets, options)):
            sources = sources[: len(hyp.ids)]
            if options.text.replace_unk:
                hyp = self.postprocessor.replace_unk(hyp, example, sources)
            if options.attention.report_align:
                words = self._align_words(example, hyp.tokens, hyp.text, sources)
                hyp = replace(hyp, align=list_alignment_pairs(sources), word_align=words)
            aligned.append(hyp)
        remaining = iter(aligned)
        lists = [[next(remaining) for _ in result.hyps] for result in results]
        if config.dedups_text_later:  # only now are all texts known
            lists = [drop_duplicate_texts(hyps)[: options.search.n_best] for hyps in lists]
        return [replace(result, hyps=hyps) for result, hyps in zip(results, lists)]

    def add_attention_tables(
        self,
        examples: Sequence[Example],
        translations: Sequence[Translation],
        options: TranslateOptions,
    ) -> list[Translation]:
        """Add tables with the attention weights of the best hypotheses, for the log.

        Args:
            examples: the lines.
            translations: their translations.
            options: with `attn_debug`.
        """
        attention = options.attention
        heads = LAST_LAYER if attention.alignment_layer is None else alignment_heads(attention)
        best = [translation.hyps[0] for translation in translations]
        with_tables = list(translations)
        targets = [with_target(*pair) for pair in zip(examples, best)]
        for i, weights in enumerate(self._compute_attention_weights(targets, heads, options)):
            if weights is not None and best[i].token_log_probs:
                rows = [*best[i].tokens, "</s>"][: len(best[i].token_log_probs)]
                table = format_attention(get_line_tokens(examples[i]), rows, weights.tolist())
                with_tables[i] = replace(with_tables[i], attn_table=table)
        return with_tables

    def add_gold_alignments(
        self,
        examples: Sequence[Example],
        translations: Sequence[Translation],
        options: TranslateOptions,
    ) -> list[Translation]:
        """Add the alignments of references, which replace the ones of the hypotheses in the output.

        Args:
            examples: the lines, with references.
            translations: their translations.
            options: with `gold_align`.
        """
        vocab, detokenize = (
            self.postprocessor.checkpoint.tgt_vocab,
            self.postprocessor.tokenizer.decode,
        )
        aligned = []
        for e, t, sources in zip(
            examples, translations, self._find_best_sources(examples, options)
        ):
            tokens = vocab.decode(e.tgt_ids or [], e.oov_words)
            sources = sources[: len(tokens)]
            words = self._align_words(e, tokens, detokenize(tokens), sources)
            hyps = [replace(hyp, word_align=words) for hyp in t.hyps]
            aligned.append(replace(t, hyps=hyps, gold_align=list_alignment_pairs(sources)))
        return aligned

    def _find_best_sources(
        self, targets: Sequence[Example], options: TranslateOptions
    ) -> list[list[int]]:
        """Return the source token with the largest weight for each target token and the end."""
        weights = self._compute_attention_weights(
            targets, alignment_heads(options.attention), options
        )
        return [[] if w is None else w.argmax(1).tolist() for w in weights]

    def _compute_attention_weights(
        self, targets: Sequence[Example], heads: HeadSelection, options: TranslateOptions
    ) -> list[Tensor | None]:
        """Return the attention weights (T + 1, S) of each example.

        T target tokens and the end token attend to the S tokens of the line itself. None if an
        example lacks either side.

        Args:
            targets: examples with target ids.
            heads: layer and heads to average.
            options: with `deterministic`.
        """
        before, after = self.postprocessor.checkpoint.src_margins
        all_weights = self.runner.attend(targets, heads, options.speed.deterministic)
        line_weights = [
            w if w is None else w[:, before + e.n_tag : w.size(1) - after]
            for e, w in zip(targets, all_weights)
        ]
        return [w if w is not None and w.size(1) else None for w in line_weights]

    def _align_words(
        self, example: Example, tokens: list[str], text: str, sources: list[int]
    ) -> Pairs:
        """Return the alignment of words.

        Args:
            example: the line. Its words are those of its tokens if spans were masked.
            tokens: target tokens.
            text: the translation.
            sources: source token of each target token.
        """
        decode = self.postprocessor.tokenizer.decode
        line = get_line_tokens(example)
        if not sources or not text.split():
            return []
        source = compute_token_word_ids(
            line, decode, example.line.text if example.masked_line else decode(line)
        )
        target = compute_token_word_ids(tokens, decode, text)
        return sorted({(source[s], target[t]) for t, s in enumerate(sources)})


def with_target(example: Example, hyp: Hypothesis) -> Example:
    """Return the example with the target ids of a hypothesis, as read by the decoder."""
    return replace(example, tgt_ids=list(hyp.ids if hyp.ended else hyp.ids[:-1]))


def drop_duplicate_texts(hyps: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the first hypothesis of each text."""
    texts = dict[str, Hypothesis]()
    for hyp in hyps:
        texts.setdefault(hyp.text, hyp)
    return list(texts.values())


def alignment_heads(attention: AttentionOptions) -> HeadSelection:
    """Return the attention heads that the options select."""
    return HeadSelection(attention.alignment_layer, attention.alignment_heads)


def list_alignment_pairs(sources: Sequence[int]) -> Pairs:
    """Return sorted (source, target) pairs from the source token of each target token."""
    return sorted((source, target) for target, source in enumerate(sources))


def get_line_tokens(example: Example) -> list[str]:
    """Return the tokens of the line, without its language tag."""
    return list(example.src_tokens[example.n_tag :])


def format_attention(
    columns: Sequence[str], rows: Sequence[str], weights: Sequence[Sequence[float]]
) -> tuple[str, ...]:
    """Format attention weights as a table; a star marks the largest weight of each row.

    Args:
        columns: names of the columns, S.
        rows: names of the rows, T.
        weights: (T, S).
    """
    width = max(8, *map(len, columns)) + 2
    name_width = max(map(len, rows), default=0)
    lines = [" " * name_width + "".join(name.rjust(width) for name in columns)]
    for name, row_weights in zip(rows, weights):
        cells = [
            f"{'*' * (weight == max(row_weights))}{weight:.6f}".rjust(width)
            for weight in row_weights
        ]
        lines.append(name.rjust(name_width) + "".join(cells))
    return tuple(lines)
