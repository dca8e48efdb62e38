"""-transforms: tokenization and detokenization as in OpenNMT-py, and their effect on a translation.

`data/transforms/opennmt.json` contains the output of the OpenNMT-py 3.5.1 transforms (with
sentencepiece 0.2.3, subword-nmt 0.3.8 and pyonmttok 1.38.1) for the files in that directory.
"""

import contextlib
import dataclasses
import json
import logging
from pathlib import Path

import pytest
import sentencepiece as spm
import yaml
from hypothesis import given
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints import native, subwords
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.checkpoints.sentencepiece_proto import restrict_vocabulary
from onmt_lite.checkpoints.subwords import read_bpe_codes, read_sentencepiece
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.export import ExportOptions, export
from onmt_lite.inference.loading import tokenizer_from_options, with_tokenizer
from onmt_lite.text.lines import make_line_from_text
from onmt_lite.text.transforms import Affixes
from tests.support import tiny
from tests.support.files import DATA

HERE = Path(__file__).parents[2] / "data" / "transforms"
STORED = json.loads((HERE / "opennmt.json").read_text("utf-8"))
# Vocabularies: dog, man, ▁the and letters; target DOG, MAN, ▁THE and letters
SMALL = DATA / "m35_st_step_2.pt"


def resolve_paths(options):
    """Return the options with file names resolved to paths."""
    of_files = ("_model", "_vocab")
    return {
        name: str(HERE / value) if name.endswith(of_files) and name != "share_vocab" else value
        for name, value in options.items()
    }


