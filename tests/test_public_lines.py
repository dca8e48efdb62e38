"""Command lines and YAML files as users of OpenNMT-py 0.6 to 3.5 write them run as they stand."""

import logging
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

import translate
from onmt_lite import OptionError, Translator
from onmt_lite.config.options import load_options
from tests.support.files import DATA

HERE = Path(__file__).parent / "data" / "transforms"
SOURCE = "dog man\nman\n\ndog dog\n"
TARGET = "DOG MAN\nMAN\n\nDOG DOG\n"

# line -> options that are noted, in order
LINES = {
    # 0.6 to 0.9
    "-model m.pt -src src.txt -output out.txt -replace_unk -verbose": "",
    "-gpu -1 -model m.pt -src src.txt -tgt tgt.txt -replace_unk -verbose -output out.txt": "",
    "-model m.pt -src src.txt -output out.txt -beam_size 10 -batch_size 1 -n_best 5": "",
    "-model m.pt -src src.txt -output out.txt -fast -batch_size 50 -beam_size 5": (
        "fast batch_size"
    ),
    "-batch_size 20 -beam_size 5 -model m.pt -src src.txt -output out.txt -min_length 35 -verbose "
    "-stepwise_penalty -coverage_penalty summary -beta 5 -length_penalty wu -alpha 0.9 "
    '-block_ngram_repeat 3 -ignore_when_blocking "." "</t>" "<t>"': (
        "batch_size ignore_when_blocking"
    ),
    "-model m.pt -src src.txt -output out.txt -share_vocab -dynamic_dict": "dynamic_dict",
    "-data_type text -model m.pt -src src.txt -output out.txt -report_rouge": "report_rouge",
    "-model m.pt -src src.txt -tgt tgt.txt -output out.txt -report_bleu -report_time": "",
    "-model m.pt m.pt m.pt -src src.txt -output out.txt -avg_raw_probs": "",
    "-model m.pt -src src.txt -output out.txt -shard_size 0 -max_length 200": "",
    "-model m.pt -src src.txt -output out.txt -max_sent_length 50": "max_sent_length",
    "-model m.pt -src src.txt -output out.txt -window_size .02 -window_stride .01 -window hamming "
    "-sample_rate 16000 -image_channel_size 3 -src_dir ''": "",
    "-model m.pt -src src.txt -output out.txt -random_sampling_topk -1 -random_sampling_temp 0.8 "
    "-beam_size 1 -seed 3435": "",
    "-model m.pt -src src.txt -output out.txt -random_sampling_topk 10 -beam_size 1 -seed 0": "",
    "-model m.pt -src src.txt -output out.txt -length_penalty avg -alpha 0.": "",
    "-model m.pt -src src.txt -output out.txt -coverage_penalty wu -beta -0. -ratio -0.": (
        "coverage_penalty"
    ),
    "-model m.pt -src src.txt -output out.txt -batch_type tokens -batch_size 4096 -fp32": "",
    "-model m.pt -src src.txt -output out.txt -replace_unk -phrase_table phrases.txt": "",
    "-model m.pt -src src.txt -output out.txt -log_file log.txt -log_file_level 0": "",
    "-model m.pt -src src.txt -output out.txt -log_file log.txt -log_file_level WARNING": "",
    "-model=m.pt -src=src.txt -output=out.txt -beam_size=4 -gpu=-1": "",
    # 1.0 to 2.3
    "--model m.pt --src src.txt --output out.txt --beam_size 5 --verbose": "",
    "--model m.pt --src src.txt --output out.txt --gpu -1 --n_best 3 --with_score": "",
    "--model m.pt --src src.txt --output out.txt --tgt tgt.txt --tgt_prefix": "tgt_prefix",
    "--model m.pt --src src.txt --output out.txt --ban_unk_token --int8": "int8",
    "--model m.pt --src src.txt --output out.txt --random_sampling_topp 0.9 --seed 1234": "",
    "--model m.pt --src src.txt --output out.txt --batch_size 64 --batch_type sents "
    "--block_ngram_repeat 2": "",
    "--model m.pt --src src.txt --output out.txt --transforms sentencepiece "
    "--src_subword_model src.model --tgt_subword_model tgt.model": "",
    "--model m.pt --src src.txt --output out.txt --transforms bpe --src_subword_model src.codes "
    "--share_vocab": "",
    "--model m.pt --src src.txt --output out.txt --src_subword_type sentencepiece "
    "--src_subword_model src.model": "src_subword_model src_subword_type",
    # 3.0 to 3.5
    "--model m.pt --src src.txt --output out.txt --world_size 1 --gpu_ranks 0": "",
    "--model m.pt --src src.txt --output out.txt --world_size 2 --gpu_ranks 0 1 "
    "--parallel_mode tensor_parallel": "world_size gpu_ranks parallel_mode",
    "--model m.pt --src src.txt --output out.txt --tgt tgt.txt --tgt_file_prefix": "",
    "--model m.pt --src src.txt --output out.txt --precision fp32 --max_length_ratio 1.25": "",
    "--model m.pt --src src.txt --output out.txt --profile": "profile",
    "--model m.pt --src src.txt --output out.txt --self_attn_type scaled-dot": "self_attn_type",
    "--model m.pt --src src.txt --output out.txt --quant_layers w_1 w_2 --quant_type bnb_NF4 "
    "--w_bit 4 --group_size 128": "quant_layers quant_type",
    "--model m.pt --src src.txt --output out.txt --src_seq_length 150 --tgt_seq_length 150 "
    "--transforms filtertoolong": "transforms",
    "--model m.pt --src src.txt --output out.txt --random_sampling_topk 1 --beam_size 5": "",
    "--model m.pt --src src.txt --output out.txt --n_src_feats 0 --timeout 60 --master_port 10000 "
    "--gpu_backend nccl --gpu_verbose_level 0": "",
}

