"""Marian directories of transformers: all storage formats load as the same model."""

import json
import re
import shutil

import pytest
import torch

from onmt_lite import OptionError, Translator
from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.checkpoint import describe
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.models.positions import make_sinusoids
from onmt_lite.text.lines import make_lines_from_texts
from tests.support.files import DATA, assert_gold, assert_refused, compute_model_logits, update_json

MARIAN = DATA / "hf" / "marian"
SHARED = "model.shared.weight"
NAMES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
SRC, LENGTHS = torch.tensor([[5, 6, 7, 0]]), torch.tensor([4])
TGT = torch.tensor([[119, 8, 9, 10]])


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(MARIAN, tmp_path / "copy")


@pytest.fixture(scope="module")
def weights():
    return safetensors.read(MARIAN / "model.safetensors")


def compute_logits(path):
    return compute_model_logits(path, SRC, LENGTHS, TGT)


def store_weights(path, weights):
    (path / "model.safetensors").write_bytes(safetensors.dump(weights))


def assert_same_logits(path):
    assert torch.equal(compute_logits(path), compute_logits(MARIAN))


def test_scores_equal_transformers():
    assert_gold(MARIAN, "hf_marian")


class TestWeights:
    @pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
    def test_pytorch_file_with_duplicates_same_logits(self, copy, weights, new):
        """Old files repeat the embeddings under each name, and contain the position tables."""
        positions = make_sinusoids(64, 64, "concat")
        tensors = dict(weights) | {name: weights[SHARED] for name in NAMES}
        tensors |= {f"model.{s}.embed_positions.weight": positions for s in ("encoder", "decoder")}
        tensors["model.encoder.version"] = torch.tensor([3.0])
        (copy / "model.safetensors").unlink()
        file = copy / "pytorch_model.bin"
        torch.save(tensors, file, _use_new_zipfile_serialization=new)
        assert_same_logits(copy)

    @pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
    def test_shards_same_logits_and_wrong_index_refused(self, copy, weights, name):
        (copy / "model.safetensors").unlink()
        stem, _, suffix = name.partition(".")
        weight_map = {key: f"{stem}-{len(key) % 3}.{suffix}" for key in weights}
        for file in set(weight_map.values()):
            shard = {key: weights[key] for key in weights if weight_map[key] == file}
            if suffix == "bin":
                torch.save(shard, copy / file)
            else:
                (copy / file).write_bytes(safetensors.dump(shard))
        index = copy / f"{name}.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        assert_same_logits(copy)
        index.write_text(json.dumps({"weight_map": weight_map | {"x": "../model.safetensors"}}))
        assert_refused(copy, "does not exist")
        index.write_text(json.dumps({"weight_map": weight_map | {"x": weight_map[SHARED]}}))
        assert_refused(copy, "do not contain the tensors that it lists")

    @pytest.mark.parametrize("name", NAMES)
    def test_shared_embeddings_under_any_name_same_logits(self, copy, weights, name):
        rest = {n: w for n, w in weights.items() if n != SHARED}
        store_weights(copy, rest | {name: weights[SHARED]})
        assert_same_logits(copy)

    def test_lm_head_used_only_if_not_tied(self, copy, weights):
        store_weights(copy, weights | {"lm_head.weight": weights[SHARED].roll(1, 0)})
        assert_same_logits(copy)  # config.json ties the embeddings, so lm_head is ignored
        update_json(copy / "config.json", tie_word_embeddings=False)
        bias = weights["final_logits_bias"]
        moved = (compute_logits(MARIAN) - bias).roll(1, 2) + bias
        torch.testing.assert_close(compute_logits(copy), moved, atol=1e-5, rtol=0)

    def test_stored_positions_not_sinusoidal_are_learned(self, copy, weights):
        table = make_sinusoids(64, 64, "concat")
        table[1] += 1
        stored = {f"model.{s}.embed_positions.weight": table for s in ("encoder", "decoder")}
        store_weights(copy, weights | stored)
        assert load_checkpoint(copy).model.cfg.positions == "learned"
        changed = (compute_logits(copy) - compute_logits(MARIAN)).abs()
        assert changed.max() > 0.01

    def test_decoder_ffn_dim_and_heads_differ_from_encoder(self, copy, weights):
        """Additional hidden units with zero output weights do not change the logits."""
        wider = dict(weights)
        for i in range(2):
            layer = f"model.decoder.layers.{i}.fc"
            wider[f"{layer}1.weight"] = torch.cat([weights[f"{layer}1.weight"], torch.ones(8, 64)])
            wider[f"{layer}1.bias"] = torch.cat([weights[f"{layer}1.bias"], torch.ones(8)])
            wider[f"{layer}2.weight"] = torch.cat(
                [weights[f"{layer}2.weight"], torch.zeros(64, 8)], 1
            )
        store_weights(copy, wider)
        assert_refused(copy, "decoder_ffn_dim is 128, but the weights have 136")
        update_json(copy / "config.json", decoder_ffn_dim=136)
        torch.testing.assert_close(compute_logits(copy), compute_logits(MARIAN), atol=1e-5, rtol=0)
        update_json(copy / "config.json", decoder_attention_heads=2)
        cfg = load_checkpoint(copy).model.cfg
        assert (cfg.heads, cfg.dec_heads, cfg.d_ff, cfg.dec_d_ff) == (4, 2, 128, 136)

    @pytest.mark.parametrize(
        "edit",
        [
            {"model.encoder.layers.0.fc1.weight": None},
            {"model.encoder.layers.1.self_attn.k_proj.bias": None},
            {SHARED: None},
            {"extra": torch.zeros(2)},
            {"model.encoder.layers.7.fc1.weight": torch.zeros(2, 2)},
            {"model.decoder.layer_norm.weight": torch.zeros(64)},
            {SHARED: torch.zeros(120, 62)},
            {SHARED: torch.zeros(120)},
            {"final_logits_bias": torch.zeros(1, 119)},
            {"final_logits_bias": torch.full((1, 120), torch.inf)},
            {"model.encoder.layers.0.fc1.bias": torch.tensor(1.0)},
            {"model.encoder.embed_positions.weight": torch.zeros(64, 64)},
        ],
        ids=lambda edit: next(iter(edit)),
    )
    def test_weight_missing_unknown_or_wrong_shape_refused(self, copy, weights, edit):
        changed = weights | edit
        store_weights(copy, {name: w for name, w in changed.items() if w is not None})
        assert_refused(copy, "copy")


