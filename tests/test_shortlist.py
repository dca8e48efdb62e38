"""Candidates from the tokens of a line: files, searches among them, and how they are learned."""

import gzip
import math
import random
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.shortlist import read_shortlist, write_vocabulary_map
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.fingerprint import fingerprint
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.models.linear import pack
from onmt_lite.search import narrow as narrow_module
from onmt_lite.search.presets import PRESETS, SWITCHES
from onmt_lite.shortlist import best_translations
from onmt_lite.shortlist import main as make
from onmt_lite.text.shortlist import Shortlist
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support import families, tiny

UNK, PAD, BOS, EOS = range(4)
VOCAB = Vocab(
    ["<unk>", "<pad>", "<s>", "</s>", *(f"w{i}" for i in range(4, tiny.VOCAB_SIZE))],
    unk_id=UNK,
    pad_id=PAD,
    bos_id=BOS,
    eos_id=EOS,
)
ALWAYS = {4, 5}
FAMILIES = {
    "transformer": partial(tiny.make_model, seed=3),
    "rnn": families.make_rnn,
    "fconv": partial(families.make_fconv, **families.FCONVS["plain"]),
    "cnn": families.make_cnn,
    "ensemble": lambda: Ensemble([tiny.make_model(seed=3), families.make_cnn()], [2.0, 1.0]),
}
OPTIONS = {
    "beam_size": 4,
    "n_best": 3,
    "max_length": 12,
    "min_length": 2,
    "block_ngram_repeat": 2,
    "ban_unk_token": True,
    "repetition_penalty": 1.2,
}


def some_lines(n, seed=1):
    dice = random.Random(seed)
    return [" ".join(f"w{dice.randrange(4, 40)}" for _ in range(1 + i % 7)) for i in range(n)]


def made_up():
    """Three target tokens for most source tokens, and some for pairs of them."""
    dice = random.Random(2)
    targets = {(i,): dice.sample(range(4, 40), 3) for i in range(4, 36)}
    targets |= {(i, i + 1): dice.sample(range(4, 40), 2) for i in range(4, 38)}
    return targets


