"""Options without effect, from the command line, YAML and Python."""

import json
import logging
import random
import re
import shlex
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import OptionError, OptionWarning, TranslateOptions, Translator
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.option import META_NAMES
from onmt_lite.config.options import OPTIONS, load_options
from onmt_lite.config.options import PROGRAM as TRANSLATE
from onmt_lite.config.rules import Values
from onmt_lite.config.text_options import TEXT_TRANSFORMS, TOKEN_TRANSFORMS
from onmt_lite.train.options import PROGRAM as TRAIN
from onmt_lite.train.options import load_train_options
from tests.support import tiny

TOY = str(Path(__file__).resolve().parents[3] / "data" / "toy.json")

# option: command line in which it has no effect: part of the reason
TABLE = [
    tuple(row.split(": "))
    for row in """
alpha: -alpha 0.6 -length_penalty none: length_penalty is none
alpha: -search opennmt-2018 -alpha 0.5 -length_penalty avg: ignores alpha
length_penalty: -length_penalty wu -alpha 0: alpha is 0
beta: -beta 0.2: coverage_penalty is none
beta: -search ctranslate2 -alpha 0 -beta 0.2: coverage_penalty is none
coverage_penalty: -coverage_penalty wu: beta is 0
coverage_penalty: -coverage_penalty summary -beta 0: beta is 0
stepwise_penalty: -stepwise_penalty: coverage_penalty is none
stepwise_penalty: -stepwise_penalty -coverage_penalty wu: beta is 0
ignore_when_blocking: -ignore_when_blocking the: block_ngram_repeat is 0
block_ngram_repeat: -search fairseq -block_ngram_repeat 1: 2 or more tokens only
block_ngram_repeat: -search opennmt-3 -block_ngram_repeat 1: 2 or more tokens only
block_ngram_repeat: -block_ngram_repeat 9 -max_length 9: too short
with_score: -with_score -output_format jsonl: output_format is jsonl
alignment_layer: -alignment_layer -1: report_align, attn_debug or replace_unk
alignment_heads: -alignment_heads 1: report_align, attn_debug or alignment_layer
with_score: -with_score -score_only -tgt a: runs no search
beam_size: -beam_size 8 -score_only -tgt a: runs no search
min_length: -min_length 8 -score_only -tgt a: runs no search
n_best_unique: -n_best_unique: n_best is 1
split_longer: -split_longer 90 -tgt a -score_only: score_only is true
split_longer: -split_longer 90 -tgt a -tgt_file_prefix: tgt_file_prefix is true
split_longer: -split_longer 90 -report_align -gold_align -tgt a: gold_align is true
report_bleu: -report_bleu: requires tgt
report_bleu: -report_bleu -tgt a -tgt_file_prefix: tgt_file_prefix is true
report_bleu: -report_bleu -tgt a -score_only: score_only is true
text_field: -text_field sentence: the input is plain text
text_field: -text_field a -src a.jsonl -input_format text: the input is plain text
avg_raw_probs: -avg_raw_probs -model a: several models
model_weights: -model_weights 2 -model a: several models
seed: -seed 5: do_sample
seed: -seed 5 -search transformers -beam_groups 5: do_sample
seed: -seed 5 -random_sampling_topk 1: only the most probable token
random_sampling_topp: -random_sampling_topk 1 -random_sampling_topp 0.5: most probable token
beam_size: -beam_size 8 -do_sample: n_best
beam_size: -beam_size 8 -n_best 2 -random_sampling_topk 5: n_best
ratio: -ratio 1.2 -do_sample: do_sample is true
log_file_level: -log_file_level ERROR: requires log_file
early_stopping: -search transformers -early_stopping true -do_sample -beam_size 1: \
each sample ends independently
patience: -search ctranslate2 -patience 2 -alpha 0: alpha
patience: -search ctranslate2 -patience 2 -beam_size 1: the first end token
early_stopping: -search transformers -beam_size 1 -early_stopping never: first end
early_stopping: -search transformers-2 -beam_size 1 -early_stopping true: first end
block_ngram_repeat: -search opennmt-3 -do_sample -block_ngram_repeat 3: with sampling
ignore_when_blocking: -search opennmt-3 -do_sample -block_ngram_repeat 3 -ignore_when_blocking .: \
with sampling
coverage_penalty: -search opennmt-3 -random_sampling_topp 0.5 -coverage_penalty wu -beta 1: \
with sampling
beta: -search opennmt-3 -do_sample -coverage_penalty wu -beta 1: with sampling
stepwise_penalty: -search opennmt-3 -do_sample -coverage_penalty wu -beta 1 -stepwise_penalty: \
with sampling
replace_unk: -replace_unk -ban_unk_token: ban_unk_token is true
replace_unk: -replace_unk -search marian: ban_unk_token is true
src_prefix: -src_prefix a: requires transforms prefix
tgt_prefix: -tgt_prefix a: transforms prefix or tgt_file_prefix
src_suffix: -src_suffix a -transforms prefix: transforms is prefix
tgt_suffix: -tgt_suffix a: transforms suffix
src_subword_model: -src_subword_model a: transforms sentencepiece, bpe or
src_subword_model: -src_subword_model a -tokenizer space: tokenizer sentencepiece
tgt_subword_model: -tgt_subword_model a: transforms sentencepiece, bpe or
tgt_subword_model: -transforms bpe -src_subword_model a -tgt_subword_model b -share_vocab: \
share_vocab
src_subword_type: -src_subword_type bpe: onmt_tokenize
tgt_subword_type: -tgt_subword_type bpe: onmt_tokenize
src_subword_vocab: -src_subword_vocab a -tokenizer bpe -src_subword_model c: is 0
src_subword_vocab: -src_subword_vocab a -src_vocab_threshold 5: transforms
tgt_subword_vocab: -tgt_subword_vocab a: tgt_vocab_threshold is 0
src_vocab_threshold: -src_vocab_threshold 5: requires src_subword_vocab
tgt_vocab_threshold: -tgt_vocab_threshold 5: requires tgt_subword_vocab
penn: -penn false: requires transforms normalize
norm_quote_commas: -norm_quote_commas false: requires transforms normalize
norm_numbers: -norm_numbers false -transforms uppercase: transforms normalize
pre_replace_unicode_punct: -pre_replace_unicode_punct: transforms normalize
post_remove_control_chars: -post_remove_control_chars: transforms normalize
upper_corpus_ratio: -upper_corpus_ratio 1: transforms uppercase
batch_size: -batch_size 64 -deterministic: deterministic is true
batch_type: -batch_type sents -deterministic: deterministic is true
threads: -threads 2 -deterministic: deterministic is true
src_onmttok_kwargs: -src_onmttok_kwargs {}: onmt_tokenize
tgt_onmttok_kwargs: -tgt_onmttok_kwargs {}: onmt_tokenize
""".strip().split("\n")
]
# Options that have an effect in every valid combination; models may add notices, see below
ALWAYS = """
model tokenizer detokenizer phrase_table transforms share_vocab src output output_format tgt
input_format tgt_file_prefix search n_best min_length max_length max_length_ratio repetition_penalty
ban_unk_token beam_groups diversity_rate do_sample random_sampling_topk random_sampling_temp
device gpu precision quiet log_file verbose report_time print_model
unknown src_lang tgt_lang bucket_lines shard workers deterministic report resume
token_scores report_align attn_debug gold_align score_only
""".split()
ALWAYS += ["dump_beam", "force_words", "ban_words"]


