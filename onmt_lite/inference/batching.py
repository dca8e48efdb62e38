"""Batches: examples in groups of like length, padded to tensors."""

import math
from collections.abc import Callable

import torch

from onmt_lite.inference.records import Batch, Example


def source_length(example: Example) -> int:
    return len(example.src_ids)


def longer_side(example: Example) -> int:
    """Tokens of the longer side of an example with a reference, counting EOS."""
    return max(len(example.src_ids), len(example.tgt_ids or []) + 1)


def make_batches(
    examples: list[Example],
    batch_size: int,
    batch_type: str,
    length: Callable[[Example], int] = source_length,
    max_sentences: float = math.inf,
) -> list[list[Example]]:
    """Group examples of like length into batches, the longest first, and those with a prefix, in
    batches of their own, before the others.

    Like lengths need little padding; a batch too large for the memory fails at once.  A batch holds
    at most `batch_size` sentences (`sents`) or padded tokens, at most `max_sentences`, and at least
    one sentence.  Beside sentences with a prefix the last bits of one without would not be what
    they are alone, and a last bit may decide what int8 rounds to.
    """
    batches: list[list[Example]] = []
    width = 0
    for example in sorted(examples, key=lambda e: (not e.prefix_ids, -length(e))):
        n = len(batches[-1]) + 1 if batches else 1
        size = n if batch_type == "sents" else n * width
        other = batches and bool(batches[-1][0].prefix_ids) != bool(example.prefix_ids)
        if not batches or other or size > batch_size or n > max_sentences:
            batches.append([])
            width = length(example)
        batches[-1].append(example)
    return batches


def join_batches(
    batches: list[list[Example]], refills: bool = True
) -> list[tuple[list[Example], int]]:
    """Join batches to buckets for a search that refills: the sentences of each bucket, and the
    number that runs at once.  Without refilling, each batch is a bucket.

    As many run as the bucket's first batch has.  The longest sentence of a bucket is at most twice
    as long as the longest of each of its batches, since all slots are as wide as the longest.
    """
    buckets: list[tuple[list[Example], int]] = []
    longest = 0
    for batch in batches:
        width = source_length(batch[0])
        # Batches without prefixes begin with a wider one
        if not refills or not buckets or 2 * width < longest or width > longest:
            buckets.append(([], len(batch)))
            longest = width
        buckets[-1][0].extend(batch)
    return buckets


def pad_batch(examples: list[Example], pad_id: int, device: torch.device) -> Batch:
    """Pad examples to a batch; src (B, S) and src_lengths (B,) on the device."""
    lengths = [len(e.src_ids) for e in examples]
    rows = [e.src_ids + [pad_id] * (max(lengths) - len(e.src_ids)) for e in examples]
    copied = [
        e.copy_ids + [0] * (max(lengths) - n) for e, n in zip(examples, lengths) if e.copy_ids
    ]
    return Batch(
        examples,
        torch.tensor(rows, device=device),  # (B, S)
        torch.tensor(lengths, device=device),  # (B,)
        torch.tensor(copied, device=device) if copied else None,  # (B, S)
    )
