"""The default search (DESIGN.md 3.1) against brute force, a second search and worked examples."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.api import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.search.beam import Beam, Candidates, Event
from onmt_lite.search.plan import Limits
from tests.support.tables import (
    EOS,
    START,
    Hyp,
    Settings,
    brute_force,
    hypotheses,
    logits,
    make_checkpoint,
    make_source,
    plan_of,
    reference,
    search,
    sources,
)

TOLERANCE = 1e-5
SAME = 1e-6  # one sentence alone and in a batch

norms = dict(
    length_penalty=st.sampled_from(["none", "avg", "wu"]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.5]),
)
narrow = st.builds(
    Settings,
    beam_size=st.integers(1, 5),
    max_length=st.integers(1, 7),
    min_length=st.integers(0, 5),
    block_ngram_repeat=st.integers(0, 3),
    exempt=st.sets(st.integers(1, 2)).map(tuple),
    banned=st.sampled_from([(), (2,)]),
    **norms,
)
covering = st.builds(
    Settings,
    beam_size=st.integers(1, 4),
    max_length=st.integers(1, 6),
    min_length=st.integers(0, 2),
    block_ngram_repeat=st.sampled_from([0, 2]),
    coverage_penalty=st.sampled_from(["wu", "summary"]),
    beta=st.sampled_from([0.2, 1.0, 5.0]),
    stepwise=st.booleans(),
    **norms,
)


def assert_same(found: list[Hyp], expected: list[Hyp], tolerance: float = TOLERANCE):
    assert [(h.tokens, h.ended) for h in found] == [(h.tokens, h.ended) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=tolerance)


def translate_table(source, **options):
    translator = Translator(make_checkpoint([source]), TranslateOptions.of())
    line = " ".join(["s0"] * source.length)
    return translator.translate([line], max_length_ratio=0, **options)[0].hyps


class TestAgainstOtherSearches:
    @settings(deadline=None, max_examples=60)
    @given(
        sources(vocab_sizes=[2, 3, 4]),
        st.builds(
            Settings,
            beam_size=st.just(0),
            max_length=st.integers(1, 3),
            min_length=st.integers(0, 2),
            **norms,
        ),
    )
    def test_a_beam_that_drops_nothing_finds_all_in_order(self, source, rules):
        wide = Settings(**{**vars(rules), "beam_size": len(source.default) ** rules.max_length})
        (beam,) = search([source], wide)
        assert_same(hypotheses(beam), brute_force(source, wide))

    @settings(deadline=None, max_examples=500)
    @given(sources(vocab_sizes=[3, 4, 5]), narrow)
    def test_equals_the_reference(self, source, rules):
        (beam,) = search([source], rules)
        assert_same(hypotheses(beam), reference(source, rules))

    @settings(deadline=None, max_examples=500)
    @given(sources(vocab_sizes=[3, 4, 5], tied=True), narrow)
    def test_equals_the_reference_where_scores_tie(self, source, rules):
        (beam,) = search([source], rules)
        assert_same(hypotheses(beam), reference(source, rules))

    @settings(deadline=None, max_examples=200)
    @given(sources(), covering)
    def test_equals_the_reference_with_coverage(self, source, rules):
        (beam,) = search([source], rules)
        assert_same(hypotheses(beam), reference(source, rules))

    @settings(deadline=None, max_examples=200)
    @given(sources(vocab_sizes=[3, 4, 5]), narrow, st.floats(0.3, 3))
    def test_equals_the_reference_with_a_ratio(self, source, rules, ratio):
        rules = Settings(**{**vars(rules), "ratio": ratio})
        (beam,) = search([source], rules)
        assert_same(hypotheses(beam), reference(source, rules))

    @settings(deadline=None, max_examples=200)
    @given(sources(vocab_sizes=[3, 4, 5], holes=False), narrow, st.lists(st.integers(1, 2)))
    def test_equals_the_reference_with_a_prefix(self, source, rules, prefix):
        rules = Settings(**{**vars(rules), "prefix": tuple(prefix[: rules.max_length - 1])})
        (beam,) = search([source], rules)
        assert_same(hypotheses(beam), reference(source, rules))

    @settings(deadline=None, max_examples=60)
    @given(sources(), st.integers(1, 8))
    def test_a_beam_of_one_is_greedy(self, source, max_length):
        tokens: tuple[int, ...] = ()
        while len(tokens) < max_length and EOS not in tokens:
            row = source.logits(tokens)
            tokens += (row.index(max(row)),)
        (beam,) = search([source], Settings(1, max_length))
        assert [h.tokens for h in hypotheses(beam)] == [tokens]


class TestHypotheses:
    @settings(deadline=None, max_examples=100)
    @given(sources(vocab_sizes=[3, 4, 5]), narrow)
    def test_are_well_formed(self, source, rules):
        (beam,) = search([source], rules)
        found = hypotheses(beam)
        assert found
        assert len({h.tokens for h in found}) == len(found)
        assert sorted((h.score for h in found), reverse=True) == [h.score for h in found]
        for hyp in found:
            assert EOS not in hyp.tokens[:-1]
            assert hyp.ended == (hyp.tokens[-1] == EOS)
            assert hyp.ended or len(hyp.tokens) == rules.max_length
            assert len(hyp.tokens) <= rules.max_length
            assert not hyp.ended or len(hyp.tokens) > rules.min_length
            assert not set(hyp.tokens) & set(rules.banned)

    @settings(deadline=None, max_examples=60)
    @given(st.data(), st.one_of(narrow, covering))
    def test_do_not_depend_on_the_batch(self, data, rules):
        group = data.draw(st.lists(sources(vocab_sizes=[4]), min_size=2, max_size=4))
        together = search(group, rules)
        for source, beam in zip(group, together, strict=True):
            (alone,) = search([source], rules)
            assert_same(hypotheses(beam), hypotheses(alone), SAME)

    @settings(deadline=None, max_examples=20)
    @given(sources(vocab_sizes=[4, 5]), st.integers(2, 4))
    def test_n_best_only_cuts_the_list(self, source, beam_size):
        options = dict(beam_size=beam_size, max_length=6)
        longest = translate_table(source, n_best=beam_size, **options)
        assert len(longest) == beam_size
        for n in range(1, beam_size):
            assert translate_table(source, n_best=n, **options) == longest[:n]

    def test_a_finished_sentence_stays_as_it_is_beside_a_slow_one(self):
        quick = make_source({"": logits(0.6, 0.3, 0.1)}, logits(0.9, 0.05, 0.05))
        slow = make_source({}, logits(0.01, 0.5, 0.49))
        quick_beam, slow_beam = search([quick, slow], Settings(2, 9))
        # `$` is on top at once, `a$` is the second to finish
        assert (quick_beam.n_steps, slow_beam.n_steps) == (2, 9)
        assert [h.tokens for h in hypotheses(quick_beam)] == [(EOS,), (1, EOS)]


class TestTies:
    def test_lower_row_then_lower_token_first(self):
        (beam,) = search([make_source({}, [0.0] * 5)], Settings(3, 3))
        # Five equals and three places; then rows 1 and 2 are open and all their tokens equal
        assert beam.next_ys[1] == [0, 1, 2]
        assert (beam.prev_ks[1], beam.next_ys[2]) == ([1, 1, 1], [0, 1, 2])

    def test_equals_at_the_cut_lose_to_what_is_better(self):
        source = make_source({}, [0.0, 0.0, 0.0, 1.0, 0.0])
        (beam,) = search([source], Settings(3, 2))
        assert beam.next_ys[1] == [3, 0, 1]

    def test_equals_of_different_rows(self):
        # Rows a and b are equally likely and so are all their continuations: a's come first
        rows = {"": [-9.0, 1.0, 1.0], "1": [0.0, 1.0, 1.0], "2": [1.0, 1.0, 0.0]}
        (beam,) = search([make_source(rows, [0.0] * 3)], Settings(3, 2))
        assert beam.next_ys[1][:2] == [1, 2]
        assert (beam.prev_ks[1], beam.next_ys[2]) == ([0, 0, 1], [1, 2, 0])

    def test_of_equal_hypotheses_the_earlier_finished_is_first(self):
        beam = Beam(plan_of(Settings(2, 9, length_penalty="none")), Limits(9))
        first = Candidates([-1.0, -2.0], [0, 0], [5, EOS], [-1.0, -2.0])
        second = Candidates([-2.0, -3.0], [0, 0], [EOS, 5], [-1.0, -2.0])
        for step, rows in enumerate([first, second], 1):
            beam.advance(Event(step, rows, rows, [0.0, 0.0]))
        beam.read([[x for part in rows for x in part] for rows in (first, second)])
        assert beam.done
        assert [h.tokens for h in hypotheses(beam)] == [(EOS,), (5, EOS)]


class TestNgramBlocking:
    @settings(deadline=None, max_examples=60)
    @given(sources(holes=False), st.integers(1, 3), st.integers(1, 4))
    def test_nothing_repeats_while_a_sentence_may_end(self, source, n, beam_size):
        (beam,) = search([source], Settings(beam_size, 8, block_ngram_repeat=n))
        for hyp in hypotheses(beam):
            ngrams = [hyp.tokens[i : i + n] for i in range(len(hyp.tokens) - n + 1)]
            assert len(set(ngrams)) == len(ngrams)

    def test_the_completing_token_is_banned(self):
        source = make_source({}, logits(0.1, 0.8, 0.1))
        (beam,) = search([source], Settings(1, 5, block_ngram_repeat=2))
        # `a a` may not be followed by a; the end token comes before b, its equal
        assert hypotheses(beam)[0].tokens == (1, 1, EOS)

    def test_an_exempt_token_lifts_the_ban(self):
        source = make_source({}, logits(0.1, 0.8, 0.1))
        (beam,) = search([source], Settings(1, 5, block_ngram_repeat=2, exempt=(1,)))
        assert hypotheses(beam)[0].tokens == (1, 1, 1, 1, 1)

    def test_where_nothing_else_is_left_the_least_bad_survives(self):
        source = make_source({}, logits(0.05, 0.6, 0.35))
        (beam,) = search([source], Settings(1, 6, min_length=4, block_ngram_repeat=1))
        assert hypotheses(beam)[0].tokens == (1, 2, 1, 1, EOS)

    def test_a_sentence_with_nothing_left_does_not_lift_the_ban_of_another(self):
        blocked = make_source({}, logits(0.1, 0.5, 0.4, 0))
        # After `b a` only a repetition may follow: one row dies, the other goes on to c
        half_open = make_source({"2 1": logits(0.1, 0.5, 0.4, 0)}, logits(0.1, 0.4, 0.3, 0.2))
        rules = Settings(2, 3, min_length=3, block_ngram_repeat=1)
        together = [[h.tokens for h in hypotheses(b)] for b in search([blocked, half_open], rules)]
        assert together == [[(1, 2, 1), (2, 1, 1)], [(1, 2, 3)]]


class TestLimits:
    @pytest.mark.parametrize("min_length", [0, 1, 2, 3])
    def test_min_length_counts_tokens_before_the_end(self, min_length):
        source = make_source({}, logits(0.9, 0.07, 0.03))
        (beam,) = search([source], Settings(1, 9, min_length=min_length))
        (hyp,) = hypotheses(beam)
        assert hyp.tokens == (1,) * min_length + (EOS,)
        # Masked tokens keep their share: what is left is not lifted
        log_prob = min_length * math.log(0.07) + math.log(0.9)
        assert hyp.score == pytest.approx(log_prob / (min_length + 1), abs=TOLERANCE)

    @pytest.mark.parametrize("max_length", [1, 2, 5])
    def test_max_length_counts_all_tokens(self, max_length):
        source = make_source({}, logits(0.1, 0.9))
        (beam,) = search([source], Settings(1, max_length))
        (hyp,) = hypotheses(beam)
        assert (hyp.tokens, hyp.ended) == ((1,) * max_length, False)
        assert hyp.score == pytest.approx(math.log(0.9), abs=TOLERANCE)

    def test_open_rows_at_max_length_are_ranked_with_the_ended(self):
        source = make_source({"": logits(0.1, 0.6, 0.3)}, logits(0.3, 0.5, 0.2))
        (beam,) = search([source], Settings(2, 2, length_penalty="none"))
        expected = [Hyp((1, 1), math.log(0.3), False), Hyp((1, EOS), math.log(0.18), True)]
        assert_same(hypotheses(beam), expected)

    def test_where_the_model_allows_nothing_the_best_row_ends_as_it_is(self):
        # After each first word only the end may follow, which min_length forbids
        source = make_source({"": logits(0, 0.4, 0.6)}, logits(1, 0, 0))
        (beam,) = search([source], Settings(2, 9, min_length=2))
        assert_same(hypotheses(beam), [Hyp((2,), math.log(0.6), False)])
        mute = make_source({}, logits(1, 0, 0))
        (beam,) = search([mute], Settings(2, 9, min_length=1))
        assert_same(hypotheses(beam), [Hyp((), 0.0, False)])


class TestScores:
    # spec/search.md, trap 1: `a$` has log-probability -0.6162 and two tokens
    @pytest.mark.parametrize(
        "form, alpha, expected",
        [
            ("none", 1.0, -0.6162),
            ("avg", 1.0, -0.3081),
            ("avg", 2.0, -0.6162 / 4),
            ("avg", 0.0, -0.6162),
            ("wu", 1.0, -0.6162 / ((5 + 2) / 6)),
            ("wu", 0.6, -0.6162 / ((5 + 2) / 6) ** 0.6),
        ],
    )
    def test_length_is_counted_with_the_end_token(self, form, alpha, expected):
        source = make_source({"": logits(0.1, 0.6, 0.3)}, logits(0.9, 0.06, 0.04))
        (beam,) = search([source], Settings(1, 9, length_penalty=form, alpha=alpha))
        (hyp,) = hypotheses(beam)
        assert hyp.tokens == (1, EOS)
        assert hyp.score == pytest.approx(expected, abs=1e-4)

    @pytest.mark.parametrize(
        "form, stepwise, expected",
        [
            # Attention (.9, .1) + (.8, .2) = (1.7, .3)
            ("wu", False, math.log(0.36) / 2 + 0.5 * math.log(0.3)),
            ("wu", True, (math.log(0.36) + 0.5 * math.log(0.3)) / 2),
            ("summary", False, math.log(0.36) / 2 - 0.5 * 0.7),
            ("summary", True, (math.log(0.36) - 0.5 * 0.7) / 2),
        ],
    )
    def test_coverage_counts_the_attention_of_the_end_token(self, form, stepwise, expected):
        rows = {"": logits(0.1, 0.6, 0.3)}
        source = make_source(rows, logits(0.6, 0.4, 0), {"": [0.9, 0.1], "1": [0.8, 0.2]})
        rules = Settings(1, 9, coverage_penalty=form, beta=0.5, stepwise=stepwise)
        (beam,) = search([source], rules)
        (hyp,) = hypotheses(beam)
        assert hyp.tokens == (1, EOS)
        assert hyp.score == pytest.approx(expected, abs=TOLERANCE)

    def test_a_token_without_attention_costs_a_finite_amount(self):
        source = make_source({}, logits(0.9, 0.1), {"": [1.0, 0.0]})
        (beam,) = search([source], Settings(1, 9, coverage_penalty="wu", beta=0.5))
        (hyp,) = hypotheses(beam)
        assert -1000 < hyp.score < -10

    def test_stepwise_coverage_changes_the_winner(self):
        # Both children of a are likelier than b's best, but a's decoder never looks at the
        # second source token: .3315, .3185 and .315 before coverage
        rows = {"": logits(0, 0.65, 0.35), "1": logits(0.51, 0.49, 0), "2": logits(0.9, 0.1, 0)}
        attn = {"": [0.9, 0.1], "1": [0.9, 0.1], "2": [0.1, 0.9]}
        source = make_source(rows, logits(1, 0, 0), attn)
        rules = dict(beam_size=2, max_length=2, coverage_penalty="wu", beta=0.5)
        winner = {
            stepwise: hypotheses(search([source], Settings(**rules, stepwise=stepwise))[0])[
                0
            ].tokens
            for stepwise in (False, True)
        }
        assert winner == {False: (1, EOS), True: (2, EOS)}


def test_worked_example():
    rows = {
        "": logits(0, 0.6, 0.4),
        "1": logits(0.2, 0.3, 0.5),
        "2": logits(0.1, 0.9, 0),
        "2 1": logits(0.9, 0.1, 0),
    }
    (beam,) = search([make_source(rows, logits(1, 0, 0))], Settings(2, 9))
    # a .6, b .4; then `b a` .36 passes `a b` .30; then both end
    assert beam.next_ys == [[START, START], [1, 2], [1, 2], [EOS, EOS]]
    assert beam.prev_ks == [[0, 0], [1, 0], [0, 1]]
    assert beam.done
    tokens, log_probs = beam.get_hyp(3, 0)
    assert tokens == [2, 1, EOS]
    assert log_probs == pytest.approx(logits(0.4, 0.9, 0.9), abs=TOLERANCE)
    assert beam.get_hyp(2, 1)[0] == [1, 2]
    expected = [
        Hyp((1, 2, EOS), math.log(0.3) / 3, True),
        Hyp((2, 1, EOS), math.log(0.324) / 3, True),
    ]
    assert_same(hypotheses(beam), expected[::-1])
