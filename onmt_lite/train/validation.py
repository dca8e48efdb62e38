"""Validation during training: greedy translations of held-out lines, their BLEU and samples."""

from collections.abc import Sequence

import sentencepiece as spm

from onmt_lite.checkpoints import native
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.jobs.reports import has_sacrebleu
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.log import LOG
from onmt_lite.text.lines import make_lines_from_texts


def translate_greedily(
    model: Transformer, sp: spm.SentencePieceProcessor, lines: Sequence[str]
) -> list[str]:
    """Translate lines with beam size 1 in fp32.

    Args:
        model: the model; switched to evaluation mode and back
        sp: its tokenizer
        lines: N source lines

    Returns:
        The N translations.
    """
    options = TranslateOptions.of(beam_size=1, device=str(model.device), precision="fp32")
    model.eval()
    pipeline = Pipeline(native.make_checkpoint(model, sp), options)
    translations = pipeline.translate_lines(list(make_lines_from_texts(lines, "lines")))
    model.train()
    return [translation.hyps[0].text for translation in translations]


def compute_bleu(outputs: Sequence[str], references: Sequence[str]) -> float | None:
    """Return corpus BLEU, or None if sacrebleu is not installed."""
    if not has_sacrebleu():
        return None
    import sacrebleu  # optional

    return sacrebleu.corpus_bleu(list(outputs), [list(references)], force=True).score


def log_samples(sources: Sequence[str], references: Sequence[str], outputs: Sequence[str]) -> None:
    """Log lines with their references and translations.

    Args:
        sources: N source lines
        references: their N reference translations
        outputs: their N translations by the model
    """
    for source, reference, output in zip(sources, references, outputs):
        LOG.info("    source     %s", source)
        LOG.info("    reference  %s", reference)
        LOG.info("    output     %s", output)
