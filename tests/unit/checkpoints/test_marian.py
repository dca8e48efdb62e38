"""Native Marian files; the comparison with CTranslate2 is in test_references.py."""

import json
import shutil
import struct
import subprocess
import sys
import zipfile

import pytest
import torch
import yaml

from onmt_lite import Translator
from onmt_lite.checkpoints import marian as marian_npz
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.options import load_options
from onmt_lite.errors import CheckpointError, OptionWarning
from tests.support.files import DATA, assert_refused, assert_scores, summarize_checkpoint
from tests.support.sweeps import mark_sweeps

NPZ, HF = DATA / "marian_npz", DATA / "hf" / "marian"
OPUS = "model.npz.best-bleu.npz"
OPTIONS = "special:model.yml"


@pytest.fixture
def opus(tmp_path):
    return shutil.copytree(NPZ / "opus", tmp_path / "opus")


@pytest.fixture
def student(tmp_path):
    return shutil.copytree(NPZ / "student", tmp_path / "student")


def test_tgt_lang_multilingual_model_prepends_language_token(opus):
    vocabulary = opus / "opus.spm32k.vocab.yml"
    text = vocabulary.read_text("utf-8")
    assert load_checkpoint(opus).languages is None
    vocabulary.write_text(text.replace('"w9":', '">>fra<<":'), "utf-8")
    kwargs = dict(device="cpu", threads=1, tokenizer="space")
    translator = Translator.from_pretrained(opus, **kwargs)
    by_option = translator.translate(["w3 w5"], tgt_lang="fra", max_length=8)[0].hyps
    assert by_option == translator.translate([">>fra<< w3 w5"], max_length=8)[0].hyps
    assert by_option != translator.translate(["w3 w5"], max_length=8)[0].hyps


def to_npy(tensor, false_shape=""):
    """Serialize a tensor as Marian writes .npy files, optionally with a wrong shape."""
    dtype = {torch.float32: "<f4", torch.int8: "<i1"}[tensor.dtype]
    shape = false_shape or ",".join(map(str, tensor.shape))
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape},), }}"
    head += " " * (-(len(head) + 11) % 16) + "\n"
    numbers = bytes(tensor.flatten().view(torch.uint8).tolist())
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + numbers


def read_members(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write_members(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def change_options(path, **values):
    """Change the model options in an .npz file; None removes one."""
    members = read_members(path)
    text = bytes(marian_npz.read_npz(path)[OPTIONS].tolist()).rstrip(b"\0")
    options = yaml.safe_load(text) | values
    new = yaml.safe_dump({k: v for k, v in options.items() if v is not None}).encode() + b"\0"
    members[f"{OPTIONS}.npy"] = to_npy(torch.tensor(list(new), dtype=torch.int8))
    write_members(path, members)


def change_decoder(path, **values):
    options = yaml.safe_load((path / "decoder.yml").read_text())
    (path / "decoder.yml").write_text(yaml.safe_dump(options | values))


@pytest.mark.parametrize("name", ["opus", "student"])
def test_scores_equal_ctranslate2(name):
    file = DATA / "references" / f"npz_{name}.ctranslate2.json"
    assert_scores(NPZ / name, json.loads(file.read_text("utf-8"))["gold"])


class TestVocabulary:
    def test_load_vocabulary_keys_are_strings(self):
        tokens = load_checkpoint(NPZ / "opus").tgt_vocab.tokens
        strange = ["null", "yes", "on", "1", "~", "'", '"', "a: b", "#", "- x", "é", "=", "<<"]
        assert tokens[:15] == ["</s>", "<unk>", *strange]
        assert tokens[-2:] == ["w10", "<start>"]

    def test_load_start_and_end_tokens(self):
        checkpoint = load_checkpoint(NPZ / "opus")
        assert (checkpoint.start_id, checkpoint.banned_ids, checkpoint.src_end) == (26, (26,), (0,))
        assert checkpoint.src_vocab is checkpoint.tgt_vocab

    def test_load_vocabulary_smaller_than_table_gets_unused_tokens(self, opus):
        file = opus / "opus.spm32k.vocab.yml"
        file.write_text("\n".join(file.read_text("utf-8").split("\n")[:-2]) + "\n", "utf-8")
        assert_refused(opus, "25 tokens", "a model with 26")  # truncated
        change_options(opus / OPUS, **{"dim-vocabs": [25, 25]})
        assert load_checkpoint(opus).tgt_vocab.tokens[-2:] == ["<unused 25>", "<start>"]

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "a: b", "</s>: 0\n<unk>: 2", "</s>: 0\n</s>: 1", "</s>: 0\na: 0", "a: 0\nb: 1",
         "</s>: {}", "</s>: 0\n? [a]\n: 1", "{", "\t", "</s>: -1", "x", "</s>: 0\n---\na: 1",
         "\n".join(f"{'</s>' if i == 0 else i}: {i}" for i in range(27))],
    )  # fmt: skip
    def test_load_malformed_vocabulary_is_rejected(self, opus, text):
        (opus / "opus.spm32k.vocab.yml").write_text(text, "utf-8")
        assert_refused(opus, "opus.spm32k.vocab.yml")

    @pytest.mark.parametrize("text", mark_sweeps(["[", "{a: ", "- ", "? ", "a: &b [*b, "], ["["]))
    def test_load_deeply_nested_vocabulary_is_rejected(self, opus, text):
        """Runs in a separate process because a stack overflow would kill it."""
        (opus / "opus.spm32k.vocab.yml").write_text(text * 50_000, "utf-8")
        code = "from onmt_lite.checkpoints.loading import load_checkpoint\n"
        code += f"try: load_checkpoint({str(opus)!r})\nexcept Exception as e: print(repr(e))"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert result.returncode == 0 and result.stdout.startswith("CheckpointError(")
        assert "not a Marian vocabulary" in result.stdout

    def test_load_sentencepiece_vocabulary_also_tokenizes(self, opus):
        """The model has the ids of the sentencepiece model."""
        members = read_members(opus / OPUS)
        small = {n: data for n, data in members.items() if "Wemb" not in n and "logit" not in n}
        subwords = load_checkpoint(HF).tokenizers["sentencepiece"].target
        table = torch.randn(subwords.vocab_size(), 16)
        write_members(opus / "x.npz", small | {"Wemb.npy": to_npy(table)})
        shutil.copy(HF / "target.spm", opus / "vocab.spm")
        change_decoder(opus, models=["x.npz"], vocabs=["vocab.spm", "vocab.spm"])
        checkpoint = load_checkpoint(opus)
        ids = [*range(subwords.vocab_size())]
        assert checkpoint.tgt_vocab.tokens[:-1] == subwords.id_to_piece(ids)
        tokens = checkpoint.tokenizers["sentencepiece"].encode("w37 w3")
        assert tokens == subwords.encode("w37 w3", out_type=str)


