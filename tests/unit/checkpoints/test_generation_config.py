"""What generation_config.json of a Hugging Face model says is a default of transformers' searches,
and what is no model that we read is refused in words.

`data/families/defaults.json` holds what `generate` of transformers 4.46.3 and 5.23.0 returns with
nothing but a model's own defaults, see `peers/make_defaults.py`.
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
from tests.exactness.peers.make_defaults import settle
from tests.support.sweeps import swept

ROOT = Path(__file__).parents[2] / "data" / "families"


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(ROOT / "mbart50", tmp_path / "copy")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


MARIAN = Path(__file__).parents[2] / "data" / "checkpoints" / "hf" / "marian"
TABLES = ("generation_config", "tokens", "unsupported", "of_old_files")
ROWS = json.loads((ROOT / "defaults.json").read_text("utf-8"))
CASES = {
    f"{row['model']}-{i}-{search}": (row, search)
    for i, row in enumerate(ROWS)
    for search in ("transformers", "transformers-5")
}


def resolved(path, *words, search="transformers"):
    return load_options(["-model", str(path), "-search", search, *words])[1]


def test_all_families_bring_defaults():
    assert {*generation_config.FAMILIES} == {*reader.FAMILIES}


@pytest.mark.parametrize("row, search", swept(CASES.values(), [*CASES.values()][::4]), ids=CASES)
def test_defaults_alone_give_what_generate_returns(row, search, tmp_path):
    settle(row, tmp_path)
    given = dict(tokenizer="space") if row["model"] == "marian" else {}
    given |= dict(device="cpu", precision="fp32", threads=1, search=search)
    if isinstance(row[search], str):  # it refuses them
        with pytest.raises(CheckpointError, match="num_beam_groups"):
            Translator.from_pretrained(tmp_path, **given)
        return
    translator = Translator.from_pretrained(tmp_path, **given)
    eos, n_forced = translator.checkpoint.eos_id, translator.checkpoint.count_forced_tokens("")
    for translation, ids in zip(translator.translate(row["lines"]), row[search], strict=True):
        found, returned = translation.hyps[0], ids[1 + n_forced :]
        ended = eos in returned
        returned = returned[: returned.index(eos)] if ended else returned
        assert found.tokens == translator.checkpoint.tgt_vocab.decode(returned)
        assert found.ended == ended


class TestDefaults:
    @pytest.mark.parametrize(
        "said, name, value",
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
    def test_each_key(self, copy, said, name, value):
        change(copy / "generation_config.json", **said)
        found = resolved(copy)
        assert found.values[name] == value
        assert found.origins[name] == f"default of {copy / 'generation_config.json'}"
        assert f"{copy / 'generation_config.json'}" in found.to_yaml()

    def test_what_is_given_wins_and_other_searches_do_not_ask(self, copy):
        change(copy / "generation_config.json", num_beams=7)
        assert resolved(copy, "-beam_size", "2").values["beam_size"] == 2
        assert resolved(copy, "-search", "opennmt").values["beam_size"] == 5

    @pytest.mark.parametrize(
        "search, beams, length, file",
        [
            ("transformers", 7, 50, "config.json"),
            ("transformers-5", 1, 60, "generation_config.json"),
        ],
    )
    def test_the_file_that_counts(self, copy, search, beams, length, file):
        change(copy / "config.json", num_beams=7, max_length=50)
        change(copy / "generation_config.json", max_length=60)  # made of the other, as it says
        found = resolved(copy, search=search)
        assert (found.values["beam_size"], found.values["max_length"]) == (beams, length)
        assert found.origins["max_length"] == f"default of {copy / file}"
        (copy / "generation_config.json").unlink()
        assert resolved(copy, search=search).values["beam_size"] == 7

    def test_what_no_option_sets_is_a_comment_with_its_file(self, copy):
        path = copy / "generation_config.json"
        change(path, bad_words_ids=[[5], [7, 8]], sequence_bias=[[[5, 6], 1.5]])
        printed = resolved(copy).to_yaml()
        assert f"# bad_words_ids: [[5], [7, 8]]  # default of {path}\n" in printed
        assert f"# sequence_bias: [[[5, 6], 1.5]]  # default of {path}\n" in printed
        assert f"# forced_eos_token_id: 2  # default of {path}\n" in printed
        assert "bad_words_ids" not in yaml.safe_load(printed)
        change(path, _from_model_config=False, forced_bos_token_id=94)
        assert "# forced_bos_token_id: 94" in resolved(copy).to_yaml()
        assert "forced_bos" not in resolved(copy, "-tgt_lang", "de_DE").to_yaml()
        path.unlink()  # transformers 4 has a default of its own for mBART
        change(copy / "config.json", forced_eos_token_id=2)
        config = json.loads((copy / "config.json").read_text("utf-8"))
        config.pop("forced_eos_token_id")
        (copy / "config.json").write_text(json.dumps(config))
        assert "# forced_eos_token_id: 2  # default of transformers\n" in resolved(copy).to_yaml()
        assert "forced_eos" not in resolved(copy, search="transformers-5").to_yaml()

    def test_a_limit_that_no_file_sets_is_noted(self, copy):
        (note,) = resolved(copy, "-tgt_lang", "en_XX").notes
        assert note.startswith("max_length 20 cuts") and "give max_length" in note
        assert resolved(copy, search="transformers-5").values["max_length"] == 21
        for words in (["-max_length", "20"], ["-search", "opennmt"]):
            assert resolved(copy, *words).notes == ()
        change(copy / "generation_config.json", max_length=30)
        assert resolved(copy).notes == ()
        assert load_options(["-search", "transformers"])[1].values["beam_size"] == 5

    def test_a_number_of_outputs_is_not_taken_over_and_a_note_says_so(self, copy):
        change(copy / "generation_config.json", num_return_sequences=3, num_beams=3)
        translator = Translator.from_pretrained(
            copy, device="cpu", search="transformers", tgt_lang="en_XX"
        )
        with pytest.warns(OptionWarning, match="num_return_sequences 3.*n_best=3"):
            (found,) = translator.translate(["a"], max_length=4)
        assert len(found.hyps) == 1

    def test_a_number_of_outputs_is_told_for_marian_too(self, tmp_path):
        copy = shutil.copytree(MARIAN, tmp_path / "copy")
        (copy / "generation_config.json").unlink()
        change(copy / "config.json", num_return_sequences=2, num_beams=4, max_length=5)
        assert any("-n_best 2" in note for note in load_checkpoint(copy).notices)
        assert resolved(copy).values["beam_size"] == 4

    @pytest.mark.parametrize(
        "said",
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
    def test_what_is_not_known_or_cannot_be_is_refused_by_name(self, copy, said):
        change(copy / "generation_config.json", **said)
        with pytest.raises(CheckpointError) as caught:
            resolved(copy)
        assert next(iter(said)) in str(caught.value) and "generation_config" in str(caught.value)

    @pytest.mark.parametrize(
        "said",
        [
            dict(sequence_bias=[[[5], 1.0]]),
            dict(exponential_decay_length_penalty=[5, 1.1]),
            dict(begin_suppress_tokens=[5]),
            dict(encoder_no_repeat_ngram_size=2),
        ],
        ids=str,
    )
    def test_rule_search_without_it_is_refused_by_name(self, copy, said):
        change(copy / "generation_config.json", **said)
        with pytest.raises(CheckpointError, match=f"{next(iter(said))}.*transformers-2 does not"):
            resolved(copy, search="transformers-2")
        for search in ("transformers", "transformers-5", "opennmt"):
            resolved(copy, search=search)

    @pytest.mark.parametrize("search", ["opennmt", "transformers-2", "fairseq"])
    def test_several_end_tokens_search_without_them_is_refused(self, copy, search):
        change(copy / "generation_config.json", eos_token_id=[2, 5])
        found = Translator.from_pretrained(copy, tgt_lang="en_XX", search="transformers")
        assert found.checkpoint.eos_id == 2
        with pytest.raises(OptionError, match="eos_token_id.*transformers or transformers-5"):
            found.translate(["a"], search=search)

    def test_who_draws_must_say_so(self, copy):
        change(copy / "generation_config.json", do_sample=True, temperature=0.5, typical_p=1.0)
        with pytest.raises(OptionError, match="do_sample"):
            resolved(copy)
        assert resolved(copy, "-do_sample", "false").values["random_sampling_temp"] == 1.0
        assert resolved(copy, "-do_sample").values["random_sampling_temp"] == 0.5
        change(copy / "generation_config.json", typical_p=0.5)
        with pytest.raises(CheckpointError, match="typical_p"):
            resolved(copy, "-do_sample")
        assert resolved(copy, "-do_sample", "false").values["do_sample"] is False

    def test_groups_and_normalising_again_are_refused_together(self, copy):
        said = dict(num_beams=4, num_beam_groups=2, diversity_penalty=0.5, renormalize_logits=True)
        change(copy / "generation_config.json", **said)
        found = Translator.from_pretrained(copy, search="transformers", tgt_lang="en_XX")
        with pytest.raises(OptionError, match="renormalize_logits"):
            found.translate(["a"])

    @pytest.mark.parametrize(
        "said",
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
    def test_what_is_no_token_is_refused(self, copy, said):
        change(copy / "generation_config.json", **said)
        with pytest.raises(CheckpointError, match=f"{next(iter(said))}|forces"):
            load_checkpoint(copy)

    @pytest.mark.parametrize("decay", [[10**30, 1.5], [0, 10**38], [3, 0]])
    def test_any_decay_can_be_computed(self, copy, decay):
        change(copy / "generation_config.json", exponential_decay_length_penalty=decay)
        found = Translator.from_pretrained(copy, search="transformers-5", tgt_lang="en_XX")
        assert found.translate(["a"], max_length=5)[0].hyps

    def test_a_forced_end_token_may_be_written_with_a_decimal_point(self, copy):
        change(copy / "generation_config.json", forced_eos_token_id=[2.0])
        found = Translator.from_pretrained(copy, search="transformers-5", tgt_lang="en_XX")
        assert found.translate(["a"], max_length=5)[0].hyps

    @settings(max_examples=150)
    @given(
        st.sampled_from([n for table in TABLES for n in generation_config.load_table(table)]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
    def test_any_value_is_taken_or_refused_in_one_line(self, tmp_path_factory, name, value):
        path = tmp_path_factory.mktemp("any")
        (path / "config.json").write_text('{"model_type": "marian"}')
        (path / "generation_config.json").write_text(json.dumps({name: value}))
        try:
            printed = resolved(path).to_yaml()
        except (CheckpointError, OptionError) as error:
            assert "\n" not in str(error)
        else:
            assert yaml.safe_load(printed)["search"] == "transformers"

    def test_an_ensemble_produces_no_token_that_one_of_its_models_may_not(self, copy, tmp_path):
        other = shutil.copytree(copy, tmp_path / "other")
        change(copy / "generation_config.json", bad_words_ids=[[5], [7, 8]])
        change(other / "generation_config.json", bad_words_ids=[[6]], renormalize_logits=True)
        both = Translator.from_pretrained(model=[copy, other], tgt_lang="en_XX").checkpoint
        assert both.get_token_rules("transformers-5").banned == ((5,), (6,), (7, 8))
        assert not both.get_token_rules("transformers-5").renormalize  # as the first model says

    def test_banned_tokens_are_never_produced(self, copy):
        change(copy / "generation_config.json", bad_words_ids=[[5], [2]], suppress_tokens=[7])
        assert load_checkpoint(copy).banned_ids == (5, 7)  # the end is no bad word


def test_wrong_languages_are_found_before_weights_are_read(copy):
    (copy / "model.safetensors").write_bytes(b"")
    for options in (dict(), dict(tgt_lang="xx"), dict(tgt_lang="en_XX", src_lang="xx")):
        with pytest.raises(OptionError, match="_lang"):
            Translator.from_pretrained(copy, **options)
    with pytest.raises(CheckpointError):
        Translator.from_pretrained(copy, tgt_lang="en_XX")


def without(copy, name, *others):
    (copy / name).unlink()
    for other in others:
        (copy / other).parent.mkdir(exist_ok=True)
        (copy / other).write_bytes(b"x")


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
        (dict(model_type="llama"), "a model of type 'llama' is not supported; give a model of"),
        (dict(model_type="xlm-roberta", architectures=None), "type 'xlm-roberta' is not supported"),
        (dict(quantization_config={"load_in_8bit": True}), "quantised"),
        (dict(model_type="x\ny"), "'x\\\\ny'"),
    ],
    "tokenizer.json": [
        (dict(model={"type": "WordPiece", "vocab": {}}), "WordPiece"),
        (dict(normalizer={"type": "Lowercase"}), "Lowercase"),
        (dict(pre_tokenizer={"type": "ByteLevel"}), "ByteLevel"),
        (dict(model=[]), "not a tokenizer"),
        (dict(added_tokens=[{"id": 0, "content": "x"}]), "'x'"),
    ],
}
# fmt: on
CASES = [(file, values, words) for file, rows in CHANGES.items() for values, words in rows]


@pytest.mark.parametrize("file, values, words", CASES, ids=str)
def test_other_families_and_tokenizers_are_refused(copy, file, values, words):
    if file == "tokenizer.json":
        without(copy, "sentencepiece.bpe.model")
    change(copy / file, **values)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(copy)
    assert "\n" not in str(caught.value)


WRONG = {  # values that are refused, by their file
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
WRONG_VALUES = [(file, values) for file, rows in WRONG.items() for values in rows]


@pytest.mark.parametrize("file, values", WRONG_VALUES, ids=str)
def test_error_wrong_value_names_the_file_that_has_it(copy, file, values):
    if file in ("special_tokens_map.json", "added_tokens.json", "tokenizer.json"):
        kept = json.loads((copy / "tokenizer_config.json").read_text("utf-8"))
        kept.pop("added_tokens_decoder")  # or else the other files do not count
        (copy / "tokenizer_config.json").write_text(json.dumps(kept))
    if file == "added_tokens.json":
        (copy / file).write_text("{}")
        (copy / "tokenizer.json").unlink()
    change(copy / file, **values)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(copy)
    assert str(caught.value).startswith(f"{copy / file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_error_damaged_file_names_it(copy, file):
    change(copy / "tokenizer_config.json", added_tokens_decoder=None)
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
def test_other_weights_are_refused(copy, name, words):
    without(copy, "model.safetensors", name)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(copy)


def test_other_folders_are_refused(copy, tmp_path):
    (copy / "quantize_config.json").write_text("{}")
    small_100, t5 = (shutil.copytree(ROOT / name, tmp_path / name) for name in ("m2m", "t5"))
    change(small_100 / "tokenizer_config.json", tokenizer_class="SMALL100Tokenizer")
    weights = safetensors.read(t5 / "model.safetensors")
    kept = {key: w for key, w in weights.items() if not key.startswith("decoder")}
    (t5 / "model.safetensors").write_bytes(safetensors.dump(kept))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for path, words in (
        (copy, "quantised"), (small_100, "SMaLL-100"), (t5, "encoder alone"),
        (tmp_path / "adapter", "adapter"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=words):
            load_checkpoint(path)
