"""Models written for other toolkits: read again they are the same, and nothing is half written."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
import sentencepiece as spm
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints import archive, native, safetensors
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.writing import export_marian, export_opennmt
from onmt_lite.errors import CheckpointError, FileError, OptionError
from onmt_lite.export import ExportOptions, export, load_export_options, write_whole
from tests.support import tiny
from tests.support.files import DATA, change, logits_of
from tests.support.random_models import make_copying_transformer

MARIAN = DATA / "hf" / "marian"
TRAINED = DATA / "onmt351_transformer.pt"
SWITCHES = sorted((DATA / "switches").glob("onmt351_*.pt"))
SWITCHES = [path for path in SWITCHES if "expected" not in path.name]
# Options of OpenNMT-py that no weight tells
STRUCTURE = (
    *("encoder_type", "decoder_type", "heads", "transformer_ff", "pos_ffn_activation_fn"),
    *("add_qkvbias", "add_ffnbias", "parallel_residual", "layer_norm", "aan_useffn"),
    *("position_encoding", "max_relative_positions", "relative_positions_buckets", "rotary_dim"),
)
SRC, LENGTHS = torch.tensor([[5, 6, 7, 3], [9, 3, 1, 1]]), torch.tensor([4, 2])
TGT = torch.tensor([[2, 8, 9, 10], [2, 5, 7, 4]])
POST_NORM = dict(pre_norm=False, final_norm=False, positions="concat", norm_eps=1e-5)


def logits(path):
    return logits_of(path, SRC, LENGTHS, TGT)


def exported(model, to, output):
    export(ExportOptions(str(model), to, str(output)))
    return output


@pytest.fixture
def own(tmp_path, tiny_pieces):
    """own(**config) -> a model in our own format."""

    def write(**config):
        (tmp_path / "own").mkdir()
        native.save(tmp_path / "own", tiny.make_model(**config), tiny_pieces)
        return tmp_path / "own"

    return write


def assert_kept(path, to, output):
    """What is exported computes the same."""
    after = logits(exported(path, to, output))
    torch.testing.assert_close(after, logits(path), atol=1e-5, rtol=0)


def tensors(path):
    root = archive.load(path)
    return root["model"] | {f"gen.{name}": t for name, t in root["generator"].items()}


class TestOpenNMT:
    @pytest.mark.parametrize(
        "config",
        [
            *({}, dict(share_embeddings=False)),
            dict(share_embeddings=False, tie_output=False, output_bias=False),
            dict(activation="gelu", attn_bias=False),
            dict(gated_ffn=True, activation="silu", norm="rms", ffn_bias=False),
            dict(positions="fairseq", position_offset=2),
            dict(positions="learned"),
            dict(positions="learned", position_offset=2),
            dict(positions="none", scale_embedding=False, relative="alibi", kv_heads=2),
            dict(positions="none", scale_embedding=False, relative="rotary", rotary_dim=2),
            dict(dec_self_attn="average_ffn", norm_eps=1e-5),
        ],
        ids=str,
    )
    def test_each_switch(self, tmp_path, own, config):
        assert_kept(own(**config), "opennmt-py", tmp_path / "x.pt")

    @pytest.mark.parametrize("original", [TRAINED, *SWITCHES], ids=lambda path: path.stem)
    def test_what_opennmt_wrote_comes_out_as_it_was(self, original, tmp_path):
        """The same weights under the same names, and options that build the same model."""
        path = exported(original, "opennmt-py", tmp_path / "x.pt")
        before, after = tensors(original), tensors(path)
        assert set(after) == {name for name in before if "layer_norm_res." not in name}
        for name, tensor in after.items():
            if "layer_norm_2" not in name or "parallel" not in original.name:
                # Position tables are computed anew
                atol = 2e-3 if name.endswith("pe.pe") else 0
                torch.testing.assert_close(tensor, before[name], atol=atol, rtol=0)
        assert load_checkpoint(path).model.cfg == load_checkpoint(original).model.cfg
        old, new = archive.load(original), archive.load(path)
        assert new["vocab"] == {**old["vocab"], **new["vocab"]}
        for name in STRUCTURE:
            assert new["opt"].get(name) == old["opt"].get(name), name

    def test_translations_and_special_tokens(self, tiny_checkpoint, tmp_path):
        path = exported(tiny_checkpoint, "opennmt-py", tmp_path / "x.pt")
        checkpoint = load_checkpoint(path)
        vocab = checkpoint.tgt_vocab
        special = (vocab.unk_id, vocab.pad_id, vocab.bos_id, vocab.eos_id)
        assert special == (tiny.UNK, tiny.PAD, tiny.BOS, tiny.EOS)
        # Sources end as those that it was trained with
        assert (checkpoint.start_id, checkpoint.src_end) == (tiny.BOS, (tiny.EOS,))
        options = dict(device="cpu", tokenizer="space")
        pairs = ["▁der ▁hund", "▁die ▁k"], ["▁the ▁d", "▁a"]
        ours, theirs = (
            Translator.from_pretrained(p, **options).score(*pairs) for p in (tiny_checkpoint, path)
        )
        assert theirs == pytest.approx(ours, abs=1e-4)

    def test_pieces_beside_it(self, tiny_checkpoint, tmp_path, tiny_pieces, capsys):
        exported(tiny_checkpoint, "opennmt-py", tmp_path / "x.pt")
        assert (tmp_path / "x.model").read_bytes() == tiny_pieces
        log = capsys.readouterr().err
        for word in ('src_subword_model: "x.model"', "[sentencepiece, suffix]", "capitals"):
            assert word in log

    def test_weights_that_are_shared_are_stored_once(self, tmp_path, own):
        path, model = exported(own(), "opennmt-py", tmp_path / "x.pt"), tiny.make_model()
        numbers = sum(p.numel() for p in model.parameters()) + 5000 * model.cfg.d_model
        assert path.stat().st_size == pytest.approx(4 * numbers, abs=60_000)

    @pytest.mark.parametrize(
        "config, words",
        [
            (POST_NORM, r"pre_norm False \(must be True\); final_norm False"),
            (dict(embedding_norm=True), "embedding_norm True"),
            (dict(max_positions=5001), "lines of more than 5000 tokens"),
            (dict(relative="alibi"), "beside relative positions"),
            (dict(positions="none", relative="alibi"), "scaled without"),
            (dict(scale_embedding=False), "not scaled"),
            (dict(activation="silu"), "the activation silu"),
            (dict(activation="relu", gated_ffn=True), "the gated activation relu"),
            (dict(dec_heads=2), "heads of the decoder"),
            (dict(dec_d_ff=8), "d_ff of the decoder"),
        ],
        ids=str,
    )
    def test_what_it_cannot_hold_is_named(self, own, config, words):
        with pytest.raises(CheckpointError, match=words):
            export_opennmt(load_checkpoint(own(**config)), "x")


class TestMarian:
    def test_translations(self, own, tmp_path):
        post_norm = own(seed=2, **POST_NORM)
        path = exported(post_norm, "marian", tmp_path / "x")
        lines = ["der hund sieht", "das rote buch", "heute"]
        ours, theirs = (
            Translator.from_pretrained(p, device="cpu").translate(lines, n_best=3)
            for p in (post_norm, path)
        )
        for a, b in zip(ours, theirs):
            assert [h.tokens for h in a.hyps] == [h.tokens for h in b.hyps]

    @pytest.mark.parametrize(
        "config",
        [
            dict(share_embeddings=False),
            dict(share_embeddings=False, tie_output=False),
            dict(tie_output=False, output_bias=False),
            dict(activation="gelu_tanh", scale_embedding=False),
            dict(dec_heads=2, dec_d_ff=48, activation="silu"),
        ],
        ids=str,
    )
    def test_each_switch(self, tmp_path, own, config):
        assert_kept(own(**POST_NORM | config), "marian", tmp_path / "x")

    def test_what_transformers_wrote_comes_out_as_it_was(self, tmp_path):
        path = exported(MARIAN, "marian", tmp_path / "x")
        before = safetensors.read(MARIAN / "model.safetensors")
        after = safetensors.read(path / "model.safetensors")
        assert set(before) == set(after)
        assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
        for name in ("config.json", "vocab.json"):
            old, new = (json.loads((p / name).read_text("utf-8")) for p in (MARIAN, path))
            skipped = {"architectures", "tie_word_embeddings"}
            assert all(new[n] == old[n] for n in old.keys() & new.keys() - skipped)
        for name in ("source.spm", "target.spm"):
            old, new = (
                spm.SentencePieceProcessor(model_file=str(p / name)) for p in (MARIAN, path)
            )
            assert old.encode("w37 w2", out_type=str) == new.encode("w37 w2", out_type=str)

    def test_a_vocabulary_for_each_language(self, tmp_path):
        copy = shutil.copytree(MARIAN, tmp_path / "copy")
        vocab = json.loads((copy / "vocab.json").read_text("utf-8"))
        other = {token if i in (0, 1, 119) else f"x{i}": i for token, i in vocab.items()}
        (copy / "target_vocab.json").write_text(json.dumps(other), "utf-8")
        change(copy / "tokenizer_config.json", separate_vocabs=True)
        path = exported(copy, "marian", tmp_path / "x")
        found, wanted = load_checkpoint(path), load_checkpoint(copy)
        assert found.src_vocab.tokens == wanted.src_vocab.tokens
        assert found.tgt_vocab.tokens == wanted.tgt_vocab.tokens

    @pytest.mark.parametrize(
        "config, words",
        [
            (dict(), r"pre_norm True \(must be False\); final_norm True"),
            (POST_NORM | dict(positions="learned"), "positions learned"),
            (POST_NORM | dict(position_offset=2), "position_offset 2"),
            (POST_NORM | dict(norm_eps=1e-6), "norm_eps 1e-06"),
            (POST_NORM | dict(norm="rms"), "norm rms"),
            (POST_NORM | dict(attn_bias=False), "attn_bias False"),
            (POST_NORM | dict(gated_ffn=True), "gated_ffn True"),
            (POST_NORM | dict(kv_heads=1), "fewer heads"),
            (POST_NORM | dict(relative="shaw"), "relative shaw"),
            (POST_NORM | dict(dec_self_attn="average"), "dec_self_attn average"),
            (POST_NORM | dict(parallel_residual=True), "parallel_residual True"),
        ],
        ids=str,
    )
    def test_what_it_cannot_hold_is_named(self, own, config, words):
        with pytest.raises(CheckpointError, match=words):
            export_marian(load_checkpoint(own(**config)))


class TestProgram:
    def test_refusals_write_nothing(self, tiny_checkpoint, tmp_path):
        command = [sys.executable, "-m", "onmt_lite.export", "-model", str(tiny_checkpoint)]
        command += ["-to", "marian", "-output", str(tmp_path / "x")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr.count("\n") == 1 and "pre_norm True" in done.stderr
        assert not list(tmp_path.iterdir())

    def test_other_families_are_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match="only a Transformer"):
            exported(DATA / "onmt120_lstm.pt", "opennmt-py", tmp_path / "x.pt")

    @pytest.mark.parametrize("write", [export_marian, lambda found: export_opennmt(found, "x")])
    def test_transformer_that_copies_is_refused(self, write):
        copying = dataclasses.replace(load_checkpoint(TRAINED), model=make_copying_transformer())
        with pytest.raises(CheckpointError, match="this is a Transformer that copies"):
            write(copying)

    @pytest.mark.parametrize("taken", ["x.pt", "x.model"])
    def test_what_exists_is_never_touched(self, tiny_checkpoint, tmp_path, taken):
        (tmp_path / taken).write_text("mine", "utf-8")
        with pytest.raises(OptionError, match="exists already"):
            exported(tiny_checkpoint, "opennmt-py", tmp_path / "x.pt")
        assert [path.name for path in tmp_path.iterdir()] == [taken]

    def test_options_that_are_missing_or_wrong(self):
        for words, problem in (
            ("-to opennmt-py", "model.*\n.*output"),
            ("-model x -to opennmt-py -output y", r"must end in \.pt"),
            ("-model x -to fairseq -output y", "marian"),
        ):
            with pytest.raises(OptionError, match=problem):
                load_export_options(words.split())

    @pytest.mark.parametrize("to", ["ctranslate2", "fairseq"])
    def test_unknown_format_is_one_error_with_the_way_to_ctranslate2(self, to):
        with pytest.raises(OptionError) as caught:
            load_export_options(["-model", "x", "-to", to, "-output", "y"])
        (problem,) = caught.value.problems
        assert problem == (
            f"to: expected one of opennmt-py, marian, got {to!r}; for CTranslate2, export to "
            "opennmt-py and run ct2-opennmt-py-converter --unsafe_deserialization on the file "
            "(command line)"
        )

    def test_option_without_value_is_one_error(self):
        with pytest.raises(OptionError) as caught:
            load_export_options(["-model", "-to", "marian", "-output", "y"])
        (problem,) = caught.value.problems
        assert problem.startswith("model: takes one value, got none; for example: -model ")

    @pytest.mark.parametrize("directory", [None, "x"])
    def test_all_or_nothing(self, tmp_path, directory):
        files = {"a": b"1", "no/such/place": b"2"}
        with pytest.raises(FileError, match="cannot write"):
            write_whole(files, tmp_path, directory)
        assert not list(tmp_path.iterdir())

    def test_where_there_is_no_place(self, tiny_checkpoint, tmp_path):
        with pytest.raises(FileError, match="cannot write"):
            exported(tiny_checkpoint, "opennmt-py", tmp_path / "none" / "x.pt")
