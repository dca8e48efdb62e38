"""Records what `generate` says with nothing but a model's own defaults.

    python -m tests.exactness.peers.make_defaults      (transformers 4.46.3, then 5.23.0)

tests/data/families/defaults.json has a row for each directory: one of tests/data with other
settings in config.json (`own`) and generation_config.json (`said`, null for no such file), the ids
of two lines, and what each version returns for them.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch

from onmt_lite.checkpoints import safetensors

DATA = Path(__file__).resolve().parents[2] / "data"
FILE = DATA / "families" / "defaults.json"
MODELS = ("marian", "m2m", "nllb", "mbart50", "mbart25", "t5", "madlad")
TARGETS = {"m2m": "__en__", "nllb": "eng_Latn", "mbart50": "en_XX"}
MARIAN = "checkpoints/hf/marian"
BEAMS = dict(num_beams=4, max_length=13)
EOS, PAD = "eos", "pad"  # ids that each model has
SAID = [
    *(BEAMS, {}, dict(num_beams=3), dict(max_length=9), BEAMS | dict(max_new_tokens=6)),
    *(BEAMS | dict(min_length=7), BEAMS | dict(min_length=9, min_new_tokens=4)),
    *(BEAMS | dict(length_penalty=x) for x in (0.0, 2.0, -1.0)),
    *(BEAMS | dict(early_stopping=x, length_penalty=1.5) for x in (True, False, "never")),
    *(BEAMS | dict(no_repeat_ngram_size=n) for n in (1, 2)),
    *(BEAMS | dict(repetition_penalty=1.7), dict(max_length=13, repetition_penalty=1.7)),
    BEAMS | dict(bad_words_ids=[[7], [11], [PAD], [EOS]]),
    BEAMS | dict(bad_words_ids=[[a, b] for a in range(5, 120, 2) for b in (20, 21, 26, 30, 102)]),
    BEAMS | dict(suppress_tokens=[*range(3, 90, 2)], renormalize_logits=True),
    BEAMS | dict(renormalize_logits=True, bad_words_ids=[[i] for i in range(4, 90, 3)]),
    BEAMS | dict(renormalize_logits=True, repetition_penalty=1.6, no_repeat_ngram_size=2),
    BEAMS | dict(forced_eos_token_id=EOS, min_length=8, max_length=9),
    *(BEAMS | dict(forced_eos_token_id=x, max_length=5) for x in (EOS, [EOS], None)),
    BEAMS | dict(num_beam_groups=2, diversity_penalty=0.7),
    BEAMS | dict(temperature=0.5, top_k=3, top_p=0.9, typical_p=0.5, remove_invalid_values=True),
    dict(num_beams=6, max_length=64, bad_words_ids=[[PAD]], forced_eos_token_id=EOS)
    | dict(renormalize_logits=True),
]
OLD = dict(_from_model_config=True, num_beams=2, max_length=9)
PLACES = [  # own, said
    (BEAMS | dict(bad_words_ids=[[7], [26]], forced_eos_token_id="gone"), None),
    (BEAMS | dict(forced_eos_token_id=None, max_length=5), None),
    (dict(num_beams=5, max_length=20, bad_words_ids=[[7]]), dict(max_length=9)),
    (BEAMS | dict(bad_words_ids=[[7]]), OLD),
    (dict(num_beams=1, max_length=20), OLD),
    (dict(), OLD),
    (BEAMS, OLD | dict(renormalize_logits=True, suppress_tokens=[5, 6, 7])),
    (dict(task_specific_params=dict(translation=dict(num_beams=2))), BEAMS),
]


def inputs(model):
    """Lines, their ids, and the ids that settings name."""
    config = json.loads((folder(model) / "config.json").read_text("utf-8"))
    special = dict(eos=config["eos_token_id"], pad=config["pad_token_id"])
    if model == "marian":
        ids = json.loads((folder(model) / "vocab.json").read_text("utf-8"))
        lines = ["▁w37 ▁w3 ▁w90 ▁w24", "▁w17 ▁w0 ▁w64 ▁w4 ▁w99"]
        return lines, [[*(ids[token] for token in line.split()), 0] for line in lines], special
    stored = FILE.parent / "references" / f"{model}.transformers.json"
    found = json.loads(stored.read_text("utf-8"))
    if found["forced"] is not None:
        special["forced"] = found["forced"]
    return found["sources"][:2], found["source_ids"][:2], special


def folder(model):
    return DATA / (MARIAN if model == "marian" else f"families/{model}")


def with_ids(value, special):
    if isinstance(value, dict):
        return {k: with_ids(v, special) for k, v in value.items() if v != "gone"}
    if isinstance(value, list):
        return [with_ids(item, special) for item in value]
    return special.get(value, value) if isinstance(value, str) else value


def rows():
    for m, model in enumerate(MODELS):
        lines, ids, special = inputs(model)
        base = json.loads((folder(model) / "generation_config.json").read_text("utf-8"))
        kept = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
        base = {name: base[name] for name in kept if name in base}
        if "forced" in special:
            base["forced_bos_token_id"] = special["forced"]
        for i, (own, said) in enumerate([*(({}, said) for said in SAID), *PLACES]):
            if model == "marian" or i % 3 == m % 3 or said is None:
                old = said is None or "_from_model_config" in said
                own = with_ids(own | (base if old else {}), special)
                said = None if said is None else base | with_ids(said, special)
                yield dict(model=model, own=own, said=said, lines=lines, ids=ids)


def settle(row, path):
    """Write the directory of a row; tokens change places, for models that repeat themselves."""
    shutil.copytree(folder(row["model"]), path, dirs_exist_ok=True)
    table = {"marian": "model.shared.weight", "t5": "shared.weight"}.get(row["model"])
    if table:
        weights = safetensors.read(path / "model.safetensors")
        weights[table] = weights[table].roll(13, 0)
        if table == "shared.weight":
            weights["decoder.final_layer_norm.weight"] *= -1.5
        (path / "model.safetensors").unlink()
        torch.save(weights, path / "pytorch_model.bin")
    config = json.loads((path / "config.json").read_text("utf-8"))
    config = {k: v for k, v in config.items() if k not in ("num_beams", "max_length")}
    if row["said"] is None and "forced_eos_token_id" not in row["own"]:
        config.pop("forced_eos_token_id", None)
    (path / "config.json").write_text(json.dumps(config | row["own"]), "utf-8")
    (path / "generation_config.json").unlink()
    if row["said"] is not None:
        (path / "generation_config.json").write_text(json.dumps(row["said"]), "utf-8")
    return path


def main():
    import transformers as hf

    version = "transformers" if hf.__version__.startswith("4.") else "transformers-5"
    stored = json.loads(FILE.read_text("utf-8")) if FILE.exists() else [*rows()]
    for row in [row for row in stored if version not in row]:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                model = hf.AutoModelForSeq2SeqLM.from_pretrained(settle(row, Path(tmp))).eval()
                found = [model.generate(torch.tensor([ids]))[0].tolist() for ids in row["ids"]]
            except ValueError as error:
                found = str(error)[:60]  # it refuses these settings
        row[version] = found
    FILE.write_text("[" + ",\n".join(map(json.dumps, stored)) + "]\n", "utf-8")


if __name__ == "__main__":
    main()
