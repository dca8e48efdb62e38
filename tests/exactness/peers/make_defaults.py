"""Records the output of `generate` with the default settings of a model.

    python -m tests.exactness.peers.make_defaults      (transformers 4.46.3, then 5.23.0)

tests/data/families/defaults.json has one row per model directory: the original directory in
tests/data, the settings to change in config.json (`config`), the new generation_config.json (null
if the file does not exist), two lines, their IDs, and the output of each transformers version.
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
EOS, PAD = "eos", "pad"  # placeholders for the IDs of a model
GENERATION_CONFIGS = [
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
CONFIG_PAIRS = [  # config.json, generation_config.json
    (BEAMS | dict(bad_words_ids=[[7], [26]], forced_eos_token_id="removed"), None),
    (BEAMS | dict(forced_eos_token_id=None, max_length=5), None),
    (dict(num_beams=5, max_length=20, bad_words_ids=[[7]]), dict(max_length=9)),
    (BEAMS | dict(bad_words_ids=[[7]]), OLD),
    (dict(num_beams=1, max_length=20), OLD),
    (dict(), OLD),
    (BEAMS, OLD | dict(renormalize_logits=True, suppress_tokens=[5, 6, 7])),
    (dict(task_specific_params=dict(translation=dict(num_beams=2))), BEAMS),
]


def read_inputs(model):
    """Return two lines, their IDs, and the special token IDs of a model."""
    config = json.loads((get_directory(model) / "config.json").read_text("utf-8"))
    special = dict(eos=config["eos_token_id"], pad=config["pad_token_id"])
    if model == "marian":
        ids = json.loads((get_directory(model) / "vocab.json").read_text("utf-8"))
        lines = ["▁w37 ▁w3 ▁w90 ▁w24", "▁w17 ▁w0 ▁w64 ▁w4 ▁w99"]
        return lines, [[*(ids[token] for token in line.split()), 0] for line in lines], special
    stored = FILE.parent / "references" / f"{model}.transformers.json"
    reference = json.loads(stored.read_text("utf-8"))
    if reference["forced"] is not None:
        special["forced"] = reference["forced"]
    return reference["sources"][:2], reference["source_ids"][:2], special


def get_directory(model):
    return DATA / (MARIAN if model == "marian" else f"families/{model}")


def insert_ids(value, special):
    """Replace the placeholders in settings with IDs."""
    if isinstance(value, dict):
        return {k: insert_ids(v, special) for k, v in value.items() if v != "removed"}
    if isinstance(value, list):
        return [insert_ids(item, special) for item in value]
    return special.get(value, value) if isinstance(value, str) else value


def generate_rows():
    """Yield the rows without output."""
    for m, model in enumerate(MODELS):
        lines, ids, special = read_inputs(model)
        base = json.loads((get_directory(model) / "generation_config.json").read_text("utf-8"))
        names = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
        base = {name: base[name] for name in names if name in base}
        if "forced" in special:
            base["forced_bos_token_id"] = special["forced"]
        pairs = [*(({}, generation) for generation in GENERATION_CONFIGS), *CONFIG_PAIRS]
        for i, (config, generation) in enumerate(pairs):
            if model == "marian" or i % 3 == m % 3 or generation is None:
                is_old = generation is None or "_from_model_config" in generation
                config = insert_ids(config | (base if is_old else {}), special)
                generation = None if generation is None else base | insert_ids(generation, special)
                settings = dict(config=config, generation_config=generation)
                yield dict(model=model, **settings, lines=lines, ids=ids)


def write_directory(row, path):
    """Write the directory of a row.

    The embeddings of some models are permuted, because their output repeats a single token.
    """
    shutil.copytree(get_directory(row["model"]), path, dirs_exist_ok=True)
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
    if row["generation_config"] is None and "forced_eos_token_id" not in row["config"]:
        config.pop("forced_eos_token_id", None)
    (path / "config.json").write_text(json.dumps(config | row["config"]), "utf-8")
    (path / "generation_config.json").unlink()
    if row["generation_config"] is not None:
        (path / "generation_config.json").write_text(json.dumps(row["generation_config"]), "utf-8")
    return path


def main():
    import transformers as hf

    version = "transformers" if hf.__version__.startswith("4.") else "transformers-5"
    stored = json.loads(FILE.read_text("utf-8")) if FILE.exists() else [*generate_rows()]
    for row in [row for row in stored if version not in row]:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                model = hf.AutoModelForSeq2SeqLM.from_pretrained(
                    write_directory(row, Path(tmp))
                ).eval()
                output = [model.generate(torch.tensor([ids]))[0].tolist() for ids in row["ids"]]
            except ValueError as error:
                output = str(error)[:60]  # transformers rejects these settings
        row[version] = output
    FILE.write_text("[" + ",\n".join(map(json.dumps, stored)) + "]\n", "utf-8")


if __name__ == "__main__":
    main()
