"""fairseq models: scores and logits equal fairseq, with old and new weight names."""

import shutil

import pytest
import torch

from onmt_lite.checkpoints import archive, fairseq
from onmt_lite.checkpoints.fairseq import _read_options, read_dictionary
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.shipped import list_model_files
from onmt_lite.config.files import check_distinct
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.inference.loading import read_checkpoint
from onmt_lite.jobs.fingerprint import fingerprint_file, list_all_model_files
from onmt_lite.jobs.job import list_read_files, list_written_files
from tests.support.files import (
    DATA,
    assert_gold,
    assert_refused,
    compute_model_logits,
    load_pickled_root,
)

SWITCHES = DATA / "switches"
TRAINED = DATA / "fairseq_transformer"
ATOL = 1e-5

CASES = torch.load(SWITCHES / "fairseq_expected.pt", weights_only=True)
SRC, LENGTHS, TGT = (CASES.pop(name) for name in ("src", "src_lengths", "tgt"))
NAMES = sorted(CASES)


def compute_logits(path):
    return compute_model_logits(path, SRC, LENGTHS, TGT)


@pytest.fixture
def store(tmp_path):
    """Return a function that writes a modified copy of a model directory in SWITCHES."""

    def write(edit=lambda state: None, name="pre_norm"):
        path = tmp_path / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(SWITCHES / f"fairseq_{name}", path)
        state = load_pickled_root(path / "checkpoint.pt")
        edit(state)
        torch.save(state, path / "checkpoint.pt")
        return path

    return write


class TestScores:
    def test_score_trained_model_equals_fairseq(self):
        assert_gold(TRAINED, "fairseq_transformer")

    @pytest.mark.parametrize("name", NAMES)
    def test_logits_equal_fairseq(self, name):
        path = SWITCHES / f"fairseq_{name}"
        torch.testing.assert_close(compute_logits(path), CASES[name], atol=ATOL, rtol=0)
        model = load_checkpoint(path).model  # also step by step
        state = model.init_state(model.encode(SRC, LENGTHS))
        for t in range(TGT.size(1)):
            actual, _ = model.step(TGT[:, t], state)
            torch.testing.assert_close(actual, CASES[name][:, t], atol=ATOL, rtol=0)

    def test_logits_equal_left_padded_fairseq_batch(self):
        expected = torch.load(DATA / "fs12_expected.pt", weights_only=True)
        model = load_checkpoint(DATA / "fs12_tf").model
        assert expected["src"][0].tolist() == [1, 4, 5, 2]
        src = torch.tensor([[4, 5, 2, 1], expected["src"][1].tolist()])
        actual = model.forward(model.encode(src, torch.tensor([3, 4])), expected["tgt"])
        torch.testing.assert_close(actual, expected["tf"], atol=ATOL, rtol=0)

    def test_load_old_weight_names_equals_new_names(self, store):
        """fairseq 0.6: stacked query, key and value, numbered norms, no separate output layer."""

        def edit(state):
            old = state["model"]
            for name in [name for name in old if ".q_proj." in name]:
                stem, suffix = name.split("q_proj.")
                matrices = [old.pop(f"{stem}{x}_proj.{suffix}") for x in "qkv"]
                old[f"{stem}in_proj_{suffix}"] = torch.cat(matrices)
            numbers = {"encoder": ["self_attn", "final"]}
            numbers["decoder"] = ["self_attn", "encoder_attn", "final"]
            for side, norms in numbers.items():
                for i, norm in enumerate(norms):
                    for suffix in ("weight", "bias"):
                        name = f"{side}.layers.0.{norm}_layer_norm.{suffix}"
                        old[f"{side}.layers.0.layer_norms.{i}.{suffix}"] = old.pop(name)
            old["decoder.embed_out"] = old.pop("decoder.output_projection.weight")

        assert torch.equal(
            compute_logits(store(edit)), compute_logits(SWITCHES / "fairseq_pre_norm")
        )

    def test_load_tied_output_layer_may_be_missing(self, store):
        path = store(
            lambda state: state["model"].pop("decoder.output_projection.weight"), "learned"
        )
        assert torch.equal(compute_logits(path), compute_logits(SWITCHES / "fairseq_learned"))

    def test_load_options_in_nested_dicts(self, store):
        def edit(state):
            options = vars(state.pop("args"))
            languages = {name: options.pop(name) for name in ("source_lang", "target_lang")}
            state |= {"args": None, "cfg": {"model": options, "task": languages}}

        assert torch.equal(
            compute_logits(store(edit)), compute_logits(SWITCHES / "fairseq_pre_norm")
        )

    def test_load_options_pickled_by_omegaconf(self):
        """Written by omegaconf 2.3.0; the languages are among the task options."""
        path = DATA / "omegaconf_cfg.pt"
        options = _read_options(archive.load(path), path)
        assert options.get_int("encoder_attention_heads") == 4
        assert options.get_bool("encoder_normalize_before")
        assert (options.get("source_lang"), options.get("target_lang")) == ("xx", "aa")


