"""Lines that are searched again, since a first search did not find what was asked for."""

from copy import copy
from dataclasses import replace

from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.alternatives import Decode, alternatives
from onmt_lite.inference.notes import loops
from onmt_lite.inference.postprocess import unmet
from onmt_lite.inference.records import Example, Found
from onmt_lite.inference.search_setup import SearchRules
from onmt_lite.search.policy import Bound

WIDEST = 1000  # what beam_size takes


def filled(group: list[Example], n_slots: int, rules: SearchRules, decode: Decode) -> list[Found]:
    """What `decode` finds for each example of the group, of which n_slots run at once, and what
    further searches find for those for which that is not enough."""
    if rules.n_alternatives:
        return alternatives(group, n_slots, rules, decode)
    found = enough(group, n_slots, rules, decode)
    for n in blocks(rules):
        again = [i for i, each in enumerate(found) if repeats(each, group[i])]
        if not again:
            break
        try:
            others = enough([group[i] for i in again], n_slots, blocking(rules, n), decode)
        except MemoryExhausted:
            break
        for i, other in zip(again, others, strict=True):
            if cures(other, found[i], group[i]):
                found[i] = replace(other, retried=True)
    return found


def repeats(found: Found, example: Example) -> bool:
    """Whether the best hypothesis says the same again and again."""
    return bool(found.hyps) and loops(found.hyps[0].text, example.line.text)


def cures(second: Found, first: Found, example: Example) -> bool:
    """Whether what was found last takes the place of what repeats itself: it says something, does
    not repeat itself, is complete if the first one is, and holds as many of the phrases that it
    should."""
    if second.note or repeats(second, example):
        return False
    new, old = second.hyps[0], first.hyps[0]
    if not new.text.strip() or (old.ended and not new.ended):
        return False
    n_unmet = [len(unmet(hyp.text, example.line.forced)) for hyp in (new, old)]
    return n_unmet[0] <= n_unmet[1]


def blocks(rules: SearchRules) -> list[int]:
    """How many tokens in a row the searches block for lines whose translation repeats itself
    (-retry_repeats): N, then 2.  None where tokens are drawn, or blocked as strictly already."""
    n, plan = rules.search.retry_repeats, rules.plan
    if n is None:  # other searches equal their originals
        n = rules.checkpoint.retry_repeats if rules.search.search == "opennmt" else 0
    if n == 0 or rules.sampling is not None:
        return []
    strict = plan.blocks_ngrams and not plan.exempt_ids
    blocked = plan.block_ngram_repeat if strict else 0
    return [size for size in sorted({n, 2}, reverse=True) if not 0 < blocked <= size]


def blocking(rules: SearchRules, n: int) -> SearchRules:
    """The same search, in which no n tokens in a row may come twice, whichever they are."""
    search = replace(rules.search, block_ngram_repeat=n, ignore_when_blocking=())
    return SearchRules(replace(rules.options, search=search), rules.checkpoint)


def enough(group: list[Example], n_slots: int, rules: SearchRules, decode: Decode) -> list[Found]:
    """What `decode` finds.  Where texts must differ and are too few (-n_best_unique), the beam is
    doubled until they suffice.

    None is left to find where a search ends with less complete hypotheses than its beam has room
    for and has no text more than the one before.  A beam without room in memory is not tried.
    """
    found = decode(group, n_slots, rules)
    short = [i for i, each in enumerate(found) if rules.lacks(each)]
    while short and rules.beam_size < WIDEST:
        narrow, rules = rules, patient(rules.wider(min(WIDEST, 2 * rules.beam_size)))
        n_slots = max(1, n_slots * narrow.beam_size // rules.beam_size)  # as many rows as before
        try:
            again = decode([group[i] for i in short], n_slots, rules)
        except MemoryExhausted:
            break
        still = []
        for i, each in zip(short, again, strict=True):
            gained = len(each.hyps) - len(found[i].hyps)
            if gained >= 0 and not each.note:
                found[i] = each
            if rules.lacks(each) and (gained > 0 or full(each, rules)):
                still.append(i)
        short = still
    return found


def patient(rules: SearchRules) -> SearchRules:
    """The same search, which goes on until as many hypotheses are complete as its beam has room
    for: some stop rules hold when n_best or one of them is, whatever their texts."""
    plan, stop = rules.plan, rules.plan.stop
    if isinstance(stop, Bound):
        stop = replace(stop, finished="beam_size")
    rules = copy(rules)  # which reads no more of them
    rules.plan = replace(plan, stop=stop, n_best=plan.beam_size, patience=max(1.0, plan.patience))
    return rules


def full(found: Found, rules: SearchRules) -> bool:
    """Whether a search may have left hypotheses out for which a wider beam has room; where open
    rows are lost at the limit, their number does not say so."""
    return found.n_complete >= rules.beam_size or rules.policy.at_max in ("lost", "if_none")
