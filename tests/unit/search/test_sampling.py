"""-do_sample: distribution, reproducibility, filters and scores of sampled translations."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.search.sampling import derive_line_seed, keep_top_k, keep_top_p, sample_gumbel
from tests.support.table_models import logits, make_checkpoint, make_source

TABLE = Path(__file__).resolve().parents[3] / "data" / "searches.json"
P = (0.1, 0.5, 0.3, 0.1)  # probabilities of EOS, a, b, c at every step
SOURCE = make_source({}, logits(*P))
N = 3000
# 99.99 % quantiles of chi-square by degrees of freedom
CHI_SQUARE = {1: 15.14, 2: 18.42, 3: 21.11, 5: 25.74}


def sample(n=N, source=SOURCE, **options):
    translator = Translator(make_checkpoint([source]), TranslateOptions.of(device="cpu"))
    defaults = dict(max_length_ratio=0, do_sample=True, beam_size=1)
    return translator.translate(["s0 s0"] * n, **(defaults | options))


def count_first_tokens(translations) -> Counter:
    return Counter((hyp.tokens or ["$"])[0] for t in translations for hyp in t.hyps)


def assert_distributed(counts: Counter, expected: dict[str, float]):
    n, total = sum(counts.values()), sum(expected.values())
    assert set(counts) <= set(expected)
    chi = sum((counts[y] - n * p / total) ** 2 / (n * p / total) for y, p in expected.items())
    assert chi < CHI_SQUARE[len(expected) - 1], (chi, counts)


SYSTEMS = ["opennmt", "opennmt-3", "transformers-2", "transformers", "transformers-5", "fairseq"]


class TestDoSample:
    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    @pytest.mark.parametrize("name", SYSTEMS)
    def test_do_sample_frequencies_match_model_probabilities(self, name, temperature):
        limit = 1 + name.startswith("transformers")
        found = sample(search=name, max_length=limit, random_sampling_temp=temperature)
        expected = {y: p ** (1 / temperature) for y, p in zip("$abc", P)}
        if name == "fairseq":  # its shortest output has one word
            del expected["$"]
        assert_distributed(count_first_tokens(found), expected)

    def test_do_sample_draws_each_step_independently(self):
        found = sample(max_length=2)
        pairs = Counter(" ".join(t.hyps[0].tokens) for t in found if len(t.hyps[0].tokens) == 2)
        expected = {
            f"{x} {y}": P["$abc".index(x)] * P["$abc".index(y)] for x in "ab" for y in "abc"
        }
        both = Counter({pair: n for pair, n in pairs.items() if pair[0] != "c"})
        assert_distributed(both, expected)

    def test_random_sampling_topk_and_topp_remove_the_tail(self):
        best = dict(a=0.5, b=0.3)
        assert_distributed(count_first_tokens(sample(random_sampling_topk=2, max_length=1)), best)
        # P(a) < 0.6 <= P(a) + P(b)
        assert_distributed(count_first_tokens(sample(random_sampling_topp=0.6, max_length=1)), best)

    def test_do_sample_n_best_samples_are_independent(self):
        found = sample(600, beam_size=5, n_best=5, max_length=1)
        assert {len(t.hyps) for t in found} == {5}  # duplicates are kept
        assert_distributed(count_first_tokens(found), dict(zip("$abc", P)))
        firsts = Counter(t.hyps[0].tokens == t.hyps[4].tokens for t in found)
        assert 0 < firsts[True] < 300

    @pytest.mark.parametrize("name, expected", [("opennmt", True), ("opennmt-3", False)])
    def test_do_sample_with_beam_returns_fair_sample_only_in_opennmt(self, name, expected):
        """OpenNMT-py 3 returns the most likely of beam_size samples; `opennmt` samples n_best."""
        counts = count_first_tokens(sample(600, search=name, beam_size=5, max_length=1))
        n, p = sum(counts.values()), dict(zip("$abc", P))
        chi = sum((counts[y] - n * p[y]) ** 2 / (n * p[y]) for y in p)
        assert (chi < CHI_SQUARE[3]) == expected

    def test_beam_sampling_is_without_replacement(self):
        """transformers samples 2k of 2k possible candidates, so the result is not random."""
        source = make_source({}, logits(0.1, 0.5, 0.4))
        for t in sample(50, source, search="transformers", beam_size=2, n_best=2, max_length=2):
            assert [h.tokens for h in t.hyps] == [["a"], ["b"]]

    def test_beam_sampling_sometimes_keeps_unlikely_rows(self):
        seen, options = set(), dict(search="transformers", beam_size=2, n_best=2, max_length=3)
        for t in sample(100, **options):
            assert t.hyps[0].score >= t.hyps[1].score
            seen |= {" ".join(h.tokens) for h in t.hyps}
        (best,) = sample(1, **options, do_sample=False)
        assert seen > {" ".join(h.tokens) for h in best.hyps}


def sample_texts(lines, seed=1, **options):
    checkpoint = make_checkpoint([SOURCE])
    translator = Translator(checkpoint, TranslateOptions.of(device="cpu", seed=seed))
    defaults = dict(do_sample=True, beam_size=2, n_best=2, max_length=8, max_length_ratio=0)
    return [[h.text for h in t.hyps] for t in translator.translate(lines, **defaults, **options)]


def test_sample_depends_on_line_number_and_seed_only():
    lines = ["s0 s0"] * 20
    base = sample_texts(lines)
    assert sample_texts(lines) == base
    assert sample_texts(lines, batch_type="sents", batch_size=3) == base
    # Empty lines are not sampled, but count as lines
    assert sample_texts(["", *lines[1:]])[1:] == base[1:]
    assert len({tuple(hyps) for hyps in base}) > 5  # samples of equal lines differ
    assert sample_texts(lines, seed=2) != base


def test_sample_gumbel_has_mean_and_variance_of_gumbel_distribution():
    seeds = torch.tensor([derive_line_seed(1, i) for i in range(50)])
    noise = sample_gumbel(seeds, torch.full((50,), 3), 2000)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)
    assert noise.unique().numel() > 99_900  # almost no duplicates
    later = sample_gumbel(seeds[:1], torch.tensor([4]), 2000)
    assert torch.corrcoef(torch.cat([noise[:1], later]))[0, 1].abs() < 0.1


def test_random_sampling_temp_is_in_scores_and_filters_do_not_renormalize():
    """The temperature divides logits or log-probabilities."""
    options = dict(length_penalty="none", random_sampling_temp=2.0)
    for t in sample(20, max_length=3, **options):
        assert t.hyps[0].score == pytest.approx(t.hyps[0].log_prob / 2, abs=1e-5)
    log_z = math.log(sum(p**2 for p in P))
    for t in sample(20, search="fairseq", max_length=1, random_sampling_temp=0.5, alpha=0.0):
        (hyp,) = t.hyps  # a word and EOS, both with the temperature
        assert hyp.score == pytest.approx(2 * hyp.log_prob - 2 * log_z, abs=1e-4)
    for t in sample(20, random_sampling_topk=2, max_length=1, length_penalty="none"):
        assert t.hyps[0].score == pytest.approx(t.hyps[0].log_prob, abs=1e-5)


class TestFilters:
    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 2))
    def test_keep_top_k_keeps_k_best(self, seed, k, keep):
        values = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed))
        kept = keep_top_k(values, k, keep)
        for row, kept_row in zip(values, kept):
            n = min(max(k, keep), 7)
            assert kept_row.isfinite().sum() == n
            assert set(kept_row[kept_row.isfinite()].tolist()) == set(sorted(row.tolist())[-n:])

    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 2**31), st.floats(0.05, 0.95), st.integers(1, 2))
    def test_keep_top_p_keeps_smallest_set_with_mass_p(self, seed, p, keep):
        values = torch.randn(1, 7, generator=torch.Generator().manual_seed(seed))
        kept = keep_top_p(values, p, keep).isfinite()[0]
        probabilities = values.softmax(1)[0]
        chosen = probabilities[kept]
        assert kept.sum() >= keep
        assert chosen.min() >= probabilities[~kept].max() if (~kept).any() else True
        assert chosen.sum() >= p - 1e-6
        if kept.sum() > keep:
            assert chosen.sum() - chosen.min() < p + 1e-6


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "opennmt-3"])
def test_block_ngram_repeat_applies_to_samples(name):
    """EOS is always possible, so no row is stuck; only exempt tokens may repeat."""
    source = make_source({}, [-1.0, 0.0, 0.0, 0.0, 0.0])
    options = dict(search=name, beam_size=4, n_best=4, max_length=12, block_ngram_repeat=2)
    for exempt in [(), ("a",)] if name == "opennmt" else [()]:
        extra = dict(ignore_when_blocking=exempt) if exempt else {}
        hyps = [hyp for t in sample(60, source, **options, **extra) for hyp in t.hyps]
        counts = [Counter(zip(hyp.tokens, hyp.tokens[1:])) for hyp in hyps]
        repeated = {pair for count in counts for pair, n in count.items() if n > 1}
        assert bool(repeated) == bool(exempt) and all("a" in pair for pair in repeated)


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(block_ngram_repeat=2),
        dict(block_ngram_repeat=2, ignore_when_blocking=("d",)),
        dict(coverage_penalty="summary", beta=0.5),
        dict(coverage_penalty="summary", beta=0.5, stepwise_penalty=True),
    ],
)
@pytest.mark.filterwarnings("ignore::onmt_lite.OptionWarning")
def test_opennmt_3_samples_ignore_block_ngram_repeat_and_coverage(options):
    """Expected: the output of GreedySearch in OpenNMT-py 3.5.1 with keep_topk 1 and each option.

    It never updates its list of n-grams, and uses no global scorer.
    """
    table = Translator.from_pretrained(TABLE, device="cpu")
    greedy = dict(random_sampling_topk=1, beam_size=1, min_length=7, max_length=8)
    (found,) = table.translate(["x"], search="opennmt-3", max_length_ratio=0, **greedy, **options)
    assert found.hyps[0].tokens == "c a d a a a a a".split()
    assert found.hyps[0].score == pytest.approx(-0.8987, abs=1e-4)
