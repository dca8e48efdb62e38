"""Checkpoints of OpenNMT-py: the numbers are those of its own modules, switch by switch."""

import shutil

import pytest
import torch

from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.opennmt.reader import read_vocabularies
from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.errors import CheckpointError
from tests.support.files import DATA, assert_gold, assert_refused, logits_of, root_of
from tests.support.state_rows import select

SWITCHES = DATA / "switches"
TRAINED = DATA / "onmt351_transformer.pt"
SMALL = SWITCHES / "onmt351_average.pt"
ATOL = 1e-5

CASES = torch.load(SWITCHES / "onmt351_expected.pt", weights_only=True)
SRC, LENGTHS, TGT = (CASES.pop(name) for name in ("src", "src_lengths", "tgt"))
for release in ("230", "120"):
    CASES |= torch.load(SWITCHES / f"onmt{release}_expected.pt", weights_only=True)


def file_of(name):
    paths = (DATA / f"{name}.pt", SWITCHES / f"{name}.pt", SWITCHES / f"onmt351_{name}.pt")
    return next(path for path in paths if path.exists())


@pytest.fixture(params=CASES, scope="module")
def case(request):
    """A model, and the logits that OpenNMT-py computes for SRC and TGT."""
    return load_checkpoint(file_of(request.param)).model, CASES[request.param]


@pytest.fixture
def root():
    """What SMALL holds, to be changed and stored as OpenNMT-py 3 does."""
    return root_of(SMALL)


@pytest.fixture
def store(tmp_path, root):
    def write(**changes):
        torch.save({**root, **changes}, tmp_path / "x.pt")
        return tmp_path / "x.pt"

    return write


def logits(path):
    return logits_of(path, SRC, LENGTHS, TGT)


class TestNumbers:
    def test_a_trained_model_scores_as_in_opennmt(self):
        assert_gold(TRAINED, "onmt351_transformer")

    def test_logits_are_those_of_opennmt(self, case):
        model, expected = case
        found = model.forward(model.encode(SRC, LENGTHS), TGT)
        torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)

    def test_step_by_step_too(self, case):
        model, expected = case
        state = model.init_state(model.encode(SRC, LENGTHS))
        state = select(state, 1, [[0, 0], [1, 1]])  # two rows per sentence
        for t in range(TGT.size(1)):
            found, attn = model.step(TGT[:, t].repeat_interleave(2), state)
            wanted = expected[:, t].repeat_interleave(2, 0)
            torch.testing.assert_close(found, wanted, atol=ATOL, rtol=0)
            torch.testing.assert_close(attn.sum(1), torch.ones(4))

    def test_tables_of_positions_in_half_precision_are_used_as_they_are(self, tmp_path):
        root = root_of(DATA / "m23_tf_step_2.pt")
        root["vocab"] = {side: [f"t{i}" for i in range(n)] for side, n in SIZES.items()}
        root["vocab"]["tgt"][2:4] = ["<s>", "</s>"]
        root["model"] = {n: t.half() for n, t in root["model"].items()}
        torch.save(root, tmp_path / "x.pt")
        model = load_checkpoint(tmp_path / "x.pt").model
        assert model.cfg.positions == "learned"
        assert model.src_embedding.position.dtype == torch.float32


SIZES = {"src": 13, "tgt": 15}


class TestVocabulary:
    def test_of_1_and_2(self):
        """Fields of torchtext; the source has no start and end tokens."""
        checkpoint = load_checkpoint(DATA / "m23_tf_step_2.pt")
        src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
        assert tgt.tokens[:4] == ["<unk>", "<blank>", "<s>", "</s>"]
        assert src.tokens[:2] == ["<unk>", "<blank>"] and src.eos_id is None
        assert (src.unk_id, tgt.unk_id, tgt.eos_id, checkpoint.start_id) == (0, 0, 3, 2)
        assert (checkpoint.src_end, checkpoint.banned_ids) == ((), ())
        assert (checkpoint.toolkit, checkpoint.forced_eos) == ("opennmt", False)

    def test_every_way_they_were_stored(self):
        src, tgt = ["<unk>", "<blank>", "a"], ["<unk>", "<blank>", "<s>", "</s>", "A"]

        def record(**state):
            record = InertObject()
            record.__setstate__(state)
            return record

        def field(tokens):
            return record(vocab=record(itos=tokens))

        def multi(tokens):
            return record(fields=[("src", field(tokens))])

        ways = [
            {"src": src, "tgt": tgt},
            {"src": multi(src), "tgt": multi(tgt), "indices": InertObject()},
            {"src": [("src", field(src))], "tgt": [("tgt", field(tgt))]},
            {"src": [("src", multi(src))], "tgt": [("tgt", multi(tgt))]},
            [
                ("src", record(itos=src)),
                ("tgt", record(itos=tgt)),
                ("indices", InertObject()),
                ([], 1),
            ],
        ]
        for stored in ways:
            found = read_vocabularies(stored, DATA)
            assert (found[0].tokens, found[1].tokens, found[2]) == (src, tgt, 2)

    def test_pairs_of_0_x_make_a_checkpoint(self, store, root):
        checkpoint = load_checkpoint(store(vocab=[*root["vocab"].items()]))
        assert checkpoint.version == "0.x"
        assert checkpoint.tgt_vocab.tokens == load_checkpoint(SMALL).tgt_vocab.tokens

    @pytest.mark.parametrize("name", ["onmt351_transformer", "m23_tf_step_2", "m12_cnn_step_2"])
    def test_where_lines_of_tokens_are_split(self, name):
        """By 3 at spaces alone, `strip().split(" ")`; before that at any white space."""
        spaces = load_checkpoint(DATA / f"{name}.pt").tokenizers["space"]
        line = "\u00a0 a\u00a0b  c\u3000d\te \u202f f\u00a0"
        whole = ["a\u00a0b", "c\u3000d\te", "\u202f", "f"]
        expected = whole if name == "onmt351_transformer" else line.split()
        assert spaces.encode(line) == spaces.encode_target(line) == expected
        assert spaces.encode("") == spaces.encode(" \u3000 ") == []

    def test_special_tokens_are_found_by_their_text(self, store):
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
    def test_that_make_no_sense(self, stored):
        with pytest.raises(CheckpointError):
            read_vocabularies(stored, DATA)

    def test_of_another_size_than_the_tables(self, store):
        assert_refused(store(vocab={"src": ["a"], "tgt": ["<s>", "</s>"]}), "1 tokens", "16")


