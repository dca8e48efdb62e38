"""The default search against brute force, a reference implementation and worked examples."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.search.beam import Beam, CandidateList, RowHistory, StepEvent
from onmt_lite.search.spec import SentenceLimits
from tests.support.table_models import (
    EOS,
    START,
    Hyp,
    Settings,
    brute_force,
    compute_reference_score,
    hypotheses,
    logits,
    make_source,
    make_spec,
    reference,
    search,
    sources,
)

TOLERANCE = 1e-5
BATCH_TOLERANCE = 1e-6  # the same sentence in different batches

length_penalties = dict(
    length_penalty=st.sampled_from(["none", "avg", "wu"]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.5]),
)
masking = st.builds(
    Settings,
    beam_size=st.integers(1, 5),
    max_length=st.integers(1, 7),
    min_length=st.integers(0, 5),
    block_ngram_repeat=st.integers(0, 3),
    exempt=st.sets(st.integers(1, 2)).map(tuple),
    banned=st.sampled_from([(), (2,)]),
    **length_penalties,
)
coverage = st.builds(
    Settings,
    beam_size=st.integers(1, 4),
    max_length=st.integers(1, 6),
    min_length=st.integers(0, 2),
    block_ngram_repeat=st.sampled_from([0, 2]),
    coverage_penalty=st.sampled_from(["wu", "summary"]),
    beta=st.sampled_from([0.2, 1.0, 5.0]),
    stepwise=st.booleans(),
    **length_penalties,
)


RULES = {
    "plain": masking,
    "ties": masking,
    "coverage": coverage,
    "ratio": st.builds(replace, masking, ratio=st.floats(0.3, 3)),
    "prefix": st.builds(
        lambda rules, prefix: replace(rules, prefix=tuple(prefix[: rules.max_length - 1])),
        masking,
        st.lists(st.integers(1, 2)),
    ),
}


def assert_same(
    found: list[Hyp],
    expected: list[Hyp],
    tolerance: float = TOLERANCE,
    compute_score: Callable[[tuple[int, ...]], float] = lambda tokens: -math.inf,
):
    """Check that two n-best lists are equal, except for the order of almost equal scores.

    The search adds scores in float32 and the reference in float64, so two hypotheses whose exact
    scores are equal (the same tokens in another order) may be exchanged, also with one that the
    reference pruned.

    Args:
        found: n-best list of the search.
        expected: n-best list of the reference.
        tolerance: maximum difference of scores at the same rank, and of exchanged hypotheses.
        compute_score: returns the reference score of tokens that are not in `expected`.
    """
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=tolerance)
    scores = {(h.tokens, h.ended): h.score for h in expected}
    assert len({(h.tokens, h.ended) for h in found}) == len(found)
    for hyp, same_rank in zip(found, expected, strict=True):
        if (hyp.tokens, hyp.ended) != (same_rank.tokens, same_rank.ended):
            score = scores.get((hyp.tokens, hyp.ended))
            score = compute_score(hyp.tokens) if score is None else score
            assert hyp.score == pytest.approx(score, abs=tolerance), (found, expected)


class TestAgainstReferences:
    @settings(deadline=None, max_examples=60)
    @given(
        sources(vocab_sizes=[2, 3, 4]),
        st.builds(
            Settings,
            beam_size=st.just(0),
            max_length=st.integers(1, 3),
            min_length=st.integers(0, 2),
            **length_penalties,
        ),
    )
    def test_beam_as_large_as_search_space_equals_brute_force(self, source, rules):
        wide = Settings(**{**vars(rules), "beam_size": len(source.default) ** rules.max_length})
        (beam,) = search([source], wide)
        assert_same(hypotheses(beam), brute_force(source, wide))

    @pytest.mark.parametrize("name", RULES)
    @settings(max_examples=400)
    @given(data=st.data())
    def test_n_best_equals_reference_search(self, name, data):
        source = data.draw(sources([3, 4, 5], tied=name == "ties", holes=name != "prefix"))
        rules = data.draw(RULES[name])
        (beam,) = search([source], rules)
        compute_score = partial(compute_reference_score, source, rules)
        assert_same(hypotheses(beam), reference(source, rules), compute_score=compute_score)


class TestAssertSame:
    EXPECTED = (Hyp((1, EOS), -1.0, True), Hyp((2, EOS), -2.0, True), Hyp((3, EOS), -2.0, True))

    def test_hypotheses_with_equal_scores_may_be_exchanged(self):
        first, second, third = self.EXPECTED
        assert_same([first, third, second], [first, second, third])
        pruned = Hyp((4, EOS), -2.0, True)
        assert_same([first, pruned, third], [first, second, third], compute_score=lambda _: -2.0)

    def test_hypotheses_with_different_scores_are_not_exchanged(self):
        first, second, third = self.EXPECTED
        swapped = [Hyp((2, EOS), -1.0, True), Hyp((1, EOS), -2.0, True), third]
        pruned = [first, Hyp((4, EOS), -2.0, True), third]
        for found in (swapped, pruned, [first, third, third], [first, second]):
            with pytest.raises(AssertionError):
                assert_same(found, [*self.EXPECTED], compute_score=lambda _: -2.1)


class TestHypotheses:
    @settings(deadline=None, max_examples=60)
    @given(st.data(), st.one_of(masking, coverage))
    def test_hypotheses_are_independent_of_batch(self, data, rules):
        group = data.draw(st.lists(sources(vocab_sizes=[4]), min_size=2, max_size=4))
        together = search(group, rules)
        for source, beam in zip(group, together, strict=True):
            (alone,) = search([source], rules)
            assert_same(hypotheses(beam), hypotheses(alone), BATCH_TOLERANCE)

    def test_finished_sentence_is_unaffected_by_slow_sentence(self):
        fast = make_source({"": logits(0.6, 0.3, 0.1)}, logits(0.9, 0.05, 0.05))
        slow = make_source({}, logits(0.01, 0.5, 0.49))
        fast_beam, slow_beam = search([fast, slow], Settings(2, 9))
        # `$` is the best candidate at step 1; `a$` is the second hypothesis to finish
        assert (fast_beam.n_steps, slow_beam.n_steps) == (2, 9)
        assert [h.tokens for h in hypotheses(fast_beam)] == [(EOS,), (1, EOS)]


class TestTies:
    def test_tied_candidates_lower_row_then_lower_token_first(self):
        (beam,) = search([make_source({}, [0.0] * 5)], Settings(3, 3))
        # Five tied tokens, three rows; then rows 1 and 2 are open, and all their tokens tie
        assert beam.next_ys[1] == [0, 1, 2]
        assert (beam.prev_ks[1], beam.next_ys[2]) == ([1, 1, 1], [0, 1, 2])

    def test_tied_candidates_rank_below_better_candidate(self):
        source = make_source({}, [0.0, 0.0, 0.0, 1.0, 0.0])
        (beam,) = search([source], Settings(3, 2))
        assert beam.next_ys[1] == [3, 0, 1]

    def test_tied_candidates_of_two_rows_take_first_row(self):
        # Rows a and b have equal scores, and so have all continuations: those of a rank first
        rows = {"": [-9.0, 1.0, 1.0], "1": [0.0, 1.0, 1.0], "2": [1.0, 1.0, 0.0]}
        (beam,) = search([make_source(rows, [0.0] * 3)], Settings(3, 2))
        assert beam.next_ys[1][:2] == [1, 2]
        assert (beam.prev_ks[1], beam.next_ys[2]) == ([0, 0, 1], [1, 2, 0])

    def test_tied_hypotheses_earlier_finished_first(self):
        beam = Beam(make_spec(Settings(2, 9, length_penalty="none")), SentenceLimits(9))
        first = CandidateList([-1.0, -2.0], [0, 0], [5, EOS], [-1.0, -2.0], [0, 1])
        second = CandidateList([-2.0, -3.0], [0, 0], [EOS, 5], [-1.0, -2.0], [1, 0])
        for step, rows in enumerate([first, second], 1):
            beam.advance(StepEvent(step, rows, rows, [0.0, 0.0]))
        beam.append_rows(RowHistory(*zip(*(map(list, rows) for rows in (first, second))), []))
        assert beam.is_finished
        assert [h.tokens for h in hypotheses(beam)] == [(EOS,), (5, EOS)]


ATTENTION = {"": [0.9, 0.1], "1": [0.8, 0.2]}  # sum with the step of EOS: (1.7, .3)
COVERED = ({"": logits(0.1, 0.6, 0.3)}, logits(0.6, 0.4, 0), ATTENTION)
HALF = dict(beam_size=1, max_length=9, beta=0.5)
STEPWISE = HALF | dict(stepwise=True)
SUM, UNCOVERED, REPEATED = math.log(0.36), 0.5 * math.log(0.3), -0.5 * 0.7
WU = (5 + 2) / 6
# `a$` has two tokens and the log-probability -0.6162
TWO_TOKENS = ({"": logits(0.1, 0.6, 0.3)}, logits(0.9, 0.06, 0.04))
MOSTLY_A = ({}, logits(0.1, 0.8, 0.1))
MOSTLY_EOS = ({}, logits(0.9, 0.07, 0.03))


@pytest.mark.parametrize(
    "table, rules, tokens, score",
    [
        # The length includes EOS
        (TWO_TOKENS, Settings(1, 9, length_penalty="none"), (1, EOS), -0.6162),
        (TWO_TOKENS, Settings(1, 9), (1, EOS), -0.3081),
        (TWO_TOKENS, Settings(1, 9, alpha=2.0), (1, EOS), -0.6162 / 4),
        (TWO_TOKENS, Settings(1, 9, alpha=0.0), (1, EOS), -0.6162),
        (TWO_TOKENS, Settings(1, 9, 0, "wu"), (1, EOS), -0.6162 / WU),
        (TWO_TOKENS, Settings(1, 9, 0, "wu", 0.6), (1, EOS), -0.6162 / WU**0.6),
        # Coverage includes the attention at the step of EOS
        (COVERED, Settings(**HALF, coverage_penalty="wu"), (1, EOS), SUM / 2 + UNCOVERED),
        (COVERED, Settings(**HALF, coverage_penalty="summary"), (1, EOS), SUM / 2 + REPEATED),
        (COVERED, Settings(**STEPWISE, coverage_penalty="wu"), (1, EOS), (SUM + UNCOVERED) / 2),
        (COVERED, Settings(**STEPWISE, coverage_penalty="summary"), (1, EOS), (SUM + REPEATED) / 2),
        # min_length counts tokens before EOS; masks do not renormalize
        (MOSTLY_EOS, Settings(1, 9), (EOS,), math.log(0.9)),
        (MOSTLY_EOS, Settings(1, 9, min_length=1), (1, EOS), math.log(0.07 * 0.9) / 2),
        (MOSTLY_EOS, Settings(1, 9, min_length=3), (1, 1, 1, EOS), math.log(0.07**3 * 0.9) / 4),
        # a is masked after `a a`; EOS ranks before b, which ties
        (MOSTLY_A, Settings(1, 5, block_ngram_repeat=2), (1, 1, EOS), math.log(0.8**2 * 0.1) / 3),
        (MOSTLY_A, Settings(1, 5, block_ngram_repeat=2, exempt=(1,)), (1,) * 5, math.log(0.8)),
    ],
)
def test_score_of_worked_case_has_length_and_coverage_penalty(table, rules, tokens, score):
    (beam,) = search([make_source(*table)], rules)
    (hyp,) = hypotheses(beam)
    assert (hyp.tokens, hyp.ended) == (tokens, tokens[-1] == EOS)
    assert hyp.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("max_length", [1, 2, 5])
def test_max_length_limits_tokens_without_eos(max_length):
    (beam,) = search([make_source({}, logits(0.1, 0.9))], Settings(1, max_length))
    assert_same(hypotheses(beam), [Hyp((1,) * max_length, math.log(0.9), False)])


def test_open_rows_at_max_length_rank_with_finished_hypotheses():
    source = make_source({"": logits(0.1, 0.6, 0.3)}, logits(0.3, 0.5, 0.2))
    (beam,) = search([source], Settings(2, 2, length_penalty="none"))
    expected = [Hyp((1, 1), math.log(0.3), False), Hyp((1, EOS), math.log(0.18), True)]
    assert_same(hypotheses(beam), expected)


def test_min_length_with_only_eos_possible_returns_best_open_row():
    """After each first word the model allows only EOS, which min_length masks."""
    source = make_source({"": logits(0, 0.4, 0.6)}, logits(1, 0, 0))
    (beam,) = search([source], Settings(2, 9, min_length=2))
    assert_same(hypotheses(beam), [Hyp((2,), math.log(0.6), False)])
    only_eos = make_source({}, logits(1, 0, 0))
    (beam,) = search([only_eos], Settings(2, 9, min_length=1))
    assert_same(hypotheses(beam), [Hyp((), 0.0, False)])


def test_ngram_block_keeps_best_row_when_all_blocked():
    """Only in the sentence that has no other continuation, not in other sentences of the batch."""
    source = make_source({}, logits(0.05, 0.6, 0.35))
    (beam,) = search([source], Settings(1, 6, min_length=4, block_ngram_repeat=1))
    assert hypotheses(beam)[0].tokens == (1, 2, 1, 1, EOS)
    blocked = make_source({}, logits(0.1, 0.5, 0.4, 0))
    # After `b a` every continuation repeats: this row is lost, the other one continues with c
    half_open = make_source({"2 1": logits(0.1, 0.5, 0.4, 0)}, logits(0.1, 0.4, 0.3, 0.2))
    rules = Settings(2, 3, min_length=3, block_ngram_repeat=1)
    together = [[h.tokens for h in hypotheses(b)] for b in search([blocked, half_open], rules)]
    assert together == [[(1, 2, 1), (2, 1, 1)], [(1, 2, 3)]]


def test_coverage_penalty_of_unattended_token_is_finite():
    source = make_source({}, logits(0.9, 0.1), {"": [1.0, 0.0]})
    (beam,) = search([source], Settings(1, 9, coverage_penalty="wu", beta=0.5))
    (hyp,) = hypotheses(beam)
    assert -1000 < hyp.score < -10


def test_stepwise_penalty_changes_best_hypothesis():
    # Both continuations of a are more likely than the best one of b (.3315, .3185, .315), but the
    # decoder never attends to the second source token after a
    rows = {"": logits(0, 0.65, 0.35), "1": logits(0.51, 0.49, 0), "2": logits(0.9, 0.1, 0)}
    attn = {"": [0.9, 0.1], "1": [0.9, 0.1], "2": [0.1, 0.9]}
    source = make_source(rows, logits(1, 0, 0), attn)
    rules = dict(beam_size=2, max_length=2, coverage_penalty="wu", beta=0.5)
    for stepwise, best in ((False, (1, EOS)), (True, (2, EOS))):
        (beam,) = search([source], Settings(**rules, stepwise=stepwise))
        assert hypotheses(beam)[0].tokens == best


def test_worked_example_has_back_pointers_and_scores():
    rows = {
        "": logits(0, 0.6, 0.4),
        "1": logits(0.2, 0.3, 0.5),
        "2": logits(0.1, 0.9, 0),
        "2 1": logits(0.9, 0.1, 0),
    }
    (beam,) = search([make_source(rows, logits(1, 0, 0))], Settings(2, 9))
    # a .6, b .4; then `b a` .36 overtakes `a b` .30; then both take EOS
    assert beam.next_ys == [[START, START], [1, 2], [1, 2], [EOS, EOS]]
    assert beam.prev_ks == [[0, 0], [1, 0], [0, 1]]
    assert beam.is_finished
    tokens, log_probs = beam.get_hyp(3, 0)
    assert tokens == [2, 1, EOS]
    assert log_probs == pytest.approx(logits(0.4, 0.9, 0.9), abs=TOLERANCE)
    assert beam.get_hyp(2, 1)[0] == [1, 2]
    expected = [
        Hyp((1, 2, EOS), math.log(0.3) / 3, True),
        Hyp((2, 1, EOS), math.log(0.324) / 3, True),
    ]
    assert_same(hypotheses(beam), expected[::-1])
