"""The words of a source line as a model that copies sees them."""

from onmt_lite.text.vocab import Vocab


def extended_ids(tokens: list[str], vocab: Vocab) -> tuple[list[int], list[str]]:
    """Each source token's id in the target vocabulary extended by the line's own words.

    Returns the ids, and the words that ids from len(vocab) on stand for, in order.  A word that
    looks like a control token is the line's own: copying it must not end a translation.
    """
    own: dict[str, int] = {}
    ids = []
    for token in tokens:
        i = vocab.ids.get(token, vocab.unk_id)
        if i is None or i == vocab.unk_id or vocab.is_control(i):
            i = own.setdefault(token, len(vocab) + len(own))
        ids.append(i)
    return ids, list(own)
