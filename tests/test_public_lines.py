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

PUBLIC = Path(__file__).parent / "data" / "public_lines"
PLACES = "model: m.pt\nsrc: src.txt\noutput: out.txt\n"
# line -> options that are noted
LINES = dict(line.split("\t") for line in (PUBLIC / "lines.txt").read_text().split("\n")[1:-1])
# The inference file for NLLB in the documentation of OpenNMT-py 3 without its GPU, every default of
# translate.py, and others; the first line says which options are noted
FILES = {path.stem: path.read_text("utf-8") for path in sorted(PUBLIC.glob("*.yaml"))}


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


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_a_file_runs_as_it_stands(folder, capfd, text):
    notes = text.split("\n")[0].removeprefix("# noted:")
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
    (folder / "a.yaml").write_text(PLACES + FILES["nllb"] + more, encoding="utf-8")
    assert translate.main(["-config", "a.yaml", "-quiet"]) == 0
    forced = [yaml.safe_load(line) for line in (folder / "out.txt").read_text().split("\n")[:-1]]
    for record, line in zip(forced, SOURCE.split("\n")):
        assert record["hyps"][0]["tokens"][:1] == (["DOG"] if line else [])
        assert not record["hyps"][0]["text"].startswith("DOG")  # the transform takes it off
    # The same as a file with that prefix on every line, without the transform's help
    (folder / "begin.txt").write_text("DOG\n" * 4, encoding="utf-8")
    plain = FILES["nllb"].replace('tgt_prefix: "DOG"', "tgt: begin.txt")
    plain = plain.replace("sentencepiece, ", "")
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
