"""CTranslate2 models, and n-best lists of mBART-50 from raw text (`peers/make_ct2_mbart50.py`).

Translations of tokenized lines are compared with CTranslate2 in test_references.py.
"""

import json
import shutil
import struct
from random import Random

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import LanguagePair, Languages
from onmt_lite.checkpoints.ctranslate2 import reader as ctranslate2
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError, OptionError
from tests.support.ctranslate2_bin import ModelBin
from tests.support.files import (
    DATA,
    assert_refused,
    assert_scores,
    summarize_checkpoint,
    update_json,
)

CT2, HF = DATA / "ct2", DATA / "hf" / "marian"
MODELS = sorted(path.name for path in CT2.iterdir())
FLOAT32, INT8 = 0, 1
REFERENCE = json.loads((DATA.parent / "ct2_mbart50" / "reference.json").read_text("utf-8"))
OPTION_NAMES = dict(
    num_hypotheses="n_best",
    length_penalty="alpha",
    no_repeat_ngram_size="block_ngram_repeat",
    min_decoding_length="min_length",
)
OPTIONS = dict(device="cpu", precision="fp32", threads=1, search="ctranslate2")
NAN = struct.pack("<f", torch.nan)


@pytest.fixture(params=["opennmt_int16"])
def copy(request, tmp_path):
    return shutil.copytree(CT2 / request.param, tmp_path / "copy")


def change(path, edit):
    """Edit model.bin as a `ModelBin`."""
    file = path / "model.bin"
    stored = ModelBin.parse(file.read_bytes())
    edit(stored)
    file.write_bytes(stored.dump())


def configure(path, **values):
    update_json(path / "config.json", **values)


@pytest.fixture
def nllb(tmp_path):
    return shutil.copytree(CT2 / "nllb_int8", tmp_path / "nllb")


@pytest.fixture
def mbart50(tmp_path):
    path = shutil.copytree(DATA.parent / "ct2_mbart50", tmp_path / "mbart50")
    shutil.copy(DATA.parent / "families" / "mbart50" / "sentencepiece.bpe.model", path)
    return path


@pytest.mark.parametrize("name", ["bart", "pegasus"])
def test_n_best_converted_bart_equals_ctranslate2(name):
    """The error for BART directories recommends this; lines contain `<s>` and `</s>`."""
    path = DATA.parent / "ct2_bart"
    case = json.loads((path / "reference.json").read_text("utf-8"))[name]
    translator = Translator.from_pretrained(path / name, tokenizer="space", **OPTIONS)
    lines = [" ".join(tokens) for tokens in case["lines"]]
    translations = translator.translate(lines, beam_size=3, n_best=3, max_length=8)
    for translation, row in zip(translations, case["rows"], strict=True):
        assert [hyp.tokens for hyp in translation.hyps] == [tokens for tokens, _ in row]
        scores = [hyp.score for hyp in translation.hyps]
        assert scores == pytest.approx([score for _, score in row], abs=1e-5)


def test_tgt_lang_multilingual_marian_prepends_language_token(tmp_path):
    path = shutil.copytree(CT2 / "marian_int8", tmp_path / "copy")
    tokens = json.loads((path / "shared_vocabulary.json").read_text("utf-8"))
    assert load_checkpoint(path).languages is None
    tokens[tokens.index("w9")] = ">>fra<<"
    (path / "shared_vocabulary.json").write_text(json.dumps(tokens))
    translator = Translator.from_pretrained(path, tokenizer="space", **OPTIONS)
    by_option = translator.translate(["w3 w5"], tgt_lang="fra", max_length=8)[0].hyps
    assert by_option == translator.translate([">>fra<< w3 w5"], max_length=8)[0].hyps
    assert by_option != translator.translate(["w3 w5"], max_length=8)[0].hyps
    with pytest.raises(OptionError, match="nearest are fra"):
        translator.translate(["w3"], tgt_lang="frb")


@pytest.mark.parametrize("name", ["marian_int8", "old_float32"])
def test_load_missing_vocabulary_is_named(tmp_path, name):
    path = shutil.copytree(CT2 / name, tmp_path / "copy")
    for file in path.glob("shared_vocabulary.*"):
        file.unlink()
    assert_refused(path, "shared_vocabulary.json nor shared_vocabulary.txt", "; download")


def int8_scalar(value):
    return [], INT8, struct.pack("<b", value)