TARGETS = made_up()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("shortlist") / "vmap.txt"
    by_name = {tuple(VOCAB.tokens[i] for i in key): value for key, value in TARGETS.items()}
    by_name[()] = sorted(ALWAYS)
    lines = [f"{' '.join(k)}\t{' '.join(VOCAB.tokens[i] for i in v)}\n" for k, v in by_name.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def by_hand(src, prefix=()):
    """What a line of source ids may say."""
    found = {UNK, BOS, EOS, *ALWAYS, *prefix}
    for i in range(len(src)):
        for n in (1, 2):
            found.update(TARGETS.get(tuple(src[i : i + n]), ()))
    return found


class Barring:
    """A model that gives no probability to tokens that are not allowed, for one line alone."""

    def __init__(self, model, allowed):
        self.model, self.barred = model, [i for i in range(len(VOCAB)) if i not in allowed]

    def __getattr__(self, name):
        return getattr(self.model, name)

    def step(self, tokens, state):
        logits, attn = self.model.step(tokens, state)
        return self._bar(logits), attn

    def prefill(self, tokens, lengths, state, first, at_once):
        attn, parts = self.model.prefill(tokens, lengths, state, first, at_once)
        return attn, map(self._bar, parts)

    def _bar(self, logits):
        logits[..., self.barred] = -math.inf
        return logits


def barred(model, allowed):
    if isinstance(model, Ensemble):
        return Ensemble([Barring(m, allowed) for m in model.members], model.weights)
    return Barring(model, allowed)


def translator_of(family="transformer", **options):
    checkpoint = Checkpoint(
        FAMILIES[family](),
        VOCAB,
        VOCAB,
        {"space": SpaceTokenizer()},
        start_id=BOS,
        never_ids=(BOS, PAD),
        sums_to_one=family != "ensemble",
    )
    return Translator(checkpoint, TranslateOptions.of(device="cpu", **options))


def seen(found):
    return [
        [(h.tokens, h.ended, len(h.token_log_probs)) for h in translation.hyps]
        for translation in found
    ]


def numbers(found):
    return [x for t in found for h in t.hyps for x in (h.score, h.log_prob, *h.token_log_probs)]


def assert_alike(found, others, abs=1e-5):
    assert seen(found) == seen(others)
    assert numbers(found) == pytest.approx(numbers(others), abs=abs)


def expected_of(translator, lines, prefixes=None, **options):
    """The full search line by line, with a model that cannot say what is not allowed."""
    model, found = translator.model, []
    for i, line in enumerate(lines):
        prefix = VOCAB.encode(prefixes[i].split()) if prefixes else ()
        translator.searched = barred(model, by_hand(VOCAB.encode(line.split()), prefix))
        found += translator.translate([line], prefixes and [prefixes[i]], **options)
    translator.searched = model
    return found


class TestSearch:
    """Results are those of the whole output layer with the other tokens barred."""

    @pytest.mark.parametrize("multiple", [1, 128])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_of_every_family(self, path, family, multiple, monkeypatch):
        monkeypatch.setattr(narrow_module, "MULTIPLE", multiple)
        lines, options = some_lines(20), dict(beam_size=4, n_best=4, max_length=9)
        found = translator_of(family, shortlist=str(path)).translate(lines, **options)
        assert_alike(found, expected_of(translator_of(family), lines, **options))
        for line, translation in zip(lines, found):
            said = {token for hyp in translation.hyps for token in hyp.tokens}
            assert VOCAB.encode(sorted(said)) and set(VOCAB.encode(sorted(said))) <= by_hand(
                VOCAB.encode(line.split())
            )

    @pytest.mark.parametrize("search", PRESETS)
    def test_with_options(self, path, search):
        lines = some_lines(12)
        lacking = set(SWITCHES).difference(PRESETS[search].options)
        options = {name: value for name, value in OPTIONS.items() if name not in lacking}
        options |= dict(search=search, batch_type="sents")
        options["batch_size"] = 1 if search == "opennmt-2018" else 5  # whose batches are coupled
        found = translator_of(shortlist=str(path)).translate(lines, **options)
        assert_alike(found, expected_of(translator_of(), lines, **options))

    @pytest.mark.parametrize("search", ["opennmt", "opennmt-3", "fairseq"])
    def test_a_prefix_need_not_be_among_the_candidates(self, path, search):
        lines, prefixes = some_lines(9), ["w30 w31", "", "w39"] * 3
        options = dict(search=search, beam_size=3, n_best=2, max_length=8)
        found = translator_of(shortlist=str(path)).translate(lines, prefixes, **options)
        assert_alike(found, expected_of(translator_of(), lines, prefixes, **options))
        assert all(t.text.startswith(p) for t, p in zip(found, prefixes))

    def test_banned_words_in_a_beam_wider_than_the_candidates(self, path):
        """Places of the beam that none has taken name columns beyond the shortlist."""
        lines = some_lines(12)
        options = dict(beam_size=40, n_best=3, max_length=4, ban_words="w9\tw20")
        found = translator_of(shortlist=str(path)).translate(lines, **options)
        assert_alike(found, expected_of(translator_of(), lines, **options))

    def test_coverage_attention_and_unknown_tokens(self, path):
        lines = some_lines(12)
        options = dict(coverage_penalty="wu", beta=0.3, beam_size=4, n_best=4, max_length=9)
        found = translator_of(replace_unk=True, shortlist=str(path)).translate(lines, **options)
        assert_alike(found, expected_of(translator_of(replace_unk=True), lines, **options))

    @pytest.mark.parametrize("kind", ["packed", "int8"])
    def test_of_kernels(self, path, kind):
        """The rows have the kernel of the whole layer, with the same scales."""
        lines, few, all_ = some_lines(12), translator_of(shortlist=str(path)), translator_of()
        for translator in (few, all_):
            pack(translator.model, kind)
        ids = torch.tensor([3, 30, 17])
        assert few.model.output.rows(ids).kind == kind
        options = dict(beam_size=4, n_best=4, max_length=9)
        assert_alike(few.translate(lines, **options), expected_of(all_, lines, **options))

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_of_other_numbers(self, path, precision):
        translator = translator_of(shortlist=str(path), precision=precision)
        for line, found in zip(lines := some_lines(9), translator.translate(lines)):
            assert set(VOCAB.encode(found.hyps[0].tokens)) <= by_hand(VOCAB.encode(line.split()))

    def test_a_line_that_fails_is_tried_again_among_its_candidates(self, path, monkeypatch):
        lines, whole = some_lines(6), translator_of(shortlist=str(path))
        expected = whole.translate(lines)
        broken = translator_of(shortlist=str(path))
        broken.exact_model = whole.model
        broken.searched = FAMILIES["transformer"]()
        broken.searched.dec_norm.weight.data.fill_(math.nan)
        assert_alike(broken.translate(lines), expected)

    def test_scores_of_references_are_of_all_tokens(self, path):
        lines, targets = some_lines(6), some_lines(6, seed=5)
        few, all_ = translator_of(shortlist=str(path)), translator_of()
        assert few.score(lines, targets) == all_.score(lines, targets)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_line_is_alone(path, family):
    """Whatever the others of its batch may say."""
    translator, lines = translator_of(family, shortlist=str(path)), some_lines(70)
    options = dict(beam_size=3, n_best=3, max_length=9, batch_type="sents")
    alone = translator.translate(lines, batch_size=1, **options)
    order = random.Random(1).sample(range(len(lines)), len(lines))
    for size in (7, 64):
        found = translator.translate([lines[i] for i in order], batch_size=size, **options)
        assert_alike(found, [alone[i] for i in order])


def test_only_the_rows_that_are_needed_are_multiplied(path, monkeypatch):
    """The candidates of the lines that run, not those of all lines."""
    from onmt_lite.models.narrow import NarrowHead

    monkeypatch.setattr(narrow_module, "MULTIPLE", 1)
    widths, forward = [], NarrowHead.forward
    monkeypatch.setattr(
        NarrowHead,
        "forward",
        lambda self, *args: (widths.append(self.rows.out_features), forward(self, *args))[1],
    )
    lines = ["w4 w8", "w9", "w12 w13 w14"]
    translator_of(shortlist=str(path)).translate(lines, batch_type="sents", batch_size=1)
    sizes = {len(by_hand(VOCAB.encode(line.split()))) for line in lines}
    assert set(widths) == sizes


@given(st.data())
def test_candidates(data):
    """By sets: n-grams of any length, lists that are empty, lines that have none."""
    tokens = st.integers(0, 5)
    targets = data.draw(
        st.dictionaries(
            st.lists(tokens, max_size=3).map(tuple), st.lists(st.integers(0, 9), max_size=4)
        )
    )
    lines = data.draw(st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=4))
    pairs = Shortlist(targets, 10).candidates(lines)
    found = [set(pairs[1][pairs[0] == i].tolist()) for i in range(len(lines))]
    for line, own in zip(lines, found):
        ngrams = {tuple(line[i:j]) for i in range(len(line)) for j in range(i, len(line) + 1)}
        assert own == {i for ngram in ngrams | {()} for i in targets.get(ngram, ())}


