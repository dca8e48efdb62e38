"""-help of every program."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import translate
from onmt_lite import export
from onmt_lite.config.help import (
    describe_briefly,
    describe_options,
    format_example,
    format_help,
    group_options,
)
from onmt_lite.config.option import META_NAMES, read_help
from onmt_lite.config.options import OPTIONS, load_options
from onmt_lite.config.options import PROGRAM as TRANSLATE
from onmt_lite.config.sources import Resolver
from onmt_lite.errors import OptionError
from onmt_lite.export import PROGRAM as EXPORT
from onmt_lite.export import load_export_options
from onmt_lite.ray.__main__ import main as ray_main
from onmt_lite.ray.options import PROGRAM as RAY
from onmt_lite.ray.options import load_ray_options
from onmt_lite.train import __main__ as train
from onmt_lite.train.calibrate import PROGRAM as CALIBRATE
from onmt_lite.train.options import PROGRAM as TRAIN
from onmt_lite.train.options import load_train_options

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = [TRANSLATE, TRAIN, EXPORT, RAY]
MAINS = {TRANSLATE: translate.main, TRAIN: train.main, EXPORT: export.main, RAY: ray_main}
# Required options, added to the example of another option
REQUIRED = {
    TRANSLATE: [],
    TRAIN: "-train a -valid b -output c -train_steps 9".split(),
    EXPORT: "-model a -to opennmt-py -output c.pt".split(),
    RAY: "-src a -output b".split(),
}
LOADS = {
    TRANSLATE: load_options,
    TRAIN: load_train_options,
    EXPORT: load_export_options,
    RAY: load_ray_options,
}
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
EVERY = [(program, name) for program in PROGRAMS for name in program.options]
every_option = pytest.mark.parametrize(
    ("program", "name"), EVERY, ids=[f"{p.name}-{name}" for p, name in EVERY]
)


@pytest.fixture
def main(capfdbinary, monkeypatch):
    """main(program, words) -> (exit code, stdout, stderr), started as translate.py"""
    monkeypatch.setattr("sys.argv", ["translate.py"])  # it is "-c" under pytest-xdist

    def run(program, *argv):
        code = MAINS[program](list(argv))
        done = capfdbinary.readouterr()
        return code, done.out.decode("utf-8"), done.err.decode("utf-8")

    return run


class TestHelp:
    def test_help_groups_are_in_order_of_use(self):
        titles = re.findall(r"(?m)^(\w[\w ]*):$", format_help(OPTIONS, ""))
        assert titles == (
            "Input and output, Model, Text, Search, Sampling, Attention, Phrases, "
            "Speed, Jobs, Information"
        ).split(", ")

    @each_program
    @pytest.mark.parametrize("columns", [0, 40, 80, 100, 300])
    def test_help_lines_fit_terminal(self, program, columns):
        """The width is between 40 and 100 columns."""
        width = max(40, min(columns, 100))
        text = format_help(program.options, "", columns) + "\n"
        names = [*program.options, *(title.lower() for title in group_options(program.options))]
        text += describe_options(names, program.options, columns)
        for line in text.split("\n"):
            assert len(line) <= width or len(line.split()) == 1, line

    @each_program
    def test_help_all_has_text_and_default_of_each_option(self, program):
        text = format_help(program.options, "usage", 100)
        squeezed = " ".join(text.split())
        for name, option in program.options.items():
            assert f"\n  -{name}" in text
            assert f"{option.help}." in squeezed
            description = squeezed.split(f"{option.help}.")[1].split(" -")[0]
            if option.value_type in (int, float) and option.default not in (None, ()):
                assert f"Default: {option.default}." in description

    def test_help_describes_requirements_and_search_defaults(self):
        text = " ".join(describe_options(["beta"], OPTIONS).split())
        assert "Effective only with -coverage_penalty wu or summary." in text
        assert "Only supported by -search opennmt, opennmt-2018, opennmt-3, ctranslate2." in text
        assert "Default by search: 1 (fairseq, ctranslate2)." in " ".join(
            describe_options(["min_length"], OPTIONS).split()
        )
        text = " ".join(describe_options(["random_sampling_topk"], OPTIONS).split())
        sampling_default = (
            "Default with -do_sample: 50 (transformers-2, transformers, transformers-5)."
        )
        assert sampling_default in text
        options, _ = load_options("-search transformers -do_sample".split())
        assert options.sampling.random_sampling_topk == 50

    @every_option
    def test_help_example_gives_same_values_as_yaml(self, program, name, tmp_path):
        option = program.options[name]
        command, pairs = format_example(option, program.options)
        assert command.split()[0] == f"-{name}"
        assert option.value_type is bool or option.example, "an example shows a value"
        if name in META_NAMES:
            return
        # Files need not exist, but options must not conflict
        given = {word[1:] for word in shlex.split(command) if re.match(r"-[a-z]", word)}
        always = REQUIRED[program]
        pairs_of_always = dict(zip(always[::2], always[1::2]))
        extra = [w for k, v in pairs_of_always.items() if k[1:] not in given for w in (k, v)]
        _, by_words = LOADS[program]([*shlex.split(command), *extra])
        config = tmp_path / "a.yaml"
        config.write_text("\n".join(pairs), encoding="utf-8")
        _, by_yaml = LOADS[program](["-config", str(config), *extra])
        assert by_words.values | {"config": ()} == by_yaml.values | {"config": ()}
        assert by_words.values[name] != option.default
        assert not [note for note in by_words.notices if note.startswith(f"{name}:")]

    def test_help_of_option_and_group(self):
        option = describe_options(["beam_size"], OPTIONS)
        assert option.startswith("-beam_size N\n") and "    YAML:          beam_size: 8" in option
        assert "an integer between 1 and 1000" in option
        group = describe_options(["sampling"], OPTIONS)
        assert group.startswith("Sampling:\n") and "-random_sampling_topk 10" in group
        both = describe_options(["search"], OPTIONS)
        assert both.startswith("-search NAME\n") and "\nSearch:\n" in both
        assert describe_options(["-Beam_Size"], OPTIONS) == option
        several = describe_options(["beam_size", "sampling"], OPTIONS)
        assert several == f"{option}\n\n{group}"

    @pytest.mark.parametrize(
        ("words", "hint"),
        [("beam_siez", "beam_size"), ("serach", "search"), ("sampeling", "sampling")],
    )
    def test_help_of_unknown_name_suggests_similar(self, main, words, hint):
        code, out, err = main(TRANSLATE, "-help", words, "beam_size")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err and f"did you mean {hint}?" in err

    @each_program
    @pytest.mark.parametrize("words", ["-help all", "--h=all"])
    def test_help_all_lists_options_by_group(self, main, program, words, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        code, out, err = main(program, *words.split())
        assert (code, err) == (0, "")
        assert re.findall(r"(?m)^  -(\w+)", out) == [
            option.name for group in group_options(program.options).values() for option in group
        ]
        assert re.findall(r"(?m)^(\w[\w ]*):$", out) == [*group_options(program.options)]

    @pytest.mark.parametrize("program", [TRANSLATE, TRAIN, RAY], ids=lambda p: p.name)
    def test_help_fits_one_page(self, main, program, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        code, out, err = main(program, "-help")
        lines = out.split("\n")[:-1]
        assert (code, err) == (0, "") and 24 <= len(lines) <= 40
        assert max(map(len, lines)) <= 80
        assert f"-help all lists all {len(program.options)} options" in " ".join(lines)
        names = re.findall(r"(?m)^  -(\w+)", out)
        assert names == [*program.common_options] and 12 <= len(names) <= 16
        assert "Default: 5." in out or program is TRAIN
        assert not re.search(r"Default: (-|0|0\.0|false)\.\n", out)

    def test_help_page_examples_load(self, main):
        """The page has all options of a typical first job."""
        _, out, _ = main(TRANSLATE, "-help")
        usual = "src output model config beam_size n_best min_length block_ngram_repeat"
        assert {*usual.split(), "output_format", "workers", "resume"} <= {*TRANSLATE.common_options}
        piped, file_command = re.findall(r"(?m)^  ([^- ].*)", out)
        command = out.split(" [options]")[0]
        assert piped == f'echo "Guten Morgen!" | {command}'
        assert file_command.startswith(f"{command} -src ")
        load_options(shlex.split(file_command.removeprefix(command)))

    @each_program
    def test_brief_help_has_complete_clauses(self, program):
        for option in program.options.values():
            brief = describe_briefly(option)
            assert brief.count("(") == brief.count(")"), brief

    @each_program
    @pytest.mark.parametrize("words", ["-help", "--help=true", "-h", "-nope 3 -help", "-help true"])
    def test_help_works_for_every_program(self, main, program, words, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        code, out, err = main(program, *words.split())
        assert (code, err) == (0, "") and "\n  -config FILE" in out
        assert max(len(line) for line in out.split("\n")) <= 80
        code, out, err = main(program, "-help", "config")
        assert (code, err) == (0, "") and out.startswith("-config FILE")

    def test_help_uses_terminal_width(self, main, monkeypatch):
        monkeypatch.setenv("COLUMNS", "60")
        _, out, _ = main(TRANSLATE, "-help", "search")
        widths = [len(line) for line in out.split("\n")]
        assert 50 < max(widths) <= 60


# -- values of YAML files -------------------------------------------------------------------------

REJECTED = (
    "beam_size: 0; beam_size: 1001; beam_size: 2.5; beam_size: many; beam_size: true;"
    "beam_size: [5]; alpha: 11; alpha: x; repetition_penalty: 0; length_penalty: average;"
    "length_penalty: 5; verbose: 1; verbose: 'true'; src: 5; src: [a]; model: {a: b};"
    "model: [a, 5]; model_weights: [1, 0]; device: gpu; beam_siez: 5; config: a.yaml;"
    "help: true; data_type: img; sample_rate: 8000; early_stopping: maybe; seed: -2"
)
ACCEPTED = (
    "beam_size: 5; beam_size:; alpha: 2; model: a.pt; model: [a.pt, b.pt]; model: [];"
    "early_stopping: true; early_stopping: never; src_onmttok_kwargs: {mode: none};"
    "world_size: 2; gpu_ranks: [0, 1]; gpu_ranks: []; seed: -1; precision: '';"
    "tgt_prefix: true; fp32: true; max_sent_length: 80; data_type: text"
)


@pytest.mark.parametrize(("texts", "taken"), [(REJECTED, False), (ACCEPTED, True)])
def test_yaml_value_is_accepted_or_rejected(texts, taken):
    for text in texts.split(";"):
        ((name, value),) = yaml.safe_load(text).items()
        resolver = Resolver(replace(TRANSLATE, rules=()))  # check single values only
        resolver.add_value(name, value, "here")
        if taken:
            resolver.resolve()
        else:
            with pytest.raises(OptionError):
                resolver.resolve()


def test_help_yaml_has_exactly_the_existing_options():
    """Every entry belongs to an option, and the first section with the option is used."""
    programs = {
        "common": OPTIONS,
        "translate": OPTIONS,
        "train": TRAIN.options,
        "calibrate": CALIBRATE.options,
        "export": EXPORT.options,
        "ray": RAY.options,
    }
    texts = read_help()
    assert texts.keys() == programs.keys()
    for section, options in programs.items():
        assert texts[section].keys() <= options.keys()
        for name, entry in texts[section].items():
            assert entry.keys() <= {"help", "example"}
            assert {"help": options[name].help, "example": options[name].example} == {
                "example": "",
                **entry,
            }


def test_help_yaml_is_read_only_for_help():
    """Starting a job does not read help.yaml."""
    read_help.cache_clear()
    load_options(["-beam_size", "3", "-src", "a.txt", "-n_best", "2"])
    assert read_help.cache_info().currsize == 0
