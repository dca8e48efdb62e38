"""Options of OpenNMT-py's translate.py, 2018 to 3.5.1: each works, has no effect, or is rejected.

`data/opennmt/options.tsv` lists them with type, default in 0.5 to 0.9 (d18) and in 3.5.1 (d35) as
JSON (- if the version lacks the option), class, and a value other than the default.

T  works; tested with the option
C  is not needed: a notice on stderr, and the output does not change
N  is not for text translation: rejected with a reason

`data/opennmt/eole.tsv` lists the options of Eole's predict, 0.6.4, with their defaults.
"""

import csv
import json
import logging
import re
from pathlib import Path

import pytest
import yaml

import translate
from onmt_lite.config.help import format_markdown
from onmt_lite.config.options import OPTIONS, load_options
from onmt_lite.config.other_tools import (
    NO_EQUIVALENT,
    TRAINING_ONLY,
    find_hint,
    load_opennmt_options,
)
from onmt_lite.errors import OptionError
from tests.support.files import DATA
from tests.support.sweeps import mark_sweeps

TABLE = Path(__file__).parents[2] / "data" / "opennmt" / "options.tsv"
with open(TABLE, encoding="utf-8", newline="") as table:
    ROWS = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
with open(TABLE.with_name("eole.tsv"), encoding="utf-8", newline="") as table:
    EOLE = dict(list(csv.reader(table, delimiter="\t", quoting=csv.QUOTE_NONE))[1:])
NAMES = [row["option"] for row in ROWS]
BY_CLASS = {c: [row["option"] for row in ROWS if row["class"] == c] for c in "TCN"}
ASKS = {row["option"]: json.loads(row["asks"]) for row in ROWS if row["asks"] != "-"}
# Booleans with a value in OpenNMT-py
SPELT_OUT = {row["option"] for row in ROWS if row["type"] == "bool"}
TRAINED = DATA / "onmt351_transformer.pt"


def defaults(version):
    """Return the defaults of d18 or d35 that YAML can express."""
    cells = {row["option"]: row[version] for row in ROWS if row[version] not in ("-", "required")}
    return {name: json.loads(cell) for name, cell in cells.items() if name != "config"}


def words(name, value):
    """Return an option as words of a command line."""
    if value is True and name not in SPELT_OUT:
        return [f"-{name}"]
    items = value if isinstance(value, list) else [value]
    return [f"-{name}", *(item if isinstance(item, str) else json.dumps(item) for item in items)]


def find_lines(err, name):
    """Return the lines of stderr that contain the option name."""
    return [line for line in err.split("\n") if re.search(rf"\b{name}\b", line)]


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """run(values, *argv) -> exit code, stdout and stderr with values in a YAML file"""
    monkeypatch.chdir(tmp_path)
    Path("src.txt").write_text("w37 w3 w90 w24\nw5 w81\n", encoding="utf-8")

    def run_once(values, *argv):
        places = {"model": str(TRAINED), "src": "src.txt"}
        Path("a.yaml").write_text(yaml.safe_dump({**places, **values}), encoding="utf-8")
        code = translate.main(["-config", "a.yaml", *argv])
        out, err = capfd.readouterr()
        # Words of the model contain digits, so its translations have number warnings
        return code, out, re.sub(r"(?m)^(lines .*\[numbers\]|    \d+: .*)\n", "", err)

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


def test_option_table_is_complete():
    assert len(NAMES) == len(set(NAMES)) and all(BY_CLASS.values())
    assert set(NAMES) <= {*OPTIONS, *load_opennmt_options()}
    # 2.2 to 3.0, and a training option
    assert set(load_opennmt_options()) - set(NAMES) - set(EOLE) == {"src_feats", "fp16"}
    assert set(ASKS) == {*BY_CLASS["C"], *BY_CLASS["N"], "precision"}
    for name in ASKS:
        row = ROWS[NAMES.index(name)]
        assert ASKS[name] not in [json.loads(row[d]) for d in ("d18", "d35") if row[d] != "-"]


