"""Without a GPU, one case of each test runs on the CPU: they must not wait for a GPU to break.

ONMT_LITE_TEST_DEVICE=cpu runs all of them there.
"""

import os

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or "ONMT_LITE_TEST_DEVICE" in os.environ:
        return
    last = {item.nodeid.partition("[")[0]: item for item in items}
    left = [
        item
        for item in items
        if "requires_cuda" in item.keywords and item is not last[item.nodeid.partition("[")[0]]
    ]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
