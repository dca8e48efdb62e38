"""Each option has the effect that its help describes.

tests/README.md lists the tests of every option.
"""

import json
import logging
from pathlib import Path

import pytest
import torch

import translate
from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OptionError
from onmt_lite.inference.runtime import get_precision
from onmt_lite.models.table_model import TableModel
from onmt_lite.text.vocab import Vocab
from tests.support import table_models, tiny

TOY = "data/toy.json"
FAMILIES = Path(__file__).parents[2] / "data" / "families"


@pytest.fixture
def run(tmp_path, capfd):
    """run(argv) -> stdout and stderr of translate.py, in this process."""
    # The toy model with doubled logits for "katze", for ensembles
    confident = json.loads(Path(TOY).read_text("utf-8"))
    rows = confident["sources"]["katze"]["rows"]
    confident["sources"]["katze"]["rows"] = {k: [2 * x for x in row] for k, row in rows.items()}
    files = {
        "src": "katze\n",
        "other": "katze\nkatze\n",
        "objects": '{"text": "katze", "other": ""}\n',
        "tgt": "the cat\n",
        "config": "beam_size: 1\n",
        "phrases": "the\n",
        "banned": "a\n",
        "sure": json.dumps(confident),
        "spaces": "katze\nkatze \n",
        "empty": "katze\n\n",
    }
    paths = {name: tmp_path / name for name in [*files, "out"]} | {"toy": TOY}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def run_once(argv):
        words = f"-model {TOY} -src {{src}} {argv}".format(**paths).split()
        assert translate.main(words) in (0, 7)  # 7: a line that is not JSON
        return capfd.readouterr()

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


def assert_changes_record(run, words, base=""):
    """Check that `words` change the JSONL record, without a notice that they have no effect."""
    first = run(f"{base} -output_format jsonl")
    second = run(f"{base} -output_format jsonl {words}")
    assert first.out != second.out
    name = words.split()[0].removeprefix("-")
    assert f"NOTE: {name}: has no effect" not in second.err


def assert_changes_output(run, words, base=""):
    """Check that `words` change standard output."""
    assert run(base).out != run(f"{base} {words}").out


def assert_changes_log(run, words, base=""):
    """Check that `words` change the log but not the output."""
    first, second = run(base), run(f"{base} {words}")
    assert first.out == second.out
    assert first.err != second.err


# -- options that change the JSONL record ----------------------------------------------------------


class TestBeamSize:
    def test_beam_size_changes_record(self, run):
        assert_changes_record(run, "-beam_size 1")


class TestNBest:
    def test_n_best_changes_record(self, run):
        assert_changes_record(run, "-n_best 2")


class TestMinLength:
    def test_min_length_changes_record(self, run):
        assert_changes_record(run, "-min_length 4")


class TestMaxLength:
    def test_max_length_changes_record(self, run):
        assert_changes_record(run, "-max_length 2")


class TestMaxLengthRatio:
    def test_max_length_ratio_changes_record(self, run):
        assert_changes_record(run, "-max_length_ratio 0.1", base="-min_length 6")


class TestLengthPenalty:
    def test_length_penalty_changes_record(self, run):
        assert_changes_record(run, "-length_penalty wu")


class TestAlpha:
    def test_alpha_changes_record(self, run):
        assert_changes_record(run, "-alpha 0.5")


class TestCoveragePenalty:
    def test_coverage_penalty_changes_record(self, run):
        assert_changes_record(run, "-coverage_penalty summary", base="-beta 1")


class TestBeta:
    def test_beta_changes_record(self, run):
        assert_changes_record(run, "-beta 1", base="-coverage_penalty summary")


class TestStepwisePenalty:
    def test_stepwise_penalty_changes_record(self, run):
        assert_changes_record(run, "-stepwise_penalty", base="-coverage_penalty summary -beta 1")


class TestBlockNgramRepeat:
    def test_block_ngram_repeat_changes_record(self, run):
        assert_changes_record(run, "-block_ngram_repeat 1", base="-min_length 4")


class TestIgnoreWhenBlocking:
    def test_ignore_when_blocking_changes_record(self, run):
        assert_changes_record(
            run, "-ignore_when_blocking the a cat cats", base="-min_length 4 -block_ngram_repeat 1"
        )


class TestTgt:
    def test_tgt_changes_record(self, run):
        assert_changes_record(run, "-tgt {tgt}")


class TestInputFormat:
    def test_input_format_changes_record(self, run):
        assert_changes_record(run, "-input_format jsonl")


