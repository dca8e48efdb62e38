"""Loading models: round trips, table models, and errors for unsupported files."""

import gzip
import hashlib
import io
import json
import pickle
import shlex
import shutil
import struct
import zipfile

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onmt_lite.checkpoints import native, safetensors
from onmt_lite.checkpoints.config_reader import format_value
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError
from tests.support import tiny
from tests.support.files import assert_refused, update_json

ATOL = 1e-6
SRC, LENGTHS = torch.tensor([[5, 6, 7, 3]]), torch.tensor([4])
TGT = torch.tensor([[2, 8, 9, 10]])

TABLE = {
    "format": "onmt_lite-table-1",
    "vocab": ["</s>", "a", "b"],
    "sources": {
        "s0": {
            "length": 2,
            "rows": {"": [0.0, 1.0, 2.0], "1": [3.0, 4.0, 5.0], "*1": [6, 7, 8]},
            "default": [-1.0, 0.5, 0.0],
            "attn": {"1 2": [0.25, 0.75]},
        },
        "s1": {"length": 3, "rows": {}, "default": [1, 2, 3], "attn_default": [0, 0, 1]},
    },
}


def compute_logits(model) -> torch.Tensor:
    return model.forward(model.encode(SRC, LENGTHS), TGT)


def update_manifest(path, **entries) -> None:
    """Change entries of model.json, and its checksum accordingly."""
    manifest = json.loads((path / "model.json").read_text()) | entries
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "model.json").write_text(json.dumps(manifest))


