"""Damage to config and tokenizer files has no effect or raises CheckpointError.

These files have no checksum. A changed subword, score or matching size cannot be detected and is
not tested; changed keys, structure and cross-references are.
"""

import json
import shutil
from collections.abc import Iterator

import pytest

from onmt_lite.checkpoints.huggingface.directory import read_vocab_json
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.sentencepiece_proto import convert_tokenizer_json
from onmt_lite.checkpoints.subwords import read_sentencepiece
from onmt_lite.config.options import load_options
from onmt_lite.errors import CheckpointError
from tests.support import files
from tests.support.ctranslate2_bin import ModelBin
from tests.support.files import DATA, allow_one_line_error, assert_refused, update_json
from tests.support.sweeps import mark_sweeps

FAMILIES = DATA.parent / "families"
MODEL = {"opus": DATA / "marian_npz" / "opus", "ct2": DATA / "ct2" / "mbart_float16"}
MODEL |= {name: FAMILIES / name for name in ("m2m", "nllb", "mbart25", "t5", "madlad")}


def load_settings(path):
    """Load a model; return everything except the weights, and the search defaults."""
    searches = ("transformers", "marian")
    resolved = [load_options(["-model", str(path), "-search", s])[1] for s in searches]
    return files.summarize_checkpoint(path)[1:], [options.values for options in resolved]


def assert_unchanged_or_refused(path, expected):
    with allow_one_line_error():
        assert load_settings(path) == expected


def misspell(name: str) -> Iterator[str]:
    yield from (name[:-1], name + "s", name[0] + name, name[:3] + "#" + name[4:], name.swapcase())


FILES = [
    (name, file)
    for name in ("m2m", "nllb", "mbart25", "t5", "madlad", "ct2")
    for file in ("config.json", "generation_config.json", "tokenizer_config.json")
    if (MODEL[name] / file).is_file()
]


@pytest.mark.parametrize("name, file", mark_sweeps(FILES, FILES[::4]))
def test_load_config_with_misspelled_key_is_rejected(name, file, tmp_path):
    """A misspelled key must not silently become the default."""
    path = shutil.copytree(MODEL[name], tmp_path / "copy")
    table, expected = json.loads((path / file).read_text("utf-8")), load_settings(path)
    for key in table:
        for misspelled in [*misspell(key)][:4]:
            changed = {misspelled if k == key else k: v for k, v in table.items()}
            (path / file).write_text(json.dumps(changed), "utf-8")
            assert_unchanged_or_refused(path, expected)


def test_load_decoder_yml_with_misspelled_key_is_rejected(tmp_path):
    path = shutil.copytree(MODEL["opus"], tmp_path / "copy")
    text, expected = (path / "decoder.yml").read_text("utf-8"), load_settings(path)
    for key in ("beam-size", "normalize", "models", "vocabs", "word-penalty"):
        for misspelled in [*misspell(key)][:4]:
            (path / "decoder.yml").write_text(text.replace(f"{key}:", f"{misspelled}:"), "utf-8")
            assert_unchanged_or_refused(path, expected)


@pytest.fixture
def copy(tmp_path):
    """Return a function that copies a model by name."""
    return lambda name: shutil.copytree(MODEL[name], tmp_path / name)


def edit(path, function):
    """Change a JSON file."""
    content = json.loads(path.read_text("utf-8"))
    function(content)
    path.write_text(json.dumps(content), "utf-8")


def test_load_generation_config_start_token_overrides_config(copy):
    t5, mbart = copy("t5"), copy("mbart25")
    for path in (t5, mbart):
        update_json(path / "generation_config.json", decoder_start_token_id=8)
    assert load_checkpoint(t5).start_id == 8
    assert_refused(mbart, "generation_config.json: decoder_start_token_id 8 is neither a language")


def test_load_added_token_with_subword_id_is_rejected(copy):
    def move_last(config):
        listed = config["added_tokens_decoder"]
        listed["18"] = listed.pop(max(listed, key=int))

    path = copy("nllb")
    edit(path / "tokenizer_config.json", move_last)
    assert_refused(path, "tokenizer_config.json", "has the ID 18 of '▁n'")


@pytest.mark.parametrize("listed", [5, {"a": 1}, "x", ["a"]], ids=str)
def test_load_malformed_added_tokens_is_rejected(listed, copy):
    path = copy("nllb")
    update_json(path / "tokenizer.json", added_tokens=listed)
    update_json(path / "tokenizer_config.json", added_tokens_decoder=None)
    assert_refused(path, "tokenizer.json", "added")