class TestTextField:
    def test_text_field_changes_record(self, run):
        assert_changes_record(run, "-text_field other", base="-src {objects} -input_format jsonl")


class TestSearch:
    def test_search_changes_record(self, run):
        assert_changes_record(run, "-search tensor2tensor")


class TestRepetitionPenalty:
    def test_repetition_penalty_changes_record(self, run):
        assert_changes_record(
            run, "-repetition_penalty 3", base="-search transformers -min_length 5"
        )


class TestEarlyStopping:
    def test_early_stopping_changes_record(self, run):
        assert_changes_record(
            run, "-early_stopping true", base="-search transformers -n_best 3 -beam_size 3 -alpha 2"
        )


class TestRatio:
    def test_ratio_changes_record(self, run):
        assert_changes_record(run, "-ratio 20", base="-n_best 5")


class TestTgtFilePrefix:
    def test_tgt_file_prefix_changes_record(self, run):
        assert_changes_record(run, "-tgt_file_prefix", base="-tgt {tgt}")


class TestPatience:
    def test_patience_changes_record(self, run):
        assert_changes_record(run, "-patience 9", base="-search ctranslate2 -alpha 3 -max_length 9")


class TestBeamGroups:
    def test_beam_groups_changes_record(self, run):
        assert_changes_record(
            run, "-beam_groups 4", base="-search transformers -beam_size 4 -n_best 4"
        )


class TestDiversityRate:
    def test_diversity_rate_changes_record(self, run):
        assert_changes_record(
            run,
            "-diversity_rate 1",
            base="-search transformers -beam_size 4 -n_best 4 -beam_groups 2",
        )


class TestForceWords:
    def test_force_words_changes_record(self, run):
        assert_changes_record(run, "-force_words {phrases}")


class TestBanWords:
    def test_ban_words_changes_record(self, run):
        assert_changes_record(run, "-ban_words {banned}")


class TestDoSample:
    def test_do_sample_changes_record(self, run):
        assert_changes_record(run, "-do_sample", base="-beam_size 1 -max_length 9")


class TestRandomSamplingTemp:
    def test_random_sampling_temp_changes_record(self, run):
        assert_changes_record(run, "-random_sampling_temp 9", base="-do_sample")


class TestRandomSamplingTopk:
    def test_random_sampling_topk_changes_record(self, run):
        assert_changes_record(
            run, "-random_sampling_topk 1", base="-do_sample -random_sampling_temp 9"
        )


class TestRandomSamplingTopp:
    def test_random_sampling_topp_changes_record(self, run):
        assert_changes_record(
            run, "-random_sampling_topp 0.1", base="-do_sample -random_sampling_temp 9"
        )


class TestSeed:
    def test_seed_changes_record(self, run):
        assert_changes_record(run, "-seed 2", base="-do_sample -n_best 5 -random_sampling_temp 9")

    @pytest.mark.parametrize("call", ["from_pretrained", "translate"])
    def test_seed_repeats_samples(self, call):
        samples = []
        for seed in (1, 2, 2):
            options = {"from_pretrained": {}, "translate": {}, call: {"seed": seed}}
            translator = Translator.from_pretrained(TOY, device="cpu", **options["from_pretrained"])
            translations = translator.translate(
                ["katze"] * 50, do_sample=True, **options["translate"]
            )
            samples.append([t.text for t in translations])
        assert samples[0] != samples[1] == samples[2]


class TestAvgRawProbs:
    def test_avg_raw_probs_changes_record(self, run):
        assert_changes_record(run, "-avg_raw_probs", base="-model {toy} {sure}")


class TestModelWeights:
    def test_model_weights_changes_record(self, run):
        assert_changes_record(run, "-model_weights 1 9", base="-model {toy} {sure}")


class TestReportAlign:
    def test_report_align_changes_record(self, run):
        assert_changes_record(run, "-report_align")


class TestGoldAlign:
    def test_gold_align_changes_record(self, run):
        assert_changes_record(run, "-gold_align", base="-tgt {tgt} -report_align")


# -- options that change standard output -----------------------------------------------------------


class TestOutputFormat:
    def test_output_format_changes_output(self, run):
        assert_changes_output(run, "-output_format moses")


class TestWithScore:
    def test_with_score_changes_output(self, run):
        assert_changes_output(run, "-with_score")


class TestTokenScores:
    def test_token_scores_changes_output(self, run):
        assert_changes_output(run, "-token_scores")


