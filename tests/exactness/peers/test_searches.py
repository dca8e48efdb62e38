"""Random table models: beam search of the installed transformers, 4.46 or 5.

pip install transformers==4.46.3 && python -m pytest tests/exactness/peers
"""

import math
import warnings
from random import Random

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from tests.support.table_models import make_checkpoint, make_source

transformers = pytest.importorskip("transformers")
outputs = pytest.importorskip("transformers.modeling_outputs")
GENERATION = int(transformers.__version__.split(".")[0])
NAME = {4: "transformers", 5: "transformers-5"}.get(GENERATION)
pytestmark = pytest.mark.skipif(NAME is None, reason="unsupported version of transformers")
WORDS = "$ a b c d e f".split()
VOCAB_SIZE = len(WORDS)


class Config(transformers.PretrainedConfig):
    model_type = "table"

    def __init__(self, **unused):
        super().__init__(is_encoder_decoder=True, **unused)


class Encoder(torch.nn.Module):
    def forward(self, input_ids=None, **unused):
        return outputs.BaseModelOutput(last_hidden_state=torch.zeros(*input_ids.shape, 1))


class Table(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A table model for transformers, with one additional token as start and padding token."""

    config_class = Config
    main_input_name = "input_ids"

    def __init__(self, source):
        super().__init__(Config())
        self.source = source
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def get_encoder(self, *args):
        return Encoder()

    def prepare_inputs_for_generation(self, input_ids, encoder_outputs=None, **kwargs):
        return {"decoder_input_ids": input_ids, "encoder_outputs": encoder_outputs}

    def forward(self, input_ids=None, decoder_input_ids=None, encoder_outputs=None, **kwargs):
        n, t = decoder_input_ids.shape
        logits = torch.full((n, t, VOCAB_SIZE + 1), -torch.inf)
        for r, (_, *prefix) in enumerate(decoder_input_ids.tolist()):
            logits[r, -1, :VOCAB_SIZE] = torch.tensor(self.source.logits(tuple(prefix)))
        return outputs.Seq2SeqLMOutput(logits=logits)


def sample_source(rng: Random):
    words = range(1, VOCAB_SIZE)
    keys = ["", *map(str, words), *(f"{a} {b}" for a in words for b in words)]
    keys += [f"*{n}" for n in range(3, 9)]

    def row():
        return [rng.gauss(0, 1.5) + (rng.choice([-1, 0, 1, 2]) if i == 0 else 0) for i in range(7)]

    return make_source({key: row() for key in keys}, row())


def sample_options(rng: Random) -> tuple[dict, dict]:
    """Sample options, under our names and under the names in transformers."""
    groups = rng.choice([1, 1, 2, 3]) if GENERATION == 4 else 1
    size = groups * rng.choice([1, 2, 3, 4] if groups == 1 else [1, 2, 3])
    early_stopping = rng.choice([True, False, "never"])
    limit = rng.randint(2, 8)
    pairs = [
        ("beam_size", "num_beams", size),
        ("n_best", "num_return_sequences", rng.randint(1, size)),
        ("max_length", "max_length", limit),
        ("min_length", "min_length", min(limit, rng.choice([0, 0, 2, 3]))),
        ("alpha", "length_penalty", rng.choice([0.0, 0.5, 1.0, 2.0])),
        ("early_stopping", "early_stopping", early_stopping),
        ("block_ngram_repeat", "no_repeat_ngram_size", rng.choice([0, 0, 2, 3])),
        ("repetition_penalty", "repetition_penalty", rng.choice([1.0, 1.0, 0.8, 1.5])),
    ]
    if groups > 1:
        pairs += [
            ("beam_groups", "num_beam_groups", groups),
            ("diversity_rate", "diversity_penalty", rng.choice([0.3, 0.8, 1.5])),
        ]
    return {a: value for a, _, value in pairs}, {b: value for _, b, value in pairs}


def generate(source, options, forced_eos):
    """Return (words, ended, score) of each distinct hypothesis.

    Args:
        source: the table.
        options: settings of `generate`.
        forced_eos: whether EOS is forced at the maximum length.

    Returns:
        Hypotheses, best first; the score is NaN for greedy search.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = Table(source).generate(
            input_ids=torch.tensor([[1, 1]]),
            decoder_start_token_id=VOCAB_SIZE,
            pad_token_id=VOCAB_SIZE,
            eos_token_id=0,
            forced_eos_token_id=0 if forced_eos else None,
            use_cache=False,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    hyps, is_greedy = {}, options["num_beams"] == 1
    scores = [math.nan] if is_greedy else output.sequences_scores.tolist()
    for (_, *ids), score in zip(output.sequences.tolist(), scores):
        ended = 0 in ids
        ids = ids[: ids.index(0)] if ended else [y for y in ids if y != VOCAB_SIZE]
        if is_greedy or score > -1e4:
            hyps.setdefault((" ".join(WORDS[y] for y in ids), ended), score)
    return [(*key, score) for key, score in hyps.items()]


@pytest.mark.parametrize("seed", range(150))
def test_beam_search_equals_generate(seed):
    rng = Random(seed)
    source, (ours, theirs) = sample_source(rng), sample_options(rng)
    forced_eos = rng.random() < 0.3
    checkpoint = make_checkpoint([source])
    checkpoint = type(checkpoint)(**{**vars(checkpoint), "forced_eos": forced_eos})
    translator = Translator(checkpoint, TranslateOptions.of(device="cpu"))
    (translation,) = translator.translate(["s0 s0"], search=NAME, **ours)
    expected = generate(source, theirs, forced_eos)
    hyps = translation.hyps[: len(expected)]
    assert [(h.text, h.ended) for h in hyps] == [(text, ended) for text, ended, _ in expected]
    for hyp, (_, _, score) in zip(hyps, expected):
        if not math.isnan(score):
            assert hyp.score == pytest.approx(score, rel=1e-4, abs=1e-4)
