"""OpenNMT-py checkpoints: scores and logits equal OpenNMT-py for every model option."""

import shutil

import pytest
import torch

from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.opennmt.reader import read_vocabularies
from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.errors import CheckpointError
from tests.support.files import (
    DATA,
    assert_gold,
    assert_refused,
    compute_model_logits,
    load_pickled_root,
)
from tests.support.state_rows import select

SWITCHES = DATA / "switches"
TRAINED = DATA / "onmt351_transformer.pt"
SMALL = SWITCHES / "onmt351_average.pt"
ATOL = 1e-5

CASES = torch.load(SWITCHES / "onmt351_expected.pt", weights_only=True)
SRC, LENGTHS, TGT = (CASES.pop(name) for name in ("src", "src_lengths", "tgt"))
for release in ("230", "120"):
    CASES |= torch.load(SWITCHES / f"onmt{release}_expected.pt", weights_only=True)


def find_file(name):
    paths = (DATA / f"{name}.pt", SWITCHES / f"{name}.pt", SWITCHES / f"onmt351_{name}.pt")
    return next(path for path in paths if path.exists())


@pytest.fixture(params=CASES, scope="module")
def case(request):
    """Return a model and the logits of OpenNMT-py for SRC and TGT."""
    return load_checkpoint(find_file(request.param)).model, CASES[request.param]


@pytest.fixture
def content():
    """Return the content of SMALL, to be changed and stored again."""
    return load_pickled_root(SMALL)


@pytest.fixture
def store(tmp_path, content):
    def write(**changes):
        torch.save({**content, **changes}, tmp_path / "x.pt")
        return tmp_path / "x.pt"

    return write


def compute_logits(path):
    return compute_model_logits(path, SRC, LENGTHS, TGT)


class TestScores:
    def test_score_trained_model_equals_opennmt(self):
        assert_gold(TRAINED, "onmt351_transformer")

    def test_logits_equal_opennmt(self, case):
        model, expected = case
        actual = model.forward(model.encode(SRC, LENGTHS), TGT)
        torch.testing.assert_close(actual, expected, atol=ATOL, rtol=0)

    def test_step_logits_equal_opennmt(self, case):
        model, expected = case
        state = model.init_state(model.encode(SRC, LENGTHS))
        state = select(state, 1, [[0, 0], [1, 1]])  # two hypotheses per sentence
        for t in range(TGT.size(1)):
            actual, attn = model.step(TGT[:, t].repeat_interleave(2), state)
            step_expected = expected[:, t].repeat_interleave(2, 0)
            torch.testing.assert_close(actual, step_expected, atol=ATOL, rtol=0)
            torch.testing.assert_close(attn.sum(1), torch.ones(4))

    def test_load_half_precision_position_tables_are_kept_as_learned(self, tmp_path):
        content = load_pickled_root(DATA / "m23_tf_step_2.pt")
        content["vocab"] = {side: [f"t{i}" for i in range(n)] for side, n in SIZES.items()}
        content["vocab"]["tgt"][2:4] = ["<s>", "</s>"]
        content["model"] = {n: t.half() for n, t in content["model"].items()}
        torch.save(content, tmp_path / "x.pt")
        model = load_checkpoint(tmp_path / "x.pt").model
        assert model.cfg.positions == "learned"
        assert model.src_embedding.position.dtype == torch.float32


SIZES = {"src": 13, "tgt": 15}


