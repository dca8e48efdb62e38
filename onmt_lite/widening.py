"""Lines that are searched again, since a first search did not find what was asked for."""

from dataclasses import replace

from onmt_lite.alternatives import Decode, alternatives
from onmt_lite.errors import MemoryExhausted
from onmt_lite.records import Example, Found
from onmt_lite.rules import SearchRules

WIDEST = 1000  # what beam_size takes


def filled(group: list[Example], n_slots: int, rules: SearchRules, decode: Decode) -> list[Found]:
    """What `decode` finds for each example of the group, of which n_slots run at once.

    Where texts must differ and are too few (-n_best_unique), the beam is doubled until they
    suffice.  None is left to find where a search ends with less complete hypotheses than its beam
    has room for and has no text more than the one before.  A beam without room in memory is not
    tried.
    """
    if rules.n_alternatives:
        return alternatives(group, n_slots, rules, decode)
    found = decode(group, n_slots, rules)
    group, found = reworded(group, found, n_slots, rules, decode)
    short = [i for i, each in enumerate(found) if rules.lacks(each)]
    while short and rules.beam_size < WIDEST:
        narrow, rules = rules, rules.wider(min(WIDEST, 2 * rules.beam_size))
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
            if rules.lacks(each) and (gained > 0 or each.n_complete >= rules.beam_size):
                still.append(i)
        short = still
    return found


def reworded(
    group: list[Example], found: list[Found], n_slots: int, rules: SearchRules, decode: Decode
) -> tuple[list[Example], list[Found]]:
    """The examples and what is found for them, where those were searched again whose texts have
    too many or too few words, since something was put back into them or taken out.

    The search then allows for as many words as have come.
    """
    group, found = list(group), list(found)
    again = [i for i, each in enumerate(found) if any(each.unfit)]
    for i in again:
        group[i] = replace(group[i], more_words=(min(found[i].unfit), max(found[i].unfit)))
    if again:
        for i, each in zip(again, decode([group[i] for i in again], n_slots, rules), strict=True):
            found[i] = each
    return group, found