@pytest.mark.parametrize("name", MODELS)
def test_scores_equal_ctranslate2(name):
    file = DATA / "references" / f"ct2_{name}.ctranslate2.json"
    gold = json.loads(file.read_text("utf-8"))["gold"]
    languages = dict(src_lang="deu_Latn", tgt_lang="eng_Latn") if name.startswith("nllb") else {}
    assert_scores(CT2 / name, gold, tokenizer="space", **languages)


# add_source_bos, add_source_eos, number of source tokens, score of CTranslate2 4.8.5
# (translate_batch, max_decoding_length=20), and True if max_input_length=0 changes it
LONG = [
    *((0, 0, 1024, -0.928660, False), (0, 0, 1025, -0.928660, True), (0, 0, 1100, -0.928660, True)),
    *((0, 1, 1023, -0.929585, False), (0, 1, 1024, -0.929585, True), (0, 1, 1100, -0.929585, True)),
    *((1, 1, 1022, -0.931289, False), (1, 1, 1023, -0.931289, True), (1, 1, 1100, -0.931289, True)),
]


@pytest.mark.parametrize(("bos", "eos", "n", "score", "is_truncated"), LONG)
def test_source_over_1024_tokens_is_truncated_like_ctranslate2(
    copy, bos, eos, n, score, is_truncated
):
    configure(copy, add_source_bos=bool(bos), add_source_eos=bool(eos))
    words = json.loads((copy / "source_vocabulary.json").read_text("utf-8"))[3:]
    line = " ".join(Random(1).choices(words, k=1100)[:n])
    translator = Translator.from_pretrained(copy, **OPTIONS, tokenizer="space", max_length=20)
    (translation,) = translator.translate([line])
    assert translation.hyps[0].score == pytest.approx(score, abs=5e-6)
    assert ("truncated" in translation.notes) == is_truncated


def test_source_over_1024_tokens_is_not_truncated_by_other_searches(copy):
    translator = Translator.from_pretrained(
        copy, device="cpu", tokenizer="space", max_length=2, search="opennmt-3"
    )
    (translation,) = translator.translate([" ".join(["w1"] * 1025)])
    assert translation.n_src_tokens == 1025 and "truncated" not in translation.notes


