"""fairseq directories: the numbers are those of its own modules, old and new names alike."""

import shutil

import pytest
import torch

from onmt_lite.checkpoints import archive, fairseq
from onmt_lite.checkpoints.fairseq import _options, read_dictionary
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.shipped import list_model_files
from onmt_lite.config.files import check_distinct
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.inference.loading import read_checkpoint
from onmt_lite.jobs.job import files_read, files_written
from onmt_lite.jobs.store import describe, files_of_models
from tests.support.files import DATA, assert_gold, assert_refused, logits_of, root_of

SWITCHES = DATA / "switches"
TRAINED = DATA / "fairseq_transformer"
ATOL = 1e-5

CASES = torch.load(SWITCHES / "fairseq_expected.pt", weights_only=True)
SRC, LENGTHS, TGT = (CASES.pop(name) for name in ("src", "src_lengths", "tgt"))
NAMES = sorted(CASES)


def logits(path):
    return logits_of(path, SRC, LENGTHS, TGT)


@pytest.fixture
def store(tmp_path):
    """A directory with what one of SWITCHES holds, changed by a function."""

    def write(edit=lambda root: None, name="pre_norm"):
        path = tmp_path / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(SWITCHES / f"fairseq_{name}", path)
        root = root_of(path / "checkpoint.pt")
        edit(root)
        torch.save(root, path / "checkpoint.pt")
        return path

    return write


class TestNumbers:
    def test_a_trained_model_scores_as_in_fairseq(self):
        assert_gold(TRAINED, "fairseq_transformer")

    @pytest.mark.parametrize("name", NAMES)
    def test_logits_are_those_of_fairseq(self, name):
        path = SWITCHES / f"fairseq_{name}"
        torch.testing.assert_close(logits(path), CASES[name], atol=ATOL, rtol=0)
        model = load_checkpoint(path).model  # step by step too
        state = model.init_state(model.encode(SRC, LENGTHS))
        for t in range(TGT.size(1)):
            found, _ = model.step(TGT[:, t], state)
            torch.testing.assert_close(found, CASES[name][:, t], atol=ATOL, rtol=0)

    def test_a_batch_padded_on_the_left_there(self):
        expected = torch.load(DATA / "fs12_expected.pt", weights_only=True)
        model = load_checkpoint(DATA / "fs12_tf").model
        assert expected["src"][0].tolist() == [1, 4, 5, 2]
        src = torch.tensor([[4, 5, 2, 1], expected["src"][1].tolist()])
        found = model.forward(model.encode(src, torch.tensor([3, 4])), expected["tgt"])
        torch.testing.assert_close(found, expected["tf"], atol=ATOL, rtol=0)

    def test_old_names_of_the_weights(self, store):
        """Query, key and value in one, norms by number, no output layer of its own."""

        def edit(root):
            old = root["model"]
            for name in [name for name in old if ".q_proj." in name]:
                stem, kind = name.split("q_proj.")
                parts = [old.pop(f"{stem}{x}_proj.{kind}") for x in "qkv"]
                old[f"{stem}in_proj_{kind}"] = torch.cat(parts)
            numbers = {"encoder": ["self_attn", "final"]}
            numbers["decoder"] = ["self_attn", "encoder_attn", "final"]
            for side, norms in numbers.items():
                for i, norm in enumerate(norms):
                    for kind in ("weight", "bias"):
                        name = f"{side}.layers.0.{norm}_layer_norm.{kind}"
                        old[f"{side}.layers.0.layer_norms.{i}.{kind}"] = old.pop(name)
            old["decoder.embed_out"] = old.pop("decoder.output_projection.weight")

        assert torch.equal(logits(store(edit)), logits(SWITCHES / "fairseq_pre_norm"))

    def test_a_tied_output_layer_need_not_be_stored(self, store):
        path = store(lambda root: root["model"].pop("decoder.output_projection.weight"), "learned")
        assert torch.equal(logits(path), logits(SWITCHES / "fairseq_learned"))

    def test_options_in_nested_tables(self, store):
        def edit(root):
            options = vars(root.pop("args"))
            languages = {name: options.pop(name) for name in ("source_lang", "target_lang")}
            root |= {"args": None, "cfg": {"model": options, "task": languages}}

        assert torch.equal(logits(store(edit)), logits(SWITCHES / "fairseq_pre_norm"))

    def test_options_as_omegaconf_pickles_them(self):
        """omegaconf 2.3.0; what is not in the model's options is in the task's."""
        path = DATA / "omegaconf_cfg.pt"
        options = _options(archive.load(path), path)
        assert options.get_int("encoder_attention_heads") == 4
        assert options.get_bool("encoder_normalize_before")
        assert (options.get("source_lang"), options.get("target_lang")) == ("xx", "aa")


