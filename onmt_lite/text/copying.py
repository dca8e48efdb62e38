"""Ids of source words for a model that copies."""

from onmt_lite.text.vocab import Vocab


def extended_ids(tokens: list[str], vocab: Vocab) -> tuple[list[int], list[str]]:
    """Ids of source tokens in the target vocabulary, extended by the words that it lacks.

    Returns the ids, and the words of the ids from len(vocab) on, in order.  A word equal to a
    control token gets an id of the extension: copying it must not end a translation.
    """
    extension: dict[str, int] = {}
    ids = []
    for token in tokens:
        i = vocab.ids.get(token, vocab.unk_id)
        if i is None or i == vocab.unk_id or vocab.is_control(i):
            i = extension.setdefault(token, len(vocab) + len(extension))
        ids.append(i)
    return ids, list(extension)
