"""Without a GPU, run one case of each GPU test on the CPU, so that the tests stay in working order.

ONMT_LITE_TEST_DEVICE=cpu runs all cases on the CPU.
"""

import os

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or "ONMT_LITE_TEST_DEVICE" in os.environ:
        return
    last = {item.nodeid.partition("[")[0]: item for item in items}
    deselected = [
        item
        for item in items
        if "requires_cuda" in item.keywords and item is not last[item.nodeid.partition("[")[0]]
    ]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]