class TestText:
    def test_start_end_and_what_is_never_said(self):
        checkpoint = load_checkpoint(TRAINED)
        assert (checkpoint.start_id, checkpoint.src_end, checkpoint.eos_id) == (2, (2,), 2)
        assert (checkpoint.banned_ids, checkpoint.toolkit) == ((1,), "fairseq")
        assert checkpoint.src_vocab.encode(["w0", "<s>", "</s>", "nothing"])[1:] == [3, 3, 3]

    def test_languages_come_from_the_checkpoint(self):
        checkpoint = load_checkpoint(SWITCHES / "fairseq_pre_norm")  # xx to aa
        assert (len(checkpoint.src_vocab), len(checkpoint.tgt_vocab)) == (16, 18)

    @pytest.mark.parametrize("names", [("src", "tgt"), ("src", "de"), ("a", "tgt")])
    def test_or_from_the_names_of_the_dictionaries(self, store, names):
        path = store(lambda root: vars(root["args"]).update(source_lang=None, target_lang=None))
        assert_refused(path, "what the source is")
        for old, new in zip(("xx", "aa"), names):
            (path / f"dict.{old}.txt").rename(path / f"dict.{new}.txt")
        checkpoint = load_checkpoint(path)
        assert (len(checkpoint.src_vocab), len(checkpoint.tgt_vocab)) == (16, 18)

    def test_dictionary(self, tmp_path):
        path = tmp_path / "dict.de.txt"
        path.write_bytes("a 5\nb@@ 3\n\u2028 2\n a  b 1\r\nmadeupword0000 0\n".encode())
        vocab = read_dictionary(path)
        assert vocab.tokens[:6] == ["<s>", "<pad>", "</s>", "<unk>", "a", "b@@"]
        assert vocab.tokens[6:] == ["\u2028", " a  b", "madeupword0000"]
        assert (vocab.bos_id, vocab.pad_id, vocab.eos_id, vocab.unk_id) == (0, 1, 2, 3)

    def test_a_line_may_take_the_place_of_an_earlier_one(self, tmp_path):
        path = tmp_path / "dict.de.txt"
        path.write_text("a 5\nb 3\na 1 #fairseq:overwrite\n<s> 1 #fairseq:overwrite\n")
        assert read_dictionary(path).encode(["a", "b", "<s>"]) == [6, 5, 7]

    @pytest.mark.parametrize(
        "data", [b"a 5\na 3\n", b"<s> 1\n", b"a\n", b"a x\n", b"a  5\n", b" 5\n", b"\xff 5\n"]
    )
    def test_dictionaries_that_make_no_sense(self, tmp_path, data):
        path = tmp_path / "dict.de.txt"
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="line"):
            read_dictionary(path)

    def test_one_that_is_too_large_is_not_cut(self, tmp_path, monkeypatch):
        path = tmp_path / "dict.de.txt"
        path.write_bytes(b"a 5\nb 3\nc 1\n")
        monkeypatch.setattr(fairseq, "MAX_DICT", 12)
        assert read_dictionary(path).tokens[4:] == ["a", "b", "c"]
        monkeypatch.setattr(fairseq, "MAX_DICT", 8)
        with pytest.raises(CheckpointError, match="dict.de.txt: larger than"):
            read_dictionary(path)