@pytest.mark.parametrize("name", sorted(EOLE))
def test_eole_option_is_accepted_or_has_hint(name, tmp_path):
    """The name is an option, is accepted without effect, or gets an error with an equivalent."""
    if name not in OPTIONS and name not in load_opennmt_options():
        problem = f"unknown option {name}; {find_hint(name, OPTIONS)} (command line)"
        with pytest.raises(OptionError) as caught:
            load_options([f"-{name}", "1"])
        assert caught.value.problems == (problem,) and "None" not in problem
    elif EOLE[name] != "-" and name != "output":
        path = tmp_path / "a.yaml"
        path.write_text(f"{name}: {EOLE[name]}\n", encoding="utf-8")
        assert load_options(["-config", str(path)])[0].notes in ((), (SMALL_BATCH,))


SMALL_BATCH = (
    "batch_size 30 counts tokens, and small batches are slow; use -batch_type sents to count "
    "sentences"
)


def test_eole_command_line_gets_hint_per_option(tmp_path):
    words = "-model_path m -compute_dtype fp16 -engine ct2 -ref r -trackio true -task translate"
    words = ["predict", "-c", "a.yaml", *words.split(), "-hf_token", "secret"]
    with pytest.raises(OptionError) as caught:
        load_options(words)
    first, *rest = caught.value.problems
    assert first.startswith("'predict' does not belong to any option; ")
    assert [problem.removesuffix(" (command line)") for problem in rest] == [
        "unknown option c; use config instead",
        "unknown option model_path; use model instead",
        "unknown option compute_dtype; use precision instead",
        "unknown option engine; use search instead (ctranslate2 for engine ct2)",
        f"unknown option ref; {NO_EQUIVALENT}",
        f"unknown option trackio; {TRAINING_ONLY}",
        "unknown option hf_token; set the environment variable HF_TOKEN and remove it",
        "task translate: only text can be translated; remove it",
    ]


@pytest.mark.parametrize("version", ["d18", "d35"])
def test_opennmt_defaults_in_one_file_run_without_notices(run, version):
    code, out, err = run(defaults(version))
    assert (code, out.count("\n"), err) == (0, 2, "")


@pytest.mark.parametrize("name", BY_CLASS["C"] + BY_CLASS["N"])
def test_neutral_value_causes_no_notice(name, tmp_path):
    for version in ("d18", "d35"):
        if name not in (values := defaults(version)):
            continue
        path = tmp_path / f"{version}.yaml"
        path.write_text(yaml.safe_dump({name: values[name]}), encoding="utf-8")
        assert load_options(["-config", str(path)])[0].notes == ()
        if values[name] not in (None, [], False):
            assert load_options(words(name, values[name]))[0].notes == ()


@pytest.mark.parametrize(
    ("yaml", "argv", "problem"),
    [
        ("data_type: [img, audio]", "", "data_type img audio: only text can be translated; "),
        ("", "-data_type", "data_type true: only text can be translated; "),
        ("seed: -2", "", "seed: must be an integer between 0 and"),
        ("", "-seed -2", "seed: must be an integer between 0 and"),
        (
            "tgt: {a: 1}",
            "",
            "tgt: must be a path, got {'a': 1}; set tgt to a single value (",
        ),
    ],
)
def test_unsupported_value_is_rejected(tmp_path, yaml, argv, problem):
    (tmp_path / "a.yaml").write_text(yaml, encoding="utf-8")
    with pytest.raises(OptionError) as caught:
        load_options(["-config", str(tmp_path / "a.yaml"), *argv.split()])
    (found,) = caught.value.problems
    assert found.startswith(problem)


def test_neutral_value_resets_option_to_default(tmp_path):
    """The neutral value overrides the value of another source."""
    path = tmp_path / "a.yaml"
    for text, argv, seed, origin in [
        ("seed: -1\ntgt_prefix: false", "", 829, "default"),
        ("seed: -1", "-seed 7", 7, "command line"),
        ("seed: 7", "-seed -1", 829, "default"),
    ]:
        path.write_text(text, encoding="utf-8")
        _, resolved = load_options(["-config", str(path), *argv.split()])
        assert (resolved.values["seed"], resolved.values["tgt_prefix"]) == (seed, "")
        assert resolved.origins["seed"] == origin
    path.write_text("world_size: 2", encoding="utf-8")
    assert load_options(["-config", str(path), "-world_size", "1"])[0].notes == ()
    path.write_text("src_onmttok_kwargs: {'a': true, b: [1, x]}", encoding="utf-8")
    _, resolved = load_options(["-config", str(path)])
    assert resolved.values["src_onmttok_kwargs"] == "{'a': True, 'b': [1, 'x']}"


