"""The options of translate.py: names, defaults, conflicts and print_config."""

import math
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from onmt_lite.config.option import META_NAMES
from onmt_lite.config.options import GROUPS, OPTIONS, PROGRAM, TranslateOptions, load_options
from onmt_lite.config.rules import find_errors
from onmt_lite.errors import OptionError
from onmt_lite.export import PROGRAM as EXPORTER
from onmt_lite.models.kernels import build
from onmt_lite.search.presets import PRESETS
from onmt_lite.train.options import PROGRAM as TRAINER

ROOT = Path(__file__).resolve().parents[3]
META = META_NAMES  # never part of a configuration


def catch_problems(*argv):
    with pytest.raises(OptionError) as caught:
        load_options(list(argv))
    return caught.value.problems


def test_defaults_match_design():
    options, resolved = load_options([])
    assert set(resolved.origins.values()) == {"default"}
    search = options.search
    assert (search.beam_size, search.n_best, search.length_penalty) == (5, 1, "avg")
    assert (search.alpha, search.min_length, search.max_length) == (1.0, 0, 250)
    assert (search.max_length_ratio, search.block_ngram_repeat) == (2.0, 0)
    assert (search.coverage_penalty, search.stepwise_penalty) == ("none", False)
    assert (options.data.src, options.data.output, options.data.tgt) == ("-", "-", None)
    assert (options.data.output_format, options.data.format) == ("auto", "text")
    assert (options.speed.batch_type, options.speed.batch_size) == ("tokens", None)
    assert (options.text.tokenizer, options.speed.device) == ("auto", "auto")


def test_every_option_has_help_and_valid_default():
    for name, option in OPTIONS.items():
        assert len(option.help.split()) >= 2 and option.help[0].isupper(), name
        assert option.help == option.help.strip() and option.help[-1] not in ".\n", name
    assert len({option.help for option in OPTIONS.values()}) == len(OPTIONS)
    given_again = {n: o.default for n, o in OPTIONS.items() if o.default is not None}
    given_again = {n: default for n, default in given_again.items() if n not in META}
    assert TranslateOptions.of(**given_again) == TranslateOptions.of()


# Valid values of string options that do not accept every string
WORDS_OF = {"device": "cpu", "shard": "1/1", "tokenizer": "space", "transforms": "suffix"}
WORDS_OF |= dict.fromkeys(("src_onmttok_kwargs", "tgt_onmttok_kwargs"), "{}")
WORDS_OF |= {"dump_beam": "beam.json"}


@pytest.mark.parametrize(
    ("argv", "has_notice"),
    [("", False), ("-batch_size 30", True), ("-batch_size 2048", False), ("-batch_size 1", False)]
    + [(f"-batch_size 30 -batch_type {unit}", False) for unit in ("sents", "tokens")],
)
def test_batch_size_small_token_count_causes_notice(argv, has_notice):
    options, _ = load_options(argv.split())
    assert any("batch_type sents" in note for note in options.notes) == has_notice


