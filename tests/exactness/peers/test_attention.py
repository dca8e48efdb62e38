"""The weights that alignments are read off, against those of transformers and CTranslate2."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.models.base import LAST_LAYER, HeadSelection
from onmt_lite.search.teacher_forcing import compute_target_attention

DATA = Path(__file__).resolve().parents[2] / "data"
SIZES = [(3, 2), (7, 5), (1, 1), (12, 6)]  # of the source, and of the target
DEEP = 5


def lines(vocab_size):
    """Ids of sources and targets; the last ones may be languages."""
    torch.manual_seed(1)
    return [
        [torch.randint(4, vocab_size - 5, (n,)).tolist() for n in sizes] for sizes in zip(*SIZES)
    ]


def attend(model, sources, targets, start, heads, pad=1):
    width = max(map(len, sources))
    src = torch.tensor([ids + [pad] * (width - len(ids)) for ids in sources])
    lengths = torch.tensor([*map(len, sources)])
    starts = [[start]] * len(targets)
    return compute_target_attention(model, src, lengths, targets, starts, 2, heads)


@pytest.mark.parametrize("n_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "kind, base",
    [
        ("MarianMTModel", "checkpoints/hf/marian"),
        ("M2M100ForConditionalGeneration", "families/nllb"),
        ("MBartForConditionalGeneration", "families/mbart50"),
        ("T5ForConditionalGeneration", "families/t5"),
    ],
)
def test_transformers(kind, base, n_heads, tmp_path):
    """Five random layers: any layer, the mean of any number of heads."""
    hf = pytest.importorskip("transformers")
    own = json.loads((DATA / base / "config.json").read_text("utf-8"))
    own |= {n: DEEP for n in ("decoder_layers", "num_decoder_layers") if n in own}
    names = ("decoder_attention_heads", "encoder_attention_heads", "num_heads")
    own |= {n: n_heads for n in names if n in own}
    for path in (DATA / base).iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    made = getattr(hf, kind)
    torch.manual_seed(n_heads)
    model = made(made.config_class.from_dict(own))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    # Its tables of positions are not stored
    theirs = made.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ours = load_checkpoint(tmp_path).model
    sources, targets = lines(ours.vocab_size)
    start = theirs.config.decoder_start_token_id
    for layer in range(-DEEP, DEEP):
        for n in range(n_heads + 1):
            found = attend(ours, sources, targets, start, HeadSelection(layer, n))
            for src, tgt, weights in zip(sources, targets, found):
                with torch.inference_mode():
                    out = theirs(
                        input_ids=torch.tensor([src]),
                        decoder_input_ids=torch.tensor([[start, *tgt]]),
                        output_attentions=True,
                    )
                expected = out.cross_attentions[layer][0, : n or None].mean(0)
                torch.testing.assert_close(weights, expected, atol=2e-5, rtol=0)


def test_ctranslate2(tmp_path):
    """Its `return_attention`: the last layer's first head, as of attn_debug."""
    ct2 = pytest.importorskip("ctranslate2")
    path = DATA / "checkpoints" / "ct2" / "old_float32"
    theirs = ct2.Translator(str(path), compute_type="float32", intra_threads=1)
    checkpoint = load_checkpoint(path)
    vocab = checkpoint.tgt_vocab
    n_rows = 0
    for n in (1, 3, 8):
        line = [f"w{i}" for i in range(1, n + 1)]
        given = dict(beam_size=2, num_hypotheses=2, return_attention=True, max_decoding_length=9)
        (found,) = theirs.translate_batch([line], **given)
        src = [*checkpoint.src_vocab.encode(line), *checkpoint.src_end]
        for tokens, rows in zip(found.hypotheses, found.attention):
            start = checkpoint.start_id
            (own,) = attend(checkpoint.model, [src], [vocab.encode(tokens)], start, LAST_LAYER)
            for row, expected in zip(own.tolist(), rows):
                assert row[:n] == pytest.approx(expected, abs=1e-5)  # not of the end token
                n_rows += 1
    assert n_rows > 10