class TestFiles:
    def test_load_directory_without_decoder_yml(self, opus, student):
        for path in (opus, student):
            expected = summarize_checkpoint(path)
            (path / "decoder.yml").unlink()
            (path / "model.npz.yml").write_text("beam-size: 3")  # next to each checkpoint
            assert summarize_checkpoint(path) == expected

    @pytest.mark.parametrize("layer, expected", [(1, 1), ("2", 2), ("last", 0), (None, 0)])
    def test_load_guided_alignment_layer(self, student, layer, expected):
        change_options(student / "model.npz", **{"transformer-guided-alignment-layer": layer})
        assert load_checkpoint(student).model.cfg.align_layer == expected

    def test_load_npz_path_equals_directory(self, opus):
        expected = summarize_checkpoint(opus)
        assert summarize_checkpoint(opus / OPUS) == expected
        shutil.copy(opus / OPUS, opus / "other.npz")
        assert summarize_checkpoint(opus) == summarize_checkpoint(opus / "other.npz") == expected

    def test_load_decoder_yml_ignores_directories(self, opus):
        expected = summarize_checkpoint(opus)
        change_decoder(opus, models=[f"/home/x/{OPUS}"], vocabs=["C:\\x\\opus.spm32k.vocab.yml"])
        assert summarize_checkpoint(opus) == expected

    def test_load_ambiguous_or_missing_files_is_rejected(self, opus, student):
        change_decoder(opus, models=[OPUS, OPUS])
        assert_refused(
            opus, "decoder.yml", "a model needs one .npz file", "each .npz file of an ensemble"
        )
        change_decoder(opus, models=["other.npz"])
        assert_refused(opus, "decoder.yml: 'other.npz' does not exist in this directory; ")
        change_decoder(opus, models=[OPUS], vocabs=["a.yml"])
        assert_refused(opus, "decoder.yml: 'a.yml' does not exist in this directory; ")
        (opus / "decoder.yml").unlink()
        shutil.copy(opus / OPUS, opus / "other.npz")
        assert_refused(opus, "a model needs one .npz file")
        (student / "decoder.yml").unlink()
        (student / "vocab.src.yml").rename(student / "vocab.de.yml")
        (student / "vocab.trg.yml").rename(student / "vocab.en.yml")
        assert_refused(student, "vocab.de.yml")

    def test_tokenize_with_source_and_target_sentencepiece_models(self, opus):
        """Without them, they are reported as missing."""
        file = opus / "opus.spm32k.vocab.yml"
        file.write_text(file.read_text("utf-8").replace('w1"', '▁w37"').replace('w2"', '▁w3"'))
        assert load_checkpoint(opus).missing_files == (
            str(opus / "source.spm"),
            str(opus / "target.spm"),
        )
        for side in ("source.spm", "target.spm"):
            shutil.copy(HF / side, opus / side)
        checkpoint = load_checkpoint(opus)
        tokenizer = checkpoint.tokenizers["sentencepiece"]
        assert checkpoint.src_vocab.encode(tokenizer.encode("w37 w3")) == [16, 17]
        assert tokenizer.encode(">>fra<< w3") == [">>fra<<", "▁w3"]


