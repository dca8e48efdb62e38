"""Lines that are searched again, since a first search did not find what was asked for."""

from dataclasses import replace

from onmt_lite.alternatives import Decode, alternatives
from onmt_lite.errors import MemoryExhausted
from onmt_lite.notes import loops
from onmt_lite.records import Example, Found
from onmt_lite.rendering import unmet
from onmt_lite.rules import SearchRules

WIDEST = 1000  # what beam_size takes


def filled(group: list[Example], n_slots: int, rules: SearchRules, decode: Decode) -> list[Found]:
    """What `decode` finds for each example of the group, of which n_slots run at once, and what
    further searches find for those for which that is not enough."""
    if rules.n_alternatives:
        return alternatives(group, n_slots, rules, decode)
    found = enough(group, n_slots, rules, decode)
    for n in blocks(rules):
        again = [i for i, each in enumerate(found) if repeats(each, group[i])]
        if again:
            blocking = rules.with_search(block_ngram_repeat=n)
            second = enough([group[i] for i in again], n_slots, blocking, decode)
            for i, each in zip(again, second, strict=True):
                if cures(each, found[i], group[i], rules):
                    found[i] = replace(each, retried=True)
    return found


def repeats(found: Found, example: Example) -> bool:
    """Whether the best hypothesis says the same again and again."""
    return bool(found.hyps) and loops(found.hyps[0].text, example.line.text)


def cures(second: Found, first: Found, example: Example, rules: SearchRules) -> bool:
    """Whether what was found last takes the place of what repeats itself: nothing is wrong with it,
    and it holds as many of the phrases that it should."""
    if second.note or repeats(second, example) or rules.breaks(second.hyps[0].text, example):
        return False
    n_unmet = [len(unmet(each.hyps[0].text, example.line.forced)) for each in (second, first)]
    return n_unmet[0] <= n_unmet[1]


def blocks(rules: SearchRules) -> list[int]:
    """The n-gram blocks with which lines are searched again whose translation repeats itself
    (-retry_repeats), the mildest first; with 2 no words can come three times running."""
    n, blocked = rules.search.retry_repeats, rules.plan.block_ngram_repeat
    if n is None:  # other searches equal their originals
        n = rules.checkpoint.retry_repeats if rules.search.search == "opennmt" else 0
    if rules.sampling is not None:
        return []
    return [size for size in sorted({n, min(n, 2)}, reverse=True) if 0 < size < (blocked or n + 1)]


def enough(group: list[Example], n_slots: int, rules: SearchRules, decode: Decode) -> list[Found]:
    """What `decode` finds.  Where texts must differ and are too few (-n_best_unique), the beam is
    doubled until they suffice.

    None is left to find where a search ends with less complete hypotheses than its beam has room
    for and has no text more than the one before.  A beam without room in memory is not tried.
    """
    found = decode(group, n_slots, rules)
    group, found = reworded(group, found, n_slots, rules, decode)
    short = [i for i, each in enumerate(found) if rules.lacks(each)]
    while short and rules.beam_size < WIDEST:
        narrow, rules = rules, rules.with_search(beam_size=min(WIDEST, 2 * rules.beam_size))
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