@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), 5.5, "x", True, None, 10**400], ids=lambda v: str(v)[:4]
)
@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json"])
def test_load_added_token_with_non_integer_id_is_rejected(file, value, copy):
    path = copy("nllb")
    (path / "tokenizer_config.json").unlink()
    if file == "tokenizer.json":
        edit(path / file, lambda table: table["added_tokens"][-1].update(id=value))
    else:
        edit(path / file, lambda table: table.update({max(table, key=table.get): value}))
        (path / "tokenizer.json").unlink()
    words = "has the ID an integer of more than 40 digits"
    assert_refused(path, file, words if value == 10**400 else "of an added token is not an integer")


def test_read_ids_list_as_id_is_rejected(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": ["x"]}), "utf-8")
    with pytest.raises(CheckpointError, match="vocab.json: token IDs must be 0, 1, ... without"):
        read_vocab_json(tmp_path / "vocab.json")


SCORES = {"1e39": 1e39, "1e9": 1e9, "401 digits": 10**400, "nan": float("nan")}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_load_tokenizer_json_invalid_score_is_rejected(score, copy):
    path = copy("t5")
    (path / "spiece.model").unlink()
    edit(path / "tokenizer.json", lambda table: table["model"]["vocab"][5].__setitem__(1, score))
    assert_refused(path, "tokenizer.json", "subword 5 does not have a valid text and score")


def test_load_list_in_place_of_informative_string_is_ignored(copy):
    path = copy("t5")
    for file in ("config.json", "generation_config.json"):
        update_json(path / file, transformers_version=["x"], tokenizer_class=["small100"])
    assert load_checkpoint(path).version == ""
    table = json.loads((path / "tokenizer.json").read_text("utf-8"))
    table["added_tokens"][0] |= {"content": ["x"], "id": 5}
    with pytest.raises(CheckpointError, match="content of an added token must be a string"):
        convert_tokenizer_json(table, "<unk>", path)


@pytest.mark.parametrize("values", [dict(d_kv=-1), dict(d_kv=0), dict(num_heads=-1)], ids=str)
def test_load_t5_non_positive_size_is_rejected(values, copy):
    path = copy("t5")
    update_json(path / "config.json", **values)
    assert_refused(path, "config.json", *values, "must be positive")


class TestSentencepieceModels:
    """Every structural byte: field tags, lengths and types."""

    def read_subwords(self, path):
        processor = read_sentencepiece(str(path))
        ids = [*range(processor.vocab_size())]
        types = [
            (processor.is_control(i), processor.is_unknown(i), processor.is_byte(i)) for i in ids
        ]
        return processor.id_to_piece(ids), processor.get_score(ids), types

    @pytest.mark.parametrize("name", ["mbart25/sentencepiece.bpe.model", "madlad/spiece.model"])
    def test_read_sentencepiece_flipped_structural_bit_is_rejected(self, name, tmp_path):
        file = tmp_path / "x.model"
        data = (FAMILIES / name).read_bytes()
        file.write_bytes(data)
        expected, at = self.read_subwords(file), 0
        for _ in range(40):  # "\n", size, "\n", size of the text, text, "\x15", score
            size, text = data[at + 1], data[at + 3]
            offsets = [at, at + 1, at + 2, at + 3, at + 4 + text]
            offsets += [at + 9 + text] if size > 7 + text else []  # the tag of the type
            for offset in offsets:
                for bit in range(8):
                    changed = bytearray(data)
                    changed[offset] ^= 1 << bit
                    file.write_bytes(changed)
                    with allow_one_line_error():
                        assert self.read_subwords(file) == expected, (offset, bit)
            at += 2 + size

    def test_read_sentencepiece_truncated_or_invalid_score_is_rejected(self, tmp_path):
        file, data = (
            tmp_path / "x.model",
            (FAMILIES / "mbart25/sentencepiece.bpe.model").read_bytes(),
        )
        at = data.index(b"\x15", data.index("▁".encode()))
        for n in range(0, len(data) - 1, 41):
            file.write_bytes(data[:n])
            with pytest.raises(CheckpointError, match="not a sentencepiece model"):
                read_sentencepiece(str(file))
        for score in (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\x7e"):
            file.write_bytes(data[: at + 1] + score + data[at + 5 :])
            with pytest.raises(CheckpointError, match="score"):
                read_sentencepiece(str(file))


class TestTokenizerJson:
    def find_keys(self, name):
        """Yield the file, its unknown token, and the path to each key."""
        text = (FAMILIES / name / "tokenizer.json").read_text("utf-8")
        unk = json.loads((FAMILIES / name / "tokenizer_config.json").read_text("utf-8"))[
            "unk_token"
        ]

        def paths(table, path=()):
            yield path
            for key, value in table.items():
                if isinstance(value, dict) and key not in ("vocab", "post_processor", "decoder"):
                    yield from paths(value, (*path, key))
            steps = table.get("normalizers", table.get("pretokenizers", table.get("added_tokens")))
            for i, step in enumerate((steps or [])[:5]):
                yield from ((*path, k, i) for k in table if table[k] is steps and step)

        for path in paths(json.loads(text)):
            for key in self.get_table(json.loads(text), path):
                yield text, unk, path, key

    @staticmethod
    def get_table(table, path):
        for key in path:
            table = table[key]
        return table

    @pytest.mark.parametrize("name", ["nllb", "mbart25", "t5", "madlad"])
    def test_convert_misspelled_or_missing_key_is_rejected(self, name, tmp_path):
        """The tokenizers package rejects these as well."""
        n = 0
        for text, unk, path, key in self.find_keys(name):
            expected = convert_tokenizer_json(json.loads(text), unk, tmp_path)
            for misspelled in ["", *misspell(key)]:
                changed = json.loads(text)
                table = self.get_table(changed, path)
                value = table.pop(key)
                if misspelled:
                    table[misspelled] = value
                with allow_one_line_error():
                    assert convert_tokenizer_json(changed, unk, tmp_path) == expected, (
                        path,
                        key,
                        misspelled,
                    )
                n += 1
        assert n > 200

    def test_convert_merge_of_missing_subword_is_rejected(self, tmp_path):
        text = (FAMILIES / "nllb" / "tokenizer.json").read_text("utf-8")
        merges = json.loads(text)["model"]["merges"]
        assert len(merges) > 20
        for merge in merges:
            changed = json.loads(text)
            vocab = changed["model"]["vocab"]
            subword = "".join(merge.split(" ") if isinstance(merge, str) else merge)
            vocab[subword + "§"] = vocab.pop(subword)
            with pytest.raises(CheckpointError, match="merge"):
                convert_tokenizer_json(changed, "<unk>", tmp_path)

    def test_convert_damaged_byte_token_is_rejected(self, tmp_path):
        text = (
            (FAMILIES / "madlad" / "tokenizer.json").read_text("utf-8").replace("<0xAE>", "<0xAE")
        )
        with pytest.raises(CheckpointError, match="byte tokens instead of 256"):
            convert_tokenizer_json(json.loads(text), "<unk>", tmp_path)


class TestCTranslate2:
    @pytest.fixture
    def copy(self, tmp_path):
        return shutil.copytree(DATA / "ct2" / "old_float32", tmp_path / "copy")

    def test_load_truncated_vocabulary_is_rejected(self, copy):
        file = copy / "shared_vocabulary.txt"
        text = file.read_text("utf-8")
        file.write_text(text.rstrip("\n")[:-1], "utf-8")
        assert_refused(copy, "duplicate token")
        file.write_text("\n".join(text.split("\n")[:-2]) + "\n", "utf-8")
        assert_refused(copy, "but the model has")

    def test_load_t5_duplicate_padding_tokens(self, copy):
        """The CTranslate2 converter pads the vocabulary with duplicates of <extra_id_0>."""
        file = copy / "shared_vocabulary.txt"
        tokens = file.read_text("utf-8").split("\n")
        file.write_text("\n".join([*tokens[:-3], *["<extra_id_0>"] * 2, ""]), "utf-8")
        assert load_checkpoint(copy).tgt_vocab.tokens[-1] == "<extra_id_0>"

    def test_load_non_positive_scale_is_rejected(self, tmp_path):
        path = shutil.copytree(DATA / "ct2" / "marian_int8", tmp_path / "copy")
        stored = ModelBin.parse((path / "model.bin").read_bytes())
        name = next(name for name in stored.variables if name.endswith("weight_scale"))
        shape, dtype, data = stored.variables[name]
        stored.variables[name] = shape, dtype, bytes(4) + data[4:]
        (path / "model.bin").write_bytes(stored.dump())
        assert_refused(path, "one positive scale")

    def test_load_null_bos_token_is_not_the_token_none(self, tmp_path):
        path = shutil.copytree(MODEL["ct2"], tmp_path / "copy")
        edit(path / "shared_vocabulary.json", lambda tokens: tokens.__setitem__(-1, "None"))
        update_json(path / "config.json", bos_token=None, add_source_bos=False)
        assert load_checkpoint(path).tgt_vocab.bos_id is None

    def test_load_config_without_start_token_is_rejected(self, tmp_path):
        path = shutil.copytree(MODEL["ct2"], tmp_path / "copy")
        edit(path / "config.json", lambda config: config.pop("decoder_start_token"))
        assert_refused(path, "decoder_start_token")
