"""The shipped model: other systems and our presets with their names give equal translations.

pip install ctranslate2 transformers && python -m pytest tests/exactness/peers
"""

import os
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.systems import (
    count_tokens,
    get_matching_search,
    load_ctranslate2,
    load_transformers,
    read_parts,
)
from benchmarks.workloads import make_workload, write_formats
from onmt_lite import Translator
from onmt_lite.export import main as export

SAMPLE = Path(__file__).parents[3] / "data" / "sample.de.txt"
MAX_LENGTH = 250
NAMES = {"ctranslate2": "CTranslate2", "transformers": "transformers"}


def load_opennmt_py(job):
    """Load OpenNMT-py 3 with the inference engine of onmt_translate."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # OpenNMT-py 3 predates weights_only
    from onmt.inference_engine import InferenceEnginePY
    from onmt.opts import translate_opts
    from onmt.utils.parse import ArgumentParser

    parts, encode, decode = read_parts(job)
    src_end = [parts["src_tokens"][i] for i in parts["src_end"]]
    parser = ArgumentParser()
    translate_opts(parser)
    args = f"-src - -gpu -1 -beam_size {job['beam_size']} -batch_size 64 -max_length {MAX_LENGTH}"
    files = ["-model", f"{job['directory']}/exported.pt", "-output", f"{job['directory']}/pred.txt"]
    export(["-model", job["model"], "-to", "opennmt-py", "-output", files[1]])
    options = parser.parse_args([*args.split(), *files])
    ArgumentParser.validate_translate_opts(options)
    ArgumentParser._get_all_transform_translate(options)
    ArgumentParser._validate_transforms_opts(options)
    engine = InferenceEnginePY(options)

    def translate(lines, search):
        _, hypotheses = engine.infer_list([" ".join(encode(line) + src_end) for line in lines])
        outputs = [best[0].split() for best in hypotheses]
        return [*map(decode, outputs)], count_tokens(outputs, job)

    return translate, "", ""


@pytest.mark.parametrize("beam_size", [5, 1])
@pytest.mark.parametrize(
    ("package", "load"),
    [
        ("ctranslate2", load_ctranslate2),
        ("transformers", load_transformers),
        ("onmt", load_opennmt_py),
    ],
)
def test_matching_preset_same_translations(package, load, beam_size, tmp_path):
    pytest.importorskip(package)
    workload = make_workload("shipped", Namespace(src=SAMPLE, tgt=None, lines=None), tmp_path)
    write_formats(workload, tmp_path, needs_ctranslate2=package == "ctranslate2")
    job = {"model": workload.model, "is_marian": False, "length": None, "directory": str(tmp_path)}
    job |= {"precision": "float32", "threads": 1, "beam_size": beam_size}
    translations, n_tokens = load(job)[0](workload.lines, "")
    search = "opennmt-3" if package == "onmt" else get_matching_search(f"{NAMES[package]} float32")
    translator = Translator.from_pretrained(workload.model, precision="fp32", threads=1)
    limits = {"beam_size": beam_size, "max_length": MAX_LENGTH}
    expected = translator.translate(workload.lines, search=search, **limits)
    assert translations == [t.hyps[0].text for t in expected]
    assert n_tokens > 3 * len(workload.lines)
