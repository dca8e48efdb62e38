"""What is translated: models and lines, and the models in the formats of the other systems."""

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

from onmt_lite.bench.options import BenchOptions, Options
from onmt_lite.checkpoints.huggingface import marian_writer
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.shipped import DATA, DEFAULT_MODEL, find_model
from onmt_lite.errors import CheckpointError, DataError, FileError, OptionError
from onmt_lite.export import ExportOptions, export, write_whole
from onmt_lite.files import check_paths
from onmt_lite.fingerprint import model_files
from onmt_lite.models.layers import DecoderLayer
from onmt_lite.models.transformer import Transformer, TransformerConfig
from onmt_lite.text.tokenizers import MarianTokenizer, SentencePieceTokenizer, SpaceTokenizer
from onmt_lite.text.vocab import Vocab

SAMPLE = DATA / "sample.de.txt"
N_SAMPLES = 520  # lines, of sample sentences again and again


@dataclass(frozen=True)
class Shape:
    """A Marian model of random weights, and how many lines are one run."""

    layers: int  # of the encoder, and as many of the decoder
    d_model: int
    d_ff: int
    heads: int
    vocab_size: int
    n_lines: int
    n_tokens: int = 24  # of a source with its end token, and of an output without


SHAPES = {
    "base": Shape(6, 512, 2048, 8, 32000, n_lines=128),
    "tiny": Shape(3, 256, 1024, 4, 8000, n_lines=256),
}


@dataclass(frozen=True)
class Workload:
    """Lines and the model that translates them.

    model       what -model of onmt_lite takes
    length      tokens of every output; None: as the model ends them
    references  translations of the lines by people, for BLEU
    """

    name: str
    about: str
    model: str
    lines: list[str]
    length: int | None = None
    references: list[str] | None = None


def make_workload(name: str, options: BenchOptions, folder: Path) -> Workload:
    """`name`: of an option's value, or `given` for the model of -model.  Random models are written
    into the folder."""
    if name in SHAPES:
        return random_workload(name, SHAPES[name], folder, options.lines)
    model = DEFAULT_MODEL if options.model is None else Path(options.model)
    about = "the shipped model" if options.model is None else str(model)
    lines, references = read_lines(options)
    n = options.lines or len(lines)
    kept = None if references is None else references[:n]
    return Workload(name, f"{about} on text", str(model), lines[:n], references=kept)


def check_files(options: Options) -> None:
    """Raise FileError, DataError or OptionError where an input cannot be read, or an output not be
    written."""
    given, output = options.bench, options.output
    read = {"model": given.model, "src": given.src, "tgt": given.tgt}
    written = {"json": output.json, "svg": output.svg}
    named = [(name, path) for name, path in read.items() if path]
    if given.model:
        named += [("model", str(file)) for file in model_files(find_model(given.model))]
    check_paths(named, [(name, path) for name, path in written.items() if path])
    read_lines(given)
    for name, path in written.items():
        folder = os.path.dirname(path or "") or "."
        if path and (os.path.isdir(path) or not os.access(folder, os.W_OK)):
            raise FileError(f"{name}: cannot write {path}; give a file in a folder that is there")


# -- random weights -------------------------------------------------------------------------------


def random_workload(name: str, shape: Shape, folder: Path, most: int | None) -> Workload:
    numbers = random.Random(shape.vocab_size)
    n_words = shape.vocab_size - 3  # beside end, unknown and padding
    lines = [
        " ".join(f"w{numbers.randrange(n_words)}" for _ in range(shape.n_tokens - 1))
        for _ in range(min(shape.n_lines, most or shape.n_lines))
    ]
    files = marian_writer.export(random_checkpoint(shape)).files
    write_whole(files, folder, name)
    about = (
        f"random weights, {shape.layers}+{shape.layers} layers of {shape.d_model}/{shape.d_ff}, "
        f"{shape.vocab_size:,} tokens, {shape.n_tokens} → {shape.n_tokens} tokens a line"
    )
    return Workload(name, about, str(folder / name), lines, shape.n_tokens)


def random_checkpoint(shape: Shape) -> Checkpoint:
    """A Marian model: the padding token is the last one, has a vector of zeros, and starts."""
    n = shape.vocab_size
    pieces = word_pieces(n - 3)
    words = (pieces.id_to_piece(i) for i in range(pieces.vocab_size()))
    tokens = ["</s>", "<unk>", *sorted(word for word in words if word.startswith("▁")), "<pad>"]
    vocab = Vocab(tokens, eos_id=0, pad_id=n - 1, unk_id=1)
    return Checkpoint(
        random_transformer(shape),
        src_vocab=vocab,
        tgt_vocab=vocab,
        tokenizers={"sentencepiece": MarianTokenizer(pieces, pieces)},
        start_id=n - 1,
        src_end=(0,),
        never_ids=(n - 1,),
    )


def word_pieces(n_words: int) -> spm.SentencePieceProcessor:
    """A sentencepiece model that knows the words w0, w1 ... and cuts lines at spaces."""
    trained = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=(f"w{i}" for i in range(n_words)),
        model_writer=trained,
        model_type="word",
        vocab_size=n_words + 3,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    pieces = spm.SentencePieceProcessor()
    pieces.load_from_serialized_proto(trained.getvalue())
    return pieces