class TestRefused:
    @pytest.mark.parametrize(
        "values, word",
        [
            (dict(arch="cmlm_transformer"), "cmlm_transformer"),
            (dict(arch="transformer_lm_gpt"), "transformer_lm_gpt"),
            (dict(arch=["x"]), "architecture a list"),
            (dict(cross_self_attention=True), "cross_self_attention"),
            (dict(encoder_normalize_before=False), "norms"),
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
    def test_options(self, store, values, word):
        assert_refused(store(lambda root: vars(root["args"]).update(values)), "copy", word)

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
    def test_weights(self, store, name, tensor, word):
        assert_refused(store(lambda root: root["model"].update({name: tensor})), "copy", word)

    def test_missing_parts(self, store):
        assert_refused(store(lambda root: root.pop("args")), "options")
        assert_refused(store(lambda root: root.pop("model")), "not a checkpoint")
        path = store(lambda root: root["model"].pop("decoder.layers.0.fc2.bias"))
        assert_refused(path, "decoder.0.ffn.down.bias")
        for file in path.glob("*.pt"):
            file.unlink()
        assert_refused(path, "no .pt file")


class TestFiles:
    """Several checkpoints in one directory, with one pair of dictionaries."""

    @pytest.fixture
    def published(self, tmp_path):
        """A directory of two models that differ, each a .pt file."""
        path = shutil.copytree(SWITCHES / "fairseq_pre_norm", tmp_path / "wmt 19")
        (path / "checkpoint.pt").rename(path / "model1.pt")
        shutil.copy(SWITCHES / "fairseq_no_positions" / "checkpoint.pt", path / "model2.pt")
        return path

    def test_file_is_read_with_dictionaries_of_its_directory(self, published):
        for name, file in (("pre_norm", "model1.pt"), ("no_positions", "model2.pt")):
            torch.testing.assert_close(logits(published / file), CASES[name], atol=ATOL, rtol=0)
        checkpoint, expected = (
            load_checkpoint(path)
            for path in (published / "model1.pt", SWITCHES / "fairseq_pre_norm")
        )
        assert checkpoint.src_vocab == expected.src_vocab
        assert checkpoint.tgt_vocab == expected.tgt_vocab
        assert (checkpoint.toolkit, checkpoint.language_pair) == ("fairseq", expected.language_pair)

    def test_ensemble_of_files_averages_probabilities_as_in_fairseq(self, published):
        files = [str(published / name) for name in ("model1.pt", "model2.pt")]
        options = TranslateOptions.of(model=files, search="fairseq", device="cpu")
        model = read_checkpoint(options).model
        probs = [CASES[name].double().softmax(-1) for name in ("pre_norm", "no_positions")]
        expected = torch.stack(probs).mean(0).log().float()
        found = model.forward(model.encode(SRC, LENGTHS), TGT)
        torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)

    def test_directory_with_several_files_is_refused_with_both_remedies(self, published):
        one, two = (f"'{published / name}'" for name in ("model1.pt", "model2.pt"))
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(published)
        assert str(caught.value) == (
            f"{published}: the directory has 2 .pt files; give one, -model {one}, or several as an "
            f"ensemble, -model {one} {two}"
        )

    def test_file_without_dictionaries_is_refused_with_a_remedy(self, published):
        for file in published.glob("dict.*"):
            file.unlink()
        assert_refused(published / "model1.pt", "a fairseq checkpoint needs its dictionaries; copy")

    def test_opennmt_file_with_fairseq_dictionaries_stays_an_opennmt_model(self, published):
        file = shutil.copy(DATA / "onmt351_transformer.pt", published / "model3.pt")
        assert load_checkpoint(file).toolkit == "opennmt"

    def test_files_of_a_model_include_the_dictionaries(self, published):
        names = [file.name for file in list_model_files(published / "model1.pt")]
        assert names == ["dict.aa.txt", "dict.xx.txt", "model1.pt"]

    def test_job_notices_a_changed_dictionary_when_resumed(self, published, tmp_path):
        file = published / "model1.pt"
        options = TranslateOptions.of(model=str(file))
        before = {name: describe(path) for name, path in files_of_models(options)}
        (published / "dict.aa.txt").write_text("changed")
        after = {name: describe(path) for name, path in files_of_models(options)}
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"dict.aa.txt of model"}

    def test_output_over_a_dictionary_is_refused(self, published):
        output = str(published / "dict.aa.txt")
        options = TranslateOptions.of(model=str(published / "model1.pt"), output=output)
        with pytest.raises(OptionError, match="dict.aa.txt"):
            check_distinct([*files_read(options)], files_written(options))
