"""`-replace_unk`: words of the source in the place of unknown ones."""

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
from tests.unit.inference.test_report_align import by_hand

UNK = 1
LINE = "w x y z"


def make_translator(source, phrases=None, around=(0, 0), **options) -> Translator:
    """A table model whose source words are all known and whose target word 1 is the unknown one."""
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


def unless_banned(search, **options):
    """The options, and that unknown words may be said, where a search can forbid them."""
    banned = "ban_unk_token" in PRESETS[search].options
    return dict(search=search, **options) | (dict(ban_unk_token=False) if banned else {})


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=20)
@given(source=sources(vocab_sizes=[3, 4], holes=False), beam_size=st.integers(1, 3))
def test_each_is_what_the_model_attended_to(name, source, beam_size):
    """By the table itself: the largest weight after the tokens before."""
    line = " ".join(LINE.split()[: source.length])
    options = unless_banned(name, beam_size=beam_size, n_best=beam_size, max_length=6)
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
        if PRESETS[name].policy.distinct == "text":  # two that differed may be one now
            expected = [words for i, words in enumerate(expected) if words not in expected[:i]]
            found = found[: len(expected)]
        assert found == expected


def always_unknown(weights: list[float]):
    rows = {"*0": [-9.0, 9.0, -9.0], "*1": [9.0, -9.0, -9.0]}
    return make_source(rows, [9.0, -9.0, -9.0], {"*0": weights}, length=len(weights))


ALIGNED = [{}, {"report_align": True}, {"alignment_layer": 0}]  # replaced within a search, or after


def texts_of(source, line: str, max_length: int) -> list[str]:
    """Of all sequences, with the words of the line that the table attends to; best first."""
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
def test_the_best_of_all_sequences(source, n_best, unique, options):
    line = " ".join("b c b c".split()[: source.length])
    translator = make_translator(source, replace_unk=True, **options)
    unique = unique and not options
    usual = dict(n_best=n_best, n_best_unique=unique, max_length=3, max_length_ratio=0.0)
    expected = texts_of(source, line, 3)[:n_best]
    for each in translator.translate([line, f" {line}"], beam_size=100, **usual):
        assert [hyp.text for hyp in each.hyps] == expected
    (found,) = translator.translate([line], beam_size=n_best, **usual)
    texts = [hyp.text for hyp in found.hyps]
    assert len(set(texts)) == len(texts) <= n_best
    if unique:
        assert len(texts) == len(expected)


@pytest.mark.parametrize("search", PRESETS)
@pytest.mark.parametrize("options", ALIGNED, ids=["at once", "report_align", "layer"])
def test_under_every_search(search, options):
    """What becomes "b" and "b" itself are the two best sequences of four."""
    rows = {"": table_models.logits(0.0, 0.4, 0.35, 0.15, 0.1)}
    source = make_source(rows, table_models.logits(1, 0, 0, 0, 0), length=1)
    translator = make_translator(source, replace_unk=True, **options)
    given = unless_banned(search, n_best=3, beam_size=3, n_best_unique=not options)
    expected = ["b", "c", "d"]
    if options:  # no beam is widened, and texts differ under one search
        expected = ["b", "c"] if search == "opennmt" else ["b", "b", "c"]
    align = [(0, 0)] if "report_align" in options else None
    for each in translator.translate(["b", "", "b "], **given)[::2]:
        assert [hyp.text for hyp in each.hyps] == expected
        assert each.hyps[0].n_replaced == 1
        assert [hyp.align for hyp in each.hyps] == [align] * len(expected)


@pytest.mark.parametrize("options", ALIGNED[1:], ids=["report_align", "layer"])
def test_n_best_unique_with_replacement_by_heads_is_refused(options):
    with pytest.raises(OptionError, match="n_best_unique cannot be combined with replace_unk"):
        TranslateOptions.of(n_best=2, n_best_unique=True, replace_unk=True, **options)
    TranslateOptions.of(n_best=2, n_best_unique=True, replace_unk=True)


def test_attention_that_tells_of_the_token_before():
    """What a token renders is then told when the next one is made."""
    rows = {"*0": [-9.0, 9.0, -9.0], "*1": [9.0, -9.0, -9.0]}
    attention = {"*0": [0.2, 0.7, 0.1], "*1": [0.1, 0.2, 0.7]}  # of the first token, of its end
    source = make_source(rows, [9.0, -9.0, -9.0], attention, length=3)
    translator = make_translator(source, replace_unk=True)
    assert translator.translate(["w x y"])[0].text == "x"
    translator.model.aligns_late = True
    assert translator.translate(["w x y"])[0].text == "y"