class TestVocabulary:
    def test_load_vocabulary_of_versions_1_and_2(self):
        """Stored as torchtext fields; the source has no start and end tokens."""
        checkpoint = load_checkpoint(DATA / "m23_tf_step_2.pt")
        src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
        assert tgt.tokens[:4] == ["<unk>", "<blank>", "<s>", "</s>"]
        assert src.tokens[:2] == ["<unk>", "<blank>"] and src.eos_id is None
        assert (src.unk_id, tgt.unk_id, tgt.eos_id, checkpoint.start_id) == (0, 0, 3, 2)
        assert (checkpoint.src_end, checkpoint.banned_ids) == ((), ())
        assert (checkpoint.toolkit, checkpoint.forced_eos) == ("opennmt", False)

    def test_read_vocabularies_in_every_storage_format(self):
        src, tgt = ["<unk>", "<blank>", "a"], ["<unk>", "<blank>", "<s>", "</s>", "A"]

        def inert(**state):
            result = InertObject()
            result.__setstate__(state)
            return result

        def field(tokens):
            return inert(vocab=inert(itos=tokens))

        def multi_field(tokens):
            return inert(fields=[("src", field(tokens))])

        formats = [
            {"src": src, "tgt": tgt},
            {"src": multi_field(src), "tgt": multi_field(tgt), "indices": InertObject()},
            {"src": [("src", field(src))], "tgt": [("tgt", field(tgt))]},
            {"src": [("src", multi_field(src))], "tgt": [("tgt", multi_field(tgt))]},
            [
                ("src", inert(itos=src)),
                ("tgt", inert(itos=tgt)),
                ("indices", InertObject()),
                ([], 1),
            ],
        ]
        for stored in formats:
            actual = read_vocabularies(stored, DATA)
            assert (actual[0].tokens, actual[1].tokens, actual[2]) == (src, tgt, 2)

    def test_load_version_0_vocabulary_pairs(self, store, content):
        checkpoint = load_checkpoint(store(vocab=[*content["vocab"].items()]))
        assert checkpoint.version == "0.x"
        assert checkpoint.tgt_vocab.tokens == load_checkpoint(SMALL).tgt_vocab.tokens

    @pytest.mark.parametrize("name", ["onmt351_transformer", "m23_tf_step_2", "m12_cnn_step_2"])
    def test_space_tokenizer_splits_like_the_version(self, name):
        """Version 3 splits at spaces only, `strip().split(" ")`; older ones at any whitespace."""
        tokenizer = load_checkpoint(DATA / f"{name}.pt").tokenizers["space"]
        line = "\u00a0 a\u00a0b  c\u3000d\te \u202f f\u00a0"
        whole = ["a\u00a0b", "c\u3000d\te", "\u202f", "f"]
        expected = whole if name == "onmt351_transformer" else line.split()
        assert tokenizer.encode(line) == tokenizer.encode_target(line) == expected
        assert tokenizer.encode("") == tokenizer.encode(" \u3000 ") == []

    def test_load_special_tokens_are_found_by_text(self, store):
        tokens = [f"t{i}" for i in range(12)]
        tokens = ["<s>", "<blank>", "</s>", "<unk>", *tokens]
        path = store(vocab={"src": tokens, "tgt": tokens, "decoder_start_token": "</s>"})
        checkpoint = load_checkpoint(path)
        assert (checkpoint.start_id, checkpoint.eos_id, checkpoint.src_vocab.unk_id) == (2, 2, 3)

    @pytest.mark.parametrize(
        "stored",
        [
            *(None, [], {}, {"src": ["a"]}),
            *({"src": ["a"], "tgt": ["<s>"]}, {"src": ["a"], "tgt": ["</s>"]}),
            *(
                {"src": s, "tgt": ["<s>", "</s>"]}
                for s in ([], ["a", 3], ["\ud800"], 3, InertObject())
            ),
            {"src": ["a"], "tgt": ["<s>", "</s>"], "decoder_start_token": "<x>"},
            {"src": ["a"], "tgt": ["<s>", "</s>"], "decoder_start_token": 2},
            {"src": ["a"], "tgt": ["<s>", "</s>"], "src_feats": {"case": ["a"]}},
        ],
        ids=lambda stored: str(stored).partition(" at 0x")[0],
    )
    def test_read_vocabularies_malformed_is_rejected(self, stored):
        with pytest.raises(CheckpointError):
            read_vocabularies(stored, DATA)

    def test_load_vocabulary_of_wrong_size_is_rejected(self, store):
        assert_refused(store(vocab={"src": ["a"], "tgt": ["<s>", "</s>"]}), "1 tokens", "16")


class TestStorage:
    def test_load_safetensors_shards(self, content, tmp_path):
        """As in OpenNMT-py 3.5.1; a single safetensors file has priority over shards."""
        weights = {
            **content["model"],
            **{f"generator.{n}": w for n, w in content["generator"].items()},
        }
        del content["model"], content["generator"]
        path, names = tmp_path / "x[1].pt", sorted(weights)
        torch.save(content, path)
        assert_refused(path, "x[1].safetensors", "x[1].00.safetensors")

        def store_shard(i, names):
            shard = safetensors.dump({name: weights[name] for name in names})
            (tmp_path / f"x[1].0{i}.safetensors").write_bytes(shard)

        store_shard(0, names[:5])
        assert_refused(path, "lack")
        store_shard(1, names[5:])
        assert torch.equal(compute_logits(path), compute_logits(SMALL))
        store_shard(2, names[4:6])
        assert_refused(path, "x[1].02.safetensors", repr(names[4]))
        (tmp_path / "x[1].safetensors").write_bytes(safetensors.dump(weights))
        assert torch.equal(compute_logits(path), compute_logits(SMALL))
        (tmp_path / "x[1].safetensors").write_bytes(b"damaged")
        assert_refused(path, "x[1].safetensors")

    def test_load_equal_tables_are_tied(self, store, content):
        table = content["model"]["decoder.embeddings.make_embedding.emb_luts.0.weight"]
        content["model"]["encoder.embeddings.make_embedding.emb_luts.0.weight"] = table.clone()
        assert not load_checkpoint(store()).model.cfg.tie_output
        content["generator"]["weight"] = table.clone()
        cfg = load_checkpoint(store()).model.cfg
        assert cfg.share_embeddings and cfg.tie_output
        n_shared = len(list(load_checkpoint(store()).model.parameters()))
        assert n_shared == len(list(load_checkpoint(SMALL).model.parameters())) - 2


