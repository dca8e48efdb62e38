"""The shipped model's weights in other systems translate as our `-search` of their name does.

pip install ctranslate2 transformers==4.46.3 && python -m pytest tests/peers
"""

from pathlib import Path

import pytest

from tests.perf.speed_chart import BEAMS, SYSTEMS, reproduced

SAMPLE = Path(__file__).parents[2] / "data" / "sample.de.txt"
LINES = [line for line in SAMPLE.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize("name", ["transformers", "CTranslate2"])
def test_translates_as_our_search(name):
    system = SYSTEMS[name]
    pytest.importorskip(system.package)
    translate = system.build(1)
    for beam_size in BEAMS:
        assert translate(LINES, beam_size) == reproduced(system.search, LINES, beam_size)