def tokenizer_of(**options):
    """Return the tokenizer that the options define."""
    _, tokenizer = tokenizer_from_options(TranslateOptions.of(**resolve_paths(options)))
    return tokenizer


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Return a function (yaml, lines) -> (exit code, stdout, stderr)."""
    for path in HERE.iterdir():
        (tmp_path / path.name).symlink_to(path)

    def run_once(yaml, lines="dog man\n", *argv):
        monkeypatch.chdir(tmp_path)
        Path("my.yaml").write_text(yaml, encoding="utf-8")
        Path("src.txt").write_text(lines, encoding="utf-8")
        code = translate.main(["-config", "my.yaml", *argv])
        return code, *capfd.readouterr()

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


@pytest.mark.parametrize("case", STORED, ids=lambda case: case["name"])
def test_transforms_equal_opennmt(case):
    if case["name"].startswith("pyonmttok"):
        pytest.importorskip("pyonmttok")
    tokenizer = tokenizer_of(**case["options"])
    for side, encode in (("src", tokenizer.encode), ("tgt", tokenizer.encode_target)):
        around = getattr(tokenizer, side)
        for line, tokens in case[side]:
            assert " ".join([*around.before, *encode(line), *around.after]) == tokens
    for tokens, text in case["hyps"]:
        assert tokenizer.decode(tokens.split(" ")) == text


PIECES = dict(src_subword_model="src.model", tgt_subword_model="tgt.model")
CODES = dict(src_subword_model="src.codes", tgt_subword_model="tgt.codes")
SP, BPE = dict(transforms=["sentencepiece"], **PIECES), dict(transforms=["bpe"], **CODES)
SAME_PIECES = dict(tgt_subword_model="src.model")


def load_with_tokenizer(path=SMALL, **options):
    """Return the model with the tokenizer of the options, and the tokenizer."""
    checked = TranslateOptions.of(**resolve_paths(options))
    found = with_tokenizer(load_checkpoint(path), checked, tokenizer_from_options(checked))
    return found, next(iter(found.tokenizers.values()))


class TestFixedErrors:
    """Known errors of OpenNMT-py that are fixed here; see `onmt_lite.text.transforms`."""

    @pytest.mark.parametrize("first", [True, False])
    def test_prefix_and_suffix_are_removed_in_any_order(self, first):
        """Only the prefix is removed; OpenNMT-py also removes the next letter."""
        order = ["prefix", "sentencepiece"] if first else ["sentencepiece", "prefix"]
        tokenizer = tokenizer_of(**SP | dict(transforms=order, tgt_prefix="a child"))
        tokens = [*tokenizer.tgt.before, *tokenizer.encode_target("old dog")]
        assert tokenizer.decode(tokens) == "old dog"
        tokenizer = tokenizer_of(
            **SP | dict(transforms=["sentencepiece", "prefix"], tgt_prefix="<en>")
        )
        assert tokenizer.decode(["<en>", "the", "▁", "d"]) == "the d"
        assert tokenizer.decode(["<enx>", "d"]) == "<enx>d"
        order = ["suffix", "bpe"] if first else ["bpe", "suffix"]
        tokenizer = tokenizer_of(**BPE | dict(transforms=order, tgt_suffix="old"))
        assert tokenizer.decode("the do@@ g old".split()) == "the dog"
        assert (tokenizer.decode(["old"]), tokenizer.decode(["bold"])) == ("", "bold")

    def test_empty_prefix_adds_no_token(self):
        found, _ = load_with_tokenizer(transforms=["prefix", "suffix"], tgt_prefix="DOG")
        assert (found.src_start, found.src_end, found.tgt_end) == ((), (), ())

    @pytest.mark.parametrize("order", [["prefix", "bpe"], ["bpe", "prefix"]])
    def test_empty_lines_stay_empty(self, order):
        options = BPE | dict(transforms=order, src_prefix="dog")
        translator = Translator.from_pretrained(SMALL, device="cpu", **resolve_paths(options))
        empty = translator.translate(["", "  ", "\u3000", "dog"], max_length=5)
        assert [t.notes == ("empty",) for t in empty] == [True] * 3 + [False]
        assert [t.hyps[0].text for t in empty[:3]] == [""] * 3


LETTERS = st.text(st.sampled_from("derhunaltg xé￭▁@｟"), max_size=30)


@given(LETTERS)
def test_tokenize_detokenize_roundtrip(line):
    """Words separated by one space; markers in the text itself are lost."""
    restricted_bpe = BPE | dict(src_subword_vocab="src.vocab", src_vocab_threshold=2)
    for options, mark in ((BPE, "@@"), (restricted_bpe, "@@"), (SP | SAME_PIECES, "▁")):
        tokenizer = tokenizer_of(**options)
        if mark not in line:
            assert tokenizer.decode(tokenizer.encode(line)) == " ".join(line.split())


@given(LETTERS, st.sampled_from(["", "a", "a b"]), st.sampled_from(["", "z", "y z"]))
def test_affixes_are_removed_from_output(line, before, after):
    affixes = Affixes(before, after, tuple(before.split()), tuple(after.split()))
    assert affixes.remove_from(affixes.add_to(line)) == line
    tokens = line.split()
    assert affixes.remove_from_tokens([*affixes.before, *tokens, *affixes.after]) == tokens


# -- whole configurations ------------------------------------------------------------------------

DEFAULTS = Path(__file__).parents[2] / "data" / "public_lines" / "defaults_3_5_1.yaml"
NEAR = dict(batch_size=2, beam_size=2, max_length=8)  # as in `translate_tokens`


def inference_yaml(text):
    """Return an OpenNMT-py 3.5 inference YAML with the default values."""
    places = dict(model=str(SMALL), src="src.txt", output="out.txt")
    defaults = yaml.safe_load(DEFAULTS.read_text("utf-8"))
    return yaml.safe_dump({**defaults, **places, **NEAR, **yaml.safe_load(text)})


NLLB_LIKE = """
transforms: [sentencepiece, filtertoolong, prefix, suffix]
src_subword_model: src.model
tgt_subword_model: tgt.model
src_prefix: "dog man"
tgt_prefix: "DOG"
src_suffix: "</s>"
tgt_suffix: ""
"""
WITH_BPE = "transforms:\n- bpe\nsrc_subword_model: src.codes\nshare_vocab: true\n"
WITH_ONMT = """
transforms: [onmt_tokenize]
src_subword_type: sentencepiece
src_subword_model: src.model
tgt_subword_type: bpe
tgt_subword_model: tgt.codes
src_onmttok_kwargs: "{'mode': 'none'}"
tgt_onmttok_kwargs: "{'mode': 'aggressive', 'joiner_annotate': True, 'case_markup': True}"
"""


def translate_tokens(tokens, around=((), ())):
    """Return the translation that SMALL makes of given tokens."""
    checkpoint = load_checkpoint(SMALL)
    before, after = (tuple(checkpoint.src_vocab.ids[t] for t in part) for part in around)
    checkpoint = dataclasses.replace(checkpoint, src_start=before, src_end=after)
    options = TranslateOptions.of(device="cpu", tokenizer="space", beam_size=2, max_length=8)
    (found,) = Translator(checkpoint, options).translate([tokens])
    return found.hyps[0].tokens


@pytest.mark.parametrize(
    ("text", "cut", "around", "joined"),
    [
        (NLLB_LIKE, "▁d er ▁h u n d", ("dog man", "</s>"), "".join),
        (WITH_BPE, "der hund", ("", ""), " ".join),
        (WITH_ONMT, "▁d er ▁h u n d", ("", ""), " ".join),
    ],
    ids=["sentencepiece", "bpe", "onmt_tokenize"],
)
def test_opennmt_yaml_works_unchanged(run, text, cut, around, joined):
    code, _, err = run(inference_yaml(text), "der hund\n\n", "-output_format", "jsonl", "-quiet")
    assert (code, err) == (0, "")
    first, empty = map(json.loads, Path("out.txt").read_text("utf-8").splitlines())
    tokens = translate_tokens(cut, [part.split() for part in around])
    assert first["hyps"][0]["tokens"] == tokens
    words = joined(tokens[tokens[:1] == ["DOG"] and "DOG" in text :])
    assert first["hyps"][0]["text"] == words.replace("▁", " ").strip()
    assert (empty["hyps"][0]["text"], empty["notes"]) == ("", ["empty"])


def test_onmttok_kwargs_accept_unquoted_dict():
    """OpenNMT-py accepts it, too."""
    options = TranslateOptions.of(src_onmttok_kwargs={"mode": "none"})
    assert options.text.src_onmttok_kwargs == "{'mode': 'none'}"


def test_option_without_effect_is_reported_once(run):
    _, _, err = run(inference_yaml(NLLB_LIKE + "fast: false\nshard_size: 0\n"))
    why = "has no effect; it is used in training only"
    assert err.count(f"NOTE: transforms: filtertoolong: {why}") == 1
    assert err.count("NOTE") == 1
    _, _, err = run(f"model: {SMALL}\nsrc: src.txt\nsrc_prefix: x\nmaster_ip: 10.0.0.1\n")
    assert "NOTE: master_ip 10.0.0.1: has no effect in onmt_lite (my.yaml:4)\n" in err
    why = "it requires transforms prefix"
    assert f"NOTE: src_prefix: has no effect; {why} (my.yaml:3)\n" in err


def test_exported_model_translates_like_original(tmp_path, tiny_pieces, run):
    """With the exported YAML, compared with the tokenizer of the model."""
    (tmp_path / "own").mkdir()
    native.save(tmp_path / "own", tiny.make_model(seed=3), tiny_pieces)
    export(ExportOptions(str(tmp_path / "own"), "opennmt-py", str(tmp_path / "x.pt")))
    asked = """