class TestVocabulary:
    def test_ids_from_vocab_json_not_from_sentencepiece(self):
        checkpoint = load_checkpoint(MARIAN)
        tokenizer = checkpoint.tokenizers["sentencepiece"]
        assert list(checkpoint.tokenizers) == ["sentencepiece", "space"]
        tokens = tokenizer.encode("w37 w3")
        assert tokens == ["▁w37", "▁w3"]
        ids = json.loads((MARIAN / "vocab.json").read_text("utf-8"))
        assert checkpoint.src_vocab.encode(tokens) == [ids["▁w37"], ids["▁w3"]]
        assert tokenizer.source.piece_to_id("▁w37") != ids["▁w37"]
        assert tokenizer.decode([*tokens, "<unk>", "</s>"]) == "w37 w3"

    def test_language_tokens_only_at_start_of_source(self):
        tokenizer = load_checkpoint(MARIAN).tokenizers["sentencepiece"]
        assert tokenizer.encode(">>fra<< w1 w2") == [">>fra<<", "▁w1", "▁w2"]
        assert tokenizer.encode(">>fra<<w1") == [">>fra<<", "▁w1"]
        assert ">>fra<<" not in tokenizer.encode("w1 >>fra<<")
        assert ">>fra<<" not in tokenizer.encode_target(">>fra<< w1")

    def test_separate_vocabs_permuted_target_same_scores(self, copy, weights):
        """Target embeddings and target vocabulary have the same permutation."""
        order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
        order = torch.tensor([i for i in order.tolist() if i not in (0, 119)])
        order = torch.cat([torch.tensor([0]), order, torch.tensor([119])])
        separate = {n: w for n, w in weights.items() if n != SHARED}
        separate["model.encoder.embed_tokens.weight"] = weights[SHARED]
        separate["model.decoder.embed_tokens.weight"] = weights[SHARED][order]
        separate["final_logits_bias"] = weights["final_logits_bias"][:, order]
        store_weights(copy, separate)
        ids = json.loads((copy / "vocab.json").read_text("utf-8"))
        tokens = {i: token for token, i in ids.items()}
        new = {tokens[old]: i for i, old in enumerate(order.tolist()) if old in tokens}
        (copy / "target_vocab.json").write_text(json.dumps(new))
        update_json(copy / "config.json", share_encoder_decoder_embeddings=False)
        update_json(copy / "tokenizer_config.json", separate_vocabs=True)
        assert_gold(copy, "hf_marian")
        (copy / "tokenizer_config.json").unlink()  # target_vocab.json is used if it exists
        vocab = load_checkpoint(copy).tgt_vocab
        assert vocab.ids == {token: i for i, token in enumerate(vocab.tokens)}
        assert [vocab.ids[token] for token in ("</s>", "▁w0")] == [0, new["▁w0"]]
        update_json(copy / "config.json", share_encoder_decoder_embeddings=False)
        (copy / "target_vocab.json").unlink()
        (copy / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
        assert_refused(copy, "target_vocab.json")

    @pytest.mark.parametrize(
        "vocab",
        ["[]", "{}", "{", '{"</s>": 0}', '{"</s>": 0, "<pad>": 119, "a": 120}', "\xff",
         '{"</s>": 0, "<pad>": 119, "a": -1}', '{"</s>": 0, "<pad>": 119, "a": 0}',
         '{"</s>": 0, "<pad>": 119}', '{"</s>": 0, "</s>": 0, "<pad>": 1}',
         '{"</s>": 0, "<pad>": 119, "a": "1"}', '{"</s>": 0, "<pad>": 119, "\\ud800": 1}'],
    )  # fmt: skip
    def test_vocab_json_invalid_refused(self, copy, vocab):
        (copy / "vocab.json").write_text(vocab, "latin-1")
        assert_refused(copy, "vocab.json")

    def test_source_spm_missing_only_space_tokenizer(self, copy):
        (copy / "source.spm").unlink()
        assert list(load_checkpoint(copy).tokenizers) == ["space"]
        (copy / "source.spm").write_bytes(b"\xff\xfenothing")
        assert_refused(copy, "source.spm")

    @pytest.mark.parametrize("name", ["source.spm", "target.spm"])
    def test_sentencepiece_model_truncated_refused(self, copy, name):
        """Truncated between two subwords, because the sentencepiece library accepts such a file."""
        data, ends, at = (MARIAN / name).read_bytes(), [], 0
        while data[at] == 0x0A:  # a subword of fewer than 128 bytes
            at += 2 + data[at + 1]
            ends.append(at)
        for end in (0, ends[len(ends) // 2], ends[-1]):
            (copy / name).write_bytes(data[:end])
            assert_refused(copy, name, "damaged")


class TestLanguages:
    """A model with several target languages: the first source token selects one."""

    @pytest.fixture
    def multilingual(self, copy):
        ids = json.loads((copy / "vocab.json").read_text("utf-8"))
        names = {"▁w100": ">>fra<<", "▁w101": ">>deu_Latn<<"}
        ids = {names.get(token, token): i for token, i in ids.items()}
        (copy / "vocab.json").write_text(json.dumps(ids))
        return copy

    def encode_sources(self, path, *lines, **options):
        translator = Translator.from_pretrained(path, device="cpu", threads=1, **options)
        direction = translator.pipeline.direction(translator.options)
        make, vocab = translator.pipeline.preprocessor.make_example, translator.checkpoint.src_vocab
        examples = (make(line, direction=direction) for line in make_lines_from_texts(lines, "x"))
        return [" ".join(vocab.decode(example.src_ids)) for example in examples]

    @pytest.mark.parametrize("tokenizer, spacer", [("auto", ""), ("space", "▁")])
    def test_tgt_lang_token_added_to_lines_without_one(self, multilingual, tokenizer, spacer):
        lines = [f"{tag}{spacer}w1" for tag in ("", ">>deu_Latn<< ", ">>fra<<  ", ">>xyz<< ")]
        options = dict(tgt_lang="fra", tokenizer=tokenizer)
        found = self.encode_sources(multilingual, *lines[:3], **options)
        assert found == [">>fra<< ▁w1 </s>", ">>deu_Latn<< ▁w1 </s>", ">>fra<< ▁w1 </s>"]
        found = self.encode_sources(multilingual, *lines, tokenizer=tokenizer)  # as in the original
        plain = ["▁w1 </s>", ">>deu_Latn<< ▁w1 </s>", ">>fra<< ▁w1 </s>", "<unk> ▁w1 </s>"]
        assert found == plain

    def test_tgt_lang_unknown_error_suggests_nearest(self, multilingual):
        with pytest.raises(OptionError, match="tgt_lang: .*'frb'; nearest are fra, deu_Latn"):
            Translator.from_pretrained(multilingual, tgt_lang="frb")
        (multilingual / "model.safetensors").write_bytes(b"")  # before weights are read
        with pytest.raises(OptionError, match="'x'"):
            Translator.from_pretrained(multilingual, tgt_lang="x")

    def test_src_lang_refused_without_normalize_transform(self, multilingual):
        with pytest.raises(OptionError, match="src_lang: the model takes a target language only"):
            Translator.from_pretrained(multilingual, src_lang="en")
        options = dict(src_lang="en", tgt_lang="fra", transforms=["normalize", "sentencepiece"])
        options |= dict(src_subword_model=multilingual / "source.spm")
        options |= dict(tgt_subword_model=multilingual / "target.spm")
        (found,) = self.encode_sources(multilingual, "w1", **options)
        assert found.endswith("▁w1 </s>")

    def test_print_model_lists_language_codes(self, multilingual):
        assert re.search("languages +fra deu_Latn\n", describe(load_checkpoint(multilingual), "x"))

    def test_tgt_lang_bilingual_model_refused(self):
        assert load_checkpoint(MARIAN).languages is None
        with pytest.raises(OptionError, match="from src to tgt only"):
            Translator.from_pretrained(MARIAN, tgt_lang="fra").translate(["w1"])


class TestGeneration:
    def test_special_tokens_and_banned_tokens(self):
        checkpoint = load_checkpoint(MARIAN)
        assert (checkpoint.start_id, checkpoint.src_end, checkpoint.eos_id) == (119, (0,), 0)
        assert (checkpoint.banned_ids, checkpoint.forced_eos) == ((119,), True)
        assert checkpoint.toolkit == "marian"
        assert checkpoint.model.max_positions == 64

    def test_generation_config_json_overrides_config_and_is_optional(self, copy):
        update_json(copy / "generation_config.json", bad_words_ids=[[119], [7]], eos_token_id=[0])
        assert load_checkpoint(copy).banned_ids == (7, 119)
        (copy / "generation_config.json").unlink()
        update_json(copy / "config.json", forced_eos_token_id=None)
        checkpoint = load_checkpoint(copy)
        assert (checkpoint.banned_ids, checkpoint.forced_eos) == ((119,), False)

    def test_text_source_and_target_sentencepiece_models(self):
        translator = Translator.from_pretrained(MARIAN, device="cpu", threads=1)
        hyp = translator.translate(["w37 w3 w90 w24"], beam_size=1)[0].hyps[0]
        assert hyp.tokens == ["▁w4", "▁w102", "▁w20", "▁w26"]
        assert hyp.text == "w4 w102 w20 w26"


@pytest.mark.parametrize("share", [True, False], ids=["shared", "separate"])
def test_untied_embeddings_of_transformers_5(copy, weights, share):
    """Three separate tables, and an unused shared one."""
    tables = {name: weights[SHARED].roll(i, 0) for i, name in enumerate(NAMES)}
    update_json(
        copy / "config.json", tie_word_embeddings=False, share_encoder_decoder_embeddings=share
    )
    store_weights(copy, weights | tables)
    model = load_checkpoint(copy).model
    for name, ours in zip(NAMES, (model.src_embedding, model.tgt_embedding)):
        assert torch.equal(ours.token.weight, tables[name])
    assert torch.equal(model.output.weight, tables["lm_head.weight"])
    assert not (model.cfg.share_embeddings or model.cfg.tie_output)
    del tables["lm_head.weight"]
    store_weights(copy, weights | tables)
    assert_refused(copy, "lm_head")


@pytest.mark.parametrize(
    "name", ["activation_function", "scale_embedding", "max_position_embeddings"]
)
def test_config_setting_not_in_weights_is_required(copy, name):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({n: v for n, v in config.items() if n != name}))
    assert_refused(copy, name)


CONFIGURATIONS = [
    *(dict(activation_function="mish"), dict(add_final_layer_norm=True)),
    *(dict(encoder_attention_heads=heads) for heads in (5, "4")),
    *(dict(normalize_embedding="yes"), dict(quantization_config={"bits": 4})),
    *(dict(max_position_embeddings=n) for n in (0, 10**9)),
    *(dict(pad_token_id=i) for i in (120, None)),
]
GENERATION = [
    *(dict(decoder_start_token_id=i) for i in (-1, 120)),
    *(dict(forced_eos_token_id=5), dict(forced_bos_token_id=5)),
    *(dict(bad_words_ids=ids) for ids in ([[5, 120]], [[120]], 64)),
]


class TestRefused:
    @pytest.mark.parametrize("name", ["m2m", "mbart", "t5"])
    def test_multilingual_model_without_subword_model_refused(self, name):
        assert_refused(DATA / "hf" / name, "sentencepiece.bpe.model", "tokenizer.json")

    @pytest.mark.parametrize(
        "file, values",
        [
            *(("config.json", values) for values in CONFIGURATIONS),
            *((f, v) for v in GENERATION for f in ("config.json", "generation_config.json")),
        ],
        ids=str,
    )
    def test_config_invalid_value_refused(self, copy, file, values):
        if file == "config.json":
            (copy / "generation_config.json").unlink()
        update_json(copy / file, **values)
        assert_refused(copy, "copy")

    @pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "target.spm"])
    def test_missing_file_refused(self, copy, name):
        (copy / name).unlink()
        assert_refused(copy, "copy")


@pytest.mark.parametrize("name", ["a\nb", "x" * 500])
@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor([torch.nan])], ids=["ok", "nan"])
def test_unknown_weight_unusual_name_refused(copy, weights, name, value):
    store_weights(copy, {**weights, name: value})
    assert_refused(copy)
    (copy / "model.safetensors").unlink()
    torch.save({**weights, name: value}, copy / "pytorch_model.bin")
    assert_refused(copy)
    torch.save({**weights, name: 3}, copy / "pytorch_model.bin")
    assert_refused(copy)