@pytest.fixture
def copy(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def nest_lists(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value, text",
    [
        (nest_lists(100_000), "a list"),  # repr would have 2^100,000 elements
        ({"a": 1}, "a dict"),
        ("x" * 99, repr("x" * 50)),
        (-(10**39), f"-{10**39}"),
        (1 << 20_000, "an integer of more than 40 digits"),  # Python does not print it
        (None, "None"),
        (True, "True"),
        (0.5, "0.5"),
    ],
    ids=["list", "dict", "string", "integer", "huge", "none", "true", "half"],
)
def test_format_value_is_short(value, text):
    assert format_value(value) == text


class TestNative:
    @pytest.mark.parametrize(
        "config",
        [
            {},
            dict(tie_output=False),
            dict(share_embeddings=False),
            dict(share_embeddings=False, tie_output=False),
            dict(positions="learned", embedding_norm=True, output_bias=False, attn_bias=False),
            dict(pre_norm=False, final_norm=False, activation="gelu", position_offset=2),
        ],
        ids=str,
    )
    def test_save_load_round_trip(self, tmp_path, tiny_pieces, config):
        model = tiny.make_model(**config)
        native.save(tmp_path, model, tiny_pieces)
        loaded = load_checkpoint(tmp_path).model
        stored = safetensors.parse((tmp_path / "weights.safetensors").read_bytes())
        # Tied weights are stored once
        assert sum(x.numel() for x in stored.values()) == sum(p.numel() for p in model.parameters())
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.half().float())
        assert loaded.cfg == model.cfg
        torch.testing.assert_close(compute_logits(loaded), compute_logits(model), atol=ATOL, rtol=0)

    def test_load_vocabulary_and_special_tokens(self, tiny_checkpoint):
        checkpoint = load_checkpoint(tiny_checkpoint)
        vocab = checkpoint.tgt_vocab
        assert (checkpoint.start_id, checkpoint.src_end) == (tiny.BOS, (tiny.EOS,))
        assert set(checkpoint.banned_ids) == {tiny.PAD, tiny.BOS}
        assert (vocab.eos_id, vocab.unk_id, len(vocab)) == (tiny.EOS, tiny.UNK, tiny.VOCAB_SIZE)
        tokenizer = next(iter(checkpoint.tokenizers.values()))
        assert tokenizer.decode(tokenizer.encode(tiny.SENTENCES[0])) == tiny.SENTENCES[0]

    def test_config_changed_without_checksum_refused(self, copy):
        text = (copy / "model.json").read_text()
        assert text.count("1e-06") == 1
        (copy / "model.json").write_text(text.replace("1e-06", "2e-06"))
        assert_refused(copy, "model.json", "checksum")

    def test_weights_of_another_model_refused(self, copy, tmp_path, tiny_pieces):
        other = tmp_path / "other"
        other.mkdir()
        native.save(other, tiny.make_model(seed=9), tiny_pieces)
        shutil.copy(other / "weights.safetensors", copy)
        assert_refused(copy, "weights.safetensors", "checksum")

    def test_weights_not_finite_refused(self, tmp_path, tiny_pieces):
        model = tiny.make_model()
        model.output.bias[5] = 1e6  # too large for half precision
        native.save(tmp_path, model, tiny_pieces)
        assert_refused(tmp_path, "output.bias", "not finite")

    @pytest.mark.parametrize(
        "change",
        [
            *(dict(enc_layers=3), dict(dec_layers=1), dict(dec_layers=3), dict(dec_layers=10**9)),
            *(dict(d_ff=64), dict(d_ff=10**9), dict(src_vocab_size=41), dict(heads=3)),
            *(dict(heads=0), dict(d_model="16"), dict(activation="swish")),
            *(dict(positions="rotary"), dict(max_positions=-5), dict(max_positions=10**12)),
            *(dict(unknown=1), dict(norm_eps=float("nan"))),
        ],
        ids=str,
    )
    def test_config_that_does_not_match_weights_refused(self, copy, change):
        update_manifest(
            copy, config=json.loads((copy / "model.json").read_text())["config"] | change
        )
        assert_refused(copy)

    def test_manifest_unknown_entry_ignored_and_wrong_type_refused(self, copy):
        update_manifest(copy, retry_repeats=3)  # an entry of older versions
        assert native.load(copy).split_longer == 0
        update_manifest(copy, files=list(json.loads((copy / "model.json").read_text())["files"]))
        assert_refused(copy, "not a model manifest")

    def test_sentencepiece_model_of_other_size_refused(self, tmp_path, tiny_pieces):
        native.save(tmp_path, tiny.make_model(tgt_vocab_size=50, src_vocab_size=50), tiny_pieces)
        assert_refused(tmp_path, "40", "50")

    def test_unknown_format_refused(self, copy):
        for version, words in (("onmt_lite-model-3",) * 2, (["x"], "format a list")):
            update_json(copy / "model.json", format=version)
            assert_refused(copy, words)