class TestVocabulary:
    def test_load_start_end_and_banned_tokens(self):
        checkpoint = load_checkpoint(TRAINED)
        assert (checkpoint.start_id, checkpoint.src_end, checkpoint.eos_id) == (2, (2,), 2)
        assert (checkpoint.banned_ids, checkpoint.toolkit) == ((1,), "fairseq")
        assert checkpoint.src_vocab.encode(["w0", "<s>", "</s>", "nothing"])[1:] == [3, 3, 3]

    def test_load_languages_from_checkpoint(self):
        checkpoint = load_checkpoint(SWITCHES / "fairseq_pre_norm")  # xx to aa
        assert (len(checkpoint.src_vocab), len(checkpoint.tgt_vocab)) == (16, 18)

    @pytest.mark.parametrize("names", [("src", "tgt"), ("src", "de"), ("a", "tgt")])
    def test_load_languages_from_dictionary_names(self, store, names):
        path = store(lambda state: vars(state["args"]).update(source_lang=None, target_lang=None))
        assert_refused(path, "the source language is unknown")
        for old, new in zip(("xx", "aa"), names):
            (path / f"dict.{old}.txt").rename(path / f"dict.{new}.txt")
        checkpoint = load_checkpoint(path)
        assert (len(checkpoint.src_vocab), len(checkpoint.tgt_vocab)) == (16, 18)

    def test_read_dictionary_assigns_ids_in_line_order(self, tmp_path):
        path = tmp_path / "dict.de.txt"
        path.write_bytes("a 5\nb@@ 3\n\u2028 2\n a  b 1\r\nmadeupword0000 0\n".encode())
        vocab = read_dictionary(path)
        assert vocab.tokens[:6] == ["<s>", "<pad>", "</s>", "<unk>", "a", "b@@"]
        assert vocab.tokens[6:] == ["\u2028", " a  b", "madeupword0000"]
        assert (vocab.bos_id, vocab.pad_id, vocab.eos_id, vocab.unk_id) == (0, 1, 2, 3)

    def test_read_dictionary_overwrite_replaces_earlier_line(self, tmp_path):
        path = tmp_path / "dict.de.txt"
        path.write_text("a 5\nb 3\na 1 #fairseq:overwrite\n<s> 1 #fairseq:overwrite\n")
        assert read_dictionary(path).encode(["a", "b", "<s>"]) == [6, 5, 7]

    @pytest.mark.parametrize(
        "data", [b"a 5\na 3\n", b"<s> 1\n", b"a\n", b"a x\n", b"a  5\n", b" 5\n", b"\xff 5\n"]
    )
    def test_read_dictionary_malformed_line_is_rejected(self, tmp_path, data):
        path = tmp_path / "dict.de.txt"
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="line"):
            read_dictionary(path)

    def test_read_dictionary_too_large_is_rejected(self, tmp_path, monkeypatch):
        path = tmp_path / "dict.de.txt"
        path.write_bytes(b"a 5\nb 3\nc 1\n")
        monkeypatch.setattr(fairseq, "MAX_DICTIONARY", 12)
        assert read_dictionary(path).tokens[4:] == ["a", "b", "c"]
        monkeypatch.setattr(fairseq, "MAX_DICTIONARY", 8)
        with pytest.raises(CheckpointError, match="dict.de.txt: larger than"):
            read_dictionary(path)