transforms: [sentencepiece, suffix]
src_subword_model: x.model
tgt_subword_model: x.model
src_suffix: "</s>"
self_attn_type: scaled-dot
"""
    lines, outputs = "\n".join(tiny.SENTENCES) + "\n", []
    for model, text in (("own", ""), ("x.pt", asked)):
        argv = ["-model", model, "-output", "out.txt", "-batch_size", "7", "-quiet"]
        assert run(f"src: src.txt\n{text}", lines, *argv)[0] == 0
        outputs.append(Path("out.txt").read_text("utf-8"))
    assert outputs[0] == outputs[1]


# -- -tokenizer and -detokenizer -----------------------------------------------------------------


class TestTokenizerAndDetokenizer:
    def test_tokenizer_bpe_and_sentencepiece_files(self):
        _, tokenizer = load_with_tokenizer(tokenizer="bpe", src_subword_model="src.codes")
        assert tokenizer.encode("der hunde") == ["der", "hun@@", "d@@", "e"]
        assert tokenizer.decode(["ol@@", "d", "do@@"]) == "old do"
        with pytest.raises(OptionError, match="tgt_subword_model"):
            tokenizer.encode_target("the dog")
        _, tokenizer = load_with_tokenizer(tokenizer="sentencepiece", src_subword_model="src.model")
        assert tokenizer.encode("der hund") == ["▁d", "er", "▁h", "u", "n", "d"]
        assert tokenizer.decode(["▁the", "▁do", "g"]) == "the dog"
        _, tokenizer = load_with_tokenizer(tokenizer="sentencepiece", **PIECES)
        assert tokenizer.encode_target("a child") == ["▁a", "▁child"]

    def test_detokenizer_for_tokenized_fairseq_lines(self):
        """Lines are tokenized; the translation should be text."""
        path = DATA / "fairseq_transformer"
        plain = Translator.from_pretrained(path, device="cpu")
        joined = Translator.from_pretrained(path, device="cpu", detokenizer="bpe")
        tokens = plain.translate(["w1 w2"])[0].hyps[0].tokens
        assert joined.translate(["w1 w2"])[0].hyps[0].text == " ".join(tokens)
        assert joined.tokenizer.decode(["a@@", "b", "c@@"]) == "ab c"

    @pytest.mark.parametrize(
        "name, text",
        [
            ("bpe", "▁ab￭ ▁c"),
            ("sentencepiece", "a@@b￭ c"),
            ("joiner", "▁a@@ b▁c"),
            ("spacer", "a@@b￭ c"),
            ("space", "▁a@@ b￭ ▁c"),
        ],
    )
    def test_detokenizer_values(self, name, text):
        _, tokenizer = load_with_tokenizer(detokenizer=name)
        assert tokenizer.decode(["▁a@@", "b￭", "▁c"]) == text
        assert tokenizer.encode("a  b") == ["a", "b"]

    @pytest.mark.parametrize("transforms", [["prefix"], ["suffix", "normalize"]], ids=str)
    def test_transforms_without_subwords_split_like_model(self, transforms):
        line = "a\u00a0b  c\u3000d e"
        of_3, of_2 = ["a\u00a0b", "c\u3000d", "e"], ["a", "b", "c", "d", "e"]
        for path, expected in ((SMALL, of_3), (DATA / "m23_tf_step_2.pt", of_2)):
            _, tokenizer = load_with_tokenizer(path, transforms=transforms)
            assert tokenizer.encode(line) == tokenizer.encode_target(line) == expected

    @pytest.mark.parametrize(
        "text, message",
        [
            ("", "  tokenizer          space\n"),
            ("tokenizer: bpe\nsrc_subword_model: src.codes", "bpe of src.codes (also: space)\n"),
            (NLLB_LIKE, "  tokenizer          transforms sentencepiece, prefix, suffix (also"),
            (NLLB_LIKE, "  before each source 'dog' (5) 'man' (12)\n"),
            ("detokenizer: joiner", "  tokenizer          space, output joined by joiner\n"),
        ],
    )
    def test_print_model_names_tokenizer(self, run, text, message):
        assert message in run(f"model: {SMALL}\nprint_model: true\n{text}\n")[1]

    def test_tokenizer_options_are_fixed_at_load_time(self):
        options = dict(transforms=["normalize"], src_lang="de", tgt_lang="en")
        translator = Translator.from_pretrained(SMALL, device="cpu", **options)
        translator.translate(["dog"], src_lang="de")
        for changed in (dict(src_prefix="man"), dict(src_lang="fr")):
            with pytest.raises(OptionError, match="cannot be changed per call"):
                translator.translate(["dog"], **changed)

    def test_gold_score_includes_prefix(self):
        """The reference is scored with its prefix, which its line does not contain."""
        options = dict(transforms=["prefix"], tgt_prefix="DOG")
        with_prefix = Translator.from_pretrained(SMALL, device="cpu", **options)
        plain = Translator.from_pretrained(SMALL, device="cpu")
        assert with_prefix.score(["dog"], ["MAN"]) == plain.score(["dog"], ["DOG MAN"])

    def test_affixes_of_truncated_line_are_kept(self):
        options = dict(transforms=["prefix", "suffix"], src_prefix="dog", src_suffix="</s>")
        translator = Translator.from_pretrained(SMALL, device="cpu", **options)
        line = make_line_from_text("man " * (translator.model.max_positions + 5), 0)
        example = translator.pipeline.preprocessor.make_example(line)
        assert len(example.src_ids) == translator.model.max_positions
        assert (example.src_ids[0], example.src_ids[-1]) == (5, 3)
        assert "truncated" in example.notes


# -- errors --------------------------------------------------------------------------------------

NEEDED = "model: none.pt\nsrc: src.txt\n"  # options are checked before the model is read


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("transforms: [docify]", "docify"),
        ("transforms: [normalize, normalize]", "each name once"),
        ("transforms: [sentencepeice]", "did you mean sentencepiece?"),
        ("transforms: [bpe]", "src_subword_model"),
        ("transforms: [bpe]\nsrc_subword_model: src.codes", "share_vocab"),
        ("tokenizer: bpe", "src_subword_model"),
        ("tokenizer: bpe\nsrc_subword_model: src.codes\ntgt: src.txt", "to read tgt"),
        ("transforms: [prefix]\ntokenizer: space", "remove one of them"),
        (WITH_BPE + "detokenizer: joiner", "detokenizer"),
        (WITH_BPE.replace("- bpe", "- bpe\n- sentencepiece"), "use one of"),
        (WITH_BPE.replace("- bpe", "- suffix\n- bpe") + "src_suffix: </s>", "after bpe"),
        ("src_onmttok_kwargs: \"__import__('os')\"", "must be a dict"),
        ('tgt_onmttok_kwargs: "[1]"', "must be a dict"),
        (WITH_ONMT.replace("aggressive", "none', 'joiner': 'x"), "joiner"),
        ("tgt_prefix: true", "tgt_file_prefix"),
        ("gold_align: true", "requires report_align"),
        ("data_type: img", "only text"),
        ("n_src_feats: 1", "word features"),
        ("models: x.pt", "use model instead"),
        ("src_vocab_threshold: -1", "at least 0"),
    ],
)
def test_invalid_transform_options_are_rejected(run, yaml, words):
    code, out, err = run(NEEDED + yaml)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and words in err


def test_prefix_outside_vocabulary_is_rejected(run):
    text = f"model: {SMALL}\nsrc: src.txt\ntransforms: [prefix]\nsrc_prefix: cat\n"
    code, out, err = run(text)
    assert (code, out) == (2, "")
    why = "'cat' is not in the model's vocabulary; use another token"
    assert err == f"onmt_lite: error: src_prefix: {why}\n"


BAD_FILES = dict(missing=None, empty=b"", garbage=bytes(range(256)), text=b"hello world model\n")
BAD_FILES["cut"] = (HERE / "src.model").read_bytes()[:-40]


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_subword_file_of_wrong_format_is_rejected(tmp_path, run, kind, name):
    """One line that names the file, before the model is read."""
    if BAD_FILES[name] is not None:
        (tmp_path / "bad").write_bytes(BAD_FILES[name])
    code, out, err = run(f"{NEEDED}transforms: [{kind}]\nsrc_subword_model: bad\nshare_vocab: true")
    assert (code, out) == (4, "")
    assert err.count("\n") == 1 and "bad" in err


def test_subword_file_missing_or_too_large_is_rejected(tmp_path, monkeypatch):
    for path in (".", "/dev/zero", "x" * 400):
        for read in (read_bpe_codes, read_sentencepiece):
            with pytest.raises(CheckpointError):
                read(path)
    monkeypatch.setattr(subwords, "MAX_BYTES", 10)
    (tmp_path / "big").write_bytes(b"a b\n" * 9)
    with pytest.raises(CheckpointError, match="larger than"):
        read_bpe_codes(str(tmp_path / "big"))


@pytest.mark.parametrize("text", ["▁the\t-3.2\n", "word\n"])
def test_subword_vocab_of_wrong_format_is_rejected(tmp_path, text):
    (tmp_path / "v").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a subword vocabulary: line 1"):
        read_sentencepiece(str(HERE / "src.model"), str(tmp_path / "v"), 1)


# -- sentencepiece -------------------------------------------------------------------------------


def test_vocab_threshold_excludes_rare_subwords():
    """`src.counts` counts every other subword once, and the remaining subwords nine times."""
    counts = [line.split("\t") for line in (HERE / "src.counts").read_text("utf-8").splitlines()]
    rare = {piece for piece, count in counts if count == "1" and len(piece) > 1}
    paths, lines = (str(HERE / "src.model"), str(HERE / "src.counts")), tiny.SENTENCES[:5]
    full, fewer = (read_sentencepiece(*paths, threshold) for threshold in (0, 2))
    assert rare & {piece for line in lines for piece in full.encode(line, out_type=str)}
    for line in lines:
        pieces = fewer.encode(line, out_type=str)
        assert not rare & set(pieces)
        assert fewer.decode(pieces) == line


@given(st.binary(max_size=60))
def test_sentencepiece_random_bytes_are_rejected(data):
    with contextlib.suppress(ValueError):
        restrict_vocabulary(data, set())


def test_vocab_threshold_without_rare_subwords_has_no_effect():
    model = (HERE / "src.model").read_bytes()
    pieces = spm.SentencePieceProcessor(model_proto=model)
    known = {pieces.id_to_piece(i) for i in range(pieces.vocab_size())}
    assert restrict_vocabulary(model, known) == model


def test_copy_attention_model_reads_prefix():
    """A prefix word in both vocabularies equals that word at the start of the line."""
    path = DATA / "m12_copyrnn_step_2.pt"
    checkpoint = load_checkpoint(path)
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    words = [w for i, w in enumerate(src.tokens) if not src.is_control(i) and i != src.unk_id]
    word = next((w for w in words if w in tgt.ids), words[0])
    line = f"{words[1]} news {words[2]}"
    plain = Translator.from_pretrained(path, device="cpu")
    options = dict(transforms=["prefix"], src_prefix=word)
    prefixed = Translator.from_pretrained(path, device="cpu", **options)
    (a,) = plain.translate([f"{word} {line}"], max_length=6)
    (b,) = prefixed.translate([line], max_length=6)
    assert word in tgt.ids
    assert (a.hyps[0].tokens, a.hyps[0].log_prob) == (b.hyps[0].tokens, b.hyps[0].log_prob)