class TestInt8Weights:
    """Matrices stored as int8 with one scale per row."""

    @pytest.fixture
    def saved(self, tmp_path, tiny_pieces):
        model = tiny.make_model(seed=11)
        (tmp_path / "model").mkdir()
        native.save(tmp_path / "model", model, tiny_pieces, bits=8)
        return model, tmp_path / "model"

    @staticmethod
    def rewrite(path, change):
        """Change the weights of a model directory, and its checksums accordingly."""
        tensors = safetensors.parse((path / "weights.safetensors").read_bytes())
        change(tensors)
        data = safetensors.dump(tensors)
        (path / "weights.safetensors").write_bytes(data)
        files = json.loads((path / "model.json").read_text())["files"]
        update_manifest(
            path, files=files | {"weights.safetensors": hashlib.sha256(data).hexdigest()}
        )

    def test_loaded_weight_is_scale_times_integer(self, saved):
        model, path = saved
        stored = safetensors.parse((path / "weights.safetensors").read_bytes())
        loaded = load_checkpoint(path).model.state_dict()
        matrices = {name for name, tensor in stored.items() if tensor.dim() == 2}
        assert matrices and {stored[name].dtype for name in matrices} == {torch.int8}
        for name, tensor in stored.items():
            if name in matrices:
                scales = stored[name + ".scale"].tolist()
                for row, integers, scale in zip(loaded[name].tolist(), tensor.tolist(), scales):
                    assert row == pytest.approx([scale * n for n in integers], rel=1e-6)
            elif not name.endswith(".scale"):
                assert torch.equal(loaded[name], tensor.float())
        # The error is at most half a step, except for the few clipped weights
        for name, weight in model.state_dict().items():
            step = weight.abs().amax(-1, keepdim=True) / 127
            assert ((loaded[name] - weight).abs() <= 0.51 * step + 1e-3).float().mean() > 0.98

    def test_quantize_rows_scale_with_least_error(self):
        matrix = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))
        matrix[0] = 0
        matrix[1, 0] = 50
        integers, scales = native.quantize_rows(matrix)
        assert not integers[0].any()
        for weights, ours, scale in zip(matrix.tolist(), integers.tolist(), scales.tolist()):
            largest = max(map(abs, weights))
            scales_tried = torch.tensor([largest * (1 - 0.05 * n) / 127 for n in range(9)]).half()
            errors = [
                sum((max(-127, min(127, round(w / s))) * s - w) ** 2 for w in weights)
                for s in scales_tried.tolist()
                if s
            ]
            error = sum((n * scale - w) ** 2 for n, w in zip(ours, weights))
            assert error <= min(errors, default=0) * 1.001 + 1e-9

    def test_int8_smaller_file_and_similar_logits(self, saved, tmp_path, tiny_pieces):
        model, path = saved
        (tmp_path / "half").mkdir()
        native.save(tmp_path / "half", model, tiny_pieces)
        sizes = [(p / "weights.safetensors").stat().st_size for p in (path, tmp_path / "half")]
        assert sizes[0] < 0.8 * sizes[1]  # scales are a large part of rows of 16 numbers
        loaded = load_checkpoint(path)
        assert loaded.version == "(format onmt_lite-model-2)"
        exact = compute_logits(model)
        assert (compute_logits(loaded.model) - exact).norm() < 0.05 * exact.norm()

    @pytest.mark.parametrize(
        "scale",
        [
            *(lambda s: s[:-1], lambda s: s[:, None], lambda s: torch.zeros_like(s)),
            *(lambda s: -s, lambda s: s / 0, lambda s: s * torch.nan, None),
        ],
    )
    def test_scale_invalid_refused(self, saved, scale):
        _, path = saved
        name = "encoder.0.ffn.up.weight.scale"

        def change(tensors):
            old = tensors.pop(name)
            if scale is not None:
                tensors[name] = scale(old)

        self.rewrite(path, change)
        assert_refused(path, "encoder.0.ffn.up.weight", "scale" if scale else "integers")

    def test_scale_without_matrix_and_int8_in_float_format_refused(self, saved, copy):
        _, path = saved
        self.rewrite(path, lambda t: t.update({"x.scale": torch.ones(1).half()}))
        assert_refused(path, "x.scale")
        self.rewrite(copy, lambda t: t.update(x=torch.ones(1, 1, dtype=torch.int8)))
        assert_refused(copy, "integers")


def make_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return out.getvalue()


