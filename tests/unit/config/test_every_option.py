"""Each option, turned, changes what it says it changes; and none is missing here."""

import json
import logging
from pathlib import Path

import pytest
import torch

import translate
from onmt_lite import Translator
from onmt_lite.config.options import OPTIONS, TranslateOptions
from onmt_lite.config.text_options import TextOptions
from onmt_lite.inference.runtime import precision_of
from onmt_lite.models.table_model import TableModel
from onmt_lite.text.vocab import Vocab
from tests.support import table_models

TOY = "data/toy.json"

# option -> (what both runs have, what the second has besides); their JSONL records must differ
RECORDS = {
    "beam_size": ("", "-beam_size 1"),
    "n_best": ("", "-n_best 2"),
    "min_length": ("", "-min_length 4"),
    "max_length": ("", "-max_length 2"),
    "max_length_ratio": ("-min_length 6", "-max_length_ratio 0.1"),
    "length_penalty": ("", "-length_penalty wu"),
    "alpha": ("", "-alpha 0.5"),
    "coverage_penalty": ("-beta 1", "-coverage_penalty summary"),
    "beta": ("-coverage_penalty summary", "-beta 1"),
    "stepwise_penalty": ("-coverage_penalty summary -beta 1", "-stepwise_penalty"),
    "block_ngram_repeat": ("-min_length 4", "-block_ngram_repeat 1"),
    "ignore_when_blocking": (
        "-min_length 4 -block_ngram_repeat 1",
        "-ignore_when_blocking the a cat cats",
    ),
    "tgt": ("", "-tgt {tgt}"),
    "input_format": ("", "-input_format jsonl"),
    "text_field": ("-src {objects} -input_format jsonl", "-text_field other"),
    "search": ("", "-search tensor2tensor"),
    "repetition_penalty": ("-search transformers -min_length 5", "-repetition_penalty 3"),
    "early_stopping": (
        "-search transformers -n_best 3 -beam_size 3 -alpha 2",
        "-early_stopping true",
    ),
    "ratio": ("-n_best 5", "-ratio 20"),
    "tgt_file_prefix": ("-tgt {tgt}", "-tgt_file_prefix"),
    "patience": ("-search ctranslate2 -alpha 3 -max_length 9", "-patience 9"),
    "beam_groups": ("-search transformers -beam_size 4 -n_best 4", "-beam_groups 4"),
    "diversity_rate": (
        "-search transformers -beam_size 4 -n_best 4 -beam_groups 2",
        "-diversity_rate 1",
    ),
    "force_words": ("", "-force_words {phrases}"),
    "ban_words": ("", "-ban_words {banned}"),
    "do_sample": ("-beam_size 1 -max_length 9", "-do_sample"),
    "random_sampling_temp": ("-do_sample", "-random_sampling_temp 9"),
    "random_sampling_topk": ("-do_sample -random_sampling_temp 9", "-random_sampling_topk 1"),
    "random_sampling_topp": ("-do_sample -random_sampling_temp 9", "-random_sampling_topp 0.1"),
    "seed": ("-do_sample -n_best 5 -random_sampling_temp 9", "-seed 2"),
    "avg_raw_probs": ("-model {toy} {sure}", "-avg_raw_probs"),
    "model_weights": ("-model {toy} {sure}", "-model_weights 1 9"),
    "report_align": ("", "-report_align"),
    "gold_align": ("-tgt {tgt} -report_align", "-gold_align"),
}
# ... their standard output must differ
OUTPUTS = {
    "output_format": ("", "-output_format moses"),
    "with_score": ("", "-with_score"),
    "token_scores": ("", "-token_scores"),
    "score_only": ("-tgt {tgt}", "-score_only"),
    "src": ("", "-src {other}"),
    "output": ("", "-output {out}"),
    "shard": ("-src {other}", "-src {other} -shard 2/2 -bucket_lines 1"),
    "config": ("", "-config {config}"),
    "print_config": ("", "-print_config"),
    "help": ("", "-help"),
    "version": ("", "-version"),
    "save_config": ("", "-save_config {out}"),
    "print_model": ("", "-print_model"),
}
# ... or what is logged
LOGS = {
    "verbose": ("", "-verbose"),
    "attn_debug": ("", "-attn_debug"),
    "report_time": ("", "-report_time"),
    "report_bleu": ("-tgt {tgt}", "-report_bleu"),
    "quiet": ("-report_time", "-quiet"),
}
APART = "model device gpu precision threads batch_size batch_type".split()
APART += ["log_file", "log_file_level"]  # see test_option_table.py
APART += ["ban_unk_token", "src_lang", "tgt_lang"]  # see test_families.py
APART += ["bucket_lines"]  # see test_buckets.py
APART += ["report", "resume"]  # see cli/test_resume.py
APART += ["dump_beam"]  # see test_trace.py
APART += ["alignment_layer", "alignment_heads"]  # see test_alignment.py
APART += ["n_best_unique"]  # see test_widening.py
APART += ["workers"]  # see test_workers.py
APART += ["deterministic"]  # see test_deterministic.py
APART += vars(TextOptions())  # see test_transforms.py


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run translate.py in this process: its output and its log."""
    # The toy model's twin, twice as sure of everything
    twin = json.loads(Path(TOY).read_text("utf-8"))
    rows = twin["sources"]["katze"]["rows"]
    twin["sources"]["katze"]["rows"] = {key: [2 * x for x in row] for key, row in rows.items()}
    files = {
        "src": "katze\n",
        "other": "katze\nkatze\n",
        "objects": '{"text": "katze", "other": ""}\n',
        "tgt": "the cat\n",
        "config": "beam_size: 1\n",
        "phrases": "the\n",
        "banned": "a\n",
        "sure": json.dumps(twin),
    }
    paths = {name: tmp_path / name for name in [*files, "out"]} | {"toy": TOY}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def run_once(argv):
        words = f"-model {TOY} -src {{src}} {argv}".format(**paths).split()
        assert translate.main(words) in (0, 7)  # 7: a line that is no JSON
        return capfd.readouterr()

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


def test_no_option_is_missing_here():
    assert sorted([*RECORDS, *OUTPUTS, *LOGS, *APART]) == sorted(OPTIONS)


@pytest.mark.parametrize("name", RECORDS)
def test_it_changes_the_record(run, name):
    base, more = RECORDS[name]
    first = run(f"{base} -output_format jsonl")
    second = run(f"{base} -output_format jsonl {more}")
    assert first.out != second.out
    assert f"NOTE: {name}: has no effect" not in second.err


@pytest.mark.parametrize("name", OUTPUTS)
def test_it_changes_the_output(run, name):
    base, more = OUTPUTS[name]
    assert run(base).out != run(f"{base} {more}").out


@pytest.mark.parametrize("name", LOGS)
def test_it_changes_the_log_alone(run, name):
    base, more = LOGS[name]
    first, second = run(base), run(f"{base} {more}")
    assert first.out == second.out
    assert first.err != second.err


def test_model_and_tokenizer(tiny_checkpoint):
    pieces = Translator.from_pretrained(tiny_checkpoint, device="cpu")
    spaces = Translator.from_pretrained(tiny_checkpoint, device="cpu", tokenizer="space")
    (by_pieces,), (by_spaces,) = (t.translate(["der hund"]) for t in (pieces, spaces))
    assert " ".join(by_spaces.hyps[0].tokens) == by_spaces.hyps[0].text
    assert by_pieces.hyps[0].tokens != by_spaces.hyps[0].tokens
    assert isinstance(Translator.from_pretrained(TOY, device="cpu").model, TableModel)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_precision(tiny_checkpoint, precision):
    translator = Translator.from_pretrained(tiny_checkpoint, device="cpu", precision=precision)
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    types |= {"fp32": torch.float32, "int8": torch.float32}
    assert precision_of(translator.model) == precision
    assert {p.dtype for p in translator.model.parameters()} == {types[precision]}
    assert translator.translate(["der hund"])[0].hyps[0].score < 0


@pytest.fixture
def encoded(monkeypatch):
    """(sentences, threads) of each call of the encoder."""
    seen = []
    encode = TableModel.encode

    def watched(*args):
        seen.append((len(args[2]), torch.get_num_threads()))
        return encode(*args)

    monkeypatch.setattr(TableModel, "encode", watched)
    return seen


@pytest.mark.parametrize("where", ["from_pretrained", "translate"])
def test_threads(encoded, where):
    """They are those of the model's work; before and after it torch has as many as ever."""
    before = torch.get_num_threads()
    given = {"from_pretrained": {}, "translate": {}, where: {"threads": before + 1}}
    translator = Translator.from_pretrained(TOY, device="cpu", **given["from_pretrained"])
    translator.translate(["katze"], **given["translate"])
    assert encoded == [(1, before + 1)]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("where", ["from_pretrained", "translate"])