class TestFiles:
    def test_load_text_vocabulary_equals_json(self, copy):
        expected = summarize_checkpoint(copy)
        for side in ("source", "target"):
            file = copy / f"{side}_vocabulary.json"
            tokens = json.loads(file.read_text("utf-8"))
            file.with_suffix(".txt").write_text("".join(f"{t}\n" for t in tokens), "utf-8")
            file.unlink()
        assert summarize_checkpoint(copy) == expected

    def test_load_shared_table_is_stored_once(self):
        model = load_checkpoint(CT2 / "marian_int8").model
        assert model.cfg.share_embeddings and model.cfg.tie_output
        assert model.output.weight is model.src_embedding.token.weight

    def test_load_int8_rows_are_divided_by_scales(self):
        stored = ModelBin.parse((CT2 / "marian_int8" / "model.bin").read_bytes())
        name = "decoder/layer_0/ffn/linear_1/weight"
        (rows, columns), _, data = stored.variables[name]
        scales = struct.unpack(f"<{rows}f", stored.variables[f"{name}_scale"][2])
        integers = struct.unpack(f"<{rows * columns}b", data)
        expected = [n / scales[i // columns] for i, n in enumerate(integers)]
        model = load_checkpoint(CT2 / "marian_int8").model
        weights = model.decoder[0].ffn.down.weight.flatten().tolist()
        assert weights == pytest.approx(expected, rel=1e-6)


class TestSpecialTokens:
    @pytest.mark.parametrize("bos, eos", [(False, False), (True, False), (True, True)])
    def test_load_source_bos_and_eos_from_config(self, copy, bos, eos):
        configure(copy, add_source_bos=bos, add_source_eos=eos)
        checkpoint = load_checkpoint(copy)
        assert (checkpoint.src_start, checkpoint.src_end) == ((1,) * bos, (2,) * eos)

    def test_encode_eos_in_line_unless_it_is_added(self, copy):
        assert load_checkpoint(copy).src_vocab.encode(["w0", "</s>"]) == [3, 2]
        configure(copy, add_source_eos=True)
        assert load_checkpoint(copy).src_vocab.encode(["w0", "</s>"]) == [3, 0]

    def test_load_decoder_start_token_from_config(self, copy):
        assert load_checkpoint(copy).start_id == 1
        configure(copy, decoder_start_token="</s>")
        assert load_checkpoint(copy).start_id == 2

    def test_zero_start_token_is_never_predicted(self):
        checkpoint = load_checkpoint(CT2 / "marian_int8")
        assert checkpoint.start_id == 24 and checkpoint.banned_ids == (24,)
        assert checkpoint.src_vocab is not checkpoint.tgt_vocab or len(checkpoint.src_vocab) == 25
        model = checkpoint.model
        assert not model.tgt_embedding.token.weight[24].any()
        memory = model.encode(torch.tensor([[3, 4, 2]]), torch.tensor([3]))
        logits = model.forward(memory, torch.tensor([[24, 5]]))
        assert logits.log_softmax(2).exp()[..., 24].tolist() == [[0.0, 0.0]]

    def test_load_special_tokens_from_flags_of_old_files(self, tmp_path):
        copy = shutil.copytree(CT2 / "old_float32", tmp_path / "copy")
        checkpoint = load_checkpoint(copy)
        assert (checkpoint.src_start, checkpoint.src_end, checkpoint.start_id) == ((), (2,), 2)
        change(copy, lambda stored: stored.variables.update(with_source_bos=int8_scalar(1)))
        change(copy, lambda stored: stored.variables.pop("with_target_bos"))
        checkpoint = load_checkpoint(copy)
        assert (checkpoint.src_start, checkpoint.src_end, checkpoint.start_id) == ((1,), (2,), 1)


class TestLanguages:
    """In nllb_int8, deu_Latn is 22, eng_Latn 23 and fra_Latn 24."""

    def test_load_languages_from_vocabulary(self, nllb):
        checkpoint = load_checkpoint(nllb)
        assert checkpoint.languages == Languages({"deu_Latn": 22, "eng_Latn": 23, "fra_Latn": 24})
        assert (checkpoint.src_end, checkpoint.raw_text_end, checkpoint.start_id) == ((), (2,), 2)
        (nllb / "tokenizer_config.json").write_text('{"src_lang": "fra_Latn"}')
        assert load_checkpoint(nllb).languages.default == ("fra_Latn", "")

    def test_translate_tokenized_line_with_and_without_src_lang(self, nllb):
        """Without src_lang, the line contains all special tokens itself."""
        options = dict(device="cpu", tokenizer="space", tgt_lang="eng_Latn", n_best=2, beam_size=2)
        complete, words = "deu_Latn w1 w2 </s>", "w1 w2"
        translator = Translator.from_pretrained(nllb, search="ctranslate2", **options)
        (expected,) = translator.translate([complete])
        tagged = f">>deu_Latn:eng_Latn<< {words}"
        for line, kwargs in ((words, dict(src_lang="deu_Latn")), (tagged, {})):
            (translation,) = translator.translate([line], **kwargs)
            assert translation.hyps == expected.hyps

    def test_translate_raw_text_adds_language_and_eos(self, nllb):
        """Subwords are between the source language and EOS, whatever the line looks like."""
        tokens = json.loads((nllb / "shared_vocabulary.json").read_text("utf-8"))
        tokens[5:7] = ["▁w37", "▁w3"]
        (nllb / "shared_vocabulary.json").write_text(json.dumps(tokens), "utf-8")
        expected = Translator.from_pretrained(nllb, device="cpu", tokenizer="space").translate(
            ["deu_Latn ▁w37 ▁w3 </s>"], tgt_lang="eng_Latn"
        )
        shutil.copy(HF / "source.spm", nllb / "sentencepiece.bpe.model")
        options = dict(device="cpu", src_lang="deu_Latn")
        translator = Translator.from_pretrained(nllb, tgt_lang="eng_Latn", **options)
        actual = translator.translate(["w37 w3"])
        assert [h.tokens for h in actual[0].hyps] == [h.tokens for h in expected[0].hyps]
        with pytest.raises(OptionError, match="tgt_lang"):
            Translator.from_pretrained(nllb, **options)

    def test_tokenizer_json_equals_sentencepiece_model(self, nllb):
        tokens = json.loads((nllb / "shared_vocabulary.json").read_text("utf-8"))
        (nllb / "shared_vocabulary.json").write_text(json.dumps(["▁x", *tokens[1:]]), "utf-8")
        families = DATA.parent / "families" / "nllb"
        tokenizers = []
        for name in ("tokenizer.json", "sentencepiece.bpe.model"):
            shutil.copy(families / name, nllb)
            tokenizers.append(load_checkpoint(nllb).tokenizers["sentencepiece"])
        for line in ("w1 w2", "Ein Haus!", "été 12"):
            assert tokenizers[0].encode(line) == tokenizers[1].encode(line)

    def test_load_mbart_cc25_starts_with_language(self, nllb):
        configure(nllb, decoder_start_token=None)
        languages = load_checkpoint(nllb).languages
        assert (languages.source, languages.target) == ("after", "start")

    def test_load_legacy_nllb_has_language_after_line(self, nllb):
        (nllb / "tokenizer_config.json").write_text('{"legacy_behaviour": true}')
        frame = load_checkpoint(nllb).get_special_tokens(LanguagePair("deu_Latn", "eng_Latn"))
        assert (frame.src_start, frame.src_end, frame.start) == ((), (2, 22), (2, 23))

    def test_load_language_token_in_text(self, nllb):
        tokens = json.loads((nllb / "shared_vocabulary.json").read_text("utf-8"))
        tokens[22:25] = ["<2de>", "<2en>", "<2fr>"]
        (nllb / "shared_vocabulary.json").write_text(json.dumps(tokens), "utf-8")
        languages = load_checkpoint(nllb).languages
        assert dict(languages.ids) == {"de": 22, "en": 23, "fr": 24}
        assert (languages.source, languages.target) == ("none", "text")


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: str(case["settings"]))
def test_n_best_mbart50_equals_ctranslate2(mbart50, case):
    translator = Translator.from_pretrained(mbart50, src_lang="de_DE", tgt_lang="en_XX", **OPTIONS)
    options = {OPTION_NAMES.get(name, name): value for name, value in case["settings"].items()}
    lines = [f">>fr_XX<< {line}" for line in REFERENCE["lines"]]
    for size in (1, 4):
        translations = translator.translate(
            lines, max_length=12, batch_size=size, batch_type="sents", **options
        )
        for translation, row in zip(translations, case["rows"], strict=True):
            assert [h.tokens for h in translation.hyps] == [tokens for tokens, _ in row]
            scores = [score for _, score in row]
            assert [h.score for h in translation.hyps] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(tgt_lang="fr_XX"), "src_lang is missing"),
        (dict(src_lang="de_DE"), "tgt_lang is missing"),
        (dict(src_lang="de", tgt_lang="fr_XX"), "no language 'de'"),
    ],
)
def test_missing_language_is_reported_before_weights_are_read(mbart50, options, words, monkeypatch):
    def fail(path):
        raise AssertionError("read")

    monkeypatch.setattr(ctranslate2, "read_variables", fail)
    with pytest.raises(OptionError, match=words):
        Translator.from_pretrained(mbart50, **options, **OPTIONS)
    with pytest.raises(AssertionError, match="read"):
        Translator.from_pretrained(mbart50, src_lang="de_DE", tgt_lang="fr_XX", **OPTIONS)
    with pytest.raises(AssertionError, match="read"):
        Translator.from_pretrained(mbart50, tokenizer="space", **OPTIONS)