REMEDY = re.compile(r"; |: must be |did you mean|takes one value|needs at least one value")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-out x", "did you mean output"),
        ("-beam 3", "beam_size"),
        ("-batch 3", "did you mean batch_size or batch_type?"),
        ("-n_bes 3", "did you mean n_best or n_best_unique?"),
        ("-beam_size 1000000000", "between 1 and 1000"),
        ("-data_type img", "only text can be translated"),
        ("-data_type audio -sample_rate 8000", "only text can be translated"),
        ("-src_dir images", "only text can be translated"),
        ("-gold_align", "requires report_align"),
        ("-n_src_feats 2", "remove it"),
        ("-mask_ratio 0.3", "is used in training only; remove it"),
        ("-response_patterns x", "is used in training only; remove it"),
        ("-train_steps 100", "remove it"),
        ("-n_best 6", "n_best 6 is more than beam_size 5; raise beam_size or lower n_best"),
        ("-min_length 9 -max_length 8", "lower min_length or raise max_length"),
        ("-model_weights 1 2 3 -model a b", "set one weight per model"),
        ("-phrase_table x", "phrase_table requires replace_unk; set it as well, or remove"),
        ("-tgt_file_prefix", "tgt_file_prefix requires tgt or tgt_prefix; "),
        ("-tgt_prefix", "tgt_file_prefix requires tgt or tgt_prefix; "),
        ("-random_sampling_temp 0.5", "requires do_sample, random_sampling_topk or "),
        (
            "-diversity_rate 1 -search transformers",
            "requires beam_groups 2 or more; ",
        ),
        ("-beam_groups 2 -search transformers", "multiple of 2"),
        ("-beam_groups 2 -beam_size 4 -do_sample -search transformers", "remove one of them"),
        ("-random_sampling_topk 5 -search fairseq", "require do_sample; set it as well"),
        ("-early_stopping true", "or use one of -search transformers-2, transformers, "),
        ("-early_stopping never -search transformers-2", "use true or false"),
        ("-length_penalty 0.6", "must be one of none, wu, avg, got '0.6'; the exponent is alpha"),
        ("-coverage_penalty 0.2", "got '0.2'; its weight is beta"),
        ("-length_penalty wu -search fairseq", "use none or avg"),
        ("-coverage_penalty summary -beta 1 -search ctranslate2", "use none or wu"),
        ("-gpu 0 -device cpu", "remove one of them"),
        ("-gpu -1 -device cuda", "gpu"),
        ("-gpu 0 -1", "gpu 0 -1: -1 is the CPU"),
        ("-gpu 0 1 -workers 3", "one worker per GPU"),
        ("-gpu -2", "gpu: must be an integer between -1 and 99"),
        ("-workers 257", "between 1 and 256"),
        ("-device gpu", "must be auto, cpu, cuda or cuda:N"),
        ("-device cuda:-1", "must be auto, cpu, cuda or cuda:N"),
        ("-device ''", "must be auto, cpu, cuda or cuda:N"),
        ("-verbose -quiet", "remove one of them"),
        ("-tgt -", "use a file for one of them"),
        ("-tgt", "tgt: takes one value, got none"),
        ("-transforms docify", "apply it to the input file first"),
        ("-transforms inferfeats", "remove it"),
        ("-transforms bpe sentencepiece -src_subword_model a -share_vocab", "use one of"),
        ("-transforms prefix -tokenizer space", "remove one of them"),
        (
            "-transforms bpe -src_subword_model a -share_vocab -detokenizer bpe",
            "remove detokenizer",
        ),
        ("-transforms bpe", "set it to the subword model"),
        ("-transforms bpe -src_subword_model a", "or share_vocab"),
        ("-src_onmttok_kwargs x", "must be a dict"),
        ("-config none.yaml", "cannot be read"),
        ("-precision int4", "must be one of auto, fp32, bf16, fp16, int8"),
        ("x.txt", "python -m onmt_lite -src x.txt"),
    ],
)
def test_error_has_remedy(line, words):
    problems = catch_problems(*shlex.split(line))
    assert words in "\n".join(problems)
    for problem in problems:
        assert REMEDY.search(problem) or "cannot be read" in problem, problem


def test_compatible_options_are_accepted():
    lines = "-n_best 5 | -min_length 8 -max_length 8 | -gpu -1 | -gpu 0 -device auto | "
    lines += "-verbose -quiet false | -src a -tgt - | -device cuda:1"
    for line in lines.split(" | "):
        load_options(line.split())


def test_errors_of_all_sources_are_reported_together(tmp_path):
    config = tmp_path / "a.yaml"
    config.write_text("beam_size: 2\nn_best: 3\nbeam_siez: 4\nalpha: x\nconfig: b.yaml\n")
    found = catch_problems("-config", str(config), str(tmp_path / "no.yaml"), "-batch_size", "0")
    text = "\n".join(found)
    assert len(found) == 6
    for word in ("beam_siez", "alpha", "config", "no.yaml", "batch_size", "n_best 3"):
        assert word in text


@pytest.mark.parametrize(
    "line", ["config: x.yaml", "print_config: true", "help: true", "version: true"]
)
def test_config_option_in_yaml_is_rejected(tmp_path, line):
    config = tmp_path / "a.yaml"
    config.write_text(line)
    (problem,) = catch_problems("-config", str(config))
    assert problem.startswith(line.split(":")[0])
    assert "command line" in problem
    assert f"{config}:1" in problem