def test_seed(where):
    drawn = []
    for seed in (1, 2, 2):
        given = {"from_pretrained": {}, "translate": {}, where: {"seed": seed}}
        translator = Translator.from_pretrained(TOY, device="cpu", **given["from_pretrained"])
        found = translator.translate(["katze"] * 50, do_sample=True, **given["translate"])
        drawn.append([t.text for t in found])
    assert drawn[0] != drawn[1] == drawn[2]


def test_batch_size_and_type(encoded):
    translator = Translator.from_pretrained(TOY, device="cpu")
    lines = ["katze katze" + " " * i for i in range(6)]  # no copies
    translator.translate(lines, batch_size=4)  # tokens
    translator.translate(lines, batch_size=4, batch_type="sents")
    assert [n_sents for n_sents, _ in encoded] == [2, 2, 2, 4, 2]


def test_ban_unk_token():
    source = table_models.make_source(
        {"": table_models.logits(0.1, 0.6, 0.3)}, table_models.logits(1.0, 0.0, 0.0)
    )
    checkpoint = table_models.make_checkpoint([source])
    checkpoint = type(checkpoint)(
        **{**vars(checkpoint), "tgt_vocab": Vocab(["$", "<unk>", "b"], eos_id=0, unk_id=1)}
    )
    translator = Translator(checkpoint, TranslateOptions.of())
    assert translator.translate(["s0"])[0].hyps[0].tokens == ["<unk>"]
    assert translator.translate(["s0"], ban_unk_token=True)[0].hyps[0].tokens == ["b"]
