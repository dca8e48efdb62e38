"""The shipped model's weights in other systems translate as our `-search` of their name does.

pip install ctranslate2 transformers && python -m pytest tests/peers
"""

import pytest

from onmt_lite.bench.options import BenchOptions
from onmt_lite.bench.systems import PEERS, Job, build
from onmt_lite.bench.workloads import convert_to_ctranslate2, make_workload, write_formats

LINES = 13  # of the sample
EXACT = [kind for kind in PEERS if kind.precision in ("float32", "fp32")]


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    return write_formats(make_workload("shipped", BenchOptions(), folder), folder / "formats")


@pytest.mark.parametrize("beam_size", [5, 1])
@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_translates_as_our_search(kind, beam_size, formats, tmp_path):
    pytest.importorskip({"OpenNMT-py": "onmt"}.get(kind.package, kind.package))
    workload = make_workload("shipped", BenchOptions(lines=LINES), tmp_path)
    if kind.option == "ctranslate2" and not formats.ctranslate2.exists():
        convert_to_ctranslate2(formats)
    job = Job(
        kind.option, kind.precision, workload.model, str(formats.folder), LINES, 1, beam_size, None
    )
    found, n_tokens = build(job).translate(workload.lines)
    ours = build(Job("ours", "fp32", workload.model, "", LINES, 1, beam_size, None))
    assert found == ours.translate_as(workload.lines, kind.search)
    assert n_tokens > 3 * LINES
