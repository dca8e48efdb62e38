"""Converts a small BART and a small Pegasus with CTranslate2, and records what that returns.

    python -m tests.exactness.peers.make_ct2_bart      (ctranslate2 4.8.5, transformers 5.24.0)

The converter needs switches in config.json that published models have and transformers 5 does not
write.
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


def made(name, path):
    """Save the model and its words, with the switches of the published directories."""
    deep = name == "pegasus"
    config, model = {
        "bart": (hf.BartConfig, hf.BartForConditionalGeneration),
        "pegasus": (hf.PegasusConfig, hf.PegasusForConditionalGeneration),
    }[name]
    if deep:
        shutil.copy(DATA / "families" / "t5" / "spiece.model", path)
    else:
        words = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "<mask>"]
        (path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
        (path / "merges.txt").write_text("#version: 0.2\n")
    kind = dict(tokenizer_class=f"{name.capitalize()}Tokenizer")
    (path / "tokenizer_config.json").write_text(json.dumps(kind))
    size = len(hf.AutoTokenizer.from_pretrained(path))
    torch.manual_seed(3)
    found = model(config(vocab_size=size, **SIZES))
    for weight in found.parameters():
        weight.data.normal_(std=0.5)
    found.save_pretrained(path)
    switches = dict(normalize_before=deep, normalize_embedding=not deep)
    switches |= dict(add_final_layer_norm=deep, static_position_embeddings=deep)
    table = json.loads((path / "config.json").read_text()) | switches | kind
    (path / "config.json").write_text(json.dumps(table))


def main():
    OUT.mkdir(exist_ok=True)
    found = {}
    for name, lines in LINES.items():
        with tempfile.TemporaryDirectory() as folder:
            made(name, Path(folder))
            converter = ctranslate2.converters.TransformersConverter(folder)
            converter.convert(str(OUT / name), force=True)
        model = ctranslate2.Translator(str(OUT / name), intra_threads=1)
        rows = model.translate_batch(
            lines, beam_size=3, num_hypotheses=3, return_scores=True, max_decoding_length=8
        )
        hyps = [[*zip(row.hypotheses, row.scores)] for row in rows]
        found[name] = dict(lines=lines, rows=hyps)
    (OUT / "reference.json").write_text(json.dumps(found, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