def test_config_later_source_overrides_earlier(tmp_path):
    for name, text in [("a", "beam_size: 2\nalpha: 0.5\nverbose: true"), ("b", "beam_size: 3")]:
        (tmp_path / f"{name}.yaml").write_text(text)
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    options, resolved = load_options(["-config", *files, "-verbose", "false"])
    assert (options.search.beam_size, options.search.alpha) == (3, 0.5)
    assert options.information.verbose is False
    assert resolved.origins["beam_size"] == f"{files[1]}:1"
    assert resolved.origins["alpha"] == f"{files[0]}:2"
    options, resolved = load_options(["-beam_size", "5", "-config", *files])
    assert options.search.beam_size == 5  # given, although it equals the default
    assert resolved.origins["beam_size"] == "command line"
    apart = ["-config", files[0], "-config", files[1]]  # as one -config with both
    assert load_options(apart)[0].search == load_options(["-config", *files])[0].search


def test_keyword_errors_equal_command_line_errors():
    assert TranslateOptions.of(beam_size=4, model=Path("m")).model.model == ("m",)
    for wrong in ({"beam_size": 0}, {"beam_siez": 3}, {"n_best": 9}, {"alpha": math.nan}):
        with pytest.raises(OptionError) as caught:
            TranslateOptions.of(**wrong)
        ((name, value),) = wrong.items()
        (problem,) = catch_problems(f"-{name}", str(value))
        problem = problem.replace(repr(str(value)), repr(value))
        problem = problem.replace("n_best 9", "n_best=9").replace("beam_size 5", "beam_size=5")
        assert caught.value.problems == (problem.replace("command line", "keyword argument"),)


def test_keyword_values_are_strictly_typed():
    assert TranslateOptions.of(alpha=2).search.alpha == 2.0
    assert TranslateOptions.of(gpu=None) == TranslateOptions.of()
    for wrong in ({"beam_size": 5.0}, {"beam_size": True}, {"verbose": 1}, {"alpha": 10**400}):
        with pytest.raises(OptionError):
            TranslateOptions.of(**wrong)


def value_of(option):
    """Return a strategy for valid values of an option."""
    if option.choices:
        one = st.sampled_from(option.choices)
    elif option.name == "device":
        one = st.sampled_from(["auto", "cpu", "cuda", "cuda:0", "cuda:7"])
    elif option.name in WORDS_OF:
        one = st.just(WORDS_OF[option.name])
    elif option.value_type is bool:
        one = st.booleans()
    elif option.value_type is str:
        one = st.text(st.characters(exclude_characters="\0"), min_size=1)
    else:
        low, high = option.bounds["min"], option.bounds["max"]
        # Small values are likely, so that conflicts between options occur
        if option.value_type is int:
            few = low + 9 if high is None else min(low + 9, high)
            one = st.one_of(st.integers(low, few), st.integers(low, high))
        else:
            above = option.bounds["above"]
            one = st.floats(low if above is None else above, high, exclude_min=above is not None)
            one = one.filter(math.isfinite)
    return st.lists(one, min_size=1, max_size=3).map(tuple) if option.is_list else one


SOME = st.sets(st.sampled_from([n for n in OPTIONS if n not in META]), max_size=8)
VALID = SOME.flatmap(lambda names: st.fixed_dictionaries({n: value_of(OPTIONS[n]) for n in names}))


@settings(deadline=None, max_examples=120)
@given(VALID)
@example({"model": ("a", "-b", "5", "null")})
@example({"gpu": -1, "alpha": -1e-9})
@example({"src": " a: b # c\n'", "tgt": "\x85"})
def test_print_config_output_loads_same_values(tmp_path_factory, values):
    try:
        options = TranslateOptions.of(**values)
    except OptionError:
        assume(False)  # conflicting options
    base = tmp_path_factory.getbasetemp()
    first, second = base / "first.yaml", base / "second.yaml"
    plain = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
    first.write_text(yaml.safe_dump(plain), encoding="ascii")
    loaded, resolved = load_options(["-config", str(first)])
    # test_sources.py tests lists that are empty by default
    text = re.sub(r"(?m)^\w+: \[\]  # default\n", "", resolved.to_yaml())
    second.write_text(text, encoding="utf-8", newline="\n")
    reloaded, _ = load_options(["-config", str(second)])
    for name in GROUPS:
        assert getattr(loaded, name) == getattr(options, name)
        assert getattr(reloaded, name) == getattr(options, name)
    for name in values:
        assert f"# {first}:" in text.split(f"{name}: ", 1)[1]


