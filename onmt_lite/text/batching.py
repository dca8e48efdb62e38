"""Examples to padded batches."""

import torch

from onmt_lite.records import Batch, Example


def make_batches(examples: list[Example], batch_size: int, batch_type: str) -> list[list[Example]]:
    """Group examples of like length, longest first, so that little is padded and what does
    not fit into memory fails at once.  A batch holds at most `batch_size` sentences or padded
    source tokens, and at least one sentence."""
    batches: list[list[Example]] = []
    width = 0
    for example in sorted(examples, key=lambda e: -len(e.src_ids)):
        n = len(batches[-1]) + 1 if batches else 1
        size = n if batch_type == "sents" else n * width
        if not batches or size > batch_size:
            batches.append([])
            width = len(example.src_ids)
        batches[-1].append(example)
    return batches


def pad_batch(examples: list[Example], pad_id: int, device: torch.device) -> Batch:
    """src (B, S) on the device."""
    lengths = [len(e.src_ids) for e in examples]
    rows = [e.src_ids + [pad_id] * (max(lengths) - len(e.src_ids)) for e in examples]
    copied = [
        e.copy_ids + [0] * (max(lengths) - n) for e, n in zip(examples, lengths) if e.copy_ids
    ]
    return Batch(
        examples,
        torch.tensor(rows, device=device),
        torch.tensor(lengths, device=device),
        torch.tensor(copied, device=device) if copied else None,
    )