PLACES = "model: m.pt\nsrc: src.txt\noutput: out.txt\n"
# The inference file for NLLB in the documentation of OpenNMT-py 3, without its GPU
NLLB = """
transforms: [sentencepiece, prefix, suffix]
src_subword_model: "src.model"
tgt_subword_model: "tgt.model"
src_prefix: "dog"
tgt_prefix: "DOG"
tgt_file_prefix: true
src_suffix: "</s>"
tgt_suffix: ""
batch_size: 2048
batch_type: tokens
beam_size: 5
max_length: 64
fp16:
report_time: true
"""
# Every default of translate.py at 3.5.1, transforms included
DEFAULTS_3 = """
fp32: false
int8: false
precision: ""
avg_raw_probs: false
self_attn_type: scaled-dot-flash
data_type: text
tgt: null
tgt_file_prefix: false
report_align: false
gold_align: false
report_time: false
profile: false
n_src_feats: 0
src_feats_defaults: null
beam_size: 5
ratio: -0.0
random_sampling_topk: 0
random_sampling_topp: 0.0
random_sampling_temp: 1.0
seed: -1
length_penalty: avg
alpha: 1.0
coverage_penalty: none
beta: -0.0
stepwise_penalty: false
min_length: 0
max_length: 250
max_length_ratio: 1.25
block_ngram_repeat: 0
ignore_when_blocking: []
replace_unk: false
ban_unk_token: false
phrase_table: ""
verbose: false
log_file: ""
log_file_level: "0"
attn_debug: false
align_debug: false
dump_beam: ""
n_best: 1
with_score: false
batch_size: 30
batch_type: sents
gpu: -1
world_size: 1
gpu_ranks: []
parallel_mode: data_parallel
gpu_backend: nccl
gpu_verbose_level: 0
master_ip: localhost
master_port: 10000
timeout: 60
quant_layers: []
quant_type: ""
w_bit: 4
group_size: 128
transforms: []
src_subword_model: null
tgt_subword_model: null
src_subword_nbest: 1
tgt_subword_nbest: 1
src_subword_alpha: 0
tgt_subword_alpha: 0
src_subword_vocab: ""
tgt_subword_vocab: ""
src_vocab_threshold: 0
tgt_vocab_threshold: 0
src_subword_type: none
tgt_subword_type: none
src_onmttok_kwargs: "{'mode': 'none'}"
tgt_onmttok_kwargs: "{'mode': 'none'}"
gpt2_pretok: false
src_prefix: ""
tgt_prefix: ""
src_suffix: ""
tgt_suffix: ""
src_seq_length: 192
tgt_seq_length: 192
src_lang: ""
tgt_lang: ""
penn: true
norm_quote_commas: true
norm_numbers: true
pre_replace_unicode_punct: false
post_remove_control_chars: false
reversible_tokenization: joiner
upper_corpus_ratio: 0.01
doc_length: 200
max_context: 1
termbase_path: null
src_spacy_language_model: null
tgt_spacy_language_model: null
term_corpus_ratio: 0.3
term_example_ratio: 0.2
tm_path: null
fuzzy_corpus_ratio: 0.1
fuzzy_threshold: 70
tm_delimiter: "\\t"
fuzzymatch_min_length: 4
fuzzymatch_max_length: 70
permute_sent_ratio: 0.0
rotate_ratio: 0.0
insert_ratio: 0.0
random_ratio: 0.0
mask_ratio: 0.0
mask_length: subword
poisson_lambda: 3.0
replace_length: -1
switchout_temperature: 1.0
tokendrop_temperature: 1.0
tokenmask_temperature: 1.0
src_eq_tgt: false
same_char: false
same_word: false
scripts_ok: [Latin, Common]
scripts_nok: []
src_tgt_ratio: 2
avg_tok_min: 3
avg_tok_max: 20
langid: []
tags_dictionary_path: null
tags_corpus_ratio: 0.1
max_tags: 12
response_patterns: ["Response : ｟newline｠"]
"""
# ... and at 0.9.2
DEFAULTS_09 = """
fp32: false
avg_raw_probs: false
data_type: text
src_dir: ""
tgt: null
shard_size: 10000
report_bleu: false
report_rouge: false
report_time: false
dynamic_dict: false
share_vocab: false
random_sampling_topk: 1
random_sampling_temp: 1.0
seed: 829
beam_size: 5
min_length: 0
max_length: 100
stepwise_penalty: false
length_penalty: none
ratio: -0.0
coverage_penalty: none
alpha: 0.0
beta: -0.0
block_ngram_repeat: 0
ignore_when_blocking: []
replace_unk: false
phrase_table: ""
verbose: false
log_file: ""
log_file_level: "0"
attn_debug: false
dump_beam: ""
n_best: 1
batch_size: 30
batch_type: sents
gpu: -1
sample_rate: 16000
window_size: 0.02
window_stride: 0.01
window: hamming
image_channel_size: 3
"""
# YAML -> options that are noted, in order
FILES = {
    NLLB: "",
    DEFAULTS_3: "",
    DEFAULTS_09: "",
    """
transforms: [sentencepiece, filtertoolong]
src_subword_model: src.model
tgt_subword_model: tgt.model
src_seq_length: 150
beam_size: 4
""": "transforms",
    """
-beam_size: 4
--n_best: 2
--replace_unk: true
-verbose: false
""": "",
    """
batch_type: tokens
batch_size: 16384
int8: true
world_size: 1
gpu_ranks: [0]
""": "int8",
    """
transforms: [bpe]
src_subword_type: bpe
src_subword_model: src.codes
tgt_subword_model: tgt.codes
src_subword_vocab: ""
""": "src_subword_type",
    """
random_sampling_topk: 40
random_sampling_temp: 0.8
beam_size: 1
seed: 42
n_best: 1
report_time: true
""": "",
    """
quant_layers: ['w_1', 'w_2', 'linear_values', 'linear_query']
quant_type: "bnb_NF4"
self_attn_type: scaled-dot
parallel_mode: tensor_parallel
precision: fp16
""": "quant_layers quant_type self_attn_type parallel_mode",
    """
min_length: 2
length_penalty: wu
alpha: 0.9
coverage_penalty: summary
beta: 5
stepwise_penalty: true
block_ngram_repeat: 3
ignore_when_blocking: [".", "</t>", "<t>"]
ratio: -0.0
""": "ignore_when_blocking",
    """
transforms: [tokendrop, switchout, prefix]
tokendrop_temperature: 1.5
switchout_temperature: 0.9
src_prefix: "dog"
""": "transforms tokendrop_temperature switchout_temperature",
    """
fast: true
report_bleu: true
max_sent_length: 80
dynamic_dict: true
share_vocab: true
fp32: true
save_config: ""
config: null
""": "max_sent_length fast report_bleu dynamic_dict",
}


