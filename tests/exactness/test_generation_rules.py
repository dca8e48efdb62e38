"""Rules of generation_config.json without an option, against transformers and simple references.

`conformance/generation_rules.json` contains the output of `generate` in transformers 4.46.3 and
5.23.0, see `peers/make_generation_rules.py`.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.search.context import StepContext
from onmt_lite.search.logits import (
    EncoderNoRepeatNgram,
    ExponentialDecayLength,
    SequenceBias,
    SuppressAtBegin,
)
from onmt_lite.search.topk import TokenScores
from onmt_lite.text.lines import Line
from tests.exactness.peers.make_defaults import write_directory
from tests.exactness.peers.make_generation_rules import RULES
from tests.support.sweeps import mark_sweeps

FILE = Path(__file__).parent / "conformance" / "generation_rules.json"
ROWS = json.loads(FILE.read_text("utf-8"))
CASES = {
    f"{row['model']}-{i}-{search}": (row, search)
    for i, row in enumerate(ROWS)
    for search in ("transformers", "transformers-5")
}


def load(row, path, search):
    """Return a translator for a row's model with the rules of its generation_config.json.

    Args:
        row: one of ROWS.
        path: directory for the model with its rules.
        search: the preset.
    """
    options = dict(tokenizer="space") if row["model"] == "marian" else {}
    options |= dict(device="cpu", precision="fp32", threads=1, search=search)
    return Translator.from_pretrained(write_directory(row, path), **options)


def read_hypotheses(config, returned, n_forced):
    """Yield IDs, ended and score of each hypothesis that transformers returned.

    Args:
        config: generation_config.json.
        returned: pairs of IDs and score.
        n_forced: start tokens after the first.
    """
    eos_ids = config["eos_token_id"]
    eos_ids = eos_ids if isinstance(eos_ids, list) else [eos_ids]
    for ids, score in returned:
        ids = ids[1 + n_forced :]
        end_positions = [i for i, token in enumerate(ids) if token in eos_ids]
        yield tuple(ids[: end_positions[0]] if end_positions else ids), bool(end_positions), score


@pytest.mark.parametrize(
    "row, search", mark_sweeps(CASES.values(), [*CASES.values()][::5]), ids=CASES
)
def test_generation_config_rules_n_best_equals_transformers_generate(row, search, tmp_path):
    config = row["generation_config"]
    k = config["num_beams"]
    translator = load(row, tmp_path, search)
    n_forced = translator.checkpoint.count_forced_tokens("")
    found = translator.translate(row["lines"], n_best=k)
    for translation, returned in zip(found, row[search], strict=True):
        if returned is None:  # NaN in transformers 4
            continue
        expected = [*read_hypotheses(config, returned, n_forced)]
        assert [(hyp.ids, hyp.ended) for hyp in translation.hyps] == [x[:2] for x in expected]
        if k > 1:
            scores = [score for *_, score in expected]
            assert [hyp.score for hyp in translation.hyps] == pytest.approx(scores, abs=1e-4)


V, LENGTH = 7, 5  # vocabulary size, tokens of a row before the step
PAD = -1
token = st.integers(0, V - 1)
token_lists = st.lists(token, min_size=LENGTH, max_size=LENGTH)


def apply_processor(
    make, rows, sources=((1, 2), (3,)), n_prefix=(0, 0), n_counted_start=0, logits=None
):
    """Return log-probabilities (R, V) of two sentences before and after a processor.

    Args:
        make: creates the processor from a spec.
        rows: R rows of the same length; the first token is the start token.
        sources: source tokens of the two sentences.
        n_prefix: their numbers of prefix tokens.
        n_counted_start: start tokens that count toward the length.
        logits: (R, V); None: random.
    """
    spec = SimpleNamespace(
        token_rules=SimpleNamespace(),
        n_counted_start=n_counted_start,
        phrases_see_start=False,
        policy=SimpleNamespace(repetition="log_probs"),
    )
    processor = make(spec)
    k, n_steps = len(rows) // 2, len(rows[0])
    longest = max(map(len, sources))
    source = torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sources])
    table = SimpleNamespace(
        n_prefix=torch.tensor(n_prefix)[:, None], start_step=torch.zeros(2, 1).long(), source=source
    )
    slots = [SimpleNamespace(last_forced_step=n) for n in n_prefix]
    batch = SimpleNamespace(
        table=table,
        slots=slots,
        expand_to_rows=lambda x: x.expand(-1, k).flatten(),
        history=torch.tensor(rows),
    )
    context = StepContext(batch, n_steps, torch.zeros(2, k))
    if logits is None:
        logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(1))
    scores = TokenScores(logits.clone(), logits.logsumexp(1))
    before = (scores.logits - scores.log_z[:, None]).tolist()
    if processor.applies(context):
        scores = processor(scores, context)
    return before, (scores.logits - scores.log_z[:, None]).tolist()


rows_of_batch = st.lists(token_lists, min_size=4, max_size=4)


@given(rows_of_batch, st.lists(st.lists(token, min_size=1, max_size=6), min_size=2, max_size=2),
       st.integers(1, 4))  # fmt: skip
def test_encoder_no_repeat_ngram_size_any_rows_equals_reference(rows, sources, n):
    before, after = apply_processor(lambda spec: EncoderNoRepeatNgram(n), rows, sources)
    for r, row in enumerate(rows):
        source = sources[r // 2]
        grams = {tuple(source[i : i + n]) for i in range(len(source) - n + 1)}
        for v in range(V):
            is_banned = len(row) >= n - 1 and (*row[len(row) - n + 1 :], v) in grams
            assert after[r][v] == (-math.inf if is_banned else pytest.approx(before[r][v]))


@given(rows_of_batch, st.dictionaries(st.lists(token, min_size=1, max_size=LENGTH + 1).map(tuple),
       st.floats(-5, 5, width=16), max_size=6), st.booleans())  # fmt: skip
def test_sequence_bias_any_rows_equals_reference(rows, biases, see_start):
    def make(spec):
        spec.token_rules.sequence_bias, spec.phrases_see_start = tuple(biases.items()), see_start
        return SequenceBias(spec, V, torch.device("cpu"))

    before, after = apply_processor(make, rows)
    for r, row in enumerate(rows):
        known = row if see_start else row[1:]  # no sequence includes the start token
        for v in range(V):
            matching = (
                bias
                for tokens, bias in biases.items()
                if tokens[-1] == v
                and len(tokens) <= len(known) + 1
                and [*tokens[:-1]] == known[len(known) - len(tokens) + 1 :]
            )
            assert after[r][v] == pytest.approx(before[r][v] + sum(matching), abs=1e-4)


@given(rows_of_batch, st.sets(token, min_size=1), st.tuples(*[st.sampled_from([0, 2, 4, 5])] * 2))
def test_begin_suppress_tokens_any_prefix_masks_first_free_position(rows, ids, n_prefix):
    """The first free position follows the start token and the prefix."""
    make = lambda spec: SuppressAtBegin(sorted(ids), torch.device("cpu"))  # noqa: E731
    before, after = apply_processor(make, rows, n_prefix=n_prefix)
    for r, row in enumerate(rows):
        is_first = len(row) == 1 + n_prefix[r // 2]
        for v in range(V):
            is_banned = is_first and v in ids
            assert after[r][v] == (-math.inf if is_banned else pytest.approx(before[r][v]))


@given(
    st.integers(0, 6),
    st.floats(0.25, 4),
    st.sampled_from([0, 1]),
    st.tuples(*[st.sampled_from([0, 2])] * 2),
    st.sets(token, min_size=1, max_size=3),
)
def test_exponential_decay_length_penalty_any_length_equals_reference(
    start, factor, n_forced, n_prefix, ends
):
    def make(spec):
        spec.token_rules.exponential_decay_length_penalty, spec.eos_ids = (
            (start, factor),
            tuple(ends),
        )
        return ExponentialDecayLength(spec, torch.device("cpu"))

    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(2))
    logits[1, 3] = -math.inf  # masked by another processor
    rows = [[0] * LENGTH] * 4
    before, after = apply_processor(
        make, rows, n_prefix=n_prefix, n_counted_start=n_forced, logits=logits
    )
    for r in range(4):
        n_uncounted = 1 + n_prefix[r // 2] if n_prefix[r // 2] else 1 - n_forced
        beyond = max(0, LENGTH - n_uncounted - start)
        for v in range(V):
            increase = abs(before[r][v]) * (factor**beyond - 1) if v in ends else 0.0
            expected = before[r][v] + (increase if before[r][v] > -math.inf else 0.0)
            assert after[r][v] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_several_eos_tokens_each_ends_hypothesis_and_is_not_in_text(tmp_path):
    row = next(row for row in ROWS if row["generation_config"]["num_beams"] == 4)
    config = {name: value for name, value in row["generation_config"].items() if name not in RULES}
    row = row | dict(generation_config=config | dict(eos_token_id=[0, 13, 81], length_penalty=0.0))
    for translation in load(row, tmp_path, "transformers").translate(row["lines"], n_best=4):
        for hyp in translation.hyps:
            assert not {0, 13, 81} & {*hyp.ids} and (hyp.ended or len(hyp.ids) == 12)
            assert hyp.log_prob == pytest.approx(sum(hyp.token_log_probs))
            assert len(hyp.token_log_probs) == len(hyp.ids) + hyp.ended


@pytest.mark.parametrize(
    "model, rules, reason",
    [
        ("marian", dict(begin_suppress_tokens=[13]), "begin_suppress_tokens"),
        ("t5", dict(encoder_no_repeat_ngram_size=1), "a token of the source"),
        ("marian", dict(eos_token_id=[0, 13], min_length=9), "min_length"),
    ],
)
def test_dump_beam_names_generation_config_rule_as_reason(model, rules, reason, tmp_path):
    row = [row for row in ROWS if row["model"] == model][1]
    config = {
        name: value for name, value in row["generation_config"].items() if name not in RULES[:4]
    }
    row = row | dict(generation_config=config | rules)
    translator = load(row, tmp_path, "transformers")
    lines = [Line(i, text, traced=True) for i, text in enumerate(row["lines"])]
    found = translator.pipeline.translate_lines(lines, None, translator.options)
    whys = [c.why for t in found for step in t.trace.pruned for c in step]
    assert any(why.startswith("blocked: ") and reason in why for why in whys)
