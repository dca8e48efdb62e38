"""Records the output of `generate` with the token rules of generation_config.json.

    python -m tests.exactness.peers.make_generation_rules      (transformers 4.46.3, then 5.23.0)

tests/exactness/conformance/generation_rules.json has one row per model and setting: the
generation_config.json, two lines, their IDs, and the n-best lists of each transformers version.
"""

import json
import random
import tempfile
from pathlib import Path

import torch

from tests.exactness.peers.make_defaults import get_directory, read_inputs, write_directory

FILE = Path(__file__).resolve().parents[1] / "conformance" / "generation_rules.json"
MODELS = ("marian", "mbart50", "t5")
SPECIAL = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
MAX_LENGTH = 13
RULES = (
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "sequence_bias",
    "eos_token_id",
)
OTHER_SETTINGS = (
    dict(min_length=6),
    dict(no_repeat_ngram_size=2),
    dict(length_penalty=0.0, early_stopping=True),
    dict(forced_eos_token_id="eos", max_length=7),
    dict(repetition_penalty=1.4),
    dict(renormalize_logits=True, length_penalty=2.0),
    dict(early_stopping="never", bad_words_ids="phrases"),
)


class ValueSampler:
    """Samples values with an effect, from the model's outputs without any rule."""

    def __init__(self, model, seed):
        self.lines, self.ids, self.special = read_inputs(model)
        config = json.loads((get_directory(model) / "generation_config.json").read_text("utf-8"))
        self.base = {name: config[name] for name in SPECIAL if name in config}
        self.base |= dict(max_length=MAX_LENGTH, do_sample=False)
        if "forced" in self.special:
            self.base["forced_bos_token_id"] = self.special["forced"]
        self.random, self.outputs = random.Random(seed), []

    def sample_phrase(self, n):
        """Sample an n-gram of an output, or the whole output if it is shorter."""
        output = [i for i in self.random.choice(self.outputs) if i != self.special["pad"]]
        start = self.random.randrange(max(1, len(output) - n))
        return output[start : start + n]

    def sample_tokens(self, n):
        """Sample at most n tokens that are not special."""
        special = {*self.special.values()}
        return sorted({i for _ in range(n) for i in self.sample_phrase(1)} - special)

    def sample(self, name):
        """Sample a value of a setting."""
        rng = self.random
        if name == "begin_suppress_tokens":
            first = 1 + ("forced" in self.special)
            first_tokens = sorted({output[first] for output in self.outputs})
            return rng.sample(first_tokens, rng.randint(1, len(first_tokens))) + self.sample_tokens(
                1
            )
        if name == "encoder_no_repeat_ngram_size":
            return rng.choice([1, 2, 3])
        if name == "exponential_decay_length_penalty":
            return [rng.randint(0, 7), rng.choice([0.4, 0.9, 1.05, 1.3, 1.8])]
        if name == "eos_token_id":
            return [self.special["eos"], *self.sample_tokens(rng.randint(1, 3))]
        if name == "bad_words_ids":
            return [self.sample_phrase(rng.randint(2, 3)) for _ in range(3)]
        phrases = [self.sample_phrase(rng.randint(1, 4)) for _ in range(rng.randint(2, 8))]
        # transformers 4 rejects token 0 here
        phrases = [phrase for phrase in phrases if 0 not in phrase] or [[self.special["eos"] or 5]]
        return [[phrase, round(rng.uniform(-6, 4), 2)] for phrase in phrases]

    def generate_settings(self):
        """Yield single rules, single rules with another setting, and combinations of rules."""
        cases = [[name] for name in RULES for _ in range(3)]
        cases += [[name] for name in RULES for _ in OTHER_SETTINGS]
        cases += [self.random.sample(RULES, self.random.randint(2, 5)) for _ in range(10)]
        for i, names in enumerate(cases):
            settings = {name: self.sample(name) for name in names}
            additional = OTHER_SETTINGS[i % len(OTHER_SETTINGS)] if i >= 3 * len(RULES) else {}
            for name, value in additional.items():
                if value == "phrases":
                    value = self.sample("bad_words_ids")
                settings[name] = self.special["eos"] if value == "eos" else value
            yield settings


def generate(model, config, ids):
    """Return the n-best list of a line; None if a token score is NaN.

    Args:
        model: the model.
        config: generation_config.json.
        ids: source IDs.
    """
    import transformers as hf

    model.generation_config = hf.GenerationConfig.from_dict(config)
    k = config["num_beams"]
    output = model.generate(
        torch.tensor([ids]), num_return_sequences=k, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    if any(scores.isnan().any() for scores in output.scores):  # 4.46.3 masks EOS
        return None
    scores = output.sequences_scores.tolist() if k > 1 else [None]
    scores = [score if score is None else round(score, 5) for score in scores]
    return [*zip(output.sequences.tolist(), scores)]


def load_model(name, path):
    """Write the directory of a model and load it."""
    import transformers as hf

    path = write_directory(dict(model=name, config={}, generation_config={}), Path(path))
    return hf.AutoModelForSeq2SeqLM.from_pretrained(path).eval()


def generate_rows(models):
    """Yield the rows without output."""
    for name in MODELS:
        values = ValueSampler(name, len(name))
        plain = values.base | dict(num_beams=4)
        for ids in values.ids:
            values.outputs += [output for output, _ in generate(models[name], plain, ids)]
        for settings in values.generate_settings():
            for k in (1, 4):
                row = dict(model=name, config={})
                row["generation_config"] = values.base | dict(num_beams=k) | settings
                yield row | dict(lines=values.lines, ids=values.ids)


def main():
    import transformers as hf

    version = "transformers" if hf.__version__.startswith("4.") else "transformers-5"
    with tempfile.TemporaryDirectory() as tmp:
        models = {name: load_model(name, Path(tmp) / name) for name in MODELS}
        stored = json.loads(FILE.read_text("utf-8")) if FILE.exists() else [*generate_rows(models)]
        for row in stored:
            model, config = models[row["model"]], row["generation_config"]
            row[version] = [generate(model, config, ids) for ids in row["ids"]]
    FILE.write_text("[" + ",\n".join(map(json.dumps, stored)) + "]\n", "utf-8")


if __name__ == "__main__":
    main()