def load_notices(argv):
    return load_options(argv)[0].notes


def test_every_option_is_listed():
    listed = {name for name, _, _ in TABLE} | set(ALWAYS)
    assert listed == set(OPTIONS) - set(META_NAMES)


@pytest.mark.parametrize(("name", "line", "why"), TABLE, ids=[line for _, line, _ in TABLE])
def test_notice_has_reason_and_origin(name, line, why, tmp_path):
    """YAML and Python cause the same notice, each with its origin."""
    (note,) = [n for n in load_notices(shlex.split(line)) if n.startswith(f"{name}: ")]
    assert note.startswith(f"{name}: has no effect; ") and why in note
    assert note.endswith(" (command line)")
    _, resolved = load_options(shlex.split(line))
    given = resolved.given()
    path = tmp_path / "a.yaml"
    path.write_text("".join(f"{n}: {json.dumps(v)}\n" for n, v in given.items()))
    by_yaml = load_notices(["-config", str(path)])
    line_number = 1 + [*given].index(name)
    assert note.replace("(command line)", f"({path}:{line_number})") in by_yaml
    by_keyword = TranslateOptions.of(**given).notes
    assert note.replace("(command line)", "(keyword argument)") in by_keyword


EFFECTIVE = """
-alpha 0.6
-length_penalty none
-alpha 0 -length_penalty none
-length_penalty wu -alpha 0.6
-beta 0.2 -coverage_penalty wu
-beta 0 -coverage_penalty none
-beta -0.0 -ratio -0.0
-stepwise_penalty -coverage_penalty summary -beta 1
-stepwise_penalty false
-search opennmt-2018 -length_penalty avg
-search opennmt-2018 -length_penalty wu -alpha 0.5
-with_score
-text_field a -src a.jsonl.gz
-text_field a -input_format jsonl
-text_field a -tgt a.JSONL
-model a b -avg_raw_probs -model_weights 1 2
-seed 829
-seed 5 -do_sample
-seed 5 -random_sampling_topp 0.9
-beam_size 1 -random_sampling_topk 10
-beam_size 10 -n_best 10 -do_sample
-search fairseq -beam_size 8 -do_sample
-search transformers -early_stopping true -do_sample
-search transformers -early_stopping never
-search ctranslate2 -patience 2
-do_sample -block_ngram_repeat 3 -coverage_penalty wu -beta 1
-replace_unk -phrase_table a
-replace_unk -alignment_layer 1
-report_align -alignment_layer -2 -alignment_heads 1
-transforms prefix -src_prefix a -tgt_prefix b
-tokenizer bpe -src_subword_model a
-block_ngram_repeat 3 -ignore_when_blocking .
-block_ngram_repeat 1"""


