"""Marian models: exchange with the installed transformers in both directions."""

import json

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.export import ExportOptions, export
from tests.support import tiny

transformers = pytest.importorskip("transformers")

ATOL = 1e-5
PRESET = "transformers" if transformers.__version__.startswith("4.") else "transformers-5"
POST_NORM = dict(pre_norm=False, final_norm=False, positions="concat", norm_eps=1e-5)
SRC, LENGTHS = torch.tensor([[5, 6, 7, 3], [9, 3, 1, 1]]), torch.tensor([4, 2])
TGT = torch.tensor([[2, 8, 9, 10], [2, 5, 7, 4]])
LINES = ["der hund sieht den garten", "das rote buch", "it rains in the city"]
SWITCHES = [
    dict(),
    dict(activation="gelu"),
    dict(activation="silu", scale_embedding=False),
    dict(share_embeddings=False),
    dict(share_embeddings=False, tie_output=False),
    dict(dec_heads=2, dec_d_ff=48),
]


def compute_logits(path):
    model = load_checkpoint(path).model
    return model.forward(model.encode(SRC, LENGTHS), TGT)


def compute_transformers_logits(path):
    model = transformers.MarianMTModel.from_pretrained(path).eval()
    mask = (torch.arange(SRC.size(1)) < LENGTHS[:, None]).long()
    with torch.no_grad():
        return model(input_ids=SRC, attention_mask=mask, decoder_input_ids=TGT).logits


@pytest.fixture(params=SWITCHES, ids=str)
def exported(request, tmp_path, tiny_pieces):
    """A native model, exported for transformers."""
    (tmp_path / "native").mkdir()
    model = tiny.make_model(seed=4, **POST_NORM | request.param)
    native.save(tmp_path / "native", model, tiny_pieces)
    export(ExportOptions(str(tmp_path / "native"), "marian", str(tmp_path / "x")))
    return tmp_path / "x"


class TestExport:
    def test_exported_model_same_logits(self, exported):
        torch.testing.assert_close(
            compute_transformers_logits(exported), compute_logits(exported), atol=ATOL, rtol=0
        )

    @pytest.mark.parametrize("beams", [1, 4])
    def test_exported_model_same_hypotheses(self, exported, beams):
        translations = Translator.from_pretrained(exported, device="cpu", search=PRESET).translate(
            LINES, beam_size=beams, n_best=beams, max_length=20
        )
        model = transformers.MarianMTModel.from_pretrained(exported).eval()
        tokenizer = transformers.MarianTokenizer.from_pretrained(exported)
        for line, translation in zip(LINES, translations):
            out = model.generate(
                **tokenizer([line], return_tensors="pt"),
                num_beams=beams,
                num_return_sequences=beams,
                max_length=20,
                do_sample=False,
            )
            special = (tiny.PAD, tiny.BOS, tiny.EOS)
            ids = [[i for i in row if i not in special] for row in out.tolist()]
            assert [h.tokens for h in translation.hyps] == list(
                map(tokenizer.convert_ids_to_tokens, ids)
            )


class TestReader:
    @pytest.mark.parametrize(
        "settings",
        [
            dict(activation_function="swish"),
            dict(activation_function="relu", scale_embedding=True),
            dict(activation_function="gelu", decoder_ffn_dim=24, decoder_attention_heads=2),
            dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=40),
            dict(tie_word_embeddings=False),
            dict(tie_word_embeddings=False, share_encoder_decoder_embeddings=False),
            dict(encoder_attention_heads=2, encoder_ffn_dim=20, activation_function="silu"),
            dict(activation_function="gelu_new", max_position_embeddings=9),
            dict(encoder_layers=1, decoder_layers=3),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("form", ["one file", "shards", "bin", "bin with positions"])
    def test_saved_model_same_logits(self, settings, form, tmp_path):
        sizes = dict(vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=2)
        sizes |= dict(encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64)
        sizes |= dict(encoder_attention_heads=4, decoder_attention_heads=4, init_std=0.3)
        ids = dict(pad_token_id=39, eos_token_id=0, decoder_start_token_id=39)
        ids["forced_eos_token_id"] = 0
        torch.manual_seed(5)
        config = transformers.MarianConfig(**sizes | ids | settings)
        model = transformers.MarianMTModel(config).eval()
        with torch.no_grad():
            model.final_logits_bias.normal_()
        if not form.startswith("bin"):
            model.save_pretrained(tmp_path, max_shard_size="5KB" if form == "shards" else "1GB")
        else:  # as in older versions
            config.save_pretrained(tmp_path)
            positions = form == "bin with positions"
            weights = {
                n: w for n, w in model.state_dict().items() if positions or "positi" not in n
            }
            torch.save(weights, tmp_path / "pytorch_model.bin")
        vocab = {"</s>": 0, "<unk>": 1, **{f"w{i}": i for i in range(2, 39)}, "<pad>": 39}
        for name in ("vocab.json", "target_vocab.json"):
            (tmp_path / name).write_text(json.dumps(vocab), "utf-8")
        with torch.no_grad():
            mask = (torch.arange(SRC.size(1)) < LENGTHS[:, None]).long()
            expected = model(input_ids=SRC, attention_mask=mask, decoder_input_ids=TGT).logits
        torch.testing.assert_close(compute_logits(tmp_path), expected, atol=ATOL, rtol=0)

    @pytest.mark.skipif(PRESET != "transformers-5", reason="not supported by transformers 4")
    @pytest.mark.parametrize("tie", [True, False])
    def test_saved_model_separate_vocabs_same_hypotheses(self, tie, tmp_path):
        torch.manual_seed(6)
        config = transformers.MarianConfig(
            vocab_size=40, decoder_vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1,
            encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.3,
            encoder_attention_heads=4, decoder_attention_heads=4, pad_token_id=1, eos_token_id=0,
            decoder_start_token_id=1, share_encoder_decoder_embeddings=False,
            tie_word_embeddings=tie, forced_eos_token_id=None,
        )  # fmt: skip
        model = transformers.MarianMTModel(config).eval()
        model.save_pretrained(tmp_path)
        for name, letter, n in (("vocab", "s", 40), ("target_vocab", "t", 50)):
            words = ["</s>", "<pad>", "<unk>", *(f"{letter}{i}" for i in range(3, n))]
            table = {word: i for i, word in enumerate(words)}
            (tmp_path / f"{name}.json").write_text(json.dumps(table), "utf-8")
        lines = ["s3 s4 s39", "s7", "s9 s10 s11 s12 s13"]
        translations = Translator.from_pretrained(tmp_path, device="cpu", search=PRESET).translate(
            lines, beam_size=3, n_best=3, max_length=8
        )
        for line, translation in zip(lines, translations):
            src = [int(word[1:]) for word in line.split()] + [0]
            out = model.generate(
                input_ids=torch.tensor([src]), num_beams=3, num_return_sequences=3, max_length=8,
                do_sample=False, bad_words_ids=[[1]],
            )  # fmt: skip
            words = [[f"t{i}" if i > 2 else "<unk>" for i in row if i > 1] for row in out.tolist()]
            assert [h.tokens for h in translation.hyps] == words