class TestStorage:
    def test_weights_in_parts(self, root, tmp_path):
        """As 3.5.1 looks for them; a whole safetensors file beside them wins."""
        weights = {**root["model"], **{f"generator.{n}": w for n, w in root["generator"].items()}}
        del root["model"], root["generator"]
        path, names = tmp_path / "x[1].pt", sorted(weights)
        torch.save(root, path)
        assert_refused(path, "x[1].safetensors", "x[1].00.safetensors")

        def store_part(i, names):
            part = safetensors.dump({name: weights[name] for name in names})
            (tmp_path / f"x[1].0{i}.safetensors").write_bytes(part)

        store_part(0, names[:5])
        assert_refused(path, "lack")
        store_part(1, names[5:])
        assert torch.equal(logits(path), logits(SMALL))
        store_part(2, names[4:6])
        assert_refused(path, "x[1].02.safetensors", repr(names[4]))
        (tmp_path / "x[1].safetensors").write_bytes(safetensors.dump(weights))
        assert torch.equal(logits(path), logits(SMALL))
        (tmp_path / "x[1].safetensors").write_bytes(b"damaged")
        assert_refused(path, "x[1].safetensors")

    def test_tied_tables_are_found_by_their_numbers(self, store, root):
        table = root["model"]["decoder.embeddings.make_embedding.emb_luts.0.weight"]
        root["model"]["encoder.embeddings.make_embedding.emb_luts.0.weight"] = table.clone()
        assert not load_checkpoint(store()).model.cfg.tie_output
        root["generator"]["weight"] = table.clone()
        cfg = load_checkpoint(store()).model.cfg
        assert cfg.share_embeddings and cfg.tie_output
        n_shared = len(list(load_checkpoint(store()).model.parameters()))
        assert n_shared == len(list(load_checkpoint(SMALL).model.parameters())) - 2


LAYER = "encoder.transformer.0"


class TestRefused:
    @pytest.mark.parametrize(
        "name, words",
        [
            ("evil", ["posix.system"]),
            ("evil2", ["eval"]),
            ("leg2", ["'opt'"]),
            ("fs12_expected", ["tensors without a model configuration"]),
        ],
    )
    def test_files(self, name, words):
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
    def test_options(self, store, root, values, word):
        vars(root["opt"]).update(values)
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
    def test_weights(self, store, root, name, tensor, word):
        root["model"][name] = tensor
        assert_refused(store(), "x.pt", word)

    def test_large_numbers_are_finite_though_their_sum_is_not(self, store, root):
        root["model"]["encoder.layer_norm.weight"] = torch.full((16,), 3e38)
        assert load_checkpoint(store())

    def test_adapters(self, store, root):
        adapter = {"encoder.transformer.0.self_attn.linear_query.lora_A": torch.ones(2, 16)}
        assert_refused(store(model=adapter, generator=None), "lack")

    @pytest.mark.parametrize("name", ["model", "generator", "vocab", "opt"])
    @pytest.mark.parametrize("value", [None, 3, [], {}, {"a": 1}, {3: torch.ones(2)}], ids=str)
    def test_parts_of_the_wrong_kind(self, store, name, value):
        assert_refused(store(**{name: value}), "x.pt")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = shutil.copy(SMALL, tmp_path / "x.pt")
    data = SMALL.read_bytes()
    for n in (1, 4, 100, len(data) // 2, len(data) - 100, len(data) - 1):
        path.write_bytes(data[:n])
        assert_refused(path)