@pytest.mark.parametrize("line", EFFECTIVE.strip().split("\n"))
def test_no_notice_for_option_with_effect_or_default(line):
    assert load_notices(line.split()) == ()


@pytest.mark.parametrize("search", ["opennmt", "opennmt-2018", "fairseq", "marian", "ctranslate2"])
def test_print_config_output_loads_without_notices(search, tmp_path):
    """A printed configuration sets all options, most of them to their defaults."""
    _, resolved = load_options(["-search", search, "-alpha", "0.3", "-length_penalty", "none"])
    path = tmp_path / "a.yaml"
    path.write_text(resolved.to_yaml(), encoding="utf-8")
    names = {note.split(":")[0] for note in load_notices(["-config", str(path)])}
    assert names == {"alpha"}  # had no effect before


def small_value(option):
    if option.choices:
        return st.sampled_from(option.choices)
    if option.value_type is bool:
        return st.booleans()
    low = max(0, option.bounds["min"] or 0)
    if option.value_type is int:
        return st.integers(low, low + 3)
    return st.sampled_from([low + 0.5, low + 1.0])


SEARCH = [
    *"length_penalty alpha coverage_penalty beta stepwise_penalty block_ngram_repeat".split(),
    *"ratio search do_sample random_sampling_topk seed n_best output_format with_score".split(),
]


@settings(max_examples=300)
@given(
    st.sets(st.sampled_from(SEARCH), max_size=6).flatmap(
        lambda names: st.fixed_dictionaries({n: small_value(OPTIONS[n]) for n in names})
    )
)
def test_removing_options_without_effect_changes_nothing(values):
    """The remaining options keep their effect, and notices are only about given options."""
    try:
        options = TranslateOptions.of(**values)
    except OptionError:
        return
    ineffective = {n.split(":")[0] for n in options.notes if ": has no effect;" in n}
    assert ineffective <= set(values)
    remaining = {name: value for name, value in values.items() if name not in ineffective}
    try:
        rebuilt = TranslateOptions.of(**remaining)
    except OptionError:
        return  # another option required it
    for note in rebuilt.notes:
        assert re.match(r"\w+", note)[0] in remaining