class TestRejected:
    @pytest.mark.parametrize(
        "values, word",
        [
            (dict(arch="cmlm_transformer"), "cmlm_transformer"),
            (dict(arch="transformer_lm_gpt"), "transformer_lm_gpt"),
            (dict(arch=["x"]), "architecture a list"),
            (dict(cross_self_attention=True), "cross_self_attention"),
            (dict(encoder_normalize_before=False), "must be equal"),
            (dict(activation_fn="linear"), "linear"),
            (dict(encoder_attention_heads=3), "heads"),
            (dict(max_source_positions=0), "max_positions"),
            (dict(source_lang="fr"), "dict.fr.txt"),
            (dict(target_lang=None), "target_lang"),
            (dict(source_lang=["aa"]), "source_lang must be a string, not a list"),
            (dict(target_lang={}), "target_lang must be a string, not a dict"),
            (dict(source_lang=3), "source_lang must be a string, not 3"),
            (dict(source_lang="aa", target_lang="xx"), "18 tokens"),
        ],
        ids=str,
    )
    def test_load_unsupported_option_is_rejected(self, store, values, word):
        assert_refused(store(lambda state: vars(state["args"]).update(values)), "copy", word)

    @pytest.mark.parametrize(
        "name, tensor, word",
        [
            ("decoder.adaptive_softmax.head.weight", torch.ones(2, 2), "adaptive_softmax"),
            ("encoder.layers.0.surprise", torch.ones(2), "surprise"),
            ("encoder.layers.0.self_attn.in_proj_weight", torch.ones(4, 2), "three matrices"),
            ("encoder.layers.0.layer_norms.5.weight", torch.ones(2), "layer_norms.5"),
            ("encoder.layers.0.fc1.weight", torch.ones(2), "shape"),
            ("decoder.layer_norm.weight", torch.ones(2), "size mismatch"),
        ],
    )
    def test_load_unexpected_or_misshapen_weight_is_rejected(self, store, name, tensor, word):
        assert_refused(store(lambda state: state["model"].update({name: tensor})), "copy", word)

    def test_load_incomplete_checkpoint_is_rejected(self, store):
        assert_refused(store(lambda state: state.pop("args")), "options")
        assert_refused(store(lambda state: state.pop("model")), "not a fairseq checkpoint")
        path = store(lambda state: state["model"].pop("decoder.layers.0.fc2.bias"))
        assert_refused(path, "decoder.0.ffn.down.bias")
        for file in path.glob("*.pt"):
            file.unlink()
        assert_refused(path, "no .pt file")


class TestFiles:
    """A directory with several checkpoints and one pair of dictionaries."""

    @pytest.fixture
    def published(self, tmp_path):
        """Return a directory with two different .pt files."""
        path = shutil.copytree(SWITCHES / "fairseq_pre_norm", tmp_path / "wmt 19")
        (path / "checkpoint.pt").rename(path / "model1.pt")
        shutil.copy(SWITCHES / "fairseq_no_positions" / "checkpoint.pt", path / "model2.pt")
        return path

    def test_load_file_uses_dictionaries_in_its_directory(self, published):
        for name, file in (("pre_norm", "model1.pt"), ("no_positions", "model2.pt")):
            torch.testing.assert_close(
                compute_logits(published / file), CASES[name], atol=ATOL, rtol=0
            )
        checkpoint, expected = (
            load_checkpoint(path)
            for path in (published / "model1.pt", SWITCHES / "fairseq_pre_norm")
        )
        assert checkpoint.src_vocab == expected.src_vocab
        assert checkpoint.tgt_vocab == expected.tgt_vocab
        assert (checkpoint.toolkit, checkpoint.language_pair) == ("fairseq", expected.language_pair)

    def test_ensemble_of_files_averages_probabilities_like_fairseq(self, published):
        files = [str(published / name) for name in ("model1.pt", "model2.pt")]
        options = TranslateOptions.of(model=files, search="fairseq", device="cpu")
        model = read_checkpoint(options).model
        probs = [CASES[name].double().softmax(-1) for name in ("pre_norm", "no_positions")]
        expected = torch.stack(probs).mean(0).log().float()
        actual = model.forward(model.encode(SRC, LENGTHS), TGT)
        torch.testing.assert_close(actual, expected, atol=ATOL, rtol=0)

    def test_load_directory_with_several_files_is_rejected_with_remedies(self, published):
        one, two = (f"'{published / name}'" for name in ("model1.pt", "model2.pt"))
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(published)
        assert str(caught.value) == (
            f"{published}: the directory has 2 .pt files; choose one (-model {one}) or use several "
            f"as an ensemble (-model {one} {two})"
        )

    def test_load_file_without_dictionaries_is_rejected_with_remedy(self, published):
        for file in published.glob("dict.*"):
            file.unlink()
        assert_refused(published / "model1.pt", "the fairseq dictionaries are missing; copy")

    def test_load_opennmt_file_next_to_dictionaries_is_opennmt(self, published):
        file = shutil.copy(DATA / "onmt351_transformer.pt", published / "model3.pt")
        assert load_checkpoint(file).toolkit == "opennmt"

    def test_model_files_include_dictionaries(self, published):
        names = [file.name for file in list_model_files(published / "model1.pt")]
        assert names == ["dict.aa.txt", "dict.xx.txt", "model1.pt"]

    def test_resume_detects_changed_dictionary(self, published, tmp_path):
        file = published / "model1.pt"
        options = TranslateOptions.of(model=str(file))
        before = {name: fingerprint_file(path) for name, path in list_all_model_files(options)}
        (published / "dict.aa.txt").write_text("changed")
        after = {name: fingerprint_file(path) for name, path in list_all_model_files(options)}
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"dict.aa.txt of model"}

    def test_output_path_of_dictionary_is_rejected(self, published):
        output = str(published / "dict.aa.txt")
        options = TranslateOptions.of(model=str(published / "model1.pt"), output=output)
        with pytest.raises(OptionError, match="dict.aa.txt"):
            check_distinct([*list_read_files(options)], list_written_files(options))
