"""What a process does that has the models: describe them, translate buckets."""

from collections.abc import Iterable, Iterator
from typing import Any

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.shipped import model_paths
from onmt_lite.checkpoints.summary import describe
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Translation
from onmt_lite.inference.runtime import precision_of
from onmt_lite.inference.search_setup import model_notes
from onmt_lite.inference.tokenization import fit, read_own
from onmt_lite.inference.trace import Trace
from onmt_lite.inference.translator import Translator
from onmt_lite.jobs import bleu
from onmt_lite.jobs.buckets import Bucket, Done, Progress, roles
from onmt_lite.jobs.reports import Summary, build_writer, one_line, sentence_log, to_report


def describe_models(options: TranslateOptions) -> str:
    """What the models that the options name are, a block each, with the tokenizer that would be
    used.  Raises CheckpointError or OptionError."""
    own = read_own(options)
    blocks = [
        describe(fit(load_checkpoint(path), options, own), str(path))
        for path in model_paths(options.model.model)
    ]
    return "\n".join(blocks)


def translate_bucket(
    translator: Translator, options: TranslateOptions, bucket: Bucket, progress: Progress
) -> Done:
    """Translate the lines of a bucket and format them as the options say.

    `progress` is called after each batch with the lines and target tokens that it adds.
    """
    data = options.data
    gold_lines, prefixes = roles(bucket.tgt_lines, data)
    translations = translator.translate_lines(bucket.lines, gold_lines, options, progress, prefixes)
    if data.token_scores and data.output_format == "jsonl":
        translations = [*map(translator.renderer.by_words, translations)]
    writer = build_writer(data, options.search.n_best)
    log = []
    for i, translation in enumerate(translations):
        # A job that scores says it in its output
        told = gold_lines is not None and (options.information.verbose or not data.score_only)
        gold = gold_lines[i].text if gold_lines is not None and told else None
        log += sentence_log(translation, gold, options.information.verbose)
    if bucket.number == 0 and next(iter(translator.checkpoint.tokenizers)) == "space":
        log += note_raw_text(translations)
    summary = Summary.of(translations)
    if gold_lines is not None and bleu.is_wanted(options) and bleu.is_installed():
        texts = [one_line(translation.text) for translation in translations]
        summary.overlaps = bleu.sums_of(texts, [one_line(line.text) for line in gold_lines])
    return Done(
        bucket.number,
        len(bucket.lines),
        "".join(map(writer, translations)).encode("utf-8"),
        summary,
        "".join(map(to_report, translations)).encode("ascii"),
        log=log,
        traces=[
            t.trace or Trace(t.id, t.src)
            for line, t in zip(bucket.lines, translations)
            if line.traced
        ],
        seconds=translator.clock.take(),
    )


def note_raw_text(translations: list[Translation]) -> list[str]:
    """Text given to a model of tokens: most of its first words are unknown."""
    n_tokens = sum(translation.n_src_tokens for translation in translations)
    n_unknown = sum(translation.n_unknown for translation in translations)
    if n_unknown <= n_tokens / 2:
        return []
    return [
        f"NOTE: {n_unknown} of the first {n_tokens} words are unknown to the model, which takes "
        "tokens separated by spaces; for text as it is, give -src_subword_model with -tokenizer "
        "bpe or sentencepiece, or -transforms"
    ]


class InProcess:
    """The engine of this process; see `onmt_lite.jobs.buckets.Engine`."""

    def __init__(self, options: TranslateOptions, translator: Translator | None = None):
        """With a `translator`, nothing is loaded."""
        self.options, self.given = options, translator

    def __enter__(self) -> "InProcess":
        self.translator = translator = self.given or Translator.load(self.options)
        precision = precision_of(translator.model)
        self.machine = {"device": translator.device.type, "precision": precision}
        self.notes = model_notes(self.options, translator.checkpoint, translator.device)
        if self.options.speed.batch_size is None and not self.options.speed.deterministic:
            self.notes += translator.budget.notes(self.options.search.beam_size)
        if precision == "int8" and self.options.speed.precision == "auto":
            self.notes.append(
                "precision int8, for which this processor is made; -precision fp32 is slower and "
                "exact (docs/speed.md)"
            )
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def run(self, buckets: Iterable[Bucket], progress: Progress) -> Iterator[Done]:
        """Yield results in the order of the buckets."""
        for bucket in buckets:
            yield translate_bucket(self.translator, self.options, bucket, progress)