class TestScoreOnly:
    def test_score_only_changes_output(self, run):
        assert_changes_output(run, "-score_only", base="-tgt {tgt}")


class TestSrc:
    def test_src_changes_output(self, run):
        assert_changes_output(run, "-src {other}")


class TestOutput:
    def test_output_changes_output(self, run):
        assert_changes_output(run, "-output {out}")


class TestShard:
    def test_shard_changes_output(self, run):
        assert_changes_output(run, "-src {other} -shard 2/2 -bucket_lines 1", base="-src {other}")


class TestConfig:
    def test_config_changes_output(self, run):
        assert_changes_output(run, "-config {config}")


class TestPrintConfig:
    def test_print_config_changes_output(self, run):
        assert_changes_output(run, "-print_config")


class TestHelp:
    def test_help_changes_output(self, run):
        assert_changes_output(run, "-help")


class TestVersion:
    def test_version_changes_output(self, run):
        assert_changes_output(run, "-version")


class TestSaveConfig:
    def test_save_config_changes_output(self, run):
        assert_changes_output(run, "-save_config {out}")


class TestPrintModel:
    def test_print_model_changes_output(self, run):
        assert_changes_output(run, "-print_model")


# -- options that change the log -------------------------------------------------------------------


class TestVerbose:
    def test_verbose_changes_log_only(self, run):
        assert_changes_log(run, "-verbose")


class TestAttnDebug:
    def test_attn_debug_changes_log_only(self, run):
        assert_changes_log(run, "-attn_debug")


class TestReportTime:
    def test_report_time_changes_log_only(self, run):
        assert_changes_log(run, "-report_time")


class TestReportBleu:
    def test_report_bleu_changes_log_only(self, run):
        assert_changes_log(run, "-report_bleu", base="-tgt {tgt}")


class TestQuiet:
    def test_quiet_changes_log_only(self, run):
        assert_changes_log(run, "-quiet", base="-report_time")


# -- options of models and devices ----------------------------------------------------------------


class TestModel:
    def test_model_json_file_is_table_model(self):
        assert isinstance(Translator.from_pretrained(TOY, device="cpu").model, TableModel)


class TestTokenizer:
    def test_tokenizer_space_splits_at_spaces_only(self, tiny_checkpoint):
        options = dict(device="cpu")
        subwords = Translator.from_pretrained(tiny_checkpoint, **options)
        spaces = Translator.from_pretrained(tiny_checkpoint, tokenizer="space", **options)
        (by_subwords,), (by_spaces,) = (t.translate(["der hund"]) for t in (subwords, spaces))
        assert " ".join(by_spaces.hyps[0].tokens) == by_spaces.hyps[0].text
        assert by_subwords.hyps[0].tokens != by_spaces.hyps[0].tokens


class TestUnknown:
    def test_unknown_copy_keeps_and_drop_removes_unknown_character(self):
        texts = [
            Translator.from_pretrained(device="cpu", unknown=unknown)
            .translate("Hallo \u2603!")
            .text
            for unknown in ("copy", "drop")
        ]
        assert ["\u2603" in text for text in texts] == [True, False]


class TestPhraseTable:
    def test_phrase_table_replaces_unknown_token(self, tmp_path):
        (tmp_path / "table").write_text("s0|||katze\n")
        given = dict(replace_unk=True)
        for options, text in (
            (given, "s0"),
            (given | dict(phrase_table=tmp_path / "table"), "katze"),
        ):
            translator = Translator(make_unk_checkpoint(), TranslateOptions.of(**options))
            assert translator.translate("s0").text == text


class TestSrcLang:
    def test_src_lang_changes_score(self):
        translator = Translator.from_pretrained(FAMILIES / "m2m", device="cpu", tgt_lang="en")
        first, second = (translator.translate("a", src_lang=code) for code in ("de", "fr"))
        assert first.hyps[0].score != second.hyps[0].score


class TestTgtLang:
    def test_tgt_lang_changes_score(self):
        translator = Translator.from_pretrained(FAMILIES / "m2m", device="cpu", tgt_lang="de")
        first, second = (translator.translate("a", tgt_lang=code) for code in ("en", "fr"))
        assert first.hyps[0].score != second.hyps[0].score


class TestDevice:
    def test_device_cpu_runs_on_cpu(self):
        assert Translator.from_pretrained(TOY, device="cpu").device == torch.device("cpu")

    def test_device_without_gpu_is_rejected(self):
        with pytest.raises(OptionError, match="GPU"):
            Translator.from_pretrained(TOY, device="cuda:98")


