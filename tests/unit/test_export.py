"""Export to other toolkits: exported models compute the same, and no partial export remains."""

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
from onmt_lite.export import ExportOptions, export, load_export_options, write_files
from tests.support import tiny
from tests.support.files import DATA, compute_model_logits, update_json
from tests.support.random_models import make_copying_transformer

MARIAN = DATA / "hf" / "marian"
TRAINED = DATA / "onmt351_transformer.pt"
SWITCHES = sorted((DATA / "switches").glob("onmt351_*.pt"))
SWITCHES = [path for path in SWITCHES if "expected" not in path.name]
# Options of OpenNMT-py that cannot be inferred from the weights
STRUCTURE = (
    *("encoder_type", "decoder_type", "heads", "transformer_ff", "pos_ffn_activation_fn"),
    *("add_qkvbias", "add_ffnbias", "parallel_residual", "layer_norm", "aan_useffn"),
    *("position_encoding", "max_relative_positions", "relative_positions_buckets", "rotary_dim"),
)
SRC, LENGTHS = torch.tensor([[5, 6, 7, 3], [9, 3, 1, 1]]), torch.tensor([4, 2])
TGT = torch.tensor([[2, 8, 9, 10], [2, 5, 7, 4]])
POST_NORM = dict(pre_norm=False, final_norm=False, positions="concat", norm_eps=1e-5)


def compute_test_logits(path):
    return compute_model_logits(path, SRC, LENGTHS, TGT)


def run_export(model, to, output):
    export(ExportOptions(str(model), to, str(output)))
    return output


@pytest.fixture
def make_native(tmp_path, tiny_pieces):
    """make_native(**config) writes a model in our format and returns its directory."""

    def write(**config):
        (tmp_path / "native").mkdir()
        native.save(tmp_path / "native", tiny.make_model(**config), tiny_pieces)
        return tmp_path / "native"

    return write


def assert_same_logits(path, to, output):
    """The exported model computes the same logits."""
    after = compute_test_logits(run_export(path, to, output))
    torch.testing.assert_close(after, compute_test_logits(path), atol=1e-5, rtol=0)


def read_tensors(path):
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
    def test_export_opennmt_each_switch_same_logits(self, tmp_path, make_native, config):
        assert_same_logits(make_native(**config), "opennmt-py", tmp_path / "x.pt")

    @pytest.mark.parametrize("original", [TRAINED, *SWITCHES], ids=lambda path: path.stem)
    def test_export_opennmt_file_of_opennmt_round_trips(self, original, tmp_path):
        """The same weights under the same names, and options that build the same model."""
        path = run_export(original, "opennmt-py", tmp_path / "x.pt")
        before, after = read_tensors(original), read_tensors(path)
        assert set(after) == {name for name in before if "layer_norm_res." not in name}
        for name, tensor in after.items():
            if "layer_norm_2" not in name or "parallel" not in original.name:
                # Position tables are recomputed
                atol = 2e-3 if name.endswith("pe.pe") else 0
                torch.testing.assert_close(tensor, before[name], atol=atol, rtol=0)
        assert load_checkpoint(path).model.cfg == load_checkpoint(original).model.cfg
        old, new = archive.load(original), archive.load(path)
        assert new["vocab"] == {**old["vocab"], **new["vocab"]}
        for name in STRUCTURE:
            assert new["opt"].get(name) == old["opt"].get(name), name

    def test_export_opennmt_same_scores_and_special_tokens(self, tiny_checkpoint, tmp_path):
        path = run_export(tiny_checkpoint, "opennmt-py", tmp_path / "x.pt")
        checkpoint = load_checkpoint(path)
        vocab = checkpoint.tgt_vocab
        special = (vocab.unk_id, vocab.pad_id, vocab.bos_id, vocab.eos_id)
        assert special == (tiny.UNK, tiny.PAD, tiny.BOS, tiny.EOS)
        # Sources end with EOS, as in training
        assert (checkpoint.start_id, checkpoint.src_end) == (tiny.BOS, (tiny.EOS,))
        options = dict(device="cpu", tokenizer="space")
        pairs = ["▁der ▁hund", "▁die ▁k"], ["▁the ▁d", "▁a"]
        exported, expected = (
            Translator.from_pretrained(p, **options).score(*pairs) for p in (tiny_checkpoint, path)
        )
        assert exported == pytest.approx(expected, abs=1e-4)

    def test_export_opennmt_writes_sentencepiece_model_and_notices(
        self, tiny_checkpoint, tmp_path, tiny_pieces, capsys
    ):
        run_export(tiny_checkpoint, "opennmt-py", tmp_path / "x.pt")
        assert (tmp_path / "x.model").read_bytes() == tiny_pieces
        log = capsys.readouterr().err
        for word in ('src_subword_model: "x.model"', "[sentencepiece, suffix]", "uppercase"):
            assert word in log

    def test_export_opennmt_shared_weights_stored_once(self, tmp_path, make_native):
        path, model = run_export(make_native(), "opennmt-py", tmp_path / "x.pt"), tiny.make_model()
        numbers = sum(p.numel() for p in model.parameters()) + 5000 * model.cfg.d_model
        assert path.stat().st_size == pytest.approx(4 * numbers, abs=60_000)

    @pytest.mark.parametrize(
        "config, words",
        [
            (POST_NORM, r"pre_norm False \(must be True\); final_norm False"),
            (dict(embedding_norm=True), "embedding_norm True"),
            (dict(max_positions=5001), "more than 5000 positions"),
            (dict(relative="alibi"), "both absolute and relative positions"),
            (
                dict(positions="none", relative="alibi"),
                "scaled embeddings without absolute positions",
            ),
            (dict(scale_embedding=False), "absolute positions without scaled embeddings"),
            (dict(activation="silu"), "activation function silu"),
            (dict(activation="relu", gated_ffn=True), "activation function gated relu"),
            (dict(dec_heads=2), "numbers of heads in encoder and decoder"),
            (dict(dec_d_ff=8), "different d_ff in encoder and decoder"),
        ],
        ids=str,
    )
    def test_export_opennmt_unsupported_property_named(self, make_native, config, words):
        with pytest.raises(CheckpointError, match=words):
            export_opennmt(load_checkpoint(make_native(**config)), "x")


