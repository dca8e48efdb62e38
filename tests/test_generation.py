"""What generation_config.json of a Hugging Face model says is a default of transformers' searches,
and what is no model that we read is refused in words."""

import json
import shutil
from pathlib import Path

import pytest

from onmt_lite import Translator
from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.huggingface import reader
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.options import load_options
from onmt_lite.errors import CheckpointError, OptionError, OptionWarning
from onmt_lite.search import model_defaults

ROOT = Path(__file__).parent / "data" / "families"


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(ROOT / "mbart50", tmp_path / "copy")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def resolved(path, *words):
    return load_options(["-model", str(path), "-search", "transformers", *words])[1]


def test_all_families_but_marian_bring_defaults():
    assert {*model_defaults.FAMILIES, "marian"} == {*reader.FAMILIES}


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

    def test_the_model_description_counts_where_the_other_file_is_silent(self, copy):
        change(copy / "config.json", num_beams=7, max_length=50)
        change(copy / "generation_config.json", max_length=60)
        values = resolved(copy).values
        assert (values["beam_size"], values["max_length"]) == (7, 60)

    def test_a_number_of_outputs_is_not_taken_over_and_a_note_says_so(self, copy):
        change(copy / "generation_config.json", num_return_sequences=3, num_beams=3)
        translator = Translator.from_pretrained(
            copy, device="cpu", search="transformers", tgt_lang="en_XX"
        )
        with pytest.warns(OptionWarning, match="num_return_sequences 3.*n_best=3"):
            (found,) = translator.translate(["a"], max_length=4)
        assert len(found.hyps) == 1

    def test_marian_models_keep_the_defaults_of_the_search(self, tmp_path):
        marian = Path(__file__).parent / "data" / "checkpoints" / "hf" / "marian"
        copy = shutil.copytree(marian, tmp_path / "copy")
        change(copy / "generation_config.json", num_beams=7)
        assert resolved(copy).values["beam_size"] == 5

    @pytest.mark.parametrize(
        "said",
        [
            dict(sequence_bias=[[[5], 1.0]]),
            dict(exponential_decay_length_penalty=[5, 1.1]),
            dict(guidance_scale=1.5),
            dict(forced_decoder_ids=[[1, 5]]),
            dict(renormalize_logits=True),
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

    def test_who_draws_must_say_so(self, copy):
        change(copy / "generation_config.json", do_sample=True, temperature=0.5)
        with pytest.raises(OptionError, match="do_sample"):
            resolved(copy)
        assert resolved(copy, "-do_sample", "false").values["random_sampling_temp"] == 1.0
        assert resolved(copy, "-do_sample").values["random_sampling_temp"] == 0.5

    def test_banned_tokens_are_never_produced(self, copy):
        change(copy / "generation_config.json", bad_words_ids=[[5]], suppress_tokens=[7])
        assert load_checkpoint(copy).never_ids == (5, 7)


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


CHANGES = {
    "config.json": [
        (dict(model_type="nllb-moe"), "type 'nllb-moe'"),
        (dict(model_type="bart"), "type 'bart'"),
        (dict(model_type="llama", architectures=["LlamaForCausalLM"]), "type 'llama'"),
        (dict(model_type="xlm-roberta", architectures=None), "type 'xlm-roberta'"),
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
CASES = [(file, values, words) for file, rows in CHANGES.items() for values, words in rows]


@pytest.mark.parametrize("file, values, words", CASES, ids=str)
def test_other_families_and_tokenizers_are_refused(copy, file, values, words):
    if file == "tokenizer.json":
        without(copy, "sentencepiece.bpe.model")
    change(copy / file, **values)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(copy)
    assert "\n" not in str(caught.value)


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