@pytest.fixture
def folder(tmp_path, monkeypatch, int8_anywhere):
    for path in HERE.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for path in DATA.glob("m35_st_step_2.*"):  # its weights are in a file beside it
        (tmp_path / f"m{path.suffix}").symlink_to(path)
    (tmp_path / "src.txt").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "tgt.txt").write_text(TARGET, encoding="utf-8")
    (tmp_path / "phrases.txt").write_text("dog|||DOG\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    logging.getLogger("onmt_lite").handlers.clear()


def noted(err):
    """The options that notes name, in order: a line each."""
    return [re.match(r"NOTE: (\w+)", line)[1] for line in err.split("\n") if "NOTE" in line]


def test_there_are_forty_lines_and_twelve_files():
    assert (len(LINES), len(FILES)) == (40, 12)


@pytest.mark.parametrize(("line", "notes"), LINES.items(), ids=LINES)
def test_a_line_runs_as_it_stands(folder, capfd, line, notes):
    assert translate.main(shlex.split(line)) == 0
    out, err = capfd.readouterr()
    assert out == "" and sorted(noted(err)) == sorted(notes.split())
    options, _ = load_options(shlex.split(line))
    written = (folder / "out.txt").read_text(encoding="utf-8")
    assert written.count("\n") == SOURCE.count("\n") * options.search.n_best


@pytest.mark.parametrize(("text", "notes"), FILES.items(), ids=range(len(FILES)))
def test_a_file_runs_as_it_stands(folder, capfd, text, notes):
    (folder / "a.yaml").write_text(PLACES + text, encoding="utf-8")
    assert translate.main(["-config", "a.yaml"]) == 0
    out, err = capfd.readouterr()
    assert out == "" and sorted(noted(err)) == sorted(notes.split())
    written = (folder / "out.txt").read_text(encoding="utf-8")
    options, _ = load_options(["-config", "a.yaml"])
    assert written.count("\n") == SOURCE.count("\n") * options.search.n_best


def test_given_on_the_command_line_and_in_yaml_an_option_is_noted_once(folder, capfd):
    (folder / "a.yaml").write_text(PLACES + "fast: true\nworld_size: 2\n", encoding="utf-8")
    words = "-fast -report_bleu -world_size 1".split()
    assert translate.main(["-config", "a.yaml", *words]) == 0
    assert sorted(noted(capfd.readouterr().err)) == ["fast", "report_bleu"]


def test_options_that_do_nothing_leave_the_output_as_it_is(folder):
    assert translate.main("-model m.pt -src src.txt -output plain.txt".split()) == 0
    words = "-fast -report_bleu -report_rouge -profile -dynamic_dict -world_size 2"
    words += " -gpu_ranks 0 1 -quant_type bnb_8bit -self_attn_type average -shard_size 3"
    assert translate.main(f"-model m.pt -src src.txt -output out.txt {words}".split()) == 0
    assert (folder / "out.txt").read_bytes() == (folder / "plain.txt").read_bytes()


def test_the_prefix_of_the_nllb_file_begins_every_translation(folder, capfd):
    more = "output_format: jsonl\n"
    (folder / "a.yaml").write_text(PLACES + NLLB + more, encoding="utf-8")
    assert translate.main(["-config", "a.yaml", "-quiet"]) == 0
    forced = [yaml.safe_load(line) for line in (folder / "out.txt").read_text().split("\n")[:-1]]
    for record, line in zip(forced, SOURCE.split("\n")):
        assert record["hyps"][0]["tokens"][:1] == (["DOG"] if line else [])
        assert not record["hyps"][0]["text"].startswith("DOG")  # the transform takes it off
    # The same as a file with that prefix on every line, without the transform's help
    (folder / "begin.txt").write_text("DOG\n" * 4, encoding="utf-8")
    plain = NLLB.replace('tgt_prefix: "DOG"', "tgt: begin.txt").replace("sentencepiece, ", "")
    plain = plain.replace("[prefix", "[sentencepiece, prefix")
    (folder / "b.yaml").write_text(PLACES + plain + more, encoding="utf-8")
    options, _ = load_options(["-config", "a.yaml"])
    by_hand = Translator.load(options).translate(["dog man"], prefixes=None)
    assert by_hand[0].hyps[0].tokens == forced[0]["hyps"][0]["tokens"]


def test_without_the_transform_the_words_of_tgt_prefix_are_tokens(folder):
    options = dict(model="m.pt", tgt_prefix="DOG MAN", tgt_file_prefix=True)
    (forced,) = Translator.from_pretrained(**options).translate(["man dog"])
    plain = Translator.from_pretrained(model="m.pt")
    (by_prefixes,) = plain.translate(["man dog"], prefixes=["DOG MAN"])
    assert forced.hyps == by_prefixes.hyps
    assert forced.hyps[0].tokens[:2] == ["DOG", "MAN"]
    with pytest.raises(OptionError, match="tgt_prefix: .*no token 'cat'"):
        Translator.from_pretrained(**{**options, "tgt_prefix": "cat"}).translate(["man"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("words", ["-gpu 0", "-device cuda", "-gpu 1"])
def test_a_gpu_that_is_not_there(folder, capfd, words):
    assert translate.main(f"-model m.pt -src src.txt -output out.txt {words}".split()) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "this machine has no usable GPU; leave that out, or give -gpu -1 for the CPU" in err
    assert not (folder / "out.txt").exists()


# -- what is refused says what to do --------------------------------------------------------------

REMEDY = re.compile(r"; |: expected |did you mean|takes one value|needs at least one value")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-out x", "did you mean output"),
        ("-beam 3", "beam_size"),
        ("-batch 3", "did you mean batch_size or batch_type?"),
        ("-n_bes 3", "did you mean n_best or n_best_unique?"),
        ("-data_type img", "only text is translated"),
        ("-data_type audio -sample_rate 8000", "only text is translated"),
        ("-src_dir images", "only text is translated"),
        ("-gold_align", "needs report_align"),
        ("-n_src_feats 2", "leave it out"),
        ("-mask_ratio 0.3", "for training only; leave it out"),
        ("-response_patterns x", "for training only; leave it out"),
        ("-train_steps 100", "leave it out"),
        ("-beam_size 2 -n_best 3", "raise beam_size or lower n_best"),
        ("-min_length 9 -max_length 8", "lower min_length or raise max_length"),
        ("-model_weights 1 2 3 -model a b", "give one for each"),
        ("-phrase_table x", "phrase_table needs replace_unk; give that too, or leave"),
        ("-tgt_file_prefix", "tgt_file_prefix needs tgt or tgt_prefix; "),
        ("-tgt_prefix", "tgt_file_prefix needs tgt or tgt_prefix; "),
        ("-random_sampling_temp 0.5", "random_sampling_temp needs do_sample or "),
        ("-diversity_rate 1 -search transformers", "diversity_rate needs beam_groups 2 or more; "),
        ("-beam_groups 2 -search transformers", "multiple of 2"),
        ("-beam_groups 2 -beam_size 4 -do_sample -search transformers", "leave one out"),
        ("-random_sampling_topk 5 -search fairseq", "need do_sample; give that too"),
        ("-early_stopping true", "or choose from -search transformers-2, transformers, "),
        ("-early_stopping never -search transformers-2", "give one"),
        ("-length_penalty 0.6", "expected one of none, wu, avg, got '0.6'; the exponent is alpha"),
        ("-coverage_penalty 0.2", "got '0.2'; its weight is beta"),
        ("-length_penalty wu -search fairseq", "none and avg; give one of these"),
        ("-coverage_penalty summary -beta 1 -search ctranslate2", "give one of these"),
        ("-gpu 0 -device cpu", "give one"),
        ("-verbose -quiet", "give one"),
        ("-tgt -", "give one as a file"),
        ("-src ''", "give a path"),
        ("-transforms docify", "apply it to the file before"),
        ("-transforms inferfeats", "leave it out"),
        ("-transforms bpe sentencepiece -src_subword_model a -share_vocab", "give one of"),
        ("-transforms prefix -tokenizer space", "give one"),
        (
            "-transforms bpe -src_subword_model a -share_vocab -detokenizer bpe",
            "leave detokenizer out",
        ),
        ("-transforms bpe", "name the file"),
        ("-transforms bpe -src_subword_model a", "or share_vocab"),
        ("-src_onmttok_kwargs x", "expected a dict"),
        ("-config none.yaml", "cannot be read"),
        ("-precision int4", "expected one of auto, fp32, bf16, fp16, int8"),
        ("x.txt", "name the input with -src"),
    ],
)
def test_every_refusal_says_what_to_do(line, words):
    with pytest.raises(OptionError) as caught:
        load_options(shlex.split(line))
    assert words in "\n".join(caught.value.problems)
    for problem in caught.value.problems:
        assert REMEDY.search(problem) or "cannot be read" in problem, problem


def test_save_config_gives_the_same_job_again(folder, capfd):
    words = "-model m.pt -src src.txt -output out.txt -beam_size 3 -save_config saved.yaml"
    assert translate.main(words.split()) == 0
    assert not (folder / "out.txt").exists()
    _, first = load_options(words.split())
    _, again = load_options(["-config", "saved.yaml"])
    assert again.values == {**first.values, "config": ("saved.yaml",), "save_config": None}
    assert translate.main("-save_config no/such/file.yaml".split()) == 5
    assert "cannot write no/such/file.yaml" in capfd.readouterr().err