def test_load_model_bin_path_equals_directory(mbart50):
    directory, file = load_checkpoint(mbart50), load_checkpoint(mbart50 / "model.bin")
    assert directory.languages == file.languages and directory.src_vocab == file.src_vocab
    assert list(directory.tokenizers) == list(file.tokenizers) == ["sentencepiece", "space"]


def test_length_limits_count_language_only_if_it_is_forced(nllb):
    """Without tgt_lang, no token precedes the translation."""
    options = OPTIONS | dict(tokenizer="space", beam_size=1, max_length=5, min_length=5)
    free = Translator.from_pretrained(nllb, **options).translate(["deu_Latn w1 w2 </s>"])
    assert len(free[0].hyps[0].tokens) == 5
    forced = Translator.from_pretrained(nllb, tgt_lang="eng_Latn", **options)
    assert len(forced.translate(["deu_Latn w1 w2 </s>"])[0].hyps[0].tokens) == 4
    with pytest.raises(OptionError, match="tgt_lang is missing"):
        Translator.from_pretrained(nllb, src_lang="deu_Latn", **options)
    tagged = Translator.from_pretrained(nllb, **options)  # the tag is an ordinary token
    assert tagged.translate([">>eng_Latn<< w1"])[0].n_unknown == 1


class TestArgosTranslatePackage:
    @pytest.fixture
    def package(self, tmp_path):
        shutil.copytree(CT2 / "marian_int8", tmp_path / "package" / "model")
        return tmp_path / "package"

    def test_load_sentencepiece_model_of_package(self, package):
        model = package / "model"
        tokens = ["</s>", "<unk>", "▁w37", "▁w3", *(f"x{i}" for i in range(20))]
        (model / "shared_vocabulary.json").write_text(json.dumps(tokens), "utf-8")
        checkpoint = load_checkpoint(model)
        assert list(checkpoint.tokenizers) == ["space"]
        assert checkpoint.missing_files == (str(model / "sentencepiece.model"),)
        shutil.copy(HF / "source.spm", package / "sentencepiece.model")
        (package / "metadata.json").write_text("{}")
        for path in (package, model):
            checkpoint = load_checkpoint(path)
            tokens = checkpoint.tokenizers["sentencepiece"].encode("w37 w3")
            assert checkpoint.src_vocab.encode(tokens) == [2, 3]
            assert list(checkpoint.tokenizers) == ["sentencepiece", "space"]

    def test_target_prefix_starts_each_translation(self, package):
        """The prefix token has no cost, like the target prefix of CTranslate2."""
        plain = load_checkpoint(package)
        (package / "metadata.json").write_text('{"target_prefix": "w7"}')
        checkpoint = load_checkpoint(package)
        i = plain.tgt_vocab.ids["w7"]
        assert checkpoint.languages == Languages({"w7": i}, "none", default=LanguagePair("", "w7"))
        assert checkpoint.get_special_tokens(LanguagePair("", "w7")).start == (plain.start_id, i)
        options = OPTIONS | dict(tokenizer="space", search="opennmt", beam_size=1)
        (forced,) = Translator.from_pretrained(package, **options).translate(["w1"], max_length=5)
        (package / "metadata.json").unlink()
        translator = Translator.from_pretrained(package, **options)
        (prefixed,) = translator.translate(["w1"], ["w7"], max_length=6)
        assert ["w7", *forced.hyps[0].tokens] == prefixed.hyps[0].tokens

    def test_load_unknown_target_prefix_is_rejected(self, package):
        (package / "metadata.json").write_text('{"target_prefix": ">>por<<"}')
        assert_refused(package, "metadata.json", ">>por<<")

    def test_load_bpe_codes_of_old_package_need_tokenized_input(self, package):
        (package / "bpe.model").write_text("#version: 0.2\na b\n")
        with pytest.raises(
            CheckpointError, match="bpe.model with Moses tokenization is not supported"
        ):
            Translator.from_pretrained(package, **OPTIONS)
        Translator.from_pretrained(package, tokenizer="space", **OPTIONS)


