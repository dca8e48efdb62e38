"""Errors for common mistakes: one line with option or file, problem and remedy."""

import os
import re
import shlex

import pytest

import translate
from onmt_lite import Translator
from onmt_lite.config.help import describe_options
from onmt_lite.config.option import check_value, parse_words
from onmt_lite.config.options import OPTIONS, PROGRAM, TranslateOptions, load_options
from onmt_lite.errors import CheckpointError, OnmtLiteError, OptionError
from onmt_lite.export import PROGRAM as EXPORT
from onmt_lite.export import load_export_options
from onmt_lite.train.__main__ import main as train
from onmt_lite.train.options import PROGRAM as TRAIN
from onmt_lite.train.options import load_train_options

FILES = {
    "in.de": b"Hallo\n",
    "other.de": b"Hallo\n",
    "my file.de": b"Hallo\n",
    "notes.txt": b"Hallo\n",
    "models/opus-de-en/config.json": b"{}",
    "folder/file": b"x",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with some files."""
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def catch_problem(load, *words):
    """Return the only error of a program."""
    with pytest.raises(OnmtLiteError) as caught:
        load(*words)
    problem = str(caught.value)
    assert "\n" not in problem
    return problem


# -- the command line ------------------------------------------------------------------------------

EXTRA_WORDS = [
    ("-src in.de out.en", "src: takes one value, got 2: in.de out.en", "-output out.en?"),
    ("-beam_size 5 runs/out.en", "beam_size: takes one value", "did you mean -output runs/out.en?"),
    ("-src in.de other.de", "src: takes one value", "to read all files: cat in.de other.de"),
    ("-output out.en in.de", "output: takes one value", "did you mean -src in.de?"),
    ("-src in.de -output out.en x.txt", "output: takes one value", "remove 'x.txt'"),
    ("-src in.de 5", "src: takes one value", "remove '5', or put the name of its option"),
    ("-beam_size 5 6", "beam_size: takes one value", "remove '6'"),
    ("-src in.de beam_size 5", "src: takes one value", "hyphen: -beam_size 5"),
    ("-src in.de beam_size=5", "src: takes one value", "hyphen: -beam_size=5"),
    ("-src my file.de", "src: takes one value", "quote a value with spaces: -src 'my file.de'"),
    ("-src_lang a b", "src_lang: takes one value", "quote a value with spaces: -src_lang 'a b'"),
    ("-ban_words the a", "ban_words: takes one value", "write the phrases to a file"),
    ("-device cuda 1", "device: takes one value", "remove '1'"),
    ("-shard 1 8 -src in.de", "shard: takes one value", "remove '8'"),
    ("-beam_size = 5", "beam_size: takes one value", "remove '5'"),
    ("-with_score=yes", "with_score: must be true or false", "did you mean true?"),
    ("-replace_unk 0", "replace_unk: must be true or false", "did you mean false?"),
    ("-quiet out.en", "quiet: must be true or false", "did you mean -output out.en?"),
    ("-verbose in.de", "verbose: must be true or false", "did you mean -src in.de?"),
    ("-beam_size", "beam_size: takes one value, got none", "for example: -beam_size 8"),
    ("-model", "model: needs at least one value", "for example: -model opus-mt-de-en"),
]


@pytest.mark.parametrize(("line", "start", "remedy"), EXTRA_WORDS)
def test_extra_words_suggest_option(line, start, remedy):
    problem = catch_problem(load_options, shlex.split(line))
    assert problem.startswith(start) and remedy in problem


def test_extra_words_of_other_programs_suggest_option():
    argv = "-train in.de -output r extra -train_steps 1".split()
    problem = catch_problem(load_train_options, argv)
    assert problem.endswith("remove 'extra', or put the name of its option before it")
    problem = catch_problem(load_export_options, "-model de-en to marian -output x".split())
    assert problem.startswith("model: takes one value") and problem.endswith("-to marian")


@pytest.mark.parametrize("dash", "‐ ‑ ‒ – — ― − --- -–".split())
def test_option_with_other_dash_suggests_hyphen(dash):
    for argv in ([f"{dash}beam_size", "5"], ["-src", "in.de", f"{dash}beam_size=5"]):
        problem = catch_problem(load_options, argv)
        assert "; start options with a hyphen: -beam_size" in problem


def test_dash_in_value_is_kept():
    words = ["-tgt_prefix", "–foo", "-tgt_file_prefix"]
    assert load_options(words)[0].text.tgt_prefix == "–foo"


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("beam_size 5", "start options with a hyphen: -beam_size 5"),
        ("beam_size=5", "start options with a hyphen: -beam_size=5"),
        ("in.de out.en", "-src in.de -output out.en"),
    ],
)
def test_stray_words_suggest_command(line, remedy):
    problem = catch_problem(load_options, line.split())
    assert problem.startswith(f"{line!r} does not belong to any option; ") and problem.endswith(
        remedy
    )


# -- names -----------------------------------------------------------------------------------------

NAMES = [
    ("beam", "beam_size"),
    ("Beam", "beam_size"),
    ("size", "beam_size or batch_size"),
    ("penalty", "length_penalty or coverage_penalty"),
    ("repeat", "block_ngram_repeat"),
    ("ngram", "block_ngram_repeat"),
    ("lang", "src_lang or tgt_lang"),
    ("language_code", "src_lang or tgt_lang"),
    ("lenght", "length"),
    ("beam_widht", "beam_size"),
    ("Beam_Siz", "beam_size"),
    ("sarch", "search"),
]


@pytest.mark.parametrize(("name", "suggestion"), NAMES)
def test_unknown_name_suggests_options_with_same_word(name, suggestion, folder):
    (folder / "a.yaml").write_text(f"{name}: 1\n")
    problems = [
        catch_problem(lambda: describe_options([name], OPTIONS, 80, PROGRAM.common_options)),
        catch_problem(load_options, [f"-{name}", "1"]),
        catch_problem(load_options, ["-config", "a.yaml"]),
        catch_problem(lambda: TranslateOptions.of(**{name: 1})),
    ]
    for problem in problems:
        is_fairseq = "use beam_size instead" in problem and name == "beam"  # a fairseq option
        assert is_fairseq or ("did you mean " in problem and suggestion in problem), problem


def test_help_of_foreign_name_suggests_equivalent():
    problem = catch_problem(
        lambda: describe_options(["num-beams"], OPTIONS, 80, PROGRAM.common_options, PROGRAM.hint)
    )
    assert problem.endswith("; use beam_size instead")
    problem = catch_problem(
        lambda: describe_options(["layers"], TRAIN.options, 80, TRAIN.common_options)
    )
    assert problem.endswith("did you mean enc_layers or dec_layers?")
    problem = catch_problem(lambda: describe_options(["mod"], EXPORT.options))
    assert problem.endswith("did you mean model?")
    for load in (load_train_options, load_export_options):
        with pytest.raises(OptionError, match="unknown option beam_size; it is a translation"):
            load(["-beam_size", "5"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("warmup_stps", "warmup_steps"), ("dropout_rate", "dropout"), ("train_step", "train_steps")],
)
def test_unknown_training_option_suggests_similar(name, near):
    argv = f"-train in.de -output r -train_steps 1 -{name} 1".split()
    problem = catch_problem(load_train_options, argv)
    assert problem.startswith(f"unknown option {name}; did you mean ") and near in problem


# -- values ----------------------------------------------------------------------------------------

VALUES = [
    ("precision", "FP16", "fp16"),
    ("precision", "bfloat16", "bf16"),
    ("output_format", "TEXT", "text"),
    ("search", "transfomers", "transformers"),
    ("batch_type", "sentences", "sents"),
    ("log_file_level", "info", "INFO"),
]


@pytest.mark.parametrize(("name", "word", "suggestion"), VALUES)
def test_invalid_value_suggests_similar_choice(name, word, suggestion):
    problem = catch_problem(load_options, [f"-{name}", word])
    assert problem.startswith(f"{name}: must be ")
    assert problem.endswith(f"; did you mean {suggestion}? (command line)")
    parse_words(OPTIONS[name], suggestion.split())  # must be valid


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("verbose", "yes", "true or false"),
        ("alpha", "1,5", "a number between -10 and 10"),
        ("gpu", "0,1", "an integer between -1 and 99"),
        ("device", "gpu", "auto, cpu, cuda or cuda:N"),
        ("shard", "1-8", "I/N with I from 1 to N"),
        ("search", "huggingface", "one of opennmt, .*, transformers, "),
    ],
)
def test_invalid_value_lists_valid_values(name, word, expected):
    problem = catch_problem(load_options, [f"-{name}", word])
    assert re.match(rf"{name}: must be {expected}.*, got '{word}' ", problem)


@pytest.mark.parametrize(
    "value", ["five", "5x", "5.0", "“5”", "1,000", "10**9", True, [5, 6], {"n": 5}, -1, 5.5, "٥"]
)
def test_invalid_value_without_similar_choice_has_no_suggestion(value):
    with pytest.raises(ValueError, match="must be an integer between 1 and 1000") as caught:
        check_value(OPTIONS["beam_size"], value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("-seed 1e30", "and 2^63 - 1,"),
        ("-beam_size 99999999999", "and 1000,"),
        ("-max_length 999999999", "and 100,000,"),
        ("-bucket_lines 1e12", "and 10,000,000,"),
        ("-model_weights 1e9", "at most 1,000,000,"),
    ],
)
def test_limits_are_formatted_as_digits(line, limit):
    assert limit in catch_problem(load_options, line.split())


@pytest.mark.parametrize("name", "d_model heads d_ff enc_layers dec_layers batch_tokens".split())
def test_excessive_sizes_are_rejected(name):
    argv = f"-train in.de -output r -train_steps 1 -{name} 9999999999".split()
    assert catch_problem(load_train_options, argv).startswith(f"{name}: must be an integer ")


# -- YAML ------------------------------------------------------------------------------------------

LINES = "write each option as `option: value`"
CONFIGS = [  # file, line of the error, remedy
    ("- src: in.de\n- beam_size: 5\n", 1, "write the options without `- `"),
    ('[{"beam_size": 5}]', 1, "write the options without `- ` or [ ]"),
    ("hello\n", 1, "write each option as `option: value`"),
    ("beam_size: 5\nbeam_size: 6\n", 2, "remove one of them"),
    ("src: in.de\n\tbeam_size: 5\n", 2, "cannot start any token"),
    ("beam_size=5\nn_best=1\n", 1, LINES),
    ("src: in.de\nbeam_size:5\n", 3, LINES),
    ("-beam_size 5\n-src in.de\n", 1, LINES),
    ("[translate]\nbeam_size = 5\n", 2, LINES),
    ("beam_size: 5 n_best: 2\n", 1, LINES),
    ("beam_size: 5\n  n_best: 2\n", 2, "without indentation"),
    ("  beam_size: 5\nn_best: 2\n", 2, "without indentation"),
    ('{"beam_size": 4, "n_best": 2\n', 2, "a flow mapping that starts on line 1"),
    ('src: "in.de\nbeam_size: 5\n', 3, "a quoted scalar that starts on line 1"),
    ("src: @x\n", 1, "quote values with special characters"),
    ("src: *.de\n", 1, "quote values with special characters"),
    ("src: a: b\n", 1, "quote values with special characters"),
    ("beam_size: 5\n---\nbeam_size: 6\n", 2, "use a single document: remove the line ---"),
    ('src: "C:\\Users\\new.txt"\n', 1, "write paths with / or in single quotes"),
    ('beam_size: 5\nsrc: "D:\\data\\x.txt"\n', 2, "write paths with / or in single quotes"),
    ("translate:\n  beam: 5\n", 1, "write its options at the start of a line, without translate"),
    ("model:\n  d_model: 5\n", 1, "set model to a single value"),
    ("src: [a.de, b.de]\n", 1, "set src to a single value"),
    ("ban_words: [the, a]\n", 1, "ban_words must be a file of tab-separated phrases"),
    ("data:\n  valid:\n    path_src: a\n", 1, "it is a training option"),
]


@pytest.mark.parametrize(("text", "line", "remedy"), CONFIGS)
def test_invalid_yaml_has_cause_line_and_remedy(folder, text, line, remedy):
    (folder / "a.yaml").write_text(text)
    problem = catch_problem(load_options, ["-config", "a.yaml"])
    assert f"(a.yaml:{line})" in problem and remedy in problem


def test_windows_path_works_as_suggested(folder):
    (folder / "a.yaml").write_text("src: 'C:\\Users\\new.txt'\noutput: C:/Users/out.txt\n")
    data = load_options(["-config", "a.yaml"])[0].data
    assert (data.src, data.output) == ("C:\\Users\\new.txt", "C:/Users/out.txt")


@pytest.mark.parametrize("text", ["", "# beam_size: 5\n", "---\n", "{}\n"])
def test_empty_configuration_causes_notice(folder, text):
    (folder / "a.yaml").write_text(text)
    (note,) = load_options(["-config", "a.yaml"])[0].notes
    assert note.startswith("config: has no effect; a.yaml is empty; add lines such as ")


def test_invalid_option_is_not_reported_as_missing():
    argv = "-model de-en -to onnx -output x".split()
    assert catch_problem(load_export_options, argv).startswith("to: must be one of ")


# -- files -----------------------------------------------------------------------------------------

MISSING = [
    ("-src in.ed", 5, "src in.ed: the file does not exist; src must be a text ", "mean in.de?"),
    ("-src no.html", 5, "src no.html: the file does not exist; src must be", "check the path"),
    ("-src folder/fil", 5, "src folder/fil: the file does not exist; ", "mean folder/file?"),
    ("-src $HOME/x", 5, "src $HOME/x: the file does not exist", "~ and variables are not expanded"),
    ("-src ~nobody-is-this/x", 5, "src ~nobody-is-this/x: the file", "variables are not expanded"),
    ("-src folder", 5, "src folder: it is a directory; src must be", "use the path of a file"),
    ("-tgt folder", 5, "tgt folder: it is a directory; tgt must be", "use the path of a file"),
    ("-ban_words the", 5, "ban_words the: the file does not exist; ban_words must be a file of ",
     "write the phrases to a file and pass its path"),
    ("-force_words 'good morning'", 5, "force_words good morning: the file does not exist; force_w",
     "write the phrases to a file and pass its path"),
    ("-replace_unk -phrase_table no", 4, "phrase_table no: the file does not exist; phrase_table m",
     "check the path"),
    ("-tokenizer bpe -src_subword_model no", 4, "src_subword_model no: the file does not exist; sr",
     "check the path"),
    ("-output no/out", 5, "cannot write no/out: the directory no does not", "mkdir -p no"),
    ("-log_file folder", 5, "cannot write folder: it is a directory", "use the path of a file"),
    ("-config nbst", 2, "config: cannot be read: No such file or directory (nbst)", "mean nbest?"),
    ("-model models/opus-de", 4, "no model at models/opus-de: no such ", "opus-de-en?"),
    ("-model models", 4, "no model at models: the directory has no", "mean models/opus-de-en?"),
    ("-model de_en", 4, "no model at de_en: no such file ", "did you mean de-en?"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "start", "remedy"), MISSING)
def test_missing_path_has_option_and_remedy(capfd, monkeypatch, line, code, start, remedy):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = shlex.split(line)
    words += [] if "-src" in words else ["-src", "in.de"]
    assert translate.main(words) == code
    (err,) = capfd.readouterr().err.splitlines()
    err = err.removeprefix("onmt_lite: error: ")
    assert err.startswith(start) and remedy in err


def test_missing_training_file_has_option_and_remedy(capfd):
    for option in ("train", "valid"):
        files = {"train": "in.de", "valid": "in.de", option: "no.tsv"}
        words = [word for name, path in files.items() for word in (f"-{name}", path)]
        assert train([*words, "-output", "run", "-train_steps", "1"]) == 5
        err = capfd.readouterr().err
        assert (
            f"error: {option} no.tsv: the file does not exist; {option} must be a file of `s" in err
        )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_has_option_and_remedy(capfd, folder):
    (folder / "in.de").chmod(0)
    assert translate.main(["-src", "in.de"]) == 5
    err = capfd.readouterr().err
    assert "error: src in.de: Permission denied; " in err and "; change its permissions" in err


def test_ban_words_list_instead_of_file_has_hint():
    with pytest.raises(OptionError, match="pass the phrases themselves to translate()"):
        TranslateOptions.of(ban_words=["the"])
    with pytest.raises(CheckpointError, match="no model at models: .*did you mean models/opus"):
        Translator.from_pretrained("models")


# -- the home directory ----------------------------------------------------------------------------


def test_tilde_is_expanded_in_every_path_option(folder):
    home = str(folder / "home")
    paths = {name: option for name, option in OPTIONS.items() if option.is_path}
    assert {"src", "model", "report", "dump_beam", "log_file", "ban_words"} <= paths.keys()
    for name, option in paths.items():
        for path in ("~/x.json", "~"):
            if name == "dump_beam" and path == "~":
                continue
            expanded = path.replace("~", home)
            expected = (expanded,) if option.is_list else expanded
            assert check_value(option, path) == parse_words(option, [path]) == expected
    assert check_value(OPTIONS["src"], "a/~/b") == "a/~/b"
    assert check_value(OPTIONS["src_prefix"], "~/x") == "~/x"  # not a path


def test_tilde_is_expanded_in_every_source(folder):
    (folder / "home").mkdir()
    (folder / "home" / "a.yaml").write_text("src: ~/in.de\nmodel: [~/one, two]\n")
    home = str(folder / "home")
    options = load_options(["--config=~/a.yaml", "-output=~/out.en"])[0]
    assert (options.data.src, options.data.output) == (f"{home}/in.de", f"{home}/out.en")
    assert options.model.model == (f"{home}/one", "two")
    assert TranslateOptions.of(src="~/in.de").data.src == f"{home}/in.de"
    argv = "--train=~/a.tsv -output=~/run -train_steps 1".split()
    data = load_train_options(argv)[0].data
    assert (data.train, data.output) == ((f"{home}/a.tsv",), f"{home}/run")
    argv = "-model=~/m -to=marian --output=~/x".split()
    exported = load_export_options(argv)[0]
    assert (exported.model, exported.output) == (f"{home}/m", f"{home}/x")


def test_tilde_with_user_name_is_expanded(folder):
    pwd = pytest.importorskip("pwd")
    user = pwd.getpwuid(os.getuid())
    assert check_value(OPTIONS["src"], f"~{user.pw_name}/x") == f"{user.pw_dir}/x"