def random_transformer(shape: Shape) -> Transformer:
    """Weights that are the same in every run, and whose outputs depend on the source.

    With noise alone a model says one token again and again.  Here the last layer's attention to the
    source compares positions and passes on what it finds.
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
        table, last = model.tgt_embedding.token.weight, cast(DecoderLayer, model.decoder[-1])
        table.mul_(0.6)
        table[-1] = 0.0
        one = torch.eye(shape.d_model)
        last.cross_attn.q.weight.copy_(8 * one)
        last.cross_attn.kv.weight.copy_(torch.cat([8 * one, one]))
        last.cross_attn.out.weight.copy_(6 * one)
        assert last.ffn_residual is not None and model.output.bias is not None
        cast(torch.nn.LayerNorm, last.ffn_residual.norm).weight.fill_(4.0)
        model.output.bias.zero_()
        model.output.bias[1] = -20.0  # each system writes an unknown word in its own way
    return model


# -- text -----------------------------------------------------------------------------------------


def read_lines(options: BenchOptions) -> tuple[list[str], list[str] | None]:
    """Sources and, where there are any, references.  Blank sources are left out."""
    if options.src is None:
        sample = [line for line in read_file("sample", str(SAMPLE)) if line.strip()]
        return (sample * (N_SAMPLES // len(sample) + 1))[:N_SAMPLES], None
    sources = read_file("src", options.src)
    if options.tgt is None:
        return [line for line in sources if line.strip()] or no_lines(options.src), None
    targets = read_file("tgt", options.tgt)
    if len(sources) != len(targets):
        raise DataError(
            f"src has {len(sources)} lines but tgt {len(targets)}; they must match line by line"
        )
    pairs = [pair for pair in zip(sources, targets) if pair[0].strip()] or no_lines(options.src)
    return [source for source, _ in pairs], [target for _, target in pairs]


def read_file(name: str, path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return file.read().removesuffix("\n").split("\n")
    except OSError as error:
        raise FileError(f"{name}: cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise DataError(f"{name}: {path} is not UTF-8; convert it") from None


def no_lines(path: str) -> Any:
    raise DataError(f"src: {path} has no lines to translate")


# -- the formats of the other systems -------------------------------------------------------------


@dataclass(frozen=True)
class Formats:
    """A model as each other system wants it, in a folder of its own.

    marian, opennmt  what our exporters have written; why they could not, where that is None
    """

    folder: Path
    marian: Path | None
    opennmt: Path | None
    why_not: str

    @property
    def parts(self) -> Path:
        """What no exported file holds in the same way for all systems: pieces and token ids."""
        return self.folder / "parts.json"

    @property
    def ctranslate2(self) -> Path:
        return self.folder / "ctranslate2"


def write_formats(workload: Workload, folder: Path) -> Formats:
    """Export the model of a workload.  CheckpointError where it cannot be read."""
    folder.mkdir()
    checkpoint = load_checkpoint(workload.model)
    formats = export_all(workload.model, folder)
    parts = {
        "src_tokens": checkpoint.src_vocab.tokens,
        "tgt_tokens": checkpoint.tgt_vocab.tokens,
        "src_end": list(checkpoint.src_end),
        "start_id": checkpoint.start_id,
        "eos_id": checkpoint.eos_id,
        "pad_id": checkpoint.src_vocab.pad_id,
        "never_ids": list(checkpoint.never_ids),
        "has_pieces": write_pieces(checkpoint, folder),
    }
    formats.parts.write_text(json.dumps(parts), encoding="utf-8")
    return formats


def export_all(model: str, folder: Path) -> Formats:
    found, problems = {}, []
    for to, name in (("marian", "marian"), ("opennmt-py", "model.pt")):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # what an export has to say
                export(ExportOptions(model, to, str(folder / name)))  # type: ignore[arg-type]
            found[to] = folder / name
        except CheckpointError as error:
            problems.append(str(error))
    return Formats(folder, found.get("marian"), found.get("opennmt-py"), "; ".join(problems))


def write_pieces(checkpoint: Checkpoint, folder: Path) -> bool:
    """Write the sentencepiece models of source and target; False where lines hold tokens."""
    tokenizer = next(iter(checkpoint.tokenizers.values()))
    if isinstance(tokenizer, SpaceTokenizer):
        return False
    if isinstance(tokenizer, MarianTokenizer):
        both = tokenizer.source, tokenizer.target
    elif type(tokenizer) is SentencePieceTokenizer:
        both = tokenizer.processor, tokenizer.processor
    else:
        raise OptionError("model: its tokenizer is not of sentencepiece, so no peer can have it")
    for name, pieces in zip(("source.spm", "target.spm"), both):
        (folder / name).write_bytes(pieces.serialized_model_proto())
    return True


def convert_to_ctranslate2(formats: Formats) -> None:
    """By CTranslate2's own converters, from what our exporters have written."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # one of them reads it
    from ctranslate2 import converters

    converter: Any
    if formats.marian is not None:
        converter = converters.TransformersConverter(str(formats.marian))
    else:
        converter = converters.OpenNMTPyConverter(str(formats.opennmt))
    quiet = io.StringIO()
    with contextlib.redirect_stderr(quiet), torch.serialization.safe_globals([Namespace]):
        converter.convert(str(formats.ctranslate2))
