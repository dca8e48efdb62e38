"""Marian directories of Hugging Face: every way to store one is the same model."""

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
from onmt_lite.text.lines import lines_from_texts
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


def logits(path):
    return compute_model_logits(path, SRC, LENGTHS, TGT)


def store(path, weights):
    (path / "model.safetensors").write_bytes(safetensors.dump(weights))


def assert_same(path):
    assert torch.equal(logits(path), logits(MARIAN))


def test_scores_are_those_of_transformers():
    assert_gold(MARIAN, "hf_marian")


class TestWeights:
    @pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
    def test_pytorch_file(self, copy, weights, new):
        """With every name that old files repeat, the position tables too."""
        positions = make_sinusoids(64, 64, "concat")
        everything = dict(weights) | {name: weights[SHARED] for name in NAMES}
        everything |= {
            f"model.{s}.embed_positions.weight": positions for s in ("encoder", "decoder")
        }
        everything["model.encoder.version"] = torch.tensor([3.0])
        (copy / "model.safetensors").unlink()
        file = copy / "pytorch_model.bin"
        torch.save(everything, file, _use_new_zipfile_serialization=new)
        assert_same(copy)

    @pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
    def test_shards(self, copy, weights, kind):
        (copy / "model.safetensors").unlink()
        stem, _, suffix = kind.partition(".")
        where = {name: f"{stem}-{len(name) % 3}.{suffix}" for name in weights}
        for file in set(where.values()):
            part = {name: weights[name] for name in weights if where[name] == file}
            if suffix == "bin":
                torch.save(part, copy / file)
            else:
                (copy / file).write_bytes(safetensors.dump(part))
        index = copy / f"{kind}.index.json"
        index.write_text(json.dumps({"weight_map": where}))
        assert_same(copy)
        index.write_text(json.dumps({"weight_map": where | {"x": "../model.safetensors"}}))
        assert_refused(copy, "does not exist")
        index.write_text(json.dumps({"weight_map": where | {"x": where[SHARED]}}))
        assert_refused(copy, "do not contain the tensors that it lists")

    @pytest.mark.parametrize("name", NAMES)
    def test_a_shared_table_under_any_one_of_its_names(self, copy, weights, name):
        kept = {n: w for n, w in weights.items() if n != SHARED}
        store(copy, kept | {name: weights[SHARED]})
        assert_same(copy)

    def test_an_output_layer_of_its_own(self, copy, weights):
        store(copy, weights | {"lm_head.weight": weights[SHARED].roll(1, 0)})
        assert_same(copy)  # tied, as config.json says: the stored one is not used
        update_json(copy / "config.json", tie_word_embeddings=False)
        bias = weights["final_logits_bias"]
        moved = (logits(MARIAN) - bias).roll(1, 2) + bias
        torch.testing.assert_close(logits(copy), moved, atol=1e-5, rtol=0)

    def test_stored_positions_that_no_formula_gives(self, copy, weights):
        table = make_sinusoids(64, 64, "concat")
        table[1] += 1
        stored = {f"model.{s}.embed_positions.weight": table for s in ("encoder", "decoder")}
        store(copy, weights | stored)
        assert load_checkpoint(copy).model.cfg.positions == "learned"
        changed = (logits(copy) - logits(MARIAN)).abs()
        assert changed.max() > 0.01

    def test_decoder_of_other_width_and_heads(self, copy, weights):
        """More hidden units whose output weights are zero change nothing."""
        wider = dict(weights)
        for i in range(2):
            layer = f"model.decoder.layers.{i}.fc"
            wider[f"{layer}1.weight"] = torch.cat([weights[f"{layer}1.weight"], torch.ones(8, 64)])
            wider[f"{layer}1.bias"] = torch.cat([weights[f"{layer}1.bias"], torch.ones(8)])
            wider[f"{layer}2.weight"] = torch.cat(
                [weights[f"{layer}2.weight"], torch.zeros(64, 8)], 1
            )
        store(copy, wider)
        assert_refused(copy, "decoder_ffn_dim is 128, but the weights have 136")
        update_json(copy / "config.json", decoder_ffn_dim=136)
        torch.testing.assert_close(logits(copy), logits(MARIAN), atol=1e-5, rtol=0)
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
    def test_missing_unknown_and_misshapen(self, copy, weights, edit):
        changed = weights | edit
        store(copy, {name: w for name, w in changed.items() if w is not None})
        assert_refused(copy, "copy")


