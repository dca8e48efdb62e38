"""Search defaults in generation_config.json, and errors for unsupported transformers models.

`data/families/defaults.json` has the output of `generate` in transformers 4.46.3 and 5.23.0 with
the default settings of a model (`peers/make_defaults.py`).
"""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.checkpoints import generation_config, safetensors
from onmt_lite.checkpoints.huggingface import reader
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.options import load_options
from onmt_lite.errors import CheckpointError, OptionError, OptionWarning
from tests.exactness.peers.make_defaults import write_directory
from tests.support.files import update_json
from tests.support.sweeps import mark_sweeps

ROOT = Path(__file__).parents[2] / "data" / "families"


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(ROOT / "mbart50", tmp_path / "copy")


MARIAN = Path(__file__).parents[2] / "data" / "checkpoints" / "hf" / "marian"
TABLES = ("generation_config", "tokens", "unsupported", "legacy_defaults")
ROWS = json.loads((ROOT / "defaults.json").read_text("utf-8"))
CASES = {
    f"{row['model']}-{i}-{search}": (row, search)
    for i, row in enumerate(ROWS)
    for search in ("transformers", "transformers-5")
}


def resolve_options(path, *words, search="transformers"):
    return load_options(["-model", str(path), "-search", search, *words])[1]


def test_families_equal_families_of_reader():
    assert {*generation_config.FAMILIES} == {*reader.FAMILIES}


@pytest.mark.parametrize(
    "row, search", mark_sweeps(CASES.values(), [*CASES.values()][::4]), ids=CASES
)
def test_model_defaults_same_output_as_generate(row, search, tmp_path):
    write_directory(row, tmp_path)
    options = dict(tokenizer="space") if row["model"] == "marian" else {}
    options |= dict(device="cpu", precision="fp32", threads=1, search=search)
    if isinstance(row[search], str):  # an error of transformers
        with pytest.raises(CheckpointError, match="num_beam_groups"):
            Translator.from_pretrained(tmp_path, **options)
        return
    translator = Translator.from_pretrained(tmp_path, **options)
    eos, n_forced = translator.checkpoint.eos_id, translator.checkpoint.count_forced_tokens("")
    for translation, ids in zip(translator.translate(row["lines"]), row[search], strict=True):
        hyp, returned = translation.hyps[0], ids[1 + n_forced :]
        ended = eos in returned
        returned = returned[: returned.index(eos)] if ended else returned
        assert hyp.tokens == translator.checkpoint.tgt_vocab.decode(returned)
        assert hyp.ended == ended


