"""Complete configurations of OpenNMT-py 0.6 to 3.5: the same output as 3.5.1, and notices.

`data/opennmt/configurations.json` has each as a command line and as YAML, with the output of
OpenNMT-py 3.5.1 (`tests/exactness/peers/make_configurations.py`).
"""

import json
import logging
import re
import shlex
from pathlib import Path

import pytest
import yaml

import translate
from onmt_lite import OptionError
from onmt_lite.config.options import OPTIONS, load_options
from tests.support.files import DATA

HERE = Path(__file__).parents[2] / "data" / "opennmt"
CASES = json.loads((HERE / "configurations.json").read_text("utf-8"))
NAMES = [f"{case['model']} {case['words']} {' '.join(case['yaml'].split())}" for case in CASES]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with all files that the configurations use."""
    for path in [*HERE.glob("*.pt"), *(HERE.parent / "transforms").iterdir()]:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "trained.pt").symlink_to(DATA / "onmt351_transformer.pt")
    (tmp_path / "phrases.txt").write_text("s1|||eins\ns3|||drei\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    logging.getLogger("onmt_lite").handlers.clear()


def run(case, *more):
    """Run a configuration with -search opennmt-3 and return the exit code."""
    for name in ("src", "begin"):
        Path(f"{name}.txt").write_text("\n".join(case[name]) + "\n", encoding="utf-8")
    Path("a.yaml").write_text(case["yaml"], encoding="utf-8")
    models = [f"{name}.pt" for name in case["model"].split()]
    places = ["-model", *models, "-src", "src.txt", "-output", "out.txt", "-search", "opennmt-3"]
    config = ["-config", "a.yaml"] if case["yaml"].strip() else []
    return translate.main([*config, *places, *shlex.split(case["words"]), *more])


def output():
    return Path("out.txt").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_opennmt_yaml_gives_output_of_opennmt_py_3_5_1(folder, capfd, case):
    assert run(case) == 0
    assert output() == case["lines"]
    out, err = capfd.readouterr()
    notices = [re.match(r"NOTE: (\w+)", line) for line in err.split("\n") if "NOTE" in line]
    assert sorted(match[1] for match in notices) == sorted(case["notes"].split())
    assert out == ""


def test_opennmt_yaml_cases_cover_features():
    """Unknown tokens, with and without replacement; ensembles; prefixes; alignments."""
    lines = [line for case in CASES for line in case["lines"]]
    assert any("<unk>" in line for line in lines) and any("eins" in line for line in lines)
    assert any(re.search(r" \|\|\| \d+-\d+ ", line) for line in lines)
    assert any(" " in case["model"] for case in CASES)
    assert sum("tgt_prefix" in case["yaml"] for case in CASES) >= 4
    assert sum(len(set(case["lines"])) > 1 for case in CASES) >= 20


# -- quotes in YAML -------------------------------------------------------------------------------


def values(folder, text):
    (folder / "q.yaml").write_text(text, encoding="utf-8")
    return load_options(["-config", "q.yaml"])[1].values


@pytest.mark.parametrize("mark", ["'", '"'])
def test_yaml_quotes_are_ignored(folder, mark):
    """ConfigArgParse reads all values as words."""
    plain = (
        "beam_size 4, n_best 2, alpha 0.9, beta 1e-1, max_length_ratio 2, replace_unk true,"
        "verbose True, report_time false, length_penalty wu, gpu -1, ignore_when_blocking w1,"
        "block_ngram_repeat 3, seed -1, tgt_file_prefix False, coverage_penalty none"
    )
    pairs = [pair.split() for pair in plain.split(",")]
    bare = values(folder, "\n".join(f"{name}: {value}" for name, value in pairs))
    found = values(folder, "\n".join(f"{name}: {mark}{value}{mark}" for name, value in pairs))
    assert found == bare
    assert [type(value) for value in found.values()] == [type(value) for value in bare.values()]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("replace_unk: 1", True),
        ("replace_unk: 0", False),
        ("replace_unk: 'on'", True),
        ("replace_unk: 'No'", False),
        ("src_prefix: 5\ntransforms: prefix", "5"),
        ("gpu: ['-1']", (-1,)),
        ("ignore_when_blocking: [w1, 5]", ("w1", "5")),
        ("ignore_when_blocking: [no, 1.5]", ("no", "1.5")),
        ("tgt_lang: no", "no"),
        ("src_prefix: 1.5\ntransforms: prefix", "1.5"),
        ("src_prefix: +1_0\ntransforms: prefix", "+1_0"),
        ("tgt_prefix: 1.50\ntransforms: prefix", "1.50"),
        ("tgt_prefix: no", ""),  # a boolean in OpenNMT-py
        ("src: 2024-01-01", "2024-01-01"),
        ("src: ~", "-"),  # not given
        ("fp32: 'True'", "fp32"),
        ("log_file_level: '20'", "20"),
    ],
)
def test_yaml_value_is_parsed_like_word(folder, text, value):
    name = text.partition(":")[0]
    assert values(folder, text)["precision" if name == "fp32" else name] == value


WRONG = (
    "beam_size: '5.0'; beam_size: five; beam_size: ''; beam_size: ' 5'; beam_size: '0';"
    "replace_unk: 2; replace_unk: maybe; replace_unk: [true]; alpha: '1,5'; alpha: 'nan';"
    "beam_size: true; alpha: no; n_best: [2]; length_penalty: 5; src_prefix: [a]"
)


@pytest.mark.parametrize("text", WRONG.split(";"))
def test_yaml_invalid_quoted_value_is_rejected(folder, text):
    name = text.partition(":")[0].strip()
    with pytest.raises(OptionError, match=f"{name}: must be .*q.yaml:1"):
        values(folder, text.strip())


def test_training_option_is_rejected_with_hint(folder):
    """OpenNMT-py rejects such an option as unknown."""
    text = (
        "model_task: lm\nlora_layers: [linear_values]\nsrc_vocab: a.txt\nshare_embeddings: true\n"
    )
    with pytest.raises(OptionError) as caught:
        values(folder, text)
    assert len(caught.value.problems) == 4
    for name, problem in zip(yaml.safe_load(text), caught.value.problems):
        assert problem.startswith(f"unknown option {name}; it is a training option")
        assert name not in OPTIONS