class TestVocabulary:
    def test_ids_are_those_of_vocab_json_not_of_sentencepiece(self):
        checkpoint = load_checkpoint(MARIAN)
        pieces = checkpoint.tokenizers["sentencepiece"]
        assert list(checkpoint.tokenizers) == ["sentencepiece", "space"]
        tokens = pieces.encode("w37 w3")
        assert tokens == ["▁w37", "▁w3"]
        ids = json.loads((MARIAN / "vocab.json").read_text("utf-8"))
        assert checkpoint.src_vocab.encode(tokens) == [ids["▁w37"], ids["▁w3"]]
        assert pieces.source.piece_to_id("▁w37") != ids["▁w37"]
        assert pieces.decode([*tokens, "<unk>", "</s>"]) == "w37 w3"

    def test_language_tokens(self):
        pieces = load_checkpoint(MARIAN).tokenizers["sentencepiece"]
        assert pieces.encode(">>fra<< w1 w2") == [">>fra<<", "▁w1", "▁w2"]
        assert pieces.encode(">>fra<<w1") == [">>fra<<", "▁w1"]
        assert ">>fra<<" not in pieces.encode("w1 >>fra<<")
        assert ">>fra<<" not in pieces.encode_target(">>fra<< w1")

    def test_separate_vocabularies(self, copy, weights):
        """A target table in another order, with a vocabulary in that order: the same scores."""
        order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
        order = torch.tensor([i for i in order.tolist() if i not in (0, 119)])
        order = torch.cat([torch.tensor([0]), order, torch.tensor([119])])
        separate = {n: w for n, w in weights.items() if n != SHARED}
        separate["model.encoder.embed_tokens.weight"] = weights[SHARED]
        separate["model.decoder.embed_tokens.weight"] = weights[SHARED][order]
        separate["final_logits_bias"] = weights["final_logits_bias"][:, order]
        store(copy, separate)
        ids = json.loads((copy / "vocab.json").read_text("utf-8"))
        tokens = {i: token for token, i in ids.items()}
        new = {tokens[old]: i for i, old in enumerate(order.tolist()) if old in tokens}
        (copy / "target_vocab.json").write_text(json.dumps(new))
        update_json(copy / "config.json", share_encoder_decoder_embeddings=False)
        update_json(copy / "tokenizer_config.json", separate_vocabs=True)
        assert_gold(copy, "hf_marian")
        (copy / "tokenizer_config.json").unlink()  # then the file speaks for itself
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
    def test_that_make_no_sense(self, copy, vocab):
        (copy / "vocab.json").write_text(vocab, "latin-1")
        assert_refused(copy, "vocab.json")

    def test_without_sentencepiece_models_tokens_are_given(self, copy):
        (copy / "source.spm").unlink()
        assert list(load_checkpoint(copy).tokenizers) == ["space"]
        (copy / "source.spm").write_bytes(b"\xff\xfenothing")
        assert_refused(copy, "source.spm")

    @pytest.mark.parametrize("name", ["source.spm", "target.spm"])
    def test_sentencepiece_models_that_are_cut_off(self, copy, name):
        """Between two pieces, where the library takes the rest for all."""
        data, ends, at = (MARIAN / name).read_bytes(), [], 0
        while data[at] == 0x0A:  # a piece, of fewer than 128 bytes
            at += 2 + data[at + 1]
            ends.append(at)
        for end in (0, ends[len(ends) // 2], ends[-1]):
            (copy / name).write_bytes(data[:end])
            assert_refused(copy, name, "damaged")


class TestLanguages:
    """A model of several target languages, whose tokens begin source lines."""

    @pytest.fixture
    def several(self, copy):
        ids = json.loads((copy / "vocab.json").read_text("utf-8"))
        names = {"▁w100": ">>fra<<", "▁w101": ">>deu_Latn<<"}
        ids = {names.get(token, token): i for token, i in ids.items()}
        (copy / "vocab.json").write_text(json.dumps(ids))
        return copy

    def source_ids(self, path, *lines, **options):
        translator = Translator.from_pretrained(path, device="cpu", threads=1, **options)
        direction = translator.pipeline.direction(translator.options)
        make, vocab = translator.pipeline.preprocessor.make_example, translator.checkpoint.src_vocab
        made = (make(line, direction=direction) for line in lines_from_texts(lines, "x"))
        return [" ".join(vocab.decode(example.src_ids)) for example in made]

    @pytest.mark.parametrize("tokenizer, mark", [("auto", ""), ("space", "▁")])
    def test_tgt_lang_token_is_put_before_lines_without_one(self, several, tokenizer, mark):
        lines = [f"{tag}{mark}w1" for tag in ("", ">>deu_Latn<< ", ">>fra<<  ", ">>xyz<< ")]
        given = dict(tgt_lang="fra", tokenizer=tokenizer)
        found = self.source_ids(several, *lines[:3], **given)
        assert found == [">>fra<< ▁w1 </s>", ">>deu_Latn<< ▁w1 </s>", ">>fra<< ▁w1 </s>"]
        found = self.source_ids(several, *lines, tokenizer=tokenizer)  # as in the original
        plain = ["▁w1 </s>", ">>deu_Latn<< ▁w1 </s>", ">>fra<< ▁w1 </s>", "<unk> ▁w1 </s>"]
        assert found == plain

    def test_unknown_code_is_refused_with_the_nearest(self, several):
        with pytest.raises(OptionError, match="tgt_lang: .*'frb'; nearest are fra, deu_Latn"):
            Translator.from_pretrained(several, tgt_lang="frb")
        (several / "model.safetensors").write_bytes(b"")  # before weights are read
        with pytest.raises(OptionError, match="'x'"):
            Translator.from_pretrained(several, tgt_lang="x")

    def test_src_lang_is_only_for_transforms(self, several):
        with pytest.raises(OptionError, match="src_lang: the model takes a target language only"):
            Translator.from_pretrained(several, src_lang="en")
        given = dict(src_lang="en", tgt_lang="fra", transforms=["normalize", "sentencepiece"])
        given |= dict(src_subword_model=several / "source.spm")
        given |= dict(tgt_subword_model=several / "target.spm")
        (found,) = self.source_ids(several, "w1", **given)
        assert found.endswith("▁w1 </s>")

    def test_print_model_lists_codes(self, several):
        assert re.search("languages +fra deu_Latn\n", describe(load_checkpoint(several), "x"))

    def test_one_pair_has_no_language_to_choose(self):
        assert load_checkpoint(MARIAN).languages is None
        with pytest.raises(OptionError, match="from src to tgt only"):
            Translator.from_pretrained(MARIAN, tgt_lang="fra").translate(["w1"])


class TestGeneration:
    def test_start_end_and_what_is_never_said(self):
        checkpoint = load_checkpoint(MARIAN)
        assert (checkpoint.start_id, checkpoint.src_end, checkpoint.eos_id) == (119, (0,), 0)
        assert (checkpoint.banned_ids, checkpoint.forced_eos) == ((119,), True)
        assert checkpoint.toolkit == "marian"
        assert checkpoint.model.max_positions == 64

    def test_generation_config_wins_and_may_be_absent(self, copy):
        update_json(copy / "generation_config.json", bad_words_ids=[[119], [7]], eos_token_id=[0])
        assert load_checkpoint(copy).banned_ids == (7, 119)
        (copy / "generation_config.json").unlink()
        update_json(copy / "config.json", forced_eos_token_id=None)
        checkpoint = load_checkpoint(copy)
        assert (checkpoint.banned_ids, checkpoint.forced_eos) == ((119,), False)

    def test_text_goes_through_both_models(self):
        translator = Translator.from_pretrained(MARIAN, device="cpu", threads=1)
        found = translator.translate(["w37 w3 w90 w24"], beam_size=1)[0].hyps[0]
        assert found.tokens == ["▁w4", "▁w102", "▁w20", "▁w26"]
        assert found.text == "w4 w102 w20 w26"


@pytest.mark.parametrize("share", [True, False], ids=["share", "own"])
def test_nothing_tied_as_transformers_5_stores_it(copy, weights, share):
    """Three tables of their own, and one beside them that nothing uses."""
    tables = {name: weights[SHARED].roll(i, 0) for i, name in enumerate(NAMES)}
    update_json(
        copy / "config.json", tie_word_embeddings=False, share_encoder_decoder_embeddings=share
    )
    store(copy, weights | tables)
    model = load_checkpoint(copy).model
    for name, ours in zip(NAMES, (model.src_embedding, model.tgt_embedding)):
        assert torch.equal(ours.token.weight, tables[name])
    assert torch.equal(model.output.weight, tables["lm_head.weight"])
    assert not (model.cfg.share_embeddings or model.cfg.tie_output)
    del tables["lm_head.weight"]
    store(copy, weights | tables)
    assert_refused(copy, "lm_head")


@pytest.mark.parametrize(
    "name", ["activation_function", "scale_embedding", "max_position_embeddings"]
)
def test_what_no_weight_tells_must_be_said(copy, name):
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
    def test_relatives_without_their_words(self, name):
        assert_refused(DATA / "hf" / name, "sentencepiece.bpe.model", "tokenizer.json")

    @pytest.mark.parametrize(
        "file, values",
        [
            *(("config.json", values) for values in CONFIGURATIONS),
            *((f, v) for v in GENERATION for f in ("config.json", "generation_config.json")),
        ],
        ids=str,
    )
    def test_descriptions(self, copy, file, values):
        if file == "config.json":
            (copy / "generation_config.json").unlink()
        update_json(copy / file, **values)
        assert_refused(copy, "copy")

    @pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "target.spm"])
    def test_files_that_are_not_there(self, copy, name):
        (copy / name).unlink()
        assert_refused(copy, "copy")


@pytest.mark.parametrize("name", ["a\nb", "x" * 500])
@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor([torch.nan])], ids=["ok", "nan"])
def test_odd_names_of_weights_do_not_spoil_the_message(copy, weights, name, value):
    store(copy, {**weights, name: value})
    assert_refused(copy)
    (copy / "model.safetensors").unlink()
    torch.save({**weights, name: value}, copy / "pytorch_model.bin")
    assert_refused(copy)
    torch.save({**weights, name: 3}, copy / "pytorch_model.bin")
    assert_refused(copy)
