"""Workloads: models, source lines, and conversions of the models for the other systems."""

import contextlib
import io
import json
import os
import random
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import sentencepiece as spm
import torch

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.writing import export_marian
from onmt_lite.export import main as export_main
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.layers import TransformerLayer
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import MarianTokenizer
from onmt_lite.text.vocab import Vocab

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "data" / "de-en"
TEXT = ROOT / "recipes" / "de_en" / "usage.tsv"  # German, TAB, English
N_LINES = 520  # lines of TEXT in the workload


@dataclass(frozen=True)
class Shape:
    """Sizes of a randomly initialized Marian model and of its text."""

    layers: int  # in the encoder and in the decoder
    d_model: int
    d_ff: int
    heads: int
    vocab_size: int
    n_lines: int
    n_tokens: int = 24  # per source including EOS, and per output excluding EOS


SHAPES = {
    "base": Shape(6, 512, 2048, 8, 32000, n_lines=128),
    "tiny": Shape(3, 256, 1024, 4, 8000, n_lines=256),
}


@dataclass(frozen=True)
class Workload:
    """A model and lines to translate.

    Attributes:
        about: description for the table
        model: path of the model
        lines: source lines
        length: fixed output length in tokens, or None to stop at EOS
        references: reference translations for BLEU, or None
    """

    about: str
    model: str
    lines: list[str]
    length: int | None = None
    references: list[str] | None = None

    @property
    def is_marian(self) -> bool:
        """True if `model` is a Hugging Face Marian directory."""
        return self.length is not None


def make_workload(name: str, options: Namespace, directory: Path) -> Workload:
    """Build a workload.

    Args:
        name: base, tiny or shipped
        options: options of the program
        directory: directory for randomly initialized models
    """
    if name in SHAPES:
        return make_random_workload(SHAPES[name], directory / name, options.lines)
    lines, references = read_lines(options)
    about = "the included model on text"
    references = None if references is None else references[: options.lines]
    return Workload(about, str(SHIPPED), lines[: options.lines], references=references)