# -- requirements in the help, read by an independent parser --------------------------------------


def is_met(clause, values):
    """Evaluate alternatives in the form "-a", "-a VALUE" or "-a N or more".

    A VALUE without a name belongs to the last name.
    """
    name = wanted = ""
    for words in map(str.split, re.split(r",? or |, ", clause)):
        if words == ["more"]:
            found = values[name] >= int(wanted)
        else:
            if words[0].startswith("-"):
                name = words.pop(0)[1:]
            wanted = words[0] if words else ""
            value = values[name]
            has_value = wanted in (value if isinstance(value, tuple) else (str(value),))
            found = has_value if words else value not in (0, "", None, (), "none")
        if found:
            return True
    return False


def some_value(option, dice):
    """Return a value of the option, in half of the cases the default."""
    if dice.random() < 0.5:
        return option.default
    if option.name == "transforms":
        return tuple(dice.sample(TOKEN_TRANSFORMS + TEXT_TRANSFORMS, 2))
    if option.choices:
        return dice.choice(option.choices)
    if option.is_list:
        return dice.choice([("a",), ("a", "b")])
    return {bool: True, int: dice.randint(0, 3), float: dice.randint(0, 1) / 2}.get(
        option.value_type, dice.choice(["", "a"])
    )


@pytest.mark.parametrize("program", [TRANSLATE, TRAIN], ids=lambda program: program.name)
def test_help_requirements_match_rules(program):
    dice = random.Random(0)
    for rule in (rule for rule in program.rules if rule.help):
        needed = re.findall("(?:Requires|Effective only with) ([^.]+)", rule.help)
        excluded = re.findall("(?:Cannot be combined|No effect) with ([^.]+)", rule.help)
        named = re.findall(r"-([a-z]\w*)", rule.help)
        assert named and set(named) <= set(program.options), rule.help
        seen = set()
        for _ in range(200):
            values = {n: o.default for n, o in program.options.items()}
            values |= {n: some_value(program.options[n], dice) for n in named}
            for name in rule.options:
                enabled = values | {
                    name: 7 if program.options[name].value_type is not bool else True
                }
                clauses = [clause for text in needed for clause in text.split(" and ")]
                expected = all(is_met(clause, values) for clause in clauses)
                expected = expected and not any(is_met(clause, values) for clause in excluded)
                assert bool(rule.applies(Values(enabled, option=name))) != expected, (name, values)
                seen.add(expected)
        assert seen == {True, False}, rule


# -- notices about models, and where notices appear -----------------------------------------------


