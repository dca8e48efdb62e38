"""OpenNMT-py 3 loads our exported models and computes the same logits and translations.

With a recent torch, OpenNMT-py needs TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
"""

import argparse

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.export import ExportOptions, export
from tests.support import tiny

pytest.importorskip("onmt")

from onmt.model_builder import load_test_model  # noqa: E402
from onmt.translate import BeamSearch, GNMTGlobalScorer  # noqa: E402

ATOL = 1e-5
STEPS = 8
SRC, LENGTHS = torch.tensor([[5, 6, 7, 3], [9, 3, 1, 1]]), torch.tensor([4, 2])
TGT = torch.tensor([[2, 8, 9, 10], [2, 5, 7, 4]])
CONFIGS = [
    dict(),
    dict(share_embeddings=False, tie_output=False, output_bias=False),
    dict(activation="gelu", attn_bias=False),
    dict(gated_ffn=True, activation="silu", norm="rms", ffn_bias=False),
    dict(gated_ffn=True, activation="gelu"),
    dict(positions="fairseq", position_offset=2),
    dict(positions="none", scale_embedding=False, relative="shaw", relative_limit=3),
    dict(positions="none", scale_embedding=False, relative="alibi", kv_heads=2),
    dict(positions="none", scale_embedding=False, relative="rotary", rotary_interleave=True),
    dict(dec_self_attn="average_ffn"),
    dict(parallel_residual=True),
]


@pytest.fixture(params=CONFIGS, ids=str)
def exported(request, tmp_path, tiny_pieces):
    """Export a native model with random weights to OpenNMT-py."""
    (tmp_path / "native").mkdir()
    model = tiny.make_model(seed=3, **request.param)
    native.save(tmp_path / "native", model, tiny_pieces)
    export(ExportOptions(str(tmp_path / "native"), "opennmt-py", str(tmp_path / "x.pt")))
    return tmp_path / "x.pt"


def load_in_opennmt(path):
    """Load vocabularies and model with OpenNMT-py."""
    self_attention = load_checkpoint(path).model.cfg.dec_self_attn
    attention = "scaled-dot" if self_attention == "dot" else "average"
    opt = argparse.Namespace(
        world_size=1, parallel_mode="data_parallel", gpu=-1, gpu_ranks=[], precision="fp32"
    )
    opt.self_attn_type = attention
    vocabs, model, _ = load_test_model(opt, model_path=str(path))
    return vocabs, model


@torch.no_grad()
def test_export_logits_equal_opennmt(exported):
    _, model = load_in_opennmt(exported)
    last = torch.zeros(2, 1, dtype=torch.long)  # OpenNMT-py drops the last target token
    target = torch.cat([TGT, last], 1)[..., None]
    hidden, _ = model(SRC[..., None], target, LENGTHS)
    ours = load_checkpoint(exported).model
    expected = ours.forward(ours.encode(SRC, LENGTHS), TGT)
    torch.testing.assert_close(model.generator(hidden), expected, atol=ATOL, rtol=0)


@torch.no_grad()
def search_in_opennmt(model, src, beams, steps):
    """Return the n-best token ids of OpenNMT-py's BeamSearch.

    Args:
        model: the OpenNMT-py model.
        src: source token ids.
        beams: beam size and n-best size.
        steps: maximum number of tokens.
    """
    lengths = torch.tensor([len(src)])
    memory, final, _ = model.encoder(torch.tensor(src)[None, :, None], lengths)
    model.decoder.init_state(torch.tensor(src)[None, :, None], memory, final)
    search = BeamSearch(
        *(beams, 1, tiny.PAD, tiny.BOS, tiny.EOS, tiny.UNK, tiny.BOS, beams),
        GNMTGlobalScorer(1.0, 0.0, "avg", "none"),
        *(0, steps, False, 0, set(), False, 0.0, False),
    )
    map_state, memory, _ = search.initialize(memory, lengths)
    model.decoder.map_state(map_state)
    lengths = lengths.repeat(beams)
    for step in range(steps):
        tokens = search.current_predictions.view(-1, 1, 1)
        hidden, attn = model.decoder(tokens, memory, src_len=lengths, step=step)
        log_probs = model.generator(hidden.squeeze(1)).log_softmax(-1)
        search.advance(log_probs, attn["std"])
        if any(map(any, search.is_finished_list)):
            search.update_finished()
            if search.done:
                break
        model.decoder.map_state(lambda state, dim: state.index_select(dim, search.select_indices))
    return [[int(i) for i in ids] for ids in search.predictions[0]]


@pytest.mark.parametrize("beams", [2, 4])
def test_export_beam_search_equals_opennmt(exported, beams):
    translations = Translator.from_pretrained(
        exported, device="cpu", tokenizer="space", search="opennmt-3"
    ).translate(
        ["▁d e r", "▁a ▁d"], beam_size=beams, n_best=beams, max_length=STEPS, max_length_ratio=0
    )
    vocabs, model = load_in_opennmt(exported)
    for translation in translations:
        src = vocabs["src"](translation.src.split()) + [tiny.EOS]
        expected = search_in_opennmt(model, src, beams, STEPS)
        texts = [" ".join(vocabs["tgt"].ids_to_tokens[i] for i in ids) for ids in expected]
        texts = [text.removesuffix("</s>").strip() for text in texts]
        assert [h.text for h in translation.hyps] == texts
