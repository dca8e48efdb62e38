"""Without a GPU, one case of each test runs on the CPU: they must not wait for a GPU to break."""

import os

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or "ONMT_LITE_TEST_DEVICE" in os.environ:
        return
    seen = set()
    for item in reversed(items):
        test = item.nodeid.partition("[")[0]
        if "requires_cuda" in item.keywords and test in seen:
            reason = "no GPU; ONMT_LITE_TEST_DEVICE=cpu runs these tests without one"
            item.add_marker(pytest.mark.skip(reason=reason))
        seen.add(test)