class TestDecoderYmlDefaults:
    def load_defaults(self, *words):
        _, resolved = load_options(words)
        return {n: (resolved.values[n], resolved.origins[n]) for n in ("beam_size", "alpha")}

    def test_decoder_yml_sets_defaults_of_marian_search(self, student):
        origin = f"default of {student / 'decoder.yml'}"
        expected = {"beam_size": (4, origin), "alpha": (0.6, origin)}
        assert self.load_defaults("-model", str(student), "-search", "marian") == expected
        file = str(student / "model.npz")
        assert self.load_defaults("-model", file, "-search", "marian") == expected
        options = self.load_defaults("-model", file, "-search", "marian", "-beam_size", "3")
        assert options["beam_size"] == (3, "command line")

    def test_decoder_yml_is_ignored_for_other_search_or_file(self, student):
        defaults = self.load_defaults("-search", "ctranslate2")
        assert self.load_defaults("-model", str(student), "-search", "ctranslate2") == defaults
        shutil.copy(student / "model.npz", student / "other.npz")
        words = ("-model", str(student / "other.npz"), "-search", "marian")
        assert self.load_defaults(*words) == self.load_defaults("-search", "marian")

    @pytest.mark.parametrize("value, alpha", [(True, 1.0), (False, 0.0), (1, 1.0), (None, 0.0)])
    def test_decoder_yml_normalize_sets_alpha(self, student, value, alpha):
        change_decoder(student, normalize=value)
        assert self.load_defaults("-model", str(student), "-search", "marian")["alpha"][0] == alpha

    def test_decoder_yml_invalid_value_is_rejected(self, student):
        for values, words in (
            *(({"beam-size": value}, "beam-size") for value in ("many", 0)),
            ({"beam-size": [[1]]}, "beam-size must be a single value, not a list"),
            *(({"normalize": value}, "normalize") for value in ([1], 10**400)),
        ):
            change_decoder(student, **{"beam-size": 1, "normalize": 1} | values)
            with pytest.raises(CheckpointError, match=f"decoder.yml: {words}"):
                load_options(["-model", str(student), "-search", "marian"])

    @pytest.mark.parametrize("models", [5, [5], [["model.npz"]]], ids=str)
    def test_decoder_yml_models_must_be_list_of_files(self, student, models):
        change_decoder(student, models=models)
        with pytest.raises(CheckpointError, match="models must be a list of files"):
            load_options(["-model", str(student / "model.npz"), "-search", "marian"])
        assert_refused(student, "models must be a list of files")


MEMBERS = read_members(NPZ / "opus" / OPUS)
TABLE, BIAS = MEMBERS["Wemb.npy"], MEMBERS["encoder_l1_self_Wo_ln_bias.npy"]