class TestUnsupportedFormats:
    @pytest.mark.parametrize(
        "data, words",
        {
            "zip": (make_zip(), "zip"),
            "pickle": (pickle.dumps({"model": 1}, protocol=2), "pickle"),
            "gzip": (gzip.compress(b"{}"), "gzip"),
            "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
            "html": (b"<!DOCTYPE html><html></html>", "HTML"),
            "empty": (b"", "empty"),
            "zeros": (b"\x00" * 100, "file format is unknown"),
            "bergamot": (b"\1" + bytes(99), "Bergamot"),
            "hf": (b'{"model_type": "marian"}', "not a table model"),
            "cut": (b'{"format": ', "not a table model"),
            "deep": (b'{"format":' + b"[" * 100_000, "not a table model"),
            "list": (b"[1, 2]", "file format is unknown"),
        }.values(),
    )
    def test_file_with_unsupported_content_named_in_error(self, tmp_path, data, words):
        path = tmp_path / "model.bin"
        path.write_bytes(data)
        assert_refused(path, "model.bin", words)

    @pytest.mark.parametrize(
        "name, words",
        [
            ("m.gguf", "GGUF"),
            ("ggml-model.bin", "GGML"),
            ("encoder_model.onnx", "ONNX"),
            ("openvino_model.xml", "OpenVINO"),
            ("ckpt-10.index", "TensorFlow"),
            ("model.ckpt-250000.data-00000-of-00001", "tensor2tensor"),
            ("saved_model.pb", "OpenNMT-tf"),
            ("tf_model.h5", "TensorFlow or Keras"),
            ("model.keras", "TensorFlow or Keras"),
            ("model.pkl.gz", "Trax"),
            ("megatron.nemo", "NeMo"),
            ("params.best", "Sockeye"),
            ("1200.ckpt", "JoeyNMT or PyTorch Lightning"),
            ("model.00.safetensors", "an Eole model (not supported); -model takes"),
            ("model.deen.intgemm.alphas.bin", "Bergamot"),
            ("translate-de_en-1_0.argosmodel", "unzip it and pass the directory inside"),
            ("opus-2021-02-18.zip", "unzip it and pass the model directory inside"),
            ("ende.tar.gz", "unpack it"),
            ("model.npz.yml", "settings of a Marian model; pass the .npz file"),
        ],
    )
    def test_model_of_other_toolkit_named_in_error(self, tmp_path, name, words):
        (tmp_path / name).write_bytes(b"x")
        assert_refused(tmp_path, "the directory contains", words)
        assert_refused(tmp_path / name, "it is ", words)

    def test_weights_file_only_refused_with_remedy(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"x")
        words = "a weights file only; pass the model directory or the .pt file"
        assert_refused(tmp_path / "model.safetensors", words)
        assert_refused(tmp_path, "no config.json")

    def test_eole_directory_with_config_json_named_in_error(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model": {"architecture": "transformer"}}')
        for name in ("model.00.safetensors", "vocab.json"):
            (tmp_path / name).write_bytes(b"{}")
        assert_refused(tmp_path, "the directory contains an Eole model (not supported); -model")

    @pytest.mark.parametrize("name", ["translate-de_en-1_0.argosmodel", "opus.zip", "m.keras", "x"])
    def test_zip_archive_error_does_not_mention_pytorch(self, tmp_path, name):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("translate-de_en-1_0/metadata.json", b"{}")
        with pytest.raises(CheckpointError, match="no model at .*: it is an? .*") as caught:
            load_checkpoint(tmp_path / name)
        assert "PyTorch" not in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (
                {"pytorch-lightning_version": "2.0", "state_dict": {}},
                "PyTorch Lightning checkpoints are not supported",
            ),
            ({"model_state": {}, "steps": 1}, "JoeyNMT checkpoints are not supported"),
            ({"w": torch.ones(1)}, "tensors without a model configuration; use the directory"),
            ({"x": 1}, "not an OpenNMT-py checkpoint"),
        ],
    )
    def test_pytorch_file_of_other_toolkit_named_in_error(self, tmp_path, content, words):
        torch.save(content, tmp_path / "x.pt")
        assert_refused(tmp_path / "x.pt", words)

    @pytest.mark.parametrize("joined", ["A:B", "a/m1.pt:a/m 2.pt:b/m3.pt"])
    def test_paths_joined_with_colons_error_suggests_spaces(self, joined):
        parts = shlex.join(joined.split(":"))
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(joined)
        remedy = f"; for an ensemble, separate the paths with spaces: -model {parts}"
        assert str(caught.value).startswith(f"no model at {joined}: no such file")
        assert str(caught.value).endswith(remedy)

    def test_paths_joined_with_commas_error_suggests_spaces(self, tmp_path):
        files = [tmp_path / "a.npz", tmp_path / "b.npz"]
        for file in files:
            file.touch()
        assert_refused(",".join(map(str, files)), f"with spaces: -model {files[0]} ")

    @pytest.mark.parametrize("path", ["C:\\models\\de-en", "D:/de-en", ":b", "a:", "a,b"])
    def test_missing_path_error_does_not_suggest_ensemble(self, path):
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)
        assert "ensemble" not in str(caught.value)

    def test_missing_path_and_empty_directory_refused(self, tmp_path):
        assert_refused(tmp_path / "nothing", "no such file")
        assert_refused(tmp_path, "model.json")
        assert_refused(tmp_path / ("x" * 300))
        assert_refused("with\0nul")


