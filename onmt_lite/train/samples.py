"""Translations of held-out lines during training, and their BLEU."""

from collections.abc import Sequence
from importlib.util import find_spec

import sentencepiece as spm

from onmt_lite.checkpoints import native
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.lines import from_texts

HAS_SACREBLEU = find_spec("sacrebleu") is not None


def translate(
    model: Transformer, sp: spm.SentencePieceProcessor, lines: Sequence[str]
) -> list[str]:
    """Translate greedily, in single precision."""
    options = TranslateOptions.of(beam_size=1, device=str(model.device), precision="fp32")
    model.eval()
    pipeline = Pipeline(native.checkpoint(model, sp), options)
    translations = pipeline.translate_lines(list(from_texts(lines, "lines")))
    model.train()
    return [translation.hyps[0].text for translation in translations]


def bleu(outputs: list[str], references: list[str]) -> float | None:
    """sacrebleu's BLEU with its defaults; None if sacrebleu is not installed."""
    if not HAS_SACREBLEU:
        return None
    import sacrebleu  # optional

    return sacrebleu.corpus_bleu(outputs, [references], force=True).score
