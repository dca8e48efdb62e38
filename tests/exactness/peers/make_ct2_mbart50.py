"""Converts the mBART-50 of tests/data/families to CTranslate2 and stores its n-best lists.

python -m tests.exactness.peers.make_ct2_mbart50      (ctranslate2 4.8.5, transformers 4.46.3)
"""

import json
import shutil
import tempfile
from pathlib import Path

import ctranslate2
import transformers

DATA = Path(__file__).resolve().parents[2] / "data"
OUT = DATA / "ct2_mbart50"
LINES = ["Das Haus steht in Flammen!", "a", "Wann passt es euch?", "Ich habe zu tun. 12 %"]
CASES = [
    dict(beam_size=1),
    dict(beam_size=4, num_hypotheses=4),
    dict(beam_size=3, num_hypotheses=3, length_penalty=0, no_repeat_ngram_size=2),
    dict(beam_size=3, num_hypotheses=3, length_penalty=0.6, min_decoding_length=5),
    dict(beam_size=2, num_hypotheses=2, repetition_penalty=1.3, patience=2),
]


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def main():
    original = transformers.PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls, *args, dtype=None, **kwargs):  # `dtype` is the name in transformers 5
        return original(cls, *args, torch_dtype=dtype, **kwargs)

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(shutil.copytree(DATA / "families" / "mbart50", Path(directory) / "hf"))
        # As in the published directories
        settings = dict(normalize_before=True, normalize_embedding=True)
        change(path / "config.json", tokenizer_class="MBart50Tokenizer", **settings)
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            change(path / name, bos_token="<s>")
        converter = ctranslate2.converters.TransformersConverter(str(path))
        converter.convert(str(OUT), quantization="int8", force=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, use_fast=False)
        tokens = [tokenizer.convert_ids_to_tokens(tokenizer(x)["input_ids"]) for x in LINES]
    model = ctranslate2.Translator(str(OUT), compute_type="float32", intra_threads=1)
    cases = []
    for settings in CASES:
        rows = model.translate_batch(
            tokens,
            target_prefix=[["fr_XX"]] * len(tokens),
            **dict(return_scores=True, max_batch_size=1, max_decoding_length=12),
            **settings,
        )
        hyps = [[[h[1:], s] for h, s in zip(r.hypotheses, r.scores)] for r in rows]
        cases.append({"settings": settings, "rows": hyps})
    table = dict(peer=f"ctranslate2 {ctranslate2.__version__}", lines=LINES, cases=cases)
    (OUT / "reference.json").write_text(json.dumps(table, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