class TestDefaults:
    @pytest.mark.parametrize(
        "setting, name, value",
        [
            (dict(num_beams=7), "beam_size", 7),
            (dict(max_length=33), "max_length", 33),
            (dict(max_length=20, max_new_tokens=33), "max_length", 34),
            (dict(min_length=3), "min_length", 3),
            (dict(min_new_tokens=3), "min_length", 4),
            (dict(length_penalty=0.5), "alpha", 0.5),
            (dict(length_penalty=2), "alpha", 2.0),
            (dict(early_stopping=True), "early_stopping", "true"),
            (dict(early_stopping=False), "early_stopping", "false"),
            (dict(early_stopping="never"), "early_stopping", "never"),
            (dict(no_repeat_ngram_size=3), "block_ngram_repeat", 3),
            (dict(repetition_penalty=1.25), "repetition_penalty", 1.25),
        ],
        ids=str,
    )
    def test_each_setting_is_option_default(self, copy, setting, name, value):
        update_json(copy / "generation_config.json", **setting)
        resolved = resolve_options(copy)
        assert resolved.values[name] == value
        assert resolved.origins[name] == f"default of {copy / 'generation_config.json'}"
        assert f"{copy / 'generation_config.json'}" in resolved.to_yaml()

    def test_option_overrides_default_and_other_presets_ignore_it(self, copy):
        update_json(copy / "generation_config.json", num_beams=7)
        assert resolve_options(copy, "-beam_size", "2").values["beam_size"] == 2
        assert resolve_options(copy, "-search", "opennmt").values["beam_size"] == 5

    @pytest.mark.parametrize(
        "search, beams, length, file",
        [
            ("transformers", 7, 50, "config.json"),
            ("transformers-5", 1, 60, "generation_config.json"),
        ],
    )
    def test_config_json_or_generation_config_json_precedence(
        self, copy, search, beams, length, file
    ):
        update_json(copy / "config.json", num_beams=7, max_length=50)
        update_json(copy / "generation_config.json", max_length=60)  # _from_model_config is set
        resolved = resolve_options(copy, search=search)
        values = resolved.values
        assert (values["beam_size"], values["max_length"]) == (beams, length)
        assert resolved.origins["max_length"] == f"default of {copy / file}"
        (copy / "generation_config.json").unlink()
        assert resolve_options(copy, search=search).values["beam_size"] == 7

    def test_print_config_setting_without_option_is_comment(self, copy):
        path = copy / "generation_config.json"
        update_json(path, bad_words_ids=[[5], [7, 8]], sequence_bias=[[[5, 6], 1.5]])
        printed = resolve_options(copy).to_yaml()
        assert f"# bad_words_ids: [[5], [7, 8]]  # default of {path}\n" in printed
        assert f"# sequence_bias: [[[5, 6], 1.5]]  # default of {path}\n" in printed
        assert f"# forced_eos_token_id: 2  # default of {path}\n" in printed
        assert "bad_words_ids" not in yaml.safe_load(printed)
        update_json(path, _from_model_config=False, forced_bos_token_id=94)
        assert "# forced_bos_token_id: 94" in resolve_options(copy).to_yaml()
        assert "forced_bos" not in resolve_options(copy, "-tgt_lang", "de_DE").to_yaml()
        path.unlink()  # transformers 4 has a default for mBART
        update_json(copy / "config.json", forced_eos_token_id=2)
        config = json.loads((copy / "config.json").read_text("utf-8"))
        config.pop("forced_eos_token_id")
        (copy / "config.json").write_text(json.dumps(config))
        assert (
            "# forced_eos_token_id: 2  # default of transformers\n"
            in resolve_options(copy).to_yaml()
        )
        assert "forced_eos" not in resolve_options(copy, search="transformers-5").to_yaml()

    def test_max_length_not_in_files_notice(self, copy):
        (notice,) = resolve_options(copy, "-tgt_lang", "en_XX").notices
        assert notice.startswith("max_length 20 truncates") and "set max_length" in notice
        assert resolve_options(copy, search="transformers-5").values["max_length"] == 21
        for words in (["-max_length", "20"], ["-search", "opennmt"]):
            assert resolve_options(copy, *words).notices == ()
        update_json(copy / "generation_config.json", max_length=30)
        assert resolve_options(copy).notices == ()
        assert load_options(["-search", "transformers"])[1].values["beam_size"] == 5

    def test_num_return_sequences_has_no_effect_and_warns(self, copy):
        update_json(copy / "generation_config.json", num_return_sequences=3, num_beams=3)
        translator = Translator.from_pretrained(
            copy, device="cpu", search="transformers", tgt_lang="en_XX"
        )
        with pytest.warns(OptionWarning, match="num_return_sequences 3.*n_best=3"):
            (translation,) = translator.translate(["a"], max_length=4)
        assert len(translation.hyps) == 1

    def test_num_return_sequences_marian_notice(self, tmp_path):
        copy = shutil.copytree(MARIAN, tmp_path / "copy")
        (copy / "generation_config.json").unlink()
        update_json(copy / "config.json", num_return_sequences=2, num_beams=4, max_length=5)
        assert any("-n_best 2" in notice for notice in load_checkpoint(copy).notices)
        assert resolve_options(copy).values["beam_size"] == 4

    @pytest.mark.parametrize(
        "setting",
        [
            dict(guidance_scale=1.5),
            dict(forced_decoder_ids=[[1, 5]]),
            dict(max_time=1.5),
            dict(num_beams="5"),
            dict(num_beams=0),
            dict(max_length=1.5),
        ],
        ids=str,
    )
    def test_unsupported_or_invalid_setting_error_names_it(self, copy, setting):
        update_json(copy / "generation_config.json", **setting)
        with pytest.raises(CheckpointError) as caught:
            resolve_options(copy)
        assert next(iter(setting)) in str(caught.value) and "generation_config" in str(caught.value)

    @pytest.mark.parametrize(
        "setting",
        [
            dict(sequence_bias=[[[5], 1.0]]),
            dict(exponential_decay_length_penalty=[5, 1.1]),
            dict(begin_suppress_tokens=[5]),
            dict(encoder_no_repeat_ngram_size=2),
        ],
        ids=str,
    )
    def test_token_rule_preset_without_it_refused(self, copy, setting):
        update_json(copy / "generation_config.json", **setting)
        with pytest.raises(
            CheckpointError, match=f"transformers-2 does not support {next(iter(setting))}"
        ):
            resolve_options(copy, search="transformers-2")
        for search in ("transformers", "transformers-5", "opennmt"):
            resolve_options(copy, search=search)

    @pytest.mark.parametrize("search", ["opennmt", "transformers-2", "fairseq"])
    def test_eos_token_id_list_preset_without_it_refused(self, copy, search):
        update_json(copy / "generation_config.json", eos_token_id=[2, 5])
        translator = Translator.from_pretrained(copy, tgt_lang="en_XX", search="transformers")
        assert translator.checkpoint.eos_id == 2
        with pytest.raises(OptionError, match="eos_token_id.*transformers or transformers-5"):
            translator.translate(["a"], search=search)

    def test_do_sample_default_requires_do_sample_option(self, copy):
        update_json(copy / "generation_config.json", do_sample=True, temperature=0.5, typical_p=1.0)
        with pytest.raises(OptionError, match="do_sample"):
            resolve_options(copy)
        assert resolve_options(copy, "-do_sample", "false").values["random_sampling_temp"] == 1.0
        assert resolve_options(copy, "-do_sample").values["random_sampling_temp"] == 0.5
        update_json(copy / "generation_config.json", typical_p=0.5)
        with pytest.raises(CheckpointError, match="typical_p"):
            resolve_options(copy, "-do_sample")
        assert resolve_options(copy, "-do_sample", "false").values["do_sample"] is False

    def test_num_beam_groups_with_renormalize_logits_refused(self, copy):
        settings = dict(
            num_beams=4, num_beam_groups=2, diversity_penalty=0.5, renormalize_logits=True
        )
        update_json(copy / "generation_config.json", **settings)
        translator = Translator.from_pretrained(copy, search="transformers", tgt_lang="en_XX")
        with pytest.raises(OptionError, match="renormalize_logits"):
            translator.translate(["a"])

    @pytest.mark.parametrize(
        "setting",
        [
            *(dict(bad_words_ids=x) for x in (5, [5], [[]], [["5"]], [[-1]], [[10**9]], {"a": 1})),
            *(dict(suppress_tokens=x) for x in (5, [[5]], [True], [10**9])),
            *(dict(forced_eos_token_id=x) for x in (5, [2, 5], "2")),
            dict(forced_eos_token_id=2, suppress_tokens=[2]),
            *(dict(eos_token_id=x) for x in ([], [2, -1], [2, 10**9], [2, "5"], [[2]])),
            *(dict(begin_suppress_tokens=x) for x in (5, [[5]], [10**9], {"a": 1})),
            *(dict(encoder_no_repeat_ngram_size=x) for x in (-1, 1.5, "2", [2], True)),
            *(dict(exponential_decay_length_penalty=x) for x in (5, [5], [5.5, 1.1], [5, -1.0])),
            *(dict(exponential_decay_length_penalty=x) for x in ([5, "1"], [5, 1.1, 1], {"a": 1})),
            *(dict(sequence_bias=x) for x in (5, [[5, 1.0]], [[[], 1.0]], [[[10**9], 1.0]])),
            *(dict(sequence_bias=x) for x in ([[[5], "1"]], [[[5], float("nan")]], [[[5]]])),
            *(dict(sequence_bias=[[[5], x]]) for x in (10**400, 1e300, -1e300)),
            *(dict(exponential_decay_length_penalty=[x, 10**400]) for x in (5, 10**400)),
        ],
        ids=str,
    )
    def test_token_rule_invalid_value_refused(self, copy, setting):
        update_json(copy / "generation_config.json", **setting)
        with pytest.raises(CheckpointError, match=f"{next(iter(setting))}|forces"):
            load_checkpoint(copy)

    @pytest.mark.parametrize("decay", [[10**30, 1.5], [0, 10**38], [3, 0]])
    def test_exponential_decay_length_penalty_extreme_values_translate(self, copy, decay):
        update_json(copy / "generation_config.json", exponential_decay_length_penalty=decay)
        translator = Translator.from_pretrained(copy, search="transformers-5", tgt_lang="en_XX")
        assert translator.translate(["a"], max_length=5)[0].hyps

    def test_forced_eos_token_id_float_accepted(self, copy):
        update_json(copy / "generation_config.json", forced_eos_token_id=[2.0])
        translator = Translator.from_pretrained(copy, search="transformers-5", tgt_lang="en_XX")
        assert translator.translate(["a"], max_length=5)[0].hyps

    @settings(max_examples=150)
    @given(
        st.sampled_from([n for table in TABLES for n in generation_config.load_table(table)]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
    def test_any_value_accepted_or_one_line_error(self, tmp_path_factory, name, value):
        path = tmp_path_factory.mktemp("any")
        (path / "config.json").write_text('{"model_type": "marian"}')
        (path / "generation_config.json").write_text(json.dumps({name: value}))
        try:
            printed = resolve_options(path).to_yaml()
        except (CheckpointError, OptionError) as error:
            assert "\n" not in str(error)
        else:
            assert yaml.safe_load(printed)["search"] == "transformers"

    def test_bad_words_ids_ensemble_bans_words_of_all_models(self, copy, tmp_path):
        other = shutil.copytree(copy, tmp_path / "other")
        update_json(copy / "generation_config.json", bad_words_ids=[[5], [7, 8]])
        update_json(other / "generation_config.json", bad_words_ids=[[6]], renormalize_logits=True)
        both = Translator.from_pretrained(model=[copy, other], tgt_lang="en_XX").checkpoint
        assert both.get_token_rules("transformers-5").banned == ((5,), (6,), (7, 8))
        assert not both.get_token_rules("transformers-5").renormalize  # as in the first model

    def test_bad_words_ids_and_suppress_tokens_are_banned(self, copy):
        update_json(copy / "generation_config.json", bad_words_ids=[[5], [2]], suppress_tokens=[7])
        assert load_checkpoint(copy).banned_ids == (5, 7)  # EOS alone is ignored


def test_wrong_languages_fail_before_reading_weights(copy):
    (copy / "model.safetensors").write_bytes(b"")
    for options in (dict(), dict(tgt_lang="xx"), dict(tgt_lang="en_XX", src_lang="xx")):
        with pytest.raises(OptionError, match="_lang"):
            Translator.from_pretrained(copy, **options)
    with pytest.raises(CheckpointError):
        Translator.from_pretrained(copy, tgt_lang="en_XX")


def replace_file(copy, name, *added):
    (copy / name).unlink()
    for file in added:
        (copy / file).parent.mkdir(exist_ok=True)
        (copy / file).write_bytes(b"x")


# fmt: off
CHANGES = {
    "config.json": [
        (dict(model_type="nllb-moe"), "NLLB-MoE .type 'nllb-moe'. is not supported; .*transf"),
        (dict(model_type="bart"), "BART .type 'bart'. is not supported; .*ct2-transformers-conv"),
        (dict(model_type="pegasus"), "Pegasus .*; .*ct2-transformers-converter .*tokenizer space"),
        *((dict(model_type=name), f"'{name}'. is not supported; run it with Hugging Face transf")
          for name in ("umt5", "longt5", "led", "fsmt", "blenderbot", "prophetnet", "whisper",
                       "encoder-decoder")),
        (dict(tokenizer_class="ByT5Tokenizer"), "ByT5.* is not supported; run it"),
        (dict(model_type="llama"), "a model of type 'llama' is not supported; use a model of"),
        (dict(model_type="xlm-roberta", architectures=None), "type 'xlm-roberta' is not supported"),
        (dict(quantization_config={"load_in_8bit": True}), "quantized"),
        (dict(model_type="x\ny"), "'x\\\\ny'"),
    ],
    "tokenizer.json": [
        (dict(model={"type": "WordPiece", "vocab": {}}), "WordPiece"),
        (dict(normalizer={"type": "Lowercase"}), "Lowercase"),
        (dict(pre_tokenizer={"type": "ByteLevel"}), "ByteLevel"),
        (dict(model=[]), "not a Hugging Face tokenizer"),
        (dict(added_tokens=[{"id": 0, "content": "x"}]), "'x'"),
    ],
}
# fmt: on
CASES = [(file, values, words) for file, rows in CHANGES.items() for values, words in rows]


@pytest.mark.parametrize("file, values, words", CASES, ids=str)
def test_unsupported_family_or_tokenizer_error_names_it(copy, file, values, words):
    if file == "tokenizer.json":
        replace_file(copy, "sentencepiece.bpe.model")
    update_json(copy / file, **values)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(copy)
    assert "\n" not in str(caught.value)


INVALID = {  # invalid values, by file
    "config.json": [
        *(dict(vocab_size=7), dict(d_model="x"), dict(encoder_attention_heads=0)),
        *(dict(activation_function="mish"), dict(scale_embedding=3)),
    ],
    "generation_config.json": [
        *(dict(decoder_start_token_id=i) for i in (999, "2", [1, 2])),
        *(dict(eos_token_id=i) for i in (999, [2, 999], -1)),
        *(dict(pad_token_id=999), dict(forced_eos_token_id=7), dict(forced_bos_token_id=8)),
        *(dict(bad_words_ids=[[999]]), dict(suppress_tokens=[999]), dict(bad_words_ids=5)),
        dict(num_return_sequences="3"),
    ],
    "tokenizer_config.json": [
        *(dict(added_tokens_decoder=x) for x in (5, {"x": {"content": "a"}}, {"5": {}})),
        *(dict(added_tokens_decoder={str(i): "en_XX"}) for i in (5, 999)),
        dict(added_tokens_decoder={"94": {"content": "en_XX", "lstrip": "yes"}}),
        *(dict(unk_token=5), dict(extra_special_tokens=5), dict(extra_special_tokens=[5])),
        dict(mask_token={"content": "\ud800"}),
    ],
    "special_tokens_map.json": [dict(unk_token=5), dict(additional_special_tokens=[[]])],
    "added_tokens.json": [dict(a="x"), dict(en_XX=5), dict(en_XX=999)],
    "tokenizer.json": [dict(added_tokens=[{"id": 5, "content": "en_XX"}]), dict(added_tokens=5)],
}
INVALID_VALUES = [(file, values) for file, rows in INVALID.items() for values in rows]


@pytest.mark.parametrize("file, values", INVALID_VALUES, ids=str)
def test_invalid_value_error_names_file(copy, file, values):
    if file in ("special_tokens_map.json", "added_tokens.json", "tokenizer.json"):
        kept = json.loads((copy / "tokenizer_config.json").read_text("utf-8"))
        kept.pop("added_tokens_decoder")  # otherwise the other files are ignored
        (copy / "tokenizer_config.json").write_text(json.dumps(kept))
    if file == "added_tokens.json":
        (copy / file).write_text("{}")
        (copy / "tokenizer.json").unlink()
    update_json(copy / file, **values)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(copy)
    assert str(caught.value).startswith(f"{copy / file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_damaged_file_error_names_it(copy, file):
    update_json(copy / "tokenizer_config.json", added_tokens_decoder=None)
    (copy / file).write_text("{")
    with pytest.raises(CheckpointError, match=f"/{file}: not JSON"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    "name, words",
    [
        ("model.onnx", "ONNX"),
        ("onnx/model.onnx", "ONNX"),
        ("tf_model.h5", "TensorFlow"),
        ("flax_model.msgpack", "Flax"),
        ("model.gguf", "GGUF"),
    ],
)
def test_weights_of_other_formats_refused(copy, name, words):
    replace_file(copy, "model.safetensors", name)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(copy)


def test_quantized_small100_encoder_only_and_adapter_refused(copy, tmp_path):
    (copy / "quantize_config.json").write_text("{}")
    small_100, t5 = (shutil.copytree(ROOT / name, tmp_path / name) for name in ("m2m", "t5"))
    update_json(small_100 / "tokenizer_config.json", tokenizer_class="SMALL100Tokenizer")
    weights = safetensors.read(t5 / "model.safetensors")
    kept = {key: w for key, w in weights.items() if not key.startswith("decoder")}
    (t5 / "model.safetensors").write_bytes(safetensors.dump(kept))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for path, words in (
        (copy, "quantized"), (small_100, "SMaLL-100"), (t5, "has no decoder"),
        (tmp_path / "adapter", "adapter"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=words):
            load_checkpoint(path)