def read_lines(options: Namespace) -> tuple[list[str], list[str] | None]:
    """Read source lines and, if set, references.  Lines with an empty source are skipped."""
    if options.src is None:
        pairs = TEXT.read_text(encoding="utf-8").split("\n")
        return [pair.split("\t")[0] for pair in pairs[:: len(pairs) // N_LINES]][:N_LINES], None
    texts = [Path(path).read_text(encoding="utf-8") for path in (options.src, options.tgt) if path]
    sources, *targets = (text.removesuffix("\n").split("\n") for text in texts)
    indices = [i for i, line in enumerate(sources) if line.strip()]
    references = [targets[0][i] for i in indices] if targets else None
    return [sources[i] for i in indices], references


# -- random weights -------------------------------------------------------------------------------


def make_random_workload(shape: Shape, directory: Path, max_lines: int | None = None) -> Workload:
    """Write a randomly initialized model to a new directory and generate lines for it.

    Args:
        shape: sizes of the model and its text
        directory: directory to create
        max_lines: upper limit of the number of lines, or None
    """
    rng = random.Random(shape.vocab_size)
    n_words = shape.vocab_size - 3  # without EOS, <unk> and padding
    lines = [
        " ".join(f"w{rng.randrange(n_words)}" for _ in range(shape.n_tokens - 1))
        for _ in range(min(shape.n_lines, max_lines or shape.n_lines))
    ]
    directory.mkdir()
    for file, data in export_marian(make_random_checkpoint(shape)).files.items():
        (directory / file).write_bytes(data)
    n, tokens = shape.layers, shape.n_tokens
    about = (
        f"random weights, {n}+{n} layers, width {shape.d_model} (feed-forward {shape.d_ff}), "
        f"{shape.vocab_size:,} tokens; {tokens} → {tokens} tokens per line"
    )
    return Workload(about, str(directory), lines, shape.n_tokens)


def make_random_checkpoint(shape: Shape) -> Checkpoint:
    """Build a Marian model; the last token is padding and start token, with a zero embedding."""
    n = shape.vocab_size
    model_file = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=(f"w{i}" for i in range(n - 3)),
        model_writer=model_file,
        model_type="word",
        vocab_size=n,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    pieces = spm.SentencePieceProcessor(model_proto=model_file.getvalue())
    words = (pieces.id_to_piece(i) for i in range(pieces.vocab_size()))
    tokens = ["</s>", "<unk>", *sorted(word for word in words if word.startswith("▁")), "<pad>"]
    vocab = Vocab(tokens, eos_id=0, pad_id=n - 1, unk_id=1)
    return Checkpoint(
        make_random_transformer(shape),
        src_vocab=vocab,
        tgt_vocab=vocab,
        tokenizers={"sentencepiece": MarianTokenizer(pieces, pieces)},
        start_id=n - 1,
        src_end=(0,),
        banned_ids=(n - 1,),
    )


def make_random_transformer(shape: Shape) -> Transformer:
    """Build a Transformer with reproducible weights whose outputs depend on the source.

    A model of pure noise repeats one token.  Here the cross-attention of the last layer compares
    positions and copies the encoder states that it attends to.
    """
    cfg = TransformerConfig(
        shape.vocab_size,
        shape.vocab_size,
        d_model=shape.d_model,
        heads=shape.heads,
        d_ff=shape.d_ff,
        enc_layers=shape.layers,
        dec_layers=shape.layers,
        pre_norm=False,
        final_norm=False,
        positions="concat",
        max_positions=512,
        norm_eps=1e-5,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(shape.vocab_size)
        model = Transformer(cfg).eval()
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.5 * weight.size(1) ** -0.5)
        table, last = model.tgt_embedding.token.weight, cast(TransformerLayer, model.decoder[-1])
        table.mul_(0.6)
        table[-1] = 0.0
        identity = torch.eye(shape.d_model)
        last.cross_attn.q.weight.copy_(8 * identity)
        last.cross_attn.kv.weight.copy_(torch.cat([8 * identity, identity]))
        last.cross_attn.out.weight.copy_(6 * identity)
        assert model.output.bias is not None
        cast(torch.nn.LayerNorm, last.ffn_residual.norm).weight.fill_(4.0)
        model.output.bias.zero_()
        model.output.bias[1] = -20.0  # systems differ in how they write <unk>
    return model


# -- the formats of the other systems -------------------------------------------------------------


def write_formats(workload: Workload, directory: Path, needs_ctranslate2: bool) -> None:
    """Write the files for the other systems.

    These are parts.json, two sentencepiece models, and the directory ctranslate2, written by
    CTranslate2's converters.

    Args:
        workload: the model to convert
        directory: directory to write to
        needs_ctranslate2: convert the model for CTranslate2, too
    """
    checkpoint = load_checkpoint(workload.model)
    parts = {
        "src_tokens": checkpoint.src_vocab.tokens,
        "tgt_tokens": checkpoint.tgt_vocab.tokens,
        "src_end": list(checkpoint.src_end),
        "start_id": checkpoint.start_id,
        "eos_id": checkpoint.eos_id,
        "pad_id": checkpoint.src_vocab.pad_id,
        "banned_ids": list(checkpoint.banned_ids),
    }
    (directory / "parts.json").write_text(json.dumps(parts), encoding="utf-8")
    tokenizer: Any = next(iter(checkpoint.tokenizers.values()))
    for side in ("source", "target"):
        # Marian has a model for each side; other formats share one
        pieces = getattr(tokenizer, side, None) or tokenizer.processor
        (directory / f"{side}.spm").write_bytes(pieces.serialized_model_proto())
    if not needs_ctranslate2:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read by a converter
    from ctranslate2 import converters

    hide_stderr = contextlib.redirect_stderr(io.StringIO())
    with hide_stderr, torch.serialization.safe_globals([Namespace]):
        converter: Any
        if workload.is_marian:
            converter = converters.TransformersConverter(workload.model)
        else:
            path = str(directory / "model.pt")
            export_main(["-model", workload.model, "-to", "opennmt-py", "-output", path])
            converter = converters.OpenNMTPyConverter(path)
        converter.convert(str(directory / "ctranslate2"))