@settings(deadline=None, max_examples=60)
@given(VALID)
def test_command_line_and_keywords_give_same_options(values):
    """Words and typed values have the same result; -name=VALUE accepts any string."""
    argv = []
    for name, value in values.items():
        if OPTIONS[name].is_list:
            words = [repr(item) if isinstance(item, float) else str(item) for item in value]
            assume(not any(word.startswith("-") for word in words))
            argv += ["-" + name, *words]
        else:
            word = repr(value) if isinstance(value, float) else str(value)
            argv.append(f"--{name}={word.lower() if isinstance(value, bool) else word}")
    try:
        expected = TranslateOptions.of(**values)
    except OptionError as error:
        assert len(catch_problems(*argv)) == len(error.problems)
    else:
        assert load_options(argv)[0] == expected


WORDS = st.one_of(
    st.sampled_from([f"-{name}" for name in OPTIONS if name != "config"]),
    st.sampled_from([f"--{name}=" for name in OPTIONS if name != "config"]),
    st.sampled_from("0 1 -1 2.5 1e400 true false none avg - -- cuda:0 jsonl x -beam".split()),
    st.text(max_size=4),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(WORDS, max_size=8))
def test_any_command_line_gives_options_or_option_error(argv):
    assume(not any(word.lstrip("-").startswith("config") for word in argv))
    try:
        options, resolved = load_options(argv)
    except OptionError as error:
        assert error.problems
        assert all(isinstance(problem, str) and problem for problem in error.problems)
    else:
        assert not find_errors(PROGRAM.rules, resolved.values)
        assert 1 <= options.search.n_best <= options.search.beam_size
        assert options.search.min_length <= options.search.max_length


def test_options_load_without_torch():
    """Errors in options must be reported without importing torch, which takes seconds."""
    code = (
        "import sys, onmt_lite, onmt_lite.config.options, onmt_lite.config.cli\n"
        "import onmt_lite.errors, onmt_lite.system.terminal, translate\n"
        "assert translate.main(['-nope']) == 2\n"
        "assert translate.main(['-print_config']) == 0\n"
        "found = {'torch', 'numpy', 'sentencepiece', 'tqdm'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {found}' if found else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


# -- empty paths ----------------------------------------------------------------------------------

NEEDED = {"onmt_lite.train": {"train": "t.tsv", "output": "d", "train_steps": 1}}
NEEDED["onmt_lite.export"] = {"model": "m", "output": "o.pt", "to": "opennmt-py"}
PATHS = [
    (program, name)
    for program in (PROGRAM, TRAINER, EXPORTER)
    for name, option in program.options.items()
    if option.is_path
]


@pytest.mark.parametrize(
    ("program", "name"), PATHS, ids=[f"{program.name} {name}" for program, name in PATHS]
)
def test_empty_path_counts_as_not_given(program, name, tmp_path):
    needed = [(n, v) for n, v in NEEDED.get(program.name, {}).items() if n != name]

    def values(*argv):
        argv = [*(word for n, v in needed for word in (f"-{n}", str(v))), *map(str, argv)]
        try:
            return {**program.load(argv)[1].values, "config": ()}
        except OptionError as error:  # a required option
            return error.problems

    (tmp_path / "empty.yaml").write_text(f"{name}: ''\n", "utf-8")
    usual = values()
    assert values(f"-{name}", "") == values(f"--{name}=") == usual
    assert values("-config", tmp_path / "empty.yaml") == usual
    if name != "config":
        assert values(f"-{name}", "x.html", f"-{name}", "") == usual


def test_empty_path_as_keyword_counts_as_not_given():
    empty = {name: "" for program, name in PATHS if program is PROGRAM}
    options = TranslateOptions.of(**empty)
    assert options == TranslateOptions.of() and not options.given
    assert TranslateOptions.of(model=["", "a"]).model.model == ("a",)


@pytest.mark.parametrize("search", PRESETS)
def test_parsing_works_without_network_and_compiler(search, monkeypatch, tmp_path):
    """-print_config works without them, too."""

    def fail(*args, **more):
        raise AssertionError("options are only parsed")

    monkeypatch.setattr(socket, "socket", fail)
    monkeypatch.setattr(subprocess, "Popen", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, resolved = load_options(["-device", "cpu", "-search", search, "-model", "team/model"])
    comments = PROGRAM.describe_auto(resolved.values)
    TranslateOptions.of(model="team/model", search=search, device="cpu")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    if search == "opennmt" and not list(build.SOURCE.parent.glob("library*.so")):
        assert comments["precision"].endswith("kernels: not compiled yet")