class TestRejected:
    @pytest.mark.parametrize(
        "values, words",
        [
            ({"type": "s2s"}, "type is 's2s', but only 'transformer'"),
            ({"type": "transformer-lm"}, "transformer-lm"),
            ({"transformer-decoder-autoreg": "rnn"}, "'rnn'"),
            ({"transformer-decoder-autoreg": "average-attention"}, "average-attention"),
            ({"lemma-dim-emb": 8}, "lemma-dim-emb is 8"),
            ({"transformer-preprocess": "dn"}, "transformer-preprocess"),
            ({"transformer-postprocess": "da"}, "-postprocess"),
            ({"transformer-ffn-activation": "prelu"}, "prelu"),
            ({"transformer-no-projection": True}, "transformer-no-projection"),
            ({"transformer-tied-layers": [1, 1]}, "tied"),
            ({"transformer-heads": 3}, "heads"),
            ({"transformer-heads": None}, "transformer-heads"),
            ({"enc-depth": 3}, "encoder"),
            ({"enc-depth": 1}, "encoder"),
            ({"dim-vocabs": [1 << 62, 1 << 62]}, "dim-vocabs is not a list of sizes"),
            (
                {"transformer-guided-alignment-layer": [["x"]]},
                "alignment-layer must be an integer, not a list",
            ),
        ],
        ids=str,
    )
    def test_load_unsupported_option_is_rejected(self, opus, values, words):
        change_options(opus / OPUS, **values)
        assert_refused(opus, OPUS, words)

    def test_load_false_vocabulary_size_allocates_nothing(self, opus):
        change_options(opus / OPUS, **{"dim-vocabs": [1 << 47, 1 << 47]})
        assert_refused(opus, "vocab.yml", "tokens do not match a model with")

    def test_shortlist_is_ignored_with_warning(self, opus):
        change_decoder(opus, shortlist=["lex.s2t", 100, 100])
        with pytest.warns(OptionWarning, match="shortlist"):
            Translator.from_pretrained(opus, device="cpu").translate(["w1"], beam_size=1)

    @pytest.mark.parametrize(
        "key, value, words",
        [
            ("word-penalty", 0.5, "word-penalty"),
            ("models", ["model.intgemm8.bin"], "model.intgemm8.bin"),
            ("vocabs", ["v.src.fsv"], "factors"),
        ],
    )
    def test_load_unsupported_decoder_yml_is_rejected(self, opus, key, value, words):
        change_decoder(opus, **{key: value})
        assert_refused(opus, "decoder.yml", words)

    @pytest.mark.parametrize(
        "name, data, words",
        [
            (f"{OPTIONS}.npy", None, "not a Marian model"),
            ("encoder_l1_ffn_W1.npy", None, "lack encoder.0.ffn.up.weight"),
            ("Wemb.npy", None, "Wemb"),
            ("x.npy", TABLE, "'x'"),
            ("encoder_l1_self_Wo_ln_bias_pre.npy", BIAS, "another name"),
            ("Wemb.npy", TABLE[:-1], "Wemb"),
            ("Wemb.npy", b"PK" + TABLE[2:], "Wemb"),
            ("Wemb.npy", TABLE.replace(b"order': False", b"order': True "), "C order"),
            ("Wemb.npy", TABLE.replace(b"'<f4'", b"'|O8'"), "not a numeric array"),
            ("Wemb.npy", TABLE.replace(b"(26, 16)", b"(9**9,1)"), "not a numeric array"),
            ("Wemb.npy", to_npy(torch.zeros(0), f"{2**70},0"), "not a numeric array"),
            ("Wemb.npy", to_npy(torch.full((26, 16), torch.nan)), "not finite"),
        ],
    )
    def test_load_damaged_array_is_rejected(self, opus, name, data, words):
        members = read_members(opus / OPUS) | {name: data}
        write_members(opus / OPUS, {n: data for n, data in members.items() if data is not None})
        assert_refused(opus, words)

    @pytest.mark.parametrize("shape", [(), (0,), (26,), (0, 16), (1, 1, 1)], ids=str)
    @pytest.mark.parametrize(
        "name",
        ["Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_W", "Wpos"],
    )
    def test_load_table_that_is_not_a_matrix_is_rejected(self, student, name, shape):
        members = read_members(student / "model.npz")
        members[f"{name}.npy"] = to_npy(torch.ones(shape))
        write_members(student / "model.npz", members)
        assert_refused(student, "model.npz", "has the shape")

    def test_load_compressed_or_duplicate_member_is_rejected(self, opus):
        members = read_members(opus / OPUS)
        write_members(opus / OPUS, members, zipfile.ZIP_DEFLATED)
        assert_refused(opus, "compressed")
        with (
            pytest.warns(UserWarning, match="Duplicate"),
            zipfile.ZipFile(opus / OPUS, "w") as archive,
        ):
            for name in [*members, "Wemb.npy"]:
                archive.writestr(name, members[name])
        assert_refused(opus, "duplicate members")

    @pytest.mark.parametrize(
        "line", ["x: {<<: {a: 1}}", "x: !!bool 5", 'x: !!int ""', f"x: {'1:' * 200}1.5"]
    )
    def test_load_unsafe_yaml_in_decoder_yml_is_rejected(self, opus, line):
        text = (opus / "decoder.yml").read_text()
        (opus / "decoder.yml").write_text(f"{text}\n{line}\n")
        load_options(["-model", str(opus), "-search", "marian"])
        assert_refused(opus, "decoder.yml", "not valid YAML")

    def test_load_unsafe_yaml_in_options_is_rejected(self, opus):
        members = read_members(opus / OPUS)
        for text in (b"!!python/object/apply:os.system ['true']", b"{", b"- x", b"\xff"):
            numbers = torch.tensor(list(text), dtype=torch.uint8).view(torch.int8)
            members[f"{OPTIONS}.npy"] = to_npy(numbers)
            write_members(opus / OPUS, members)
            assert_refused(opus, OPUS)