SRC = Vocab(["<unk>", "</s>", "das", "Haus", "a"], unk_id=0, eos_id=1)
TGT = Vocab(["<unk>", "</s>", "<s>", "the", "house", "a"], unk_id=0, eos_id=1, bos_id=2)


def candidates_of(shortlist, tokens):
    _, found = shortlist.candidates([[SRC.ids[token] for token in tokens.split()]])
    return {TGT.tokens[i] for i in found.tolist()}


class TestFiles:
    def write(self, tmp_path, data):
        path = tmp_path / "list"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)

    @pytest.mark.parametrize("packed", [bytes, gzip.compress])
    def test_a_vocabulary_map(self, tmp_path, packed):
        """The last line of an n-gram counts; what the model does not know is passed over."""
        text = "\ta\ndas\ta\nHaus\thouse home\ndas Haus\tthe\nfremd\thouse\na\t\ndas\t\r\n"
        path = self.write(tmp_path, packed(text.encode()))
        shortlist = read_shortlist(path, SRC, TGT)
        always = {"<unk>", "<s>", "</s>", "a"}
        assert candidates_of(shortlist, "das") == always
        assert candidates_of(shortlist, "Haus") == always | {"house"}
        assert candidates_of(shortlist, "a das Haus") == always | {"house", "the"}
        assert candidates_of(shortlist, "Haus das") == always | {"house"}

    def test_a_lexical_shortlist_of_marian(self, tmp_path):
        """FIRST tokens of the vocabulary; of each token the BEST, above 0, the greater id first."""
        names = [f"t{i}" for i in range(300)]
        tgt = Vocab(["</s>", "<unk>", *names], unk_id=1, eos_id=0)
        lines = [f"t{i} das {i / 1000:.3f}\n" for i in range(299)] + ["t299 Haus 0\n"]
        lines += ["NULL das 0.9\n", "t5 NULL 0.9\n", "t299 Haus 1e-3\n", "t299 fremd 0.5\n"]
        shortlist = read_shortlist(self.write(tmp_path, "".join(lines)), SRC, tgt)
        _, found = shortlist.candidates([[SRC.ids["das"]], [SRC.ids["Haus"]], [SRC.ids["a"]]])
        numbers, _ = shortlist.candidates([[SRC.ids["das"]], [SRC.ids["Haus"]], [SRC.ids["a"]]])
        das, haus, a = (set(found[numbers == i].tolist()) for i in range(3))
        first = set(range(100))
        assert das == first | {tgt.ids[f"t{i}"] for i in range(199, 299)}
        assert haus == first | {tgt.ids["t299"]}
        assert a == first

    def test_marian_lets_a_shared_vocabulary_copy(self, tmp_path):
        shared = Vocab(["</s>", "<unk>", *(f"t{i}" for i in range(300))], unk_id=1, eos_id=0)
        shortlist = read_shortlist(self.write(tmp_path, "t200 t7 0.5\n"), shared, shared)
        _, found = shortlist.candidates([[shared.ids["t7"], shared.ids["t250"]]])
        assert set(found.tolist()) == {*range(100), shared.ids["t200"], shared.ids["t250"]}

    @pytest.mark.parametrize(
        "content, words",
        [
            (None, "No such file"),
            ("", "without a line"),
            ("\n \n", "without a line"),
            ("das\tthe\nHaus house\n", "line 2: not `source tokens<TAB>target tokens`"),
            ("das\tthe\nHaus\thouse\ta\n", "line 2"),
            ("the das 0.5\nhouse Haus\n", "line 2: not"),
            ("the das 0.5\nhouse Haus nan\n", "line 2: not"),
            ("the das 1.5\n", "line 1: not"),
            ("das ||| the\n", "line 1: not"),
            ("zzz\tthe\n", "source vocabulary has none of its tokens"),
            ("\tthe\n", "source vocabulary has none of its tokens"),
            ("the zzz 0.5\n", "source vocabulary has none of its tokens"),
            (b"das\t\xff\xfe\n", "not UTF-8"),
            (gzip.compress(b"das\tthe\n")[:-9], "damaged gzip"),
            (bytes.fromhex("f5173401d5481af1") + b"\0" * 50, "binary shortlist of Marian"),
        ],
    )
    def test_a_bad_one_is_refused(self, tmp_path, content, words):
        path = str(tmp_path / "missing") if content is None else self.write(tmp_path, content)
        with pytest.raises(CheckpointError) as caught:
            read_shortlist(path, SRC, TGT)
        assert words in str(caught.value) and path in str(caught.value)

    def test_what_is_written_is_read(self, tmp_path):
        """Tokens that hold what the format needs are left out."""
        path = str(tmp_path / "vmap.txt")
        write_vocabulary_map(path, {(): ["a", "b c"], ("das", "Haus"): ["house"], ("x\t",): ["a"]})
        assert open(path, encoding="utf-8").read() == "\ta\ndas Haus\thouse\n"
        shortlist = read_shortlist(path, SRC, TGT)
        assert candidates_of(shortlist, "das Haus") == {"<unk>", "</s>", "<s>", "a", "house"}


