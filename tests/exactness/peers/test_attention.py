"""Attention weights for alignments, compared with transformers and CTranslate2."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.models.base import LAST_LAYER, HeadSelection
from onmt_lite.search.teacher_forcing import compute_target_attention

DATA = Path(__file__).resolve().parents[2] / "data"
SIZES = [(3, 2), (7, 5), (1, 1), (12, 6)]  # source and target length
N_LAYERS = 5


def sample_ids(vocab_size):
    """Sample sources and targets without language tokens, which have the last IDs."""
    torch.manual_seed(1)
    return [
        [torch.randint(4, vocab_size - 5, (n,)).tolist() for n in sizes] for sizes in zip(*SIZES)
    ]


def compute_attention(model, sources, targets, start, heads, pad=1):
    """Compute the attention of each target token, teacher-forced.

    Args:
        model: the model.
        sources, targets: token IDs by sentence.
        start: ID of the start token.
        heads: layer and heads to average.
        pad: ID of the padding token.
    """
    width = max(map(len, sources))
    src = torch.tensor([ids + [pad] * (width - len(ids)) for ids in sources])
    lengths = torch.tensor([*map(len, sources)])
    starts = [[start]] * len(targets)
    return compute_target_attention(model, src, lengths, targets, starts, 2, heads)


@pytest.mark.parametrize("n_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "class_name, base",
    [
        ("MarianMTModel", "checkpoints/hf/marian"),
        ("M2M100ForConditionalGeneration", "families/nllb"),
        ("MBartForConditionalGeneration", "families/mbart50"),
        ("T5ForConditionalGeneration", "families/t5"),
    ],
)
def test_attention_any_layer_and_heads_equals_transformers(class_name, base, n_heads, tmp_path):
    """Five random layers; the mean over any number of heads."""
    hf = pytest.importorskip("transformers")
    config = json.loads((DATA / base / "config.json").read_text("utf-8"))
    config |= {n: N_LAYERS for n in ("decoder_layers", "num_decoder_layers") if n in config}
    names = ("decoder_attention_heads", "encoder_attention_heads", "num_heads")
    config |= {n: n_heads for n in names if n in config}
    for path in (DATA / base).iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    model_class = getattr(hf, class_name)
    torch.manual_seed(n_heads)
    model = model_class(model_class.config_class.from_dict(config))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    # Reload, because the position tables are not stored
    theirs = model_class.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ours = load_checkpoint(tmp_path).model
    sources, targets = sample_ids(ours.vocab_size)
    start = theirs.config.decoder_start_token_id
    for layer in range(-N_LAYERS, N_LAYERS):
        for n in range(n_heads + 1):
            attention = compute_attention(ours, sources, targets, start, HeadSelection(layer, n))
            for src, tgt, weights in zip(sources, targets, attention):
                with torch.inference_mode():
                    out = theirs(
                        input_ids=torch.tensor([src]),
                        decoder_input_ids=torch.tensor([[start, *tgt]]),
                        output_attentions=True,
                    )
                expected = out.cross_attentions[layer][0, : n or None].mean(0)
                torch.testing.assert_close(weights, expected, atol=2e-5, rtol=0)


def test_attention_equals_return_attention_of_ctranslate2(tmp_path):
    """The first head of the last layer, as in attn_debug."""
    ct2 = pytest.importorskip("ctranslate2")
    path = DATA / "checkpoints" / "ct2" / "old_float32"
    theirs = ct2.Translator(str(path), compute_type="float32", intra_threads=1)
    checkpoint = load_checkpoint(path)
    vocab = checkpoint.tgt_vocab
    n_rows = 0
    for n in (1, 3, 8):
        line = [f"w{i}" for i in range(1, n + 1)]
        settings = dict(beam_size=2, num_hypotheses=2, return_attention=True, max_decoding_length=9)
        (result,) = theirs.translate_batch([line], **settings)
        src = [*checkpoint.src_vocab.encode(line), *checkpoint.src_end]
        for tokens, rows in zip(result.hypotheses, result.attention):
            start = checkpoint.start_id
            (attention,) = compute_attention(
                checkpoint.model, [src], [vocab.encode(tokens)], start, LAST_LAYER
            )
            for row, expected in zip(attention.tolist(), rows):
                assert row[:n] == pytest.approx(expected, abs=1e-5)  # without EOS
                n_rows += 1
    assert n_rows > 10