class TestTableModel:
    @pytest.fixture
    def write(self, tmp_path):
        def write(table):
            path = tmp_path / "table.json"
            path.write_text(json.dumps(table))
            return path

        return write

    def test_row_lookup_by_prefix_then_length_then_default(self, write):
        checkpoint = load_checkpoint(write(TABLE))
        assert checkpoint.src_vocab.tokens == ["s0", "s1"]
        assert (checkpoint.tgt_vocab.tokens, checkpoint.eos_id) == (["</s>", "a", "b"], 0)
        first, second = checkpoint.model.sources
        expected = {(): [0, 1, 2], (1,): [3, 4, 5], (2,): [6, 7, 8], (1, 2): [-1, 0.5, 0]}
        assert {prefix: first.logits(prefix) for prefix in expected} == expected
        assert [first.attention(p) for p in [(), (1, 2)]] == [[0.5, 0.5], [0.25, 0.75]]
        assert second.attention((2,)) == [0, 0, 1]

    @pytest.mark.parametrize(
        "source",
        [
            *(dict(length=length) for length in (0, True, "2")),
            *(dict(rows={"": row}) for row in ([0, 1], [0, 1, 2, 3], 1, [0, "x", 1], [0, None, 1])),
            *(dict(default=row) for row in ([1, 2], None, [0, 10**400, 1])),
            dict(rows=[[0, 1, 2]]),
            dict(attn={"": [1.0]}),
            dict(attn_default=[1, 0, 0]),
        ],
        ids=lambda source: str(source)[:40],
    )
    def test_wrong_source_refused(self, write, source):
        table = {**TABLE, "sources": {"s0": {**TABLE["sources"]["s0"], **source}}}
        assert_refused(write(table), "table.json", "not a table model")

    def test_wrong_table_refused(self, write):
        for wrong in (dict(format="onmt_lite-table-2"), dict(sources={})):
            assert_refused(write({**TABLE, **wrong}), "table.json", "not a table model")
        for vocab in ([], 3, ["$", "\ud800", "b"]):
            path = write({**TABLE, "vocab": vocab})
            assert_refused(path, "table.json", "must be a list of strings")
        assert_refused(write({**TABLE, "format": ["x"]}), "format a list")
        source = {**TABLE["sources"]["s0"], "length": ["x"]}
        assert_refused(write({**TABLE, "sources": {"s0": source}}), "length a list")

    @pytest.mark.parametrize("key", ["format", "vocab", "sources"])
    def test_missing_key_refused(self, write, key):
        assert_refused(write({k: v for k, v in TABLE.items() if k != key}), "table.json", key)


dtypes = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])
shapes = st.lists(st.integers(0, 3), max_size=3)
invalid = st.one_of(
    st.integers(-2, 9), st.text(max_size=2), st.none(), st.just([]), st.just({}), st.just(2**70)
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(["F32", "F16", "I64"]), invalid),
        "shape": st.one_of(st.lists(st.one_of(st.integers(0, 3), invalid), max_size=3), invalid),
        "data_offsets": st.one_of(st.just([0, 4]), st.lists(invalid, max_size=3), invalid),
    }
)