@pytest.fixture
def toy():
    return Translator.from_pretrained(TOY)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """run(words) -> the log of a job on one line, with notices and no Python warnings"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src.txt").write_text("katze\n", encoding="utf-8")

    def run_once(line, model=TOY):
        argv = ["-model", str(model), "-src", "src.txt", *shlex.split(line)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", OptionWarning)
            assert translate.main(argv) == 0
        return capfd.readouterr().err

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (
            "-block_ngram_repeat 2 -ignore_when_blocking the zz 'y y'",
            "ignore_when_blocking: not in the model's vocabulary and ignored: 'zz' 'y y'",
        ),
        ("-ban_unk_token", "ban_unk_token: has no effect; the model has no unknown token"),
        ("-precision bf16", "precision: has no effect; a table model has no weights"),
        ("-beta 1", "beta: has no effect; it requires coverage_penalty wu or summary, but "),
    ],
)
def test_notice_about_model_is_one_log_line(run, line, note):
    err = run(line)
    assert err.count("NOTE") == 1 and f"NOTE: {note}" in err


def test_max_length_above_model_limit_causes_notice(run, tiny_checkpoint):
    err = run("-max_length 1000", tiny_checkpoint)
    expected = f"NOTE: max_length 1000: the model supports at most {tiny.MAX_POSITIONS} tokens"
    assert err.count("NOTE") == 1 and expected in err


def test_ignore_when_blocking_ignores_unknown_tokens(toy):
    given = dict(block_ngram_repeat=1, min_length=4)
    expected = toy.translate(["katze"], ignore_when_blocking=["the"], **given)
    with pytest.warns(OptionWarning, match="ignored: 'zz'"):
        found = toy.translate(["katze"], ignore_when_blocking=["zz", "the"], **given)
    assert found == expected
    assert found != toy.translate(["katze"], **given)


def test_beta_without_penalty_does_not_change_stopping(toy):
    options = dict(search="ctranslate2", alpha=0.0, n_best=2, beam_size=3)
    with pytest.warns(OptionWarning, match="beta"):
        found = toy.translate(["katze"], beta=1.0, **options)
    assert found == toy.translate(["katze"], **options)


def test_option_warning_once_at_line_of_call():
    toy = Translator.from_pretrained(TOY, beta=0.5)  # a default that calls may use
    with pytest.warns(OptionWarning, match="^beta: has no effect; ") as caught:
        toy.translate(["katze"])
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        toy.translate(["katze"])
        toy.translate(["katze"], coverage_penalty="summary")
        list(toy.translate_stream(["katze"]))
    with pytest.warns(OptionWarning, match="stepwise_penalty") as caught:
        list(toy.translate_stream(["katze"], stepwise_penalty=True))
    assert [w.filename for w in caught] == [__file__]


def test_ban_words_file_has_no_effect_on_translate(tmp_path):
    (tmp_path / "ban").write_text("the\n", encoding="utf-8")
    toy = Translator.from_pretrained(TOY, ban_words=str(tmp_path / "ban"))
    with pytest.warns(OptionWarning, match="^ban_words: has no effect; it is an option of tr"):
        toy.translate(["katze"])


@pytest.mark.parametrize(
    ("min_length", "more", "has_warning"),
    [
        (
            6,
            {},
            False,
        ),  # the limit of a line of one token is 7 with max_length_ratio 2, including the end token
        (7, {}, True),
        (9, {}, True),
        (9, {"max_length_ratio": 0.0}, False),
        (9, {"max_length_ratio": 0.0, "max_length": 9}, True),
        (0, {}, False),
    ],
)
def test_min_length_above_limit_marks_line(toy, min_length, more, has_warning):
    (found,) = toy.translate(["katze"], min_length=min_length, **more)
    assert ("min-length-over-limit" in found.notes) == has_warning
    assert not has_warning or not any(hyp.ended for hyp in found.hyps)


def test_min_length_above_limit_is_in_summary(run):
    assert (
        "line 1: min_length is above the length limit; raise max_length_ratio [min-length-"
        in run("-min_length 9")
    )


@pytest.mark.parametrize(
    ("line", "ineffective"),
    [
        ("-init_from m -d_model 64", "d_model"),
        ("-init_from m -vocab_size 900", "vocab_size"),
        ("-init_from m -enc_layers 6", "enc_layers"),
        ("-init_from m -all_characters", "all_characters"),
        ("-init_from m -dropout 0.2", ""),
        ("-d_model 64 -heads 4", ""),
        ("", ""),
    ],
)
def test_init_from_makes_sizes_ineffective(line, ineffective):
    words = f"-train a -output b -train_steps 3 {line}"
    notes = load_train_options(shlex.split(words))[0].notices
    assert [note.split("; ")[0] for note in notes] == [f"{ineffective}: has no effect"] * bool(
        ineffective
    )


def test_threads_on_gpu_causes_notice(monkeypatch):
    import torch

    from onmt_lite.inference.postprocess import list_model_notices

    options = TranslateOptions.of(threads=2)
    checkpoint = load_checkpoint(TOY)
    assert list_model_notices(options, checkpoint, torch.device("cpu")) == []
    (note,) = list_model_notices(options, checkpoint, torch.device("cuda:0"))
    assert note == "threads: has no effect; the model runs on cuda:0"