class TestPrecision:
    @pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
    def test_precision_sets_dtype(self, tiny_checkpoint, precision):
        translator = Translator.from_pretrained(tiny_checkpoint, device="cpu", precision=precision)
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtypes |= {"fp32": torch.float32, "int8": torch.float32}
        assert get_precision(translator.model) == precision
        assert {p.dtype for p in translator.model.parameters()} == {dtypes[precision]}
        assert translator.translate(["der hund"])[0].hyps[0].score < 0


class TestAlignmentLayer:
    def test_alignment_layer_changes_alignment(self, translator):
        first, last = align(translator, alignment_layer=0), align(translator, alignment_layer=-1)
        assert first != last


class TestAlignmentHeads:
    def test_alignment_heads_changes_alignment(self, translator):
        assert align(translator, alignment_heads=1) != align(translator, alignment_heads=0)


def align(translator, **options):
    """Return the alignments of some translations."""
    translations = translator.translate(tiny.SENTENCES, report_align=True, **options)
    return [t.hyps[0].align for t in translations]


def make_unk_checkpoint():
    """Return a model whose best token is unknown."""
    source = table_models.make_source(
        {"": table_models.logits(0.1, 0.6, 0.3)}, table_models.logits(1.0, 0.0, 0.0)
    )
    checkpoint = table_models.make_checkpoint([source])
    return type(checkpoint)(
        **{**vars(checkpoint), "tgt_vocab": Vocab(["$", "<unk>", "b"], eos_id=0, unk_id=1)}
    )


class TestBanUnkToken:
    def test_ban_unk_token_forbids_unknown_token(self):
        translator = Translator(make_unk_checkpoint(), TranslateOptions.of())
        assert translator.translate(["s0"])[0].hyps[0].tokens == ["<unk>"]
        assert translator.translate(["s0"], ban_unk_token=True)[0].hyps[0].tokens == ["b"]


# -- options of batches and jobs ------------------------------------------------------------------


@pytest.fixture
def encoder_calls(monkeypatch):
    """(sentences, threads) of each call of the encoder."""
    calls = []
    encode = TableModel.encode

    def record(*args):
        calls.append((len(args[2]), torch.get_num_threads()))
        return encode(*args)

    monkeypatch.setattr(TableModel, "encode", record)
    return calls


class TestThreads:
    @pytest.mark.parametrize("call", ["from_pretrained", "translate"])
    def test_threads_apply_during_translation_only(self, encoder_calls, call):
        before = torch.get_num_threads()
        options = {"from_pretrained": {}, "translate": {}, call: {"threads": before + 1}}
        translator = Translator.from_pretrained(TOY, device="cpu", **options["from_pretrained"])
        translator.translate(["katze"], **options["translate"])
        assert encoder_calls == [(1, before + 1)]
        assert torch.get_num_threads() == before


LINES = ["katze katze" + " " * i for i in range(6)]  # no duplicates


class TestBatchSize:
    def test_batch_size_counts_tokens(self, encoder_calls):
        Translator.from_pretrained(TOY, device="cpu").translate(LINES, batch_size=4)
        assert [n_sents for n_sents, _ in encoder_calls] == [2, 2, 2]


class TestBatchType:
    def test_batch_type_sents_counts_sentences(self, encoder_calls):
        translator = Translator.from_pretrained(TOY, device="cpu")
        translator.translate(LINES, batch_size=4, batch_type="sents")
        assert [n_sents for n_sents, _ in encoder_calls] == [4, 2]


class TestBucketLines:
    def test_bucket_lines_limits_sentences_per_batch(self, run, encoder_calls):
        run("-src {spaces} -bucket_lines 2")
        run("-src {spaces} -bucket_lines 1")
        assert [n_sents for n_sents, _ in encoder_calls] == [2, 1, 1]


class TestLogFile:
    def test_log_file_contains_log(self, run, tmp_path):
        run("-verbose -log_file {out}")
        assert "PRED SCORE" in (tmp_path / "out").read_text(encoding="utf-8")


class TestLogFileLevel:
    def test_log_file_level_error_leaves_log_file_empty(self, run, tmp_path):
        run("-verbose -log_file {out} -log_file_level ERROR")
        assert (tmp_path / "out").read_text(encoding="utf-8") == ""


class TestReport:
    def test_report_lists_lines_with_warnings(self, run, tmp_path):
        run("-src {empty} -report {out}")
        assert json.loads((tmp_path / "out").read_text("utf-8")) == {"id": 1, "notes": ["empty"]}