class TestCommandLine:
    def test_a_job(self, tiny_checkpoint, tmp_path, capfd):
        """Its file is part of the job's fingerprint; a damaged one is a damaged model's error."""
        src, vmap, out = tmp_path / "src", tmp_path / "vmap.txt", tmp_path / "out"
        src.write_text("der hund\ndie katze\n")
        words = ["-model", str(tiny_checkpoint), "-src", str(src), "-output", str(out), "-quiet"]
        assert translate.main(words) == 0
        before = out.read_text()
        vmap.write_text("\t▁the\n▁d\t▁\n")
        assert translate.main([*words, "-shortlist", str(vmap)]) == 0
        assert set("".join(out.read_text().split())) <= set("the⁇") and out.read_text() != before
        options = TranslateOptions.of(src=str(src), output=str(out), shortlist=str(vmap))
        assert list(fingerprint(options)["files"])[:2] == ["src", "shortlist"]
        vmap.write_text("no list\n")
        assert translate.main([*words, "-shortlist", str(vmap)]) == 4
        err = capfd.readouterr().err
        assert "line 1: not" in err and err.count("\n") == 1

    @pytest.mark.parametrize(
        "options, words",
        [
            (dict(do_sample=True), "shortlist and drawing at random exclude each other"),
            (dict(random_sampling_topk=5), "shortlist and drawing at random exclude each other"),
        ],
    )
    def test_what_does_not_go_together(self, options, words):
        with pytest.raises(OptionError, match=words):
            TranslateOptions.of(shortlist="vmap.txt", **options)

    @pytest.mark.parametrize("name", ["use_vmap", "vocab_mapping"])
    def test_names_of_others(self, name):
        with pytest.raises(OptionError, match="shortlist"):
            TranslateOptions.of(**{name: True})

    def test_models_without_an_output_layer_of_their_own(self, path):
        with pytest.raises(OptionError, match="shortlist: not for models that copy words"):
            Translator.from_pretrained("data/toy.json", shortlist=str(path))
        copying = Checkpoint(
            families.make_copying_rnn("general"),
            VOCAB,
            VOCAB,
            {"space": SpaceTokenizer()},
            start_id=BOS,
        )
        with pytest.raises(OptionError, match="shortlist: not for models that copy words"):
            Translator(copying, TranslateOptions.of(device="cpu", shortlist=str(path)))

    def test_settled_when_the_model_is_loaded(self, path):
        with pytest.raises(OptionError, match="shortlist: settled by from_pretrained"):
            translator_of().translate(["w4"], shortlist=str(path))


