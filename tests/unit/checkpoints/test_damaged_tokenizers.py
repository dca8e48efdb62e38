"""What damage to the small files of a model does: refused in one line, or without any effect.

These files have no checksum.  What they say in plain text (a piece, its score, a size that fits)
can be another model's, and is left out; their names, structure and cross-references are not.
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
from tests.support.files import DATA, assert_refused, change, one_line
from tests.support.sweeps import swept

FAMILIES = DATA.parent / "families"
MODEL = {"opus": DATA / "marian_npz" / "opus", "ct2": DATA / "ct2" / "mbart_float16"}
MODEL |= {name: FAMILIES / name for name in ("m2m", "nllb", "mbart25", "t5", "madlad")}


def everything(path):
    """What the small files decide: all but the weights, and defaults of searches."""
    searches = ("transformers", "marian")
    said = [load_options(["-model", str(path), "-search", s])[1] for s in searches]
    return files.everything(path)[1:], [resolved.values for resolved in said]


def refused_or(path, expected):
    with one_line():
        assert everything(path) == expected


def misspelt(name: str) -> Iterator[str]:
    yield from (name[:-1], name + "s", name[0] + name, name[:3] + "#" + name[4:], name.swapcase())


FILES = [
    (name, file)
    for name in ("m2m", "nllb", "mbart25", "t5", "madlad", "ct2")
    for file in ("config.json", "generation_config.json", "tokenizer_config.json")
    if (MODEL[name] / file).is_file()
]


@pytest.mark.parametrize("name, file", swept(FILES, FILES[::4]))
def test_names_in_descriptions(name, file, tmp_path):
    """One letter of a name at a time; a default does not take its place unseen."""
    path = shutil.copytree(MODEL[name], tmp_path / "copy")
    table, expected = json.loads((path / file).read_text("utf-8")), everything(path)
    for key in table:
        for other in [*misspelt(key)][:4]:
            changed = {other if k == key else k: v for k, v in table.items()}
            (path / file).write_text(json.dumps(changed), "utf-8")
            refused_or(path, expected)


def test_names_in_decoder_yml(tmp_path):
    path = shutil.copytree(MODEL["opus"], tmp_path / "copy")
    text, expected = (path / "decoder.yml").read_text("utf-8"), everything(path)
    for key in ("beam-size", "normalize", "models", "vocabs", "word-penalty"):
        for other in [*misspelt(key)][:4]:
            (path / "decoder.yml").write_text(text.replace(f"{key}:", f"{other}:"), "utf-8")
            refused_or(path, expected)


@pytest.fixture
def copy(tmp_path):
    """copy(name) -> the path of a copy of a model."""
    return lambda name: shutil.copytree(MODEL[name], tmp_path / name)


def edit(path, function):
    """Change a JSON file."""
    said = json.loads(path.read_text("utf-8"))
    function(said)
    path.write_text(json.dumps(said), "utf-8")


def test_start_token_of_generation_config_wins_over_config(copy):
    t5, mbart = copy("t5"), copy("mbart25")
    for path in (t5, mbart):
        change(path / "generation_config.json", decoder_start_token_id=8)
    assert load_checkpoint(t5).start_id == 8
    assert_refused(mbart, "generation_config.json: decoder_start_token_id 8 is neither a language")


def test_an_added_token_with_the_id_of_a_piece(copy):
    def move_last(said):
        listed = said["added_tokens_decoder"]
        listed["18"] = listed.pop(max(listed, key=int))

    path = copy("nllb")
    edit(path / "tokenizer_config.json", move_last)
    assert_refused(path, "tokenizer_config.json", "has the ID 18 of '▁n'")


@pytest.mark.parametrize("listed", [5, {"a": 1}, "x", ["a"]], ids=str)
def test_added_tokens_that_are_no_list_of_tables(listed, copy):
    path = copy("nllb")
    change(path / "tokenizer.json", added_tokens=listed)
    change(path / "tokenizer_config.json", added_tokens_decoder=None)
    assert_refused(path, "tokenizer.json", "added")


@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), 5.5, "x", True, None, 10**400], ids=lambda v: str(v)[:4]
)
@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json"])
def test_ids_of_added_tokens(file, value, copy):
    path = copy("nllb")
    (path / "tokenizer_config.json").unlink()
    if file == "tokenizer.json":
        edit(path / file, lambda said: said["added_tokens"][-1].update(id=value))
    else:
        edit(path / file, lambda said: said.update({max(said, key=said.get): value}))
        (path / "tokenizer.json").unlink()
    words = "has the ID an integer of more than 40 digits"
    assert_refused(path, file, words if value == 10**400 else "of an added token is not an integer")


def test_an_id_that_is_a_list(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": ["x"]}), "utf-8")
    with pytest.raises(CheckpointError, match="vocab.json: its ids are not 0, 1, ... once each"):
        read_vocab_json(tmp_path / "vocab.json")


SCORES = {"1e39": 1e39, "1e9": 1e9, "401 digits": 10**400, "nan": float("nan")}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_scores_that_no_piece_has(score, copy):
    path = copy("t5")
    (path / "spiece.model").unlink()
    edit(path / "tokenizer.json", lambda said: said["model"]["vocab"][5].__setitem__(1, score))
    assert_refused(path, "tokenizer.json", "subword 5 does not have a valid text and score")


def test_lists_in_the_place_of_texts_that_are_only_shown_or_compared(copy):
    path = copy("t5")
    for file in ("config.json", "generation_config.json"):
        change(path / file, transformers_version=["x"], tokenizer_class=["small100"])
    assert load_checkpoint(path).version == ""
    said = json.loads((path / "tokenizer.json").read_text("utf-8"))
    said["added_tokens"][0] |= {"content": ["x"], "id": 5}
    with pytest.raises(CheckpointError, match="content of an added token is not a string"):
        convert_tokenizer_json(said, "<unk>", path)


@pytest.mark.parametrize("values", [dict(d_kv=-1), dict(d_kv=0), dict(num_heads=-1)], ids=str)
def test_sizes_of_t5_that_are_not_above_0(values, copy):
    path = copy("t5")
    change(path / "config.json", **values)
    assert_refused(path, "config.json", *values, "not above 0")


class TestSentencepieceModels:
    """Every byte that is neither text nor number: tags, lengths, types."""

    def told(self, path):
        found = read_sentencepiece(str(path))
        ids = [*range(found.vocab_size())]
        kinds = [(found.is_control(i), found.is_unknown(i), found.is_byte(i)) for i in ids]
        return found.id_to_piece(ids), found.get_score(ids), kinds

    @pytest.mark.parametrize("name", ["mbart25/sentencepiece.bpe.model", "madlad/spiece.model"])
    def test_tags_and_lengths(self, name, tmp_path):
        file = tmp_path / "x.model"
        data = (FAMILIES / name).read_bytes()
        file.write_bytes(data)
        expected, at = self.told(file), 0
        for _ in range(40):  # b"\n", length of all, b"\n", length of the text, text, b"\x15", score
            size, text = data[at + 1], data[at + 3]
            places = [at, at + 1, at + 2, at + 3, at + 4 + text]
            places += [at + 9 + text] if size > 7 + text else []  # the tag of the type
            for place in places:
                for bit in range(8):
                    changed = bytearray(data)
                    changed[place] ^= 1 << bit
                    file.write_bytes(changed)
                    with one_line():
                        assert self.told(file) == expected, (place, bit)
            at += 2 + size

    def test_cut_off_and_scores_that_are_no_numbers(self, tmp_path):
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
    def tables(self, name):
        """The file again and again, with one table of it to change."""
        text = (FAMILIES / name / "tokenizer.json").read_text("utf-8")
        said = json.loads((FAMILIES / name / "tokenizer_config.json").read_text("utf-8"))
        unk = said["unk_token"]

        def paths(table, path=()):
            yield path
            for key, value in table.items():
                if isinstance(value, dict) and key not in ("vocab", "post_processor", "decoder"):
                    yield from paths(value, (*path, key))
            steps = table.get("normalizers", table.get("pretokenizers", table.get("added_tokens")))
            for i, step in enumerate((steps or [])[:5]):
                yield from ((*path, k, i) for k in table if table[k] is steps and step)

        for path in paths(json.loads(text)):
            for key in self.at(json.loads(text), path):
                yield text, unk, path, key

    @staticmethod
    def at(table, path):
        for key in path:
            table = table[key]
        return table

    @pytest.mark.parametrize("name", ["nllb", "mbart25", "t5", "madlad"])
    def test_names(self, name, tmp_path):
        """Misspelt or gone; the package tokenizers refuses these too."""
        n = 0
        for text, unk, path, key in self.tables(name):
            expected = convert_tokenizer_json(json.loads(text), unk, tmp_path)
            for other in ["", *misspelt(key)]:
                changed = json.loads(text)
                table = self.at(changed, path)
                value = table.pop(key)
                if other:
                    table[other] = value
                with one_line():
                    assert convert_tokenizer_json(changed, unk, tmp_path) == expected, (
                        path,
                        key,
                        other,
                    )
                n += 1
        assert n > 200

    def test_pieces_that_merges_make(self, tmp_path):
        text = (FAMILIES / "nllb" / "tokenizer.json").read_text("utf-8")
        merges = json.loads(text)["model"]["merges"]
        assert len(merges) > 20
        for merge in merges:
            changed = json.loads(text)
            vocab = changed["model"]["vocab"]
            piece = "".join(merge.split(" ") if isinstance(merge, str) else merge)
            vocab[piece + "§"] = vocab.pop(piece)
            with pytest.raises(CheckpointError, match="merge"):
                convert_tokenizer_json(changed, "<unk>", tmp_path)

    def test_one_byte_of_256_is_damaged(self, tmp_path):
        text = (
            (FAMILIES / "madlad" / "tokenizer.json").read_text("utf-8").replace("<0xAE>", "<0xAE")
        )
        with pytest.raises(CheckpointError, match="byte tokens, not 256"):
            convert_tokenizer_json(json.loads(text), "<unk>", tmp_path)


class TestCTranslate2:
    @pytest.fixture
    def copy(self, tmp_path):
        return shutil.copytree(DATA / "ct2" / "old_float32", tmp_path / "copy")

    def test_a_vocabulary_that_is_cut_off_inside_its_last_token(self, copy):
        file = copy / "shared_vocabulary.txt"
        text = file.read_text("utf-8")
        file.write_text(text.rstrip("\n")[:-1], "utf-8")
        assert_refused(copy, "twice")
        file.write_text("\n".join(text.split("\n")[:-2]) + "\n", "utf-8")
        assert_refused(copy, "but the model has")

    def test_rows_of_t5_may_have_a_name_twice(self, copy):
        """As the converter of CTranslate2 names the rows behind the tokens."""
        file = copy / "shared_vocabulary.txt"
        tokens = file.read_text("utf-8").split("\n")
        file.write_text("\n".join([*tokens[:-3], *["<extra_id_0>"] * 2, ""]), "utf-8")
        assert load_checkpoint(copy).tgt_vocab.tokens[-1] == "<extra_id_0>"

    def test_scales_that_are_not_above_0(self, tmp_path):
        path = shutil.copytree(DATA / "ct2" / "marian_int8", tmp_path / "copy")
        stored = ModelBin.parse((path / "model.bin").read_bytes())
        name = next(name for name in stored.variables if name.endswith("weight_scale"))
        shape, kind, numbers = stored.variables[name]
        stored.variables[name] = shape, kind, bytes(4) + numbers[4:]
        (path / "model.bin").write_bytes(stored.dump())
        assert_refused(path, "one positive scale")

    def test_no_start_token_is_not_the_word_none(self, tmp_path):
        path = shutil.copytree(MODEL["ct2"], tmp_path / "copy")
        edit(path / "shared_vocabulary.json", lambda tokens: tokens.__setitem__(-1, "None"))
        change(path / "config.json", bos_token=None, add_source_bos=False)
        assert load_checkpoint(path).tgt_vocab.bos_id is None

    def test_a_name_of_config_json_is_gone(self, tmp_path):
        path = shutil.copytree(MODEL["ct2"], tmp_path / "copy")
        edit(path / "config.json", lambda config: config.pop("decoder_start_token"))
        assert_refused(path, "decoder_start_token")