def test_words_of_the_line_stand_for_unknown_ones():
    """Also of a table of phrases; not what stands around a line; scores stay as they were."""
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
def test_a_bad_phrase_table_is_refused_in_one_line(tmp_path, capfd, content, words):
    path = tmp_path / "table"
    if content is not None:
        path.write_bytes(content)
    argv = ["-model", "data/toy.json", "-replace_unk", "-phrase_table", str(path)]
    assert translate.main([*argv, "-src", "data/toy.json"]) == 4
    err = capfd.readouterr().err
    assert words in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def unsure(tmp_path_factory, tiny_pieces):
    """Directory of a model that says the unknown token often."""
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
def test_the_summary_says_how_many(unsure, tmp_path, capfd, options):
    """As many as stand in all hypotheses without it; copies of a line count too."""
    lines = [*tiny.SENTENCES[:4], "", *tiny.SENTENCES[1:3]]
    (tmp_path / "src").write_text("\n".join(lines) + "\n", "utf-8")
    argv = f"-model {unsure} -device cpu -max_length 20 -output_format jsonl".split()
    argv += ["-src", str(tmp_path / "src"), *options.split()]
    assert translate.main([*argv, "-quiet"]) == 0
    records = map(json.loads, capfd.readouterr().out.splitlines())
    n = [[hyp["tokens"].count("<unk>") for hyp in record["hyps"]] for record in records]
    assert n[1] == n[5] and sum(n[1]) > 0  # the copies
    assert translate.main([*argv, "-replace_unk"]) == 0
    out, err = capfd.readouterr()
    assert "<unk>" not in out
    (said,) = [line for line in err.splitlines() if line.startswith("replace_unk: ")]
    assert said == f"replace_unk: {sum(map(sum, n))} replaced by tokens of the source"


class TestWhichAttention:
    """Of a Transformer, whose layers and heads attend to different tokens."""

    LINES = tiny.SENTENCES[:5]

    @pytest.fixture
    def translator(self, unsure):
        return Translator.from_pretrained(unsure, device="cpu", max_length=20)

    def chosen(self, translator, weights_of) -> list[list[str]]:
        """The tokens of each line's translation, the unknown ones replaced by hand."""
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

    def test_each_follows_its_own(self, translator):
        """Alone the last layer's first head, otherwise the alignment."""
        first = self.chosen(translator, lambda *given: by_hand(*given, 1)[0])
        mean = self.chosen(translator, lambda *given: by_hand(*given, 0).mean(0))
        third = self.chosen(translator, lambda *given: by_hand(*given, 1)[:3].mean(0))
        assert first != mean != third != first
        for options, expected in [
            ({}, first),
            ({"report_align": True}, mean),
            ({"alignment_layer": 0, "alignment_heads": 0}, mean),
            ({"alignment_layer": -1, "alignment_heads": 3}, third),
            ({"alignment_layer": -1, "alignment_heads": 3, "report_align": True}, third),
        ]:
            found = replacing(translator, options).translate(self.LINES)
            assert [t.hyps[0].tokens for t in found] == expected

    def test_pairs_name_the_words(self, translator):
        """What stands for each unknown token is what -report_align pairs with it."""
        plain = translator.translate(self.LINES, report_align=True)
        found = replacing(translator, {"report_align": True}).translate(self.LINES)
        n = 0
        for before, after in zip(plain, found):
            hyp, words = after.hyps[0], before.src_tokens
            assert hyp.align == before.hyps[0].align and after.src_tokens == words
            source = {target: words[source] for source, target in hyp.align}
            for t, token in enumerate(before.hyps[0].tokens):
                assert hyp.tokens[t] == (source[t] if token == "<unk>" else token)
                n += token == "<unk>"
        assert n > 0


def replacing(translator, options) -> Translator:
    given = {"device": "cpu", "max_length": 20, "replace_unk": True, **options}
    return Translator(translator.checkpoint, TranslateOptions.of(**given))


def test_a_model_without_attention_is_not_asked_for_it():
    vocab = Vocab([f"w{i}" for i in range(VOCAB_SIZE)], unk_id=0, pad_id=1, bos_id=2, eos_id=3)
    model, tokenizers = make_rnn(attention="none"), {"space": SpaceTokenizer()}
    blind = Checkpoint(model, vocab, vocab, tokenizers, start_id=2)
    assert Translator(blind, TranslateOptions.of(device="cpu", max_length=3)).translate(["w5"])
    for name, value in (("replace_unk", True), ("coverage_penalty", "wu")):
        options = TranslateOptions.of(device="cpu", **{name: value})
        with pytest.raises(OptionError, match=f"{name}: the model has no attention"):
            Translator(blind, options).translate(["w5"])
