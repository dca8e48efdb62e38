"""-replace_unk: unknown tokens are replaced by source words."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OptionError
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support import table_models, tiny
from tests.support.random_models import VOCAB_SIZE, make_rnn
from tests.support.sweeps import mark_sweep
from tests.support.table_models import (
    WORDS,
    Settings,
    brute_force,
    make_checkpoint,
    make_source,
    sources,
)
from tests.unit.inference.test_report_align import compute_attention

UNK = 1
LINE = "w x y z"


def make_translator(source, phrases=None, around=(0, 0), **options) -> Translator:
    """Make a table model with known source words; target token 1 is the unknown token."""
    checkpoint = make_checkpoint([source])
    vocab_size = len(source.default)
    tokens = ["$", "<unk>", *WORDS[2:vocab_size]]
    before, after = around
    checkpoint = dataclasses.replace(
        checkpoint,
        src_vocab=Vocab(["s0"], unk_id=0),
        tgt_vocab=Vocab(tokens, eos_id=0, unk_id=UNK),
        src_start=(0,) * before,
        src_end=(0,) * after,
    )
    parsed = TranslateOptions.of(device="cpu", **options)
    return Translator(checkpoint, parsed, phrases=phrases)


def allow_unk(search, **options):
    """Return the options, and allow unknown tokens if the search can ban them."""
    banned = "ban_unk_token" in PRESETS[search].options
    return dict(search=search, **options) | (dict(ban_unk_token=False) if banned else {})


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=20)
@given(source=sources(vocab_sizes=[3, 4], holes=False), beam_size=st.integers(1, 3))
def test_replace_unk_uses_source_with_largest_weight(name, source, beam_size):
    """By the table: the largest weight after the previous tokens."""
    line = " ".join(LINE.split()[: source.length])
    options = allow_unk(name, beam_size=beam_size, n_best=beam_size, max_length=6)
    plain = make_translator(source).translate([line, line + " "], **options)
    replaced = make_translator(source, replace_unk=True).translate([line, line + " "], **options)
    vocab = ["$", "<unk>", *WORDS[2:]]
    for before, after in zip(plain, replaced):
        expected = []
        for hyp in before.hyps:
            ids = [vocab.index(token) for token in hyp.tokens]
            words = []
            for t, token in enumerate(hyp.tokens):
                weights = source.attention(tuple(ids[:t]))
                own = line.split()[weights.index(max(weights))]
                words.append(own if token == "<unk>" else token)
            expected.append(words)
        found = [hyp.tokens for hyp in after.hyps]
        if PRESETS[name].policy.distinct == "text":  # different texts may be equal now
            expected = [words for i, words in enumerate(expected) if words not in expected[:i]]
            found = found[: len(expected)]
        assert found == expected


def always_unknown(weights: list[float]):
    rows = {"*0": [-9.0, 9.0, -9.0], "*1": [9.0, -9.0, -9.0]}
    return make_source(rows, [9.0, -9.0, -9.0], {"*0": weights}, length=len(weights))


# Replaced during the search, or after it
ALIGNED = [
    {},
    {"report_align": True},
    {"alignment_layer": 0},
]


def expected_texts(source, line: str, max_length: int) -> list[str]:
    """Return the texts of all sequences, with the attended words of the line, best first."""
    vocab, words, found = ["$", "<unk>", *WORDS[2:]], line.split(), []
    for hyp in brute_force(source, Settings(1, max_length)):
        weights = [source.attention(hyp.tokens[:t]) for t in range(len(hyp.tokens))]
        own = [words[w.index(max(w))] for w in weights]
        pairs = zip(hyp.tokens[: -1 if hyp.ended else None], own)
        found.append(" ".join(word if i == UNK else vocab[i] for i, word in pairs))
    return list(dict.fromkeys(found))


@settings(max_examples=12)
@given(
    source=sources(vocab_sizes=[3, 4], holes=False),
    n_best=st.integers(2, 8),
    unique=st.booleans(),
)
@pytest.mark.parametrize("options", ALIGNED, ids=["at once", "report_align", "layer"])
def test_replace_unk_finds_best_of_all_sequences(source, n_best, unique, options):
    line = " ".join("b c b c".split()[: source.length])
    translator = make_translator(source, replace_unk=True, **options)
    unique = unique and not options
    usual = dict(n_best=n_best, n_best_unique=unique, max_length=3, max_length_ratio=0.0)
    expected = expected_texts(source, line, 3)[:n_best]
    for each in translator.translate([line, f" {line}"], beam_size=100, **usual):
        assert [hyp.text for hyp in each.hyps] == expected
    (found,) = translator.translate([line], beam_size=n_best, **usual)
    texts = [hyp.text for hyp in found.hyps]
    assert len(set(texts)) == len(texts) <= n_best
    if unique:
        assert len(texts) == len(expected)


@pytest.mark.parametrize("search", PRESETS)
@pytest.mark.parametrize("options", ALIGNED, ids=["at once", "report_align", "layer"])
def test_replace_unk_with_every_search(search, options):
    """An unknown token replaced by "b" and "b" itself are the two best sequences of four."""
    rows = {"": table_models.logits(0.0, 0.4, 0.35, 0.15, 0.1)}
    source = make_source(rows, table_models.logits(1, 0, 0, 0, 0), length=1)
    translator = make_translator(source, replace_unk=True, **options)
    given = allow_unk(search, n_best=3, beam_size=3, n_best_unique=not options)
    expected = ["b", "c", "d"]
    if options:  # no beam is widened; only one search deduplicates texts
        expected = ["b", "c"] if search == "opennmt" else ["b", "b", "c"]
    align = [(0, 0)] if "report_align" in options else None
    for each in translator.translate(["b", "", "b "], **given)[::2]:
        assert [hyp.text for hyp in each.hyps] == expected
        assert each.hyps[0].n_replaced == 1
        assert [hyp.align for hyp in each.hyps] == [align] * len(expected)


@pytest.mark.parametrize("options", ALIGNED[1:], ids=["report_align", "layer"])
def test_replace_unk_with_n_best_unique_and_heads_is_rejected(options):
    with pytest.raises(OptionError, match="n_best_unique cannot be combined with replace_unk"):
        TranslateOptions.of(n_best=2, n_best_unique=True, replace_unk=True, **options)
    TranslateOptions.of(n_best=2, n_best_unique=True, replace_unk=True)


def test_replace_unk_with_late_attention():
    """The alignment of a token is known when the next token is generated."""
    rows = {"*0": [-9.0, 9.0, -9.0], "*1": [9.0, -9.0, -9.0]}
    attention = {"*0": [0.2, 0.7, 0.1], "*1": [0.1, 0.2, 0.7]}  # first token, end token
    source = make_source(rows, [9.0, -9.0, -9.0], attention, length=3)
    translator = make_translator(source, replace_unk=True)
    assert translator.translate(["w x y"])[0].text == "x"
    translator.model.aligns_late = True
    assert translator.translate(["w x y"])[0].text == "y"


def test_replace_unk_with_words_of_line_and_phrase_table():
    """Special tokens around a line are not used, and scores do not change."""
    attention = always_unknown([0.2, 0.5, 0.3])
    translator = make_translator(attention, {"haus": "house"}, replace_unk=True)
    found = translator.translate(["das haus da", "das x da"])
    assert [t.text for t in found] == ["house", "x"]
    (plain,) = make_translator(attention).translate(["das x da"])
    assert plain.text == "<unk>"
    assert plain.hyps[0].token_log_probs == found[1].hyps[0].token_log_probs
    around = always_unknown([0.4, 0.1, 0.2, 0.3])
    (found,) = make_translator(around, around=(1, 1), replace_unk=True).translate(["x y"])
    assert found.text == "y"


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "the file does not exist; phrase_table must be a file of `source|||target` lines"),
        (b"haus house\n", "line 1: not a `source|||target` line"),
        (b"haus|||house\n|||x\n", "line 2"),
        (b"a|||b|||c\n", "line 1"),
        (b"\xff\xfe|||x", "UTF-8"),
    ],
)
def test_phrase_table_of_wrong_format_is_rejected(tmp_path, capfd, content, words):
    path = tmp_path / "table"
    if content is not None:
        path.write_bytes(content)
    argv = ["-model", "data/toy.json", "-replace_unk", "-phrase_table", str(path)]
    assert translate.main([*argv, "-src", "data/toy.json"]) == 4
    err = capfd.readouterr().err
    assert words in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def unsure(tmp_path_factory, tiny_pieces):
    """Directory of a model that often generates the unknown token."""
    model = tiny.make_model(seed=3, tie_output=False)
    model.output.weight.mul_(2)
    model.output.bias[tiny.EOS] += 1.5
    model.output.bias[tiny.UNK] += 4
    path = tmp_path_factory.mktemp("unsure")
    native.save(path, model, tiny_pieces)
    return path


@pytest.mark.parametrize(
    "options",
    ["", "-n_best 3 -search fairseq", "-report_align", mark_sweep("-workers 2 -bucket_lines 2")],
)
def test_summary_counts_replaced_tokens(unsure, tmp_path, capfd, options):
    """As many as in all hypotheses without the option, including duplicate lines."""
    lines = [*tiny.SENTENCES[:4], "", *tiny.SENTENCES[1:3]]
    (tmp_path / "src").write_text("\n".join(lines) + "\n", "utf-8")
    argv = f"-model {unsure} -device cpu -max_length 20 -output_format jsonl".split()
    argv += ["-src", str(tmp_path / "src"), *options.split()]
    assert translate.main([*argv, "-quiet"]) == 0
    records = map(json.loads, capfd.readouterr().out.splitlines())
    n = [[hyp["tokens"].count("<unk>") for hyp in record["hyps"]] for record in records]
    assert n[1] == n[5] and sum(n[1]) > 0  # the duplicates
    assert translate.main([*argv, "-replace_unk"]) == 0
    out, err = capfd.readouterr()
    assert "<unk>" not in out
    (said,) = [line for line in err.splitlines() if line.startswith("replace_unk: ")]
    assert said == f"replace_unk: {sum(map(sum, n))} replaced by tokens of the source"


class TestReplaceUnkAttention:
    """A Transformer whose layers and heads attend to different tokens."""

    LINES = tiny.SENTENCES[:5]

    @pytest.fixture
    def translator(self, unsure):
        return Translator.from_pretrained(unsure, device="cpu", max_length=20)

    def replace_by_weights(self, translator, weights_of) -> list[list[str]]:
        """Return the tokens of each translation, with unknown tokens replaced by the test."""
        found = []
        checkpoint = translator.checkpoint
        for line, plain in zip(self.LINES, translator.translate(self.LINES)):
            words, hyp = checkpoint.tokenizers["sentencepiece"].encode(line), plain.hyps[0]
            src = [checkpoint.src_vocab.ids[word] for word in words]
            read = [checkpoint.start_id, *hyp.ids[:-1]]
            weights = weights_of(translator.model, [*src, *checkpoint.src_end], read)
            own = [words[i] for i in weights[:, : len(words)].argmax(1).tolist()]
            found.append([w if t == "<unk>" else t for t, w in zip(hyp.tokens, own)])
        return found

    def test_replace_unk_follows_selected_attention(self, translator):
        """By default, the first head of the last layer; with options, the alignment heads."""
        first = self.replace_by_weights(translator, lambda *given: compute_attention(*given, 1)[0])
        mean = self.replace_by_weights(
            translator, lambda *given: compute_attention(*given, 0).mean(0)
        )
        third = self.replace_by_weights(
            translator, lambda *given: compute_attention(*given, 1)[:3].mean(0)
        )
        assert first != mean != third != first
        for options, expected in [
            ({}, first),
            ({"report_align": True}, mean),
            ({"alignment_layer": 0, "alignment_heads": 0}, mean),
            ({"alignment_layer": -1, "alignment_heads": 3}, third),
            ({"alignment_layer": -1, "alignment_heads": 3, "report_align": True}, third),
        ]:
            found = make_replacing(translator, options).translate(self.LINES)
            assert [t.hyps[0].tokens for t in found] == expected

    def test_replace_unk_agrees_with_report_align(self, translator):
        """Each unknown token is replaced by the word that -report_align pairs with it."""
        plain = translator.translate(self.LINES, report_align=True)
        found = make_replacing(translator, {"report_align": True}).translate(self.LINES)
        n = 0
        for before, after in zip(plain, found):
            hyp, words = after.hyps[0], before.src_tokens
            assert hyp.align == before.hyps[0].align and after.src_tokens == words
            source = {target: words[source] for source, target in hyp.align}
            for t, token in enumerate(before.hyps[0].tokens):
                assert hyp.tokens[t] == (source[t] if token == "<unk>" else token)
                n += token == "<unk>"
        assert n > 0


def make_replacing(translator, options) -> Translator:
    given = {"device": "cpu", "max_length": 20, "replace_unk": True, **options}
    return Translator(translator.checkpoint, TranslateOptions.of(**given))


def test_replace_unk_without_attention_is_rejected():
    vocab = Vocab([f"w{i}" for i in range(VOCAB_SIZE)], unk_id=0, pad_id=1, bos_id=2, eos_id=3)
    model, tokenizers = make_rnn(attention="none"), {"space": SpaceTokenizer()}
    blind = Checkpoint(model, vocab, vocab, tokenizers, start_id=2)
    assert Translator(blind, TranslateOptions.of(device="cpu", max_length=3)).translate(["w5"])
    for name, value in (("replace_unk", True), ("coverage_penalty", "wu")):
        options = TranslateOptions.of(device="cpu", **{name: value})
        with pytest.raises(OptionError, match=f"{name}: the model has no attention"):
            Translator(blind, options).translate(["w5"])
