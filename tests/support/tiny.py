"""A Transformer with a few thousand random weights and a real SentencePiece model."""

import io
from pathlib import Path

import sentencepiece as spm
import torch

from onmt_lite.checkpoints import native
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer

SENTENCES = [
    "der hund sieht den alten garten",
    "die katze trinkt gern kalte milch",
    "ein kind liest das rote buch",
    "das haus steht neben dem see",
    "heute regnet es in der stadt",
    "the dog sees the old garden",
    "a child reads the red book",
    "it rains in the city today",
]
UNK, PAD, BOS, EOS = 0, 1, 2, 3
VOCAB_SIZE = 40
MAX_POSITIONS = 64
SMALL = dict(d_model=16, heads=4, d_ff=32, enc_layers=2, dec_layers=2)


def train_pieces() -> bytes:
    """Train a SentencePiece model; return the content of its file."""
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=out,
        vocab_size=VOCAB_SIZE,
        character_coverage=1.0,
        unk_id=UNK,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=1,
        minloglevel=2,
    )
    return out.getvalue()


def make_model(seed: int = 1, **config) -> Transformer:
    """Make a model in which all weights are random, so that a missing weight changes results."""
    sizes = dict(src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE, max_positions=MAX_POSITIONS)
    model = Transformer(TransformerConfig(**{**SMALL, **sizes, **config})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            std = 0.3 if weight.dim() == 2 else 0.2
            weight.copy_(noise * std + ("norm.weight" in name))
    return model.requires_grad_(False)


def write_checkpoint(path: Path, pieces: bytes) -> Path:
    """Write a model directory like `onmt_lite.train`.

    With this seed and scale, outputs vary: some end early and some reach max_length.
    """
    model = make_model(seed=3, tie_output=False)
    model.output.weight.mul_(2)
    model.output.bias[EOS] += 0.5
    native.save(path, model, pieces)
    return path
