"""M2M100, NLLB, mBART, T5 and MADLAD directories, compared with transformers.

`data/families/references/MODEL.PRESET.json` has the output of transformers 4.46.3 and 5.23.0 for
these models (`peers/make_families.py`).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from onmt_lite import OptionError, Translator
from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.checkpoint import describe
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError
from onmt_lite.inference.search_setup import make_search_config, to_sentence
from onmt_lite.search.beam_search import decode
from onmt_lite.text.lines import make_lines_from_texts
from tests.support.files import update_json
from tests.support.sweeps import mark_sweeps

ROOT = Path(__file__).parents[2] / "data" / "families"
FILES = {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(ROOT.glob("references/*.json"))}
CASES = {
    f"{name}-{i}": (name, i) for name, file in FILES.items() for i in range(len(file["cases"]))
}
DAILY = [*CASES.values()][::3]
NAMES = {
    "num_beams": "beam_size",
    "length_penalty": "alpha",
    "no_repeat_ngram_size": "block_ngram_repeat",
    "num_beam_groups": "beam_groups",
    "diversity_penalty": "diversity_rate",
}


def load(name, path=None, **options):
    target = FILES[f"{name}.transformers"]["target"]
    options = dict(device="cpu", precision="fp32", threads=1, tgt_lang=target) | options
    path = None if "model" in options else path or ROOT / name
    return Translator.from_pretrained(path, **options)


@pytest.fixture(scope="module")
def translators():
    return {name: load(name) for name in {file["model"] for file in FILES.values()}}


def convert_settings(settings):
    """Convert the settings of `generate` to our options."""
    options = {NAMES.get(name, name): value for name, value in settings.items()}
    early_stopping = str(options["early_stopping"]).lower()
    return options | dict(early_stopping=early_stopping, n_best=options["beam_size"])


def list_expected(translator, file, row):
    """(tokens, ended, score) of each distinct hypothesis of transformers."""
    eos, n = translator.checkpoint.eos_id, 1 if file["forced"] is None else 2
    hyps = {}
    for hyp in row:
        ids = hyp["ids"][n:]
        ended = eos in ids
        ids = ids[: ids.index(eos)] if ended else ids
        hyps.setdefault((tuple(ids), ended), hyp["score"])
    tokens = translator.checkpoint.tgt_vocab.decode
    return [(tokens(list(ids)), ended, score) for (ids, ended), score in hyps.items()]


@pytest.mark.parametrize("name, i", mark_sweeps(CASES.values(), DAILY), ids=CASES)
def test_n_best_lists_equal_transformers(translators, name, i):
    file = FILES[name]
    case, translator = file["cases"][i], translators[file["model"]]
    for batch_size in (5, 2):
        found = translator.translate(
            file["sources"],
            search=name.split(".")[1],
            batch_size=batch_size,
            batch_type="sents",
            **convert_settings(case["settings"]),
        )
        for translation, row in zip(found, case["rows"], strict=True):
            expected = list_expected(translator, file, row)
            hyps = translation.hyps[: len(expected)]
            scores = [score for _, _, score in expected if score is not None]
            found_scores = [h.score for h in hyps][: len(scores)]
            assert found_scores == pytest.approx(scores, rel=1e-4, abs=1e-4)
            assert [(h.tokens, h.ended) for h in hyps] == [e[:2] for e in expected]


def encode_sources(translator, lines):
    direction = translator.pipeline.direction(translator.options)
    examples = (
        translator.pipeline.preprocessor.make_example(line, direction=direction)
        for line in make_lines_from_texts(lines, "x")
    )
    return [example.src_ids for example in examples]


@pytest.mark.parametrize("name", sorted({file["model"] for file in FILES.values()}))
class TestText:
    def test_source_ids_and_scores_equal_transformers(self, translators, name):
        file = FILES[f"{name}.transformers"]
        assert encode_sources(translators[name], file["sources"]) == file["source_ids"]
        scores = translators[name].score(file["sources"], file["targets"])
        assert scores == pytest.approx(file["gold"], abs=1e-3)

    def test_output_text_omits_special_and_language_tokens(self, translators, name):
        translator = translators[name]
        vocab = translator.checkpoint.tgt_vocab
        subwords = translator.tokenizer.encode_target("ein Haus")
        languages = translator.checkpoint.languages
        codes = [] if languages is None else [*languages.ids.values()][:3]
        special = [vocab.pad_id, vocab.eos_id, vocab.unk_id, len(vocab) - 1, *codes]
        tokens = [*subwords[:2], *(vocab.tokens[i] for i in special), *subwords[2:]]
        assert translator.tokenizer.decode(tokens) == translator.tokenizer.decode(subwords)

    def test_line_without_subwords_empty_translation(self, translators, name):
        for line in ("", "   ", "▁▁▁"):
            (translation,) = translators[name].translate([line])
            assert translation.text == "" and "empty" in translation.notes


@pytest.mark.parametrize("name", ["nllb", "mbart50", "mbart25", "t5", "madlad"])
def test_tokenizer_json_only_same_source_ids(name, tmp_path):
    """M2M100 has no tokenizer.json in transformers."""
    copy = shutil.copytree(ROOT / name, tmp_path / name)
    for file_name in ("sentencepiece.bpe.model", "spiece.model"):
        (copy / file_name).unlink(missing_ok=True)
    file = FILES[f"{name}.transformers"]
    assert encode_sources(load(name, copy), file["sources"]) == file["source_ids"]


def test_added_tokens_not_special_matched_before_subwords(tmp_path):
    """Then there is no ▁ before <2en>, as in a MADLAD model saved with the fast tokenizer."""
    path = shutil.copytree(ROOT / "madlad", tmp_path / "copy")
    listed = json.loads((path / "tokenizer_config.json").read_text("utf-8"))["added_tokens_decoder"]
    listed["4"] = {"content": "<2en>", "special": False}
    update_json(path / "tokenizer_config.json", added_tokens_decoder=listed)
    file = FILES["madlad.transformers"]
    expected = [ids[1:] for ids in file["source_ids"]]
    assert encode_sources(load("madlad", path), file["sources"]) == expected


class TestStorageFormats:
    """The same model in different files."""

    @pytest.fixture(params=["nllb", "mbart50", "t5", "madlad"])
    def copied(self, request, tmp_path):
        return request.param, shutil.copytree(ROOT / request.param, tmp_path / "copy")

    def assert_same_scores(self, name, path, **tolerance):
        file = FILES[f"{name}.transformers"]
        scores = load(name, path).score(file["sources"], file["targets"])
        assert scores == pytest.approx(file["gold"], **tolerance or dict(abs=1e-3))

    def test_shards_with_index_same_scores(self, copied):
        name, path = copied
        weights = safetensors.read(path / "model.safetensors")
        weight_map = {key: f"model-{i % 2}.safetensors" for i, key in enumerate(weights)}
        for shard in set(weight_map.values()):
            tensors = {key: weights[key] for key, file in weight_map.items() if file == shard}
            (path / shard).write_bytes(safetensors.dump(tensors))
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        (path / "model.safetensors").unlink()
        self.assert_same_scores(name, path)

    def test_pytorch_file_with_duplicate_embeddings_same_scores(self, copied):
        name, path = copied
        weights = safetensors.read(path / "model.safetensors")
        prefix = "" if name in ("t5", "madlad") else "model."
        table = weights[f"{prefix}shared.weight"]
        for side in ("encoder", "decoder"):
            weights[f"{prefix}{side}.embed_tokens.weight"] = table
        weights.setdefault("lm_head.weight", table)
        if name == "nllb":
            weights["model.encoder.embed_positions.weights"] = torch.zeros(66, 16)
        if prefix:
            weights |= {f"model.{s}.version": torch.tensor([3.0]) for s in ("encoder", "decoder")}
        else:
            bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
            weights[bias] = torch.zeros(8, 2)
        torch.save(weights, path / "pytorch_model.bin")
        (path / "model.safetensors").unlink()
        self.assert_same_scores(name, path)

    def test_embeddings_under_other_name_same_scores(self, copied):
        name, path = copied
        weights = safetensors.read(path / "model.safetensors")
        prefix = "" if name in ("t5", "madlad") else "model."
        table = weights.pop(f"{prefix}shared.weight")
        weights[f"{prefix}decoder.embed_tokens.weight"] = table
        (path / "model.safetensors").write_bytes(safetensors.dump(weights))
        self.assert_same_scores(name, path)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_similar_scores(self, copied, dtype):
        name, path = copied
        weights = safetensors.read(path / "model.safetensors")
        half = {key: tensor.to(dtype) for key, tensor in weights.items()}
        (path / "model.safetensors").write_bytes(safetensors.dump(half))
        self.assert_same_scores(name, path, rel=0.1)

    def test_untied_output_with_tied_config_of_transformers_5_same_scores(self, tmp_path):
        path = shutil.copytree(ROOT / "madlad", tmp_path / "copy")
        update_json(path / "config.json", tie_word_embeddings=True, scale_decoder_outputs=False)
        self.assert_same_scores("madlad", path)


class TestLanguages:
    SIDES = [("nllb", "eng_Latn", "fra_Latn"), ("mbart25", "en_XX", "fr_XX"), ("m2m", "en", "fr")]

    @pytest.mark.parametrize("name, one, other", SIDES)
    @pytest.mark.parametrize("search", ["opennmt", "transformers", "fairseq", "ctranslate2"])
    def test_language_tag_overrides_option_in_mixed_batch(self, name, one, other, search):
        options = dict(search=search, max_length=10)
        lines, tagged = ["Das Haus", "Ich gehe"], [f">>{other}<< Das Haus", f">>{other}<<Ich gehe"]
        plain = load(name, tgt_lang=one).translate(lines, **options)
        by_option = load(name, tgt_lang=other).translate(lines, **options)
        mixed = load(name, tgt_lang=one).translate([lines[0], *tagged, lines[1]], **options)
        assert plain[0].hyps[0].score != pytest.approx(by_option[0].hyps[0].score, abs=1e-3)
        expected = [plain[0], *by_option, plain[1]]
        assert [t.hyps[0].tokens for t in mixed] == [t.hyps[0].tokens for t in expected]
        scores = [t.hyps[0].score for t in expected]
        assert [t.hyps[0].score for t in mixed] == pytest.approx(scores, abs=1e-5)
        assert mixed[1].src == tagged[0]

    def test_language_tag_for_both_sides_equals_options(self, translators):
        loaded = load("nllb", src_lang="fra_Latn", tgt_lang="deu_Latn").translate(["Das Haus"])
        translator = translators["nllb"]
        (tagged,) = translator.translate([">>fra_Latn:deu_Latn<< Das Haus"])
        (called,) = translator.translate(["Das Haus"], src_lang="fra_Latn", tgt_lang="deu_Latn")
        assert tagged.hyps[0] == called.hyps[0] == loaded[0].hyps[0]

    def test_language_tag_unknown_code_is_text(self, translators):
        ids = encode_sources(translators["nllb"], [">>xyz<< a", "a >>fra_Latn<<", ">>eng_Latn<< a"])
        assert len(ids[0]) > len(ids[2]) and len(ids[1]) > len(ids[2])

    def test_language_tag_removed_from_copied_line(self):
        """The line is copied because its script is unknown to the model."""
        translator = load("nllb", tgt_lang="eng_Latn", unknown="copy")
        copied = translator.translate([">>fra_Latn<< \u12f0\u1205\u1293", "\u12f0\u1205\u1293"])
        assert [t.text for t in copied] == ["\u12f0\u1205\u1293"] * 2
        assert copied[0].notes == copied[1].notes == ("unknown-script",)

    def test_score_uses_language_of_tag(self, translators):
        french = load("nllb", tgt_lang="fra_Latn").score(["Das Haus"], ["la"])
        mixed = translators["nllb"].score([">>fra_Latn<< Das Haus", "Das Haus"], ["la", "la"])
        assert mixed[0] == pytest.approx(french[0], abs=1e-4) and mixed[1] != mixed[0]

    def test_sentences_joining_running_batch_same_hypotheses(self, translators):
        translator = translators["nllb"]
        lines = ["Das Haus", ">>fra_Latn<< Ich gehe", "a", ">>deu_Latn<< b", "Wann passt es euch?"]
        options = translator.options.updated(search="transformers", max_length=12)
        direction = translator.pipeline.direction(options)
        group = [
            translator.pipeline.preprocessor.make_example(x, direction=direction)
            for x in make_lines_from_texts(lines, "x")
        ]
        config = make_search_config(options, translator.checkpoint)
        sentences = [to_sentence(config, example) for example in group]
        searches = [dict(decode(translator.model, sentences, config.spec, n)) for n in (5, 2)]
        best = [
            [b.backtrack(b.rank_finished()[0])[0] for _, b in sorted(beams.items())]
            for beams in searches
        ]
        assert best[0] == best[1]

    def test_target_prefix_follows_language_token(self, translators):
        options = dict(search="opennmt-3", max_length=12, beam_size=2)
        (free,) = translators["nllb"].translate(["Das Haus"], **options)
        begin = translators["nllb"].tokenizer.decode(["▁D", "a"])
        (prefixed,) = translators["nllb"].translate(["Das Haus"], [begin], **options)
        prefix = translators["nllb"].tokenizer.encode_target(begin)
        assert prefixed.hyps[0].tokens[: len(prefix)] == prefix
        assert free.hyps[0].tokens[: len(prefix)] != prefix

    def test_tgt_lang_t5_adds_token_before_line(self, translators):
        file = FILES["madlad.transformers"]
        lines = [source.removeprefix("<2en> ") for source in file["sources"]]
        assert encode_sources(load("madlad", tgt_lang="en"), lines) == file["source_ids"]
        tagged = [f">>en<< {line}" for line in lines]
        assert encode_sources(load("madlad", tgt_lang="de"), tagged) == file["source_ids"]

    def test_legacy_behaviour_nllb_source_language_after_line(self, tmp_path):
        path = shutil.copytree(ROOT / "nllb", tmp_path / "copy")
        update_json(path / "tokenizer_config.json", legacy_behaviour=True)
        new = FILES["nllb.transformers"]["source_ids"][0]
        (old,) = encode_sources(load("nllb", path), FILES["nllb.transformers"]["sources"][:1])
        assert old == [*new[1:], new[0]]

    @pytest.mark.parametrize(
        "name, options, words",
        [
            ("nllb", dict(tgt_lang=None), ["tgt_lang is missing", "202 languages"]),
            ("nllb", dict(tgt_lang="eng"), ["tgt_lang", "'eng'", "nearest are eng_Latn"]),
            ("nllb", dict(tgt_lang="en"), ["nearest are eng_Latn"]),
            ("nllb", dict(tgt_lang="de_DE"), ["nearest are deu_Latn"]),
            ("m2m", dict(tgt_lang="en_US"), ["nearest are en"]),
            ("nllb", dict(src_lang="de"), ["src_lang", "'de'", "deu_Latn"]),
            ("m2m", dict(tgt_lang="__en__"), ["tgt_lang", "en"]),
            ("t5", dict(tgt_lang="en"), ["tgt_lang", "does not select languages"]),
            ("madlad", dict(tgt_lang="xx"), ["tgt_lang", "'xx'"]),
            ("madlad", dict(src_lang="de"), ["src_lang", "a target language only"]),
        ],
    )
    def test_wrong_language_error_suggests_nearest_codes(self, name, options, words):
        with pytest.raises(OptionError) as caught:
            load(name, **options)
        for word in words:
            assert word in str(caught.value)

    def test_default_languages_from_model_files(self, tmp_path):
        path = shutil.copytree(ROOT / "nllb", tmp_path / "copy")
        forced = FILES["nllb.transformers"]["forced"]
        update_json(path / "generation_config.json", forced_bos_token_id=forced)
        named, default = load("nllb", path), load("nllb", path, tgt_lang=None)
        assert named.score(["a"], ["b"]) == default.score(["a"], ["b"])
        update_json(path / "tokenizer_config.json", src_lang=None)
        with pytest.raises(OptionError, match="src_lang is missing"):
            load("nllb", path)

    @pytest.mark.parametrize("name", ["nllb", "mbart50", "mbart25"])
    def test_language_ids_not_listed_follow_subwords(self, name, tmp_path):
        """As in the Python tokenizers; the saved directories place the mask token of NLLB
        differently."""
        path = shutil.copytree(ROOT / name, tmp_path / "copy")
        for file in ("tokenizer.json", "added_tokens.json", "special_tokens_map.json"):
            (path / file).unlink(missing_ok=True)
        config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
        config = {key: config[key] for key in ("tokenizer_class", "src_lang")}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        ids = load_checkpoint(path).languages.ids
        listed = load_checkpoint(ROOT / name).languages.ids
        assert [*ids] == [*listed]
        moved = {ids[code] - i for code, i in listed.items()}
        assert moved == ({-1} if name == "nllb" else {0})

    def test_ensemble_different_languages_refused(self, tmp_path):
        path = shutil.copytree(ROOT / "nllb", tmp_path / "copy")
        pair = load("nllb", model=[str(ROOT / "nllb"), str(path)])
        assert pair.score(["a"], ["b"]) == pytest.approx(load("nllb").score(["a"], ["b"]), abs=1e-4)
        update_json(path / "tokenizer_config.json", legacy_behaviour=True)
        with pytest.raises(CheckpointError, match="languages"):
            load("nllb", model=[str(ROOT / "nllb"), str(path)])

    def test_print_model_lists_languages(self):
        summary = describe(load_checkpoint(ROOT / "nllb"), "x")
        assert "eng_Latn" in summary and "src_lang deu_Latn, tgt_lang none" in summary