@pytest.mark.parametrize("name", mark_sweeps(BY_CLASS["C"], BY_CLASS["C"][::5]))
def test_option_without_effect_has_one_notice_and_same_output(run, name):
    plain = run({})
    assert plain[0] == 0 and plain[2] == ""
    asks = words(name, ASKS[name])
    for given, argv in [({}, asks), ({name: ASKS[name]}, []), ({name: ASKS[name]}, asks)]:
        code, out, err = run(given, *argv)
        assert (code, out) == plain[:2]
        assert len(find_lines(err, name)) == 1, err
        assert err.count("\n") == 1


@pytest.mark.parametrize("name", BY_CLASS["N"])
def test_unsupported_option_is_rejected_with_remedy(run, name):
    for given, argv in (({name: ASKS[name]}, []), ({}, words(name, ASKS[name]))):
        code, out, err = run(given, *argv)
        assert (code, out) == (2, "")
        (line,) = err.rstrip("\n").split("\n")
        assert name in line and "remove it" in line and "unknown option" not in line


# -- options that work, if not tested elsewhere ---------------------------------------------------


@pytest.mark.parametrize("name", ["log_file_level", "random_sampling_topk", "fp32", "seed"])
def test_supported_option_causes_no_notice(run, name):
    values = {"log_file_level": "ERROR", "random_sampling_topk": 1, "fp32": True, "seed": -1}
    given = {"log_file": "log.txt", name: values[name]}
    assert run(given) == run({})
    more = words(name, values[name])
    assert run({"log_file": "log.txt"}, *more) == run({})


@pytest.mark.parametrize("level", ["NOTSET", "INFO", 20, "10", 0, "WARNING", 40, "CRITICAL"])
def test_log_file_level_applies_to_log_file_only(run, level):
    *_, plain = run({"verbose": True})
    code, _, err = run({"verbose": True, "log_file": "log.txt", "log_file_level": level})
    assert (code, err) == (0, plain) and plain
    logged = Path("log.txt").read_text(encoding="utf-8")
    if level in ("WARNING", 40, "CRITICAL"):
        assert logged == ""
    else:
        assert "PRED SCORE" in logged


@pytest.mark.parametrize("level", ["info", 15, True, "25"])
def test_log_file_level_unknown_is_rejected(run, level):
    code, _, err = run({"log_file": "log.txt", "log_file_level": level})
    assert code == 2 and "log_file_level: must be one of NOTSET, DEBUG, INFO" in err


def test_max_sent_length_sets_max_length(run):
    long, short = run({}), run({"max_length": 2})
    assert run({"max_sent_length": 2})[1] == run({}, "-max_sent_length", "2")[1] == short[1]
    assert long[1] != short[1]


def test_random_sampling_topk_1_does_not_change_beam(run):
    given = {"beam_size": 4, "n_best": 4}
    plain = run(given)
    assert run({**given, "random_sampling_topk": 1}) == plain
    assert len(set(plain[1].split("\n"))) > 4
    # 3.5.1 samples from a single token, so all hypotheses are equal
    given |= {"search": "opennmt-3", "random_sampling_topk": 1}
    code, out, err = run(given)
    assert code == 0 and len(find_lines(err, "random_sampling_topk")) == 1
    assert len(set(out.rstrip("\n").split("\n"))) == 2


def test_md_prints_option_table(capfd):
    assert translate.main(["-md"]) == 0
    assert capfd.readouterr() == (format_markdown(OPTIONS) + "\n", "")


def test_save_config_exits_and_saved_file_gives_same_output(run):
    given = {"search": "fairseq", "n_best": 2, "fp32": True, "fast": True, "seed": -1}
    *plain, _ = run(given)
    assert run(given, "-save_config", "saved.yaml") == (0, "", "")
    first, reloaded = (load_options(["-config", name])[1] for name in ("a.yaml", "saved.yaml"))
    assert reloaded.values == {**first.values, "config": ("saved.yaml",)}
    code = translate.main(["-config", "saved.yaml", "-output", "out.txt"])
    assert [code, Path("out.txt").read_text(encoding="utf-8")] == plain