LAYER = "encoder.transformer.0"


class TestRejected:
    @pytest.mark.parametrize(
        "name, words",
        [
            ("evil", ["posix.system"]),
            ("evil2", ["eval"]),
            ("leg2", ["'opt'"]),
            ("fs12_expected", ["tensors without a model configuration"]),
        ],
    )
    def test_load_other_files_are_rejected(self, name, words):
        assert_refused(DATA / f"{name}.pt", *words)

    @pytest.mark.parametrize(
        "values, word",
        [
            (dict(model_task="lm"), "model_task is 'lm', but only 'seq2seq'"),
            (dict(decoder_type="transformer_lm"), "transformer_lm"),
            (dict(model_type="audio"), "audio"),
            (dict(model_type=torch.ones(2)), "model_type is a Tensor"),
            (dict(num_experts=4), "num_experts is 4"),
            (dict(quant_layers=["w_1"], quant_type="bnb_NF4"), "quant_type"),
            (dict(sliding_window=4096), "sliding_window"),
            (dict(generator_function="sparsemax"), "sparsemax"),
            (dict(generator_function=["x"]), "generator_function is a list"),
            (
                dict(encoder_type="cnn", decoder_type="cnn", generator_function="x"),
                "generator_function is 'x'",
            ),
            (
                dict(encoder_type="rnn", decoder_type="rnn", generator_function="x"),
                "generator_function is 'x'",
            ),
            (dict(encoder_type="brnn", rnn_type="SRU"), "SRU"),
            (dict(encoder_type="ggnn"), "ggnn"),
            (dict(pos_ffn_activation_fn="mish"), "mish"),
            (dict(heads=5), "heads"),
            (dict(heads="4"), "heads"),
            (dict(max_relative_positions=-1, rotary_dim=3), "rotary_dim"),
        ],
        ids=str,
    )
    def test_load_unsupported_option_is_rejected(self, store, content, values, word):
        vars(content["opt"]).update(values)
        assert_refused(store(), "x.pt", word)

    @pytest.mark.parametrize(
        "name, tensor, word",
        [
            (f"{LAYER}.self_attn.linear_query.lora_A", torch.ones(2, 2), "lora_A"),
            (f"{LAYER}.feed_forward.experts.0.w_1.weight", torch.ones(2, 2), "expert"),
            ("encoder.embeddings.make_embedding.emb_luts.1.weight", torch.ones(2, 2), "emb_luts.1"),
            (f"{LAYER}.self_attn.linear_query.qweight", torch.ones(2, 2), "qweight"),
            ("encoder.layer_norm.a_2", torch.ones(16), "a_2"),
            ("encoder.transformer.1.layer_norm.weight", torch.ones(16), "missing"),
            ("encoder.transformer.3.layer_norm.weight", torch.ones(16), "missing"),
            ("encoder.surprise", torch.ones(16), "encoder.surprise"),
            ("encoder.layer_norm.weight", torch.ones(15), "size mismatch"),
            ("encoder.layer_norm.weight", torch.full((16,), torch.nan), "finite"),
            ("encoder.layer_norm.weight", torch.ones(16, dtype=torch.int8), "integers"),
            (f"{LAYER}.feed_forward.w_1.weight", torch.ones(3), "shape"),
            (f"{LAYER}.self_attn.linear_keys.weight", torch.ones(3, 16), "size mismatch"),
        ],
    )
    def test_load_unexpected_or_misshapen_weight_is_rejected(
        self, store, content, name, tensor, word
    ):
        content["model"][name] = tensor
        assert_refused(store(), "x.pt", word)

    def test_load_large_finite_weights_with_infinite_sum(self, store, content):
        content["model"]["encoder.layer_norm.weight"] = torch.full((16,), 3e38)
        assert load_checkpoint(store())

    def test_load_lora_adapter_is_rejected(self, store, content):
        adapter = {"encoder.transformer.0.self_attn.linear_query.lora_A": torch.ones(2, 16)}
        assert_refused(store(model=adapter, generator=None), "lack")

    @pytest.mark.parametrize("name", ["model", "generator", "vocab", "opt"])
    @pytest.mark.parametrize("value", [None, 3, [], {}, {"a": 1}, {3: torch.ones(2)}], ids=str)
    def test_load_entry_of_wrong_type_is_rejected(self, store, name, value):
        assert_refused(store(**{name: value}), "x.pt")


def test_load_truncated_file_is_rejected(tmp_path):
    path = shutil.copy(SMALL, tmp_path / "x.pt")
    data = SMALL.read_bytes()
    for n in (1, 4, 100, len(data) // 2, len(data) - 100, len(data) - 1):
        path.write_bytes(data[:n])
        assert_refused(path)