class TestMarian:
    def test_export_marian_same_translations(self, make_native, tmp_path):
        post_norm = make_native(seed=2, **POST_NORM)
        path = run_export(post_norm, "marian", tmp_path / "x")
        lines = ["der hund sieht", "das rote buch", "heute"]
        exported, expected = (
            Translator.from_pretrained(p, device="cpu").translate(lines, n_best=3)
            for p in (post_norm, path)
        )
        for a, b in zip(exported, expected):
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
    def test_export_marian_each_switch_same_logits(self, tmp_path, make_native, config):
        assert_same_logits(make_native(**POST_NORM | config), "marian", tmp_path / "x")

    def test_export_marian_directory_of_transformers_round_trips(self, tmp_path):
        path = run_export(MARIAN, "marian", tmp_path / "x")
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

    def test_export_marian_separate_vocabs_kept(self, tmp_path):
        copy = shutil.copytree(MARIAN, tmp_path / "copy")
        vocab = json.loads((copy / "vocab.json").read_text("utf-8"))
        changed = {token if i in (0, 1, 119) else f"x{i}": i for token, i in vocab.items()}
        (copy / "target_vocab.json").write_text(json.dumps(changed), "utf-8")
        update_json(copy / "tokenizer_config.json", separate_vocabs=True)
        path = run_export(copy, "marian", tmp_path / "x")
        exported, original = load_checkpoint(path), load_checkpoint(copy)
        assert exported.src_vocab.tokens == original.src_vocab.tokens
        assert exported.tgt_vocab.tokens == original.tgt_vocab.tokens

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
            (POST_NORM | dict(kv_heads=1), "fewer key heads"),
            (POST_NORM | dict(relative="shaw"), "relative shaw"),
            (POST_NORM | dict(dec_self_attn="average"), "dec_self_attn average"),
            (POST_NORM | dict(parallel_residual=True), "parallel_residual True"),
        ],
        ids=str,
    )
    def test_export_marian_unsupported_property_named(self, make_native, config, words):
        with pytest.raises(CheckpointError, match=words):
            export_marian(load_checkpoint(make_native(**config)))


class TestProgram:
    def test_unsupported_model_writes_nothing(self, tiny_checkpoint, tmp_path):
        command = [sys.executable, "-m", "onmt_lite.export", "-model", str(tiny_checkpoint)]
        command += ["-to", "marian", "-output", str(tmp_path / "x")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr.count("\n") == 1 and "pre_norm True" in done.stderr
        assert not list(tmp_path.iterdir())

    def test_rnn_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match="only a Transformer"):
            run_export(DATA / "onmt120_lstm.pt", "opennmt-py", tmp_path / "x.pt")

    @pytest.mark.parametrize("write", [export_marian, lambda model: export_opennmt(model, "x")])
    def test_copy_attention_refused(self, write):
        copying = dataclasses.replace(load_checkpoint(TRAINED), model=make_copying_transformer())
        with pytest.raises(CheckpointError, match="not a Transformer with copy attention"):
            write(copying)

    @pytest.mark.parametrize("taken", ["x.pt", "x.model"])
    def test_output_existing_file_refused(self, tiny_checkpoint, tmp_path, taken):
        (tmp_path / taken).write_text("mine", "utf-8")
        with pytest.raises(OptionError, match="already exists"):
            run_export(tiny_checkpoint, "opennmt-py", tmp_path / "x.pt")
        assert [path.name for path in tmp_path.iterdir()] == [taken]

    def test_options_missing_or_wrong_refused(self):
        for words, problem in (
            ("-to opennmt-py", "model.*\n.*output"),
            ("-model x -to opennmt-py -output y", r"must end in \.pt"),
            ("-model x -to fairseq -output y", "marian"),
        ):
            with pytest.raises(OptionError, match=problem):
                load_export_options(words.split())

    @pytest.mark.parametrize("to", ["ctranslate2", "fairseq"])
    def test_to_unknown_format_error_suggests_ctranslate2_converter(self, to):
        with pytest.raises(OptionError) as caught:
            load_export_options(["-model", "x", "-to", to, "-output", "y"])
        (problem,) = caught.value.problems
        assert problem == (
            f"to: must be one of opennmt-py, marian, got {to!r}; for CTranslate2, export to "
            "opennmt-py and run ct2-opennmt-py-converter --unsafe_deserialization on the file "
            "(command line)"
        )

    def test_model_without_value_one_error(self):
        with pytest.raises(OptionError) as caught:
            load_export_options(["-model", "-to", "marian", "-output", "y"])
        (problem,) = caught.value.problems
        assert problem.startswith("model: takes one value, got none; for example: -model ")

    @pytest.mark.parametrize("directory", [None, "x"])
    def test_write_files_failure_leaves_nothing(self, tmp_path, directory):
        files = {"a": b"1", "no/such/directory": b"2"}
        with pytest.raises(FileError, match="cannot write"):
            write_files(files, tmp_path, directory)
        assert not list(tmp_path.iterdir())

    def test_output_in_missing_directory_refused(self, tiny_checkpoint, tmp_path):
        with pytest.raises(FileError, match="cannot write"):
            run_export(tiny_checkpoint, "opennmt-py", tmp_path / "none" / "x.pt")