class TestRejected:
    @pytest.mark.parametrize(
        "values, words",
        [
            (dict(version=1), "Bergamot"),
            (dict(version=4), "version 4"),
            (dict(version=7), "version 7"),
            (dict(revision=8), "revision 8"),
            (dict(specification="WhisperSpec"), "WhisperSpec"),
            ({"decoder/alibi": int8_scalar(1)}, "alibi"),
            ({"decoder/activation": int8_scalar(6)}, "activation 6"),
            ({"encoder/pre_norm": int8_scalar(0)}, "pre_norm"),
            ({"decoder/sliding_window": int8_scalar(9)}, "sliding_window"),
            (dict(with_source_eos=int8_scalar(1)), "with_source_eos"),
            ({"decoder/embeddings/weight": None}, "embeddings"),
            ({"decoder/project_in/weight": ([1, 1], FLOAT32, bytes(4))}, "project_in"),
            ({"encoder/embeddings_1/weight": ([1, 1], FLOAT32, bytes(4))}, "embeddings_1"),
            ({"decoder/layer_norm/gamma": ([16], FLOAT32, NAN * 16)}, "not finite"),
            ({"encoder/x": "encoder/y"}, "encoder/x"),
            ({"decoder/num_heads": "encoder/num_heads"}, "alias"),
        ],
        ids=str,
    )
    def test_load_unsupported_model_is_rejected(self, copy, values, words):
        def edit(stored):
            for name, value in values.items():
                if hasattr(stored, name):
                    setattr(stored, name, value)
                elif isinstance(value, str):
                    stored.aliases[name] = value
                else:
                    stored.variables[name] = value
            stored.variables = {n: v for n, v in stored.variables.items() if v is not None}

        change(copy, edit)
        assert_refused(copy, words)

    @pytest.mark.parametrize("n", [0, 2])
    @pytest.mark.parametrize("copy", ["old_float32"], indirect=True)
    @pytest.mark.parametrize("name", ["with_source_eos", "user_decoder_start_tokens"])
    def test_load_non_scalar_flag_is_rejected(self, copy, name, n):
        change(copy, lambda stored: stored.variables.update({name: ([n], INT8, bytes(n))}))
        assert_refused(copy, "copy", f"{name} must be true or false, not a list")

    @pytest.mark.parametrize("copy", ["marian_int8"], indirect=True)
    def test_load_wrong_number_of_scales_is_rejected(self, copy):
        scale = {"x": ([], INT8, b"\1"), "x_scale": ([1], FLOAT32, struct.pack("<f", 1))}
        change(copy, lambda stored: stored.variables.update(scale))
        assert_refused(copy, "'x' has scales of shape [1]")

    @pytest.mark.parametrize(
        "values, word",
        [
            (dict(decoder_start_token=None), "decoder_start_token"),
            (dict(decoder_start_token="<pad>"), "<pad>"),
            (dict(eos_token="</x>"), "EOS token"),
            (dict(add_source_eos="yes"), "add_source_eos"),
            (dict(add_source_eos=None), "add_source_eos"),
            (dict(quantization_type=1), "quantization_type is 1, but only 0"),
            (dict(layer_norm_epsilon="small"), "layer_norm_epsilon"),
        ],
    )
    def test_load_invalid_config_is_rejected(self, copy, values, word):
        configure(copy, **values)
        assert_refused(copy, word)

    @pytest.mark.parametrize("name", ["config.json", "target_vocabulary.json"])
    def test_load_missing_file_is_rejected(self, copy, name):
        (copy / name).unlink()
        assert_refused(copy, "copy")

    @pytest.mark.parametrize("text", ["", "[]", "[1]", "{", '["a", "b"]', '{"a": 0}', "\xff"])
    def test_load_malformed_vocabulary_is_rejected(self, copy, text):
        (copy / "target_vocabulary.json").write_text(text, "latin-1")
        assert_refused(copy, "copy")

    def test_load_false_size_is_rejected_before_allocation(self, copy):
        head = struct.pack("<IH16sII", 6, 16, b"TransformerSpec\0", 7, 1)
        name = struct.pack("<H2s", 2, b"x\0")
        for rest in (
            name + struct.pack("<BIIBI", 2, 1 << 14, 1 << 15, 0, 1 << 31),
            name + struct.pack("<BIBI", 1, (1 << 30) - 1, 0, (1 << 32) - 4),
            name + struct.pack("<B4IBI", 4, *[(1 << 32) - 1] * 3, 0, 0, 0) + struct.pack("<I", 0),
            name + b"\xff" * 2000,
            struct.pack("<H", 65535),
        ):
            (copy / "model.bin").write_bytes(head + rest)
            assert_refused(copy, "model.bin")
        (copy / "model.bin").write_bytes(head[:-4] + struct.pack("<I", 1 << 31))
        assert_refused(copy, "are more than any model has")


def test_load_damaged_or_truncated_model_bin_is_rejected(copy):
    """Names, sizes and counts are damaged; tensor data has no checksum in this format."""
    file = copy / "model.bin"
    original, random = file.read_bytes(), Random(1)
    names = [m for m in range(len(original) - 7) if original[m : m + 7] in (b"encoder", b"decoder")]
    for at in random.sample(names, 25):
        for replacement in (b"", b"\0", bytes([original[at] ^ 16]), original[at : at + 2] * 2):
            file.write_bytes(original[:at] + replacement + original[at + 1 :])
            assert_refused(copy, "model.bin")
    for end in random.sample(range(len(original)), 20):
        file.write_bytes(original[:end])
        assert_refused(copy, "model.bin")
    file.write_bytes(original + b"\0")
    assert_refused(copy, "longer")