def model_1(pairs, rounds=3):
    """IBM model 1 as a textbook has it."""
    table = {(s, t): 1.0 for src, tgt in pairs for s in src for t in tgt}
    for _ in range(rounds):
        counts, totals = Counter(), Counter()
        for src, tgt in pairs:
            for t in tgt:
                total = sum(table[s, t] for s in src)
                for s in src:
                    counts[s, t] += table[s, t] / total
                    totals[s] += table[s, t] / total
        table = {(s, t): counts[s, t] / totals[s] for s, t in table}
    return table


class TestLearning:
    def test_translations_are_those_of_model_1(self, monkeypatch):
        """In blocks of lines, whose pairs of tokens overlap."""
        monkeypatch.setattr("onmt_lite.shortlist.LINES", 7)
        dice = random.Random(3)
        pairs = [
            ([dice.randrange(9) for _ in range(1 + i % 5)], [dice.randrange(12) for _ in range(4)])
            for i in range(30)
        ]
        table = model_1(pairs)
        best = best_translations(pairs, 12, 3)
        for s in {s for src, _ in pairs for s in src}:
            expected = sorted((p for (i, _), p in table.items() if i == s), reverse=True)[:3]
            assert [table[s, t] for t in best[s]] == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("given", [True, False])
    def test_the_program(self, tiny_checkpoint, tmp_path, given, capfd):
        """Of references, or of the model's own translations: what it says can be said again."""
        lines = [line for line in tiny.SENTENCES for _ in range(2)]
        src, tgt, out = (tmp_path / name for name in ("src", "tgt", "vmap.txt"))
        src.write_text("".join(f"{line}\n" for line in lines))
        tgt.write_text("".join(f"{line}\n" for line in reversed(lines)))
        words = ["-model", str(tiny_checkpoint), "-src", str(src), "-output", str(out)]
        assert make([*words, *(["-tgt", str(tgt)] if given else ["-first", "0"])]) == 0
        assert "wrote" in capfd.readouterr().err
        first = out.read_text(encoding="utf-8").split("\n")[0]
        assert first.startswith("\t") and (len(first) > 9) == given
        whole = Translator.from_pretrained(tiny_checkpoint, device="cpu")
        few = Translator.from_pretrained(tiny_checkpoint, device="cpu", shortlist=str(out))
        shortlist = few.checkpoint.shortlist
        for line, translation in zip(lines, whole.translate(lines)):
            ids = whole.checkpoint.src_vocab.encode(whole.tokenizer.encode(line))
            if not given:
                said = whole.checkpoint.tgt_vocab.encode(translation.hyps[0].tokens)
                assert set(said) <= set(shortlist.candidates([ids])[1].tolist())

    @pytest.mark.parametrize(
        "more, code, words",
        [
            ([], 2, "src is missing"),
            (["-src", "{src}", "-output", "{dir}/./src"], 2, "is the same file as src"),
            (["-src", "{src}", "-tgt", "{two}", "-output", "{two}"], 2, "is the same file as tgt"),
            (["-src", "{src}", "-model", "{two}", "-output", "{two}"], 2, "same file as model"),
            (["-src", "{src}", "-output", "{dir}"], 5, "it is a directory"),
            (["-src", "{no}", "-output", "{no}/x"], 5, "there is no directory"),
            (["-src", "{no}", "-output", "{out}"], 5, "cannot read"),
            (["-src", "{src}", "-tgt", "{two}", "-output", "{out}"], 3, "1 lines of src but 2"),
            (["-src", "{blank}", "-output", "{out}"], 3, "no line that can be translated"),
            (["-src", "{src}", "-output", "{no}/x"], 5, "cannot write"),
        ],
    )
    def test_errors(self, tiny_checkpoint, tmp_path, more, code, words, capfd):
        paths = {name: str(tmp_path / name) for name in ("src", "two", "blank", "no", "out")}
        paths["dir"] = str(tmp_path)
        for name, text in {"src": "der hund\n", "two": "a\nb\n", "blank": "\n\n"}.items():
            (tmp_path / name).write_text(text)
        argv = ["-model", str(tiny_checkpoint), *(word.format(**paths) for word in more)]
        assert make(argv) == code
        err = capfd.readouterr().err
        assert words in err and "Traceback" not in err
        assert not (tmp_path / "out").exists()


def test_nothing_is_left_of_it_in_the_model(path):
    """A batch narrows a copy of the output layer."""
    translator = translator_of(shortlist=str(path))
    before = {name: weight.clone() for name, weight in translator.model.state_dict().items()}
    translator.translate(some_lines(5))
    after = translator.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
