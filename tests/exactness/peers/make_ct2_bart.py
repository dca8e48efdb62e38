"""Converts a small BART and a small Pegasus to CTranslate2 and stores its n-best lists.

    python -m tests.exactness.peers.make_ct2_bart      (ctranslate2 4.8.5, transformers 5.24.0)

The converter needs config.json settings of published models that transformers 5 does not write.
"""

import json
import shutil
import tempfile
from pathlib import Path

import ctranslate2
import torch
import transformers as hf

DATA = Path(__file__).resolve().parents[2] / "data"
OUT = DATA / "ct2_bart"
SIZES = dict(d_model=16, encoder_layers=1, decoder_layers=1, max_position_embeddings=32)
SIZES |= dict(encoder_ffn_dim=24, decoder_ffn_dim=24)
SIZES |= dict(encoder_attention_heads=2, decoder_attention_heads=2)
LETTERS = [chr(i) for i in range(97, 117)]
LINES = {
    "bart": [["<s>", "a", "b", "c", "</s>"], ["<s>", "t", "</s>"], ["k", "j", "i"]],
    "pegasus": [["▁die", "▁das", "</s>"], ["▁und", "</s>"], ["e", "n"]],
}


def save_model(name, path):
    """Save model and vocabulary with the settings of the published directories."""
    is_pegasus = name == "pegasus"
    config, model = {
        "bart": (hf.BartConfig, hf.BartForConditionalGeneration),
        "pegasus": (hf.PegasusConfig, hf.PegasusForConditionalGeneration),
    }[name]
    if is_pegasus:
        shutil.copy(DATA / "families" / "t5" / "spiece.model", path)
    else:
        words = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "<mask>"]
        (path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
        (path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = dict(tokenizer_class=f"{name.capitalize()}Tokenizer")
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    size = len(hf.AutoTokenizer.from_pretrained(path))
    torch.manual_seed(3)
    network = model(config(vocab_size=size, **SIZES))
    for weight in network.parameters():
        weight.data.normal_(std=0.5)
    network.save_pretrained(path)
    settings = dict(normalize_before=is_pegasus, normalize_embedding=not is_pegasus)
    settings |= dict(add_final_layer_norm=is_pegasus, static_position_embeddings=is_pegasus)
    table = json.loads((path / "config.json").read_text()) | settings | tokenizer
    (path / "config.json").write_text(json.dumps(table))


def main():
    OUT.mkdir(exist_ok=True)
    reference = {}
    for name, lines in LINES.items():
        with tempfile.TemporaryDirectory() as directory:
            save_model(name, Path(directory))
            converter = ctranslate2.converters.TransformersConverter(directory)
            converter.convert(str(OUT / name), force=True)
        model = ctranslate2.Translator(str(OUT / name), intra_threads=1)
        rows = model.translate_batch(
            lines, beam_size=3, num_hypotheses=3, return_scores=True, max_decoding_length=8
        )
        hyps = [[*zip(row.hypotheses, row.scores)] for row in rows]
        reference[name] = dict(lines=lines, rows=hyps)
    (OUT / "reference.json").write_text(json.dumps(reference, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
