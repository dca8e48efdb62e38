"""Lines that are searched again with a wider beam, since too few of their texts differ."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.records import Example, Found
from onmt_lite.inference.search_setup import SearchRules
from onmt_lite.search.policy import Bound

Decode = Callable[[list[Example], int, SearchRules], list[Found]]

WIDEST = 1000  # what beam_size takes


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
