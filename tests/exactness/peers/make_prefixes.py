"""Records the n-best lists of transformers and CTranslate2 with target prefixes.

    python -m tests.exactness.peers.make_prefixes      (transformers 5.23.0, ctranslate2 4.8.5)

Writes `tests/data/checkpoints/references/MODEL.PRESET-prefixes.json`, which
`tests/exactness/test_references.py` reads.  Each line is translated in its own batch; its target
prefix is in `tgt`.
"""

import json
from pathlib import Path

import ctranslate2
import torch
import transformers as hf

ROOT = Path(__file__).resolve().parents[2] / "data" / "checkpoints"
N = 3  # hypotheses per line
HF_SOURCES = ["▁w37 ▁w3 ▁w90 ▁w24", "▁w53 ▁w6", "▁w17 ▁w0 ▁w64 ▁w4 ▁w99 ▁w1", "▁w1 ▁w41 ▁w24"]
HF_PREFIXES = ["▁w78", "▁w24 ▁w34", "▁w10 ▁w20 ▁w41", ""]
# Our options, and the same settings of the other system
HF_CASES = [
    ("-beam_size 4", dict(num_beams=4)),
    ("-beam_size 4 -length_penalty none", dict(num_beams=4, length_penalty=0.0)),
    (
        "-beam_size 3 -alpha 2 -early_stopping never -max_length 12",
        dict(num_beams=3, length_penalty=2.0, early_stopping="never", max_length=12),
    ),
    ("-beam_size 4 -early_stopping true", dict(num_beams=4, early_stopping=True)),
    ("-beam_size 4 -max_length 6", dict(num_beams=4, max_length=6)),
    (
        "-beam_size 4 -min_length 8 -block_ngram_repeat 2",
        dict(num_beams=4, min_length=8, no_repeat_ngram_size=2),
    ),
    ("-beam_size 4 -repetition_penalty 1.5", dict(num_beams=4, repetition_penalty=1.5)),
]
CT2_SOURCES = ["w1 w2 w3", "w7", "w4 w4 w9 w10 w11 w2 w0", "w13 w5 zzz w8 w12"]
CT2_PREFIXES = ["t9", "t3 t4 t5", "t0 t24", ""]
CT2_CASES = [
    ("-beam_size 4", dict(beam_size=4)),
    ("-beam_size 4 -alpha 0", dict(beam_size=4, length_penalty=0)),
    ("-beam_size 3 -max_length 5", dict(beam_size=3, max_decoding_length=5)),
    (
        "-beam_size 4 -min_length 5 -block_ngram_repeat 2",
        dict(beam_size=4, min_decoding_length=5, no_repeat_ngram_size=2),
    ),
    (
        "-beam_size 3 -patience 2 -coverage_penalty wu -beta 0.3",
        dict(beam_size=3, patience=2, coverage_penalty=0.3),
    ),
    ("-beam_size 3 -repetition_penalty 1.4", dict(beam_size=3, repetition_penalty=1.4)),
]


def record_transformers():
    path = ROOT / "hf" / "marian"
    model = hf.MarianMTModel.from_pretrained(path).double().eval()
    ids = json.loads((path / "vocab.json").read_text("utf-8"))
    words = {i: word for word, i in ids.items()}
    start, eos, pad = (
        model.config.decoder_start_token_id,
        model.config.eos_token_id,
        model.config.pad_token_id,
    )

    def search(source, prefix, settings):
        forced = [ids[word] for word in prefix.split()]
        out = model.generate(
            torch.tensor([[ids.get(w, ids["<unk>"]) for w in source.split()] + [eos]]),
            decoder_input_ids=torch.tensor([[start, *forced]]),
            generation_config=hf.GenerationConfig(
                **{"max_length": 20, "do_sample": False, "bad_words_ids": [[pad]]} | settings,
                num_return_sequences=N,
                decoder_start_token_id=start,
                eos_token_id=eos,
                pad_token_id=pad,
                forced_eos_token_id=model.generation_config.forced_eos_token_id,
                output_scores=True,
                return_dict_in_generate=True,
            ),
        )
        for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
            tokens = [words[i] for i in row[1:] if i not in (eos, pad)]
            yield {"text": " ".join(tokens), "ended": None, "score": round(score, 6)}

    peer = f"transformers {hf.__version__}, decoder_input_ids, one line at a time"
    write_references("hf_marian", "transformers-5", peer, HF_SOURCES, HF_PREFIXES, HF_CASES, search)


def record_ctranslate2():
    name = "ct2_opennmt_int16"
    translator = ctranslate2.Translator(str(ROOT / "ct2" / name[4:]), compute_type="float32")

    def search(source, prefix, settings):
        (result,) = translator.translate_batch(
            [source.split()],
            target_prefix=[prefix.split()],
            num_hypotheses=N,
            return_scores=True,
            **{"max_decoding_length": 20} | settings,
        )
        for tokens, score in zip(result.hypotheses, result.scores):
            yield {"text": " ".join(tokens), "ended": None, "score": round(score, 6)}

    peer = f"ctranslate2 {ctranslate2.__version__}, target_prefix, float32, one line at a time"
    write_references(name, "ctranslate2", peer, CT2_SOURCES, CT2_PREFIXES, CT2_CASES, search)


def write_references(model, preset, peer, sources, prefixes, cases, search):
    """Record all cases of a model.

    Args:
        model: name of the model.
        preset: our preset for the system.
        peer: description of the system.
        sources, prefixes: source lines and their target prefixes.
        cases: our options and settings of the system.
        search: returns the hypotheses for a source, a prefix and settings.
    """
    common = "-max_length 20 -max_length_ratio 0".split()
    file = {"peer": peer, "model": model, "search": preset, "sources": sources, "cases": []}
    for options, settings in cases:
        rows = [{"hyps": [*search(*pair, settings)]} for pair in zip(sources, prefixes)]
        words = ["-n_best", str(N), *common, *options.split(), "-tgt_file_prefix"]
        case = {"id": f"prefix {options}", "options": words, "tgt": prefixes, "rows": rows}
        file["cases"].append(case)
    path = ROOT / "references" / f"{model}.{preset}-prefixes.json"
    path.write_text(json.dumps(file, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    record_transformers()
    record_ctranslate2()
