"""The shipped model's weights in other systems translate as our `-search` of their name does.

pip install ctranslate2 transformers && python -m pytest tests/exactness/peers
"""

import os
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.systems import ctranslate2, n_tokens, read_parts, search_of, transformers
from benchmarks.workloads import make_workload, write_formats
from onmt_lite import Translator
from onmt_lite.export import main as export

SAMPLE = Path(__file__).parents[3] / "data" / "sample.de.txt"
MAX_LENGTH = 250
NAMES = {"ctranslate2": "CTranslate2", "transformers": "transformers"}


def opennmt_py(job):
    """OpenNMT-py 3, by the engine of its onmt_translate."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it is older than that rule of torch
    from onmt.inference_engine import InferenceEnginePY
    from onmt.opts import translate_opts
    from onmt.utils.parse import ArgumentParser

    parts, encode, decode = read_parts(job)
    ends = [parts["src_tokens"][i] for i in parts["src_end"]]
    parser = ArgumentParser()
    translate_opts(parser)
    words = f"-src - -gpu -1 -beam_size {job['beam_size']} -batch_size 64 -max_length {MAX_LENGTH}"
    files = ["-model", f"{job['folder']}/exported.pt", "-output", f"{job['folder']}/pred.txt"]
    export(["-model", job["model"], "-to", "opennmt-py", "-output", files[1]])
    options = parser.parse_args([*words.split(), *files])
    ArgumentParser.validate_translate_opts(options)
    ArgumentParser._get_all_transform_translate(options)
    ArgumentParser._validate_transforms_opts(options)
    engine = InferenceEnginePY(options)

    def translate(lines, search):
        _, found = engine.infer_list([" ".join(encode(line) + ends) for line in lines])
        outputs = [best[0].split() for best in found]
        return [*map(decode, outputs)], n_tokens(outputs, job)

    return translate, "", ""


@pytest.mark.parametrize("beam_size", [5, 1])
@pytest.mark.parametrize(
    ("package", "system"),
    [("ctranslate2", ctranslate2), ("transformers", transformers), ("onmt", opennmt_py)],
)
def test_translates_as_our_search(package, system, beam_size, tmp_path):
    pytest.importorskip(package)
    workload = make_workload("shipped", Namespace(src=SAMPLE, tgt=None, lines=None), tmp_path)
    write_formats(workload, tmp_path, wants_ctranslate2=package == "ctranslate2")
    job = {"model": workload.model, "is_marian": False, "length": None, "folder": str(tmp_path)}
    job |= {"precision": "float32", "threads": 1, "beam_size": beam_size}
    found, n_found = system(job)[0](workload.lines, "")
    search = "opennmt-3" if package == "onmt" else search_of(f"{NAMES[package]} float32")
    ours = Translator.from_pretrained(workload.model, precision="fp32", threads=1)
    limits = {"beam_size": beam_size, "max_length": MAX_LENGTH}
    expected = ours.translate(workload.lines, search=search, **limits)
    assert found == [t.hyps[0].text for t in expected]
    assert n_found > 3 * len(workload.lines)