def make_safetensors(header: object, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


def make_single(
    dtype: object = "F32", shape: object = (1,), data_offsets: object = (0, 4)
) -> bytes:
    return make_safetensors(
        {"a": dict(dtype=dtype, shape=shape, data_offsets=data_offsets)}, b"\0" * 4
    )


class TestSafetensors:
    @settings(deadline=None, max_examples=100)
    @given(st.lists(st.tuples(dtypes, shapes), max_size=4))
    def test_dump_parse_round_trip(self, tensor_types):
        tensors = {
            f"t{i}": torch.arange(torch.Size(shape).numel()).view(shape).to(dtype) + i
            for i, (dtype, shape) in enumerate(tensor_types)
        }
        parsed = safetensors.parse(safetensors.dump(tensors))
        assert set(parsed) == set(tensors)
        for name, tensor in tensors.items():
            assert (parsed[name].dtype, parsed[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(parsed[name], tensor)

    def test_dump_layout(self):
        data = safetensors.dump({"a": torch.tensor([[1.0, -2.0]]), "b": torch.tensor(0.5).half()})
        (n,) = struct.unpack("<Q", data[:8])
        assert json.loads(data[8 : 8 + n]) == {
            "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
            "b": {"dtype": "F16", "shape": [], "data_offsets": [8, 10]},
        }
        assert data[8 + n :] == struct.pack("<ffe", 1.0, -2.0, 0.5)

    @settings(deadline=None, max_examples=150)
    @given(st.binary(max_size=40))
    def test_parse_any_bytes_refused(self, data):
        with pytest.raises(ValueError):
            safetensors.parse(data + b"!")  # not valid: the last byte is not part of a tensor

    @settings(deadline=None, max_examples=400)
    @given(st.dictionaries(st.text(max_size=2), entries, min_size=1, max_size=2))
    @example({"a": dict(dtype="F32", shape={}, data_offsets=[0, 4])})
    @example({"a": dict(dtype="F32", shape=[2**70, 0], data_offsets=[0, 0])})
    def test_parse_any_header_read_or_refused(self, header):
        end = 4 * any(e["data_offsets"] == [0, 4] for e in header.values())
        try:
            found = safetensors.parse(make_safetensors(header, b"\0" * end))
        except ValueError:
            return
        shapes = {name: list(tensor.shape) for name, tensor in found.items()}
        assert shapes == {name: entry["shape"] for name, entry in header.items()}

    @pytest.mark.parametrize(
        "data",
        [
            *(make_single(shape=shape) for shape in ([2], [-1], [True], "1")),
            *(make_single(data_offsets=offsets) for offsets in ([0, 8], [4, 8], [0])),
            *(make_single(data_offsets=offsets) + b"\0" * 4 for offsets in ([4, 8], [0, 8])),
            *(make_single(dtype=dtype) for dtype in ("I64", ["F32"])),
            *(make_single() + b"\0", make_single()[:-1], make_single()[:7]),
            make_safetensors({"a": dict(dtype="F32", shape=[2**47, 2, 0], data_offsets=[0, 0])}),
            make_safetensors(
                {"a": dict(dtype="F32", shape=[2**47] * 2 + [0], data_offsets=[0, 0])}
            ),
            *map(make_safetensors, (b"\xff" * 8, b"[" * 50_000, [1, 2], {"a": 1})),
            struct.pack("<Q", 2**63) + b"{}",
        ],
    )
    def test_parse_inconsistent_header_refused(self, data):
        with pytest.raises(ValueError):
            safetensors.parse(data)


def test_load_checkpoint_skips_random_initialization(tiny_checkpoint):
    """Random initialization would take as long as reading the weights."""
    before = torch.random.get_rng_state()
    load_checkpoint(tiny_checkpoint)
    assert torch.equal(torch.random.get_rng_state(), before)
    tiny.make_model()  # as in training
    assert not torch.equal(torch.random.get_rng_state(), before)
