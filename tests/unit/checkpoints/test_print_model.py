"""-print_model: the summary of the checkpoints in the test data."""

import re

import pytest

import translate
from onmt_lite.checkpoints.checkpoint import describe
from onmt_lite.checkpoints.loading import load_checkpoint
from tests.support.files import DATA

HF = DATA / "hf" / "marian"

# Family, toolkit and version, and a size
EXPECTED = {
    DATA / "m12_cnn_step_2.pt": ("Convolution", "OpenNMT-py 1 or 2", "encoder 8x3 8x3"),
    DATA / "m12_grumlp_step_2.pt": ("Rnn", "OpenNMT-py 1 or 2", "cell gru"),
    DATA / "m12_copyrnn_step_2.pt": ("Rnn that copies source words", "OpenNMT-py 1 or 2", ""),
    DATA / "m23_tf_step_2.pt": ("Transformer", "OpenNMT-py 1 or 2", "activation gelu"),
    DATA / "m35_st_step_2.pt": ("Transformer", "OpenNMT-py 3", "norm rms"),
    DATA / "fs12_fc": ("Convolution", "fairseq 0.9 or older", "bottleneck"),
    DATA / "fs12_tf": ("Transformer", "fairseq 0.10 or newer", "position_offset 2"),
    HF: ("Transformer", "Marian, as Hugging Face transformers 4.46.3", "share_embeddings"),
}


def parse_summary(block: str) -> dict[str, str]:
    return dict(re.findall(r"^  (.{18}) (.*)$", block, re.M))


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.name)
def test_print_model_every_toolkit(path):
    checkpoint = load_checkpoint(path)
    block = describe(checkpoint, "some name")
    summary = {name.rstrip(): value for name, value in parse_summary(block).items()}
    family, writer, size = EXPECTED[path]
    assert block.startswith("some name\n") and block.endswith("\n")
    assert (summary["family"], summary["written by"]) == (family, writer)
    assert size in summary["sizes"] and "vocab" not in summary["sizes"]
    n = sum({id(p): p.numel() for p in checkpoint.model.parameters()}.values())
    assert summary["parameters"] == f"{n:,}"
    assert summary["source vocabulary"].startswith(f"{len(checkpoint.src_vocab)} tokens")
    start = checkpoint.tgt_vocab.tokens[checkpoint.start_id]
    assert summary["decoder starts at"] == f"{start!r} ({checkpoint.start_id})"


def test_print_model_marian():
    summary = parse_summary(describe(load_checkpoint(HF), "m"))
    assert summary["source vocabulary "] == (
        "120 tokens, end '</s>' (0), pad '<pad>' (119), unk '<unk>' (1)"
    )
    assert summary["target vocabulary "] == "the same"
    assert summary["tokenizer         "] == "sentencepiece (also: space)"
    assert summary["after each source "] == "'</s>' (0)"
    assert summary["never produced    "] == "'<pad>' (119)"


def test_print_model_one_block_per_model_without_translation(capfd):
    paths = ["data/toy.json", str(DATA / "m12_cnn_step_2.pt")]  # these cannot form an ensemble
    assert translate.main(["-print_model", "-src", "missing", "-model", *paths]) == 0
    out, err = capfd.readouterr()
    assert [block.split("\n")[0] for block in out.split("\n\n")] == paths
    assert err == ""
    assert "id -1, outside the vocabulary" in out
    assert translate.main(["-print_model", "-model", "translate.py"]) == 4
    assert capfd.readouterr().out == ""
    assert describe(load_checkpoint(paths[0]), "a\nb").startswith("'a\\nb'\n")
