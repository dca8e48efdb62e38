"""Description of a checkpoint for people, as `-print_model` prints it."""

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.table import TableModel
from onmt_lite.text.vocab import Vocab

TOOLKITS = {
    "onmt_lite": "onmt_lite",
    "opennmt": "OpenNMT-py",
    "fairseq": "fairseq",
    "marian": "Marian, as Hugging Face transformers",
    "marian-npz": "Marian",
    "ctranslate2": "CTranslate2",
    "transformers": "Hugging Face transformers",
}
WIDTH = 18  # of the names on the left


def describe(checkpoint: Checkpoint, name: str) -> str:
    """Describe a checkpoint in lines under its name."""
    model, src, tgt = checkpoint.model, checkpoint.src_vocab, checkpoint.tgt_vocab
    weights = model.parameters() if isinstance(model, nn.Module) else ()  # shared ones once
    n_parameters = sum(weight.numel() for weight in weights)
    default, *others = checkpoint.tokenizers
    facts = {
        "written by": f"{TOOLKITS[checkpoint.toolkit]} {checkpoint.version}".rstrip(),
        "family": type(model).__name__ + " that copies source words" * model.copies,
        "sizes": _sizes(model),
        "parameters": f"{n_parameters:,}",
        "longest line": f"{model.max_positions:,} tokens",
        "source vocabulary": _vocabulary(src),
        "target vocabulary": "the same" if tgt is src else _vocabulary(tgt),
        "tokenizer": default + (f" (also: {', '.join(others)})" if others else ""),
        "decoder starts at": _tokens([checkpoint.start_id], tgt),
        "before each source": _tokens(checkpoint.src_start, src),
        "after each source": _tokens(checkpoint.src_end, src),
        "never produced": _tokens(checkpoint.never_ids, tgt),
    }
    if checkpoint.languages is not None:
        codes = [code or "none" for code in checkpoint.languages.default]
        facts["languages"] = " ".join(checkpoint.languages.ids)
        facts["by default"] = "src_lang {}, tgt_lang {}".format(*codes)
    if checkpoint.split_longer:
        facts["asks for"] = f"-split_longer {checkpoint.split_longer}"
    lines = [_printable(name)]
    lines += [f"  {fact:<{WIDTH}} {_printable(value)}" for fact, value in facts.items()]
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    """Quote text with control characters, which might steer the terminal."""
    return text if text.isprintable() else repr(text)


def _sizes(model: EncoderDecoder) -> str:
    """Configuration of a model, without fields that are off and sizes of vocabularies."""
    if isinstance(model, TableModel):
        return f"{len(model.sources)} source lines"
    shown = []
    for name, value in vars(cast(Any, model).cfg).items():
        if isinstance(value, tuple):  # of convolutional layers
            value = " ".join(f"{layer.d}x{layer.kernel}" for layer in value)
        if value not in (False, "none") and not name.endswith("vocab_size"):  # 0 is False too
            shown.append(name if value is True else f"{name} {value}")
    return ", ".join(shown)


def _vocabulary(vocab: Vocab) -> str:
    """Size and special tokens of a vocabulary."""
    ids = {"end": vocab.eos_id, "start": vocab.bos_id, "pad": vocab.pad_id, "unk": vocab.unk_id}
    special = [f"{name} {_tokens([i], vocab)}" for name, i in ids.items() if i is not None]
    return ", ".join([f"{len(vocab):,} tokens", *special])


def _tokens(ids: Iterable[int], vocab: Vocab) -> str:
    """Tokens with their ids."""
    shown = [
        f"{vocab.tokens[i]!r} ({i})" if 0 <= i < len(vocab) else f"id {i}, outside the vocabulary"
        for i in ids
    ]
    return " ".join(shown) or "nothing"
