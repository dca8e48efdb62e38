"""The Python API: arguments, results, errors and side effects."""

import copy
import inspect
import io
import itertools
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import onmt_lite
from onmt_lite import (
    CheckpointError,
    DataError,
    Hypothesis,
    OptionError,
    TranslateOptions,
    Translation,
    Translator,
    load_checkpoint,
    load_options,
)
from onmt_lite.errors import Message
from onmt_lite.inference import runner as runner_module
from onmt_lite.jobs.job import run_job
from onmt_lite.text import lines as text_lines
from tests.end_to_end.test_translator import assert_same
from tests.support import tiny

ROOT = Path(__file__).resolve().parents[2]
LINES = [*tiny.SENTENCES, "", "a", "das rote haus der stadt"]
PREFIXES = ["the", "", "a dog", "", "the", *[""] * (len(LINES) - 5)]


class Column:
    """A minimal pandas Series."""

    def __init__(self, values):
        self.values = values

    def __iter__(self):
        return iter(self.values)


class Table(Column):
    """A minimal DataFrame, which iterates over column names."""

    columns = property(lambda self: self.values)


CALLS = {  # argument -> calls with invalid lines
    "lines": [
        lambda t, lines: t.translate(lines),
        lambda t, lines: list(t.translate_stream(lines)),
    ],
    "prefixes": [
        lambda t, lines: t.translate(["a"] * 5, prefixes=lines),
        lambda t, lines: list(t.translate_stream(["a"] * 5, prefixes=lines)),
    ],
    "src_lines": [lambda t, lines: t.score(lines, ["a"] * 5)],
    "tgt_lines": [lambda t, lines: t.score(["a"] * 5, lines)],
}
each_call = pytest.mark.parametrize(
    ("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls]
)


class TestLines:
    @pytest.mark.parametrize("kind", [tuple, iter, Column, lambda x: (y for y in x)])
    def test_lines_may_be_any_iterable(self, translator, kind):
        expected = translator.translate(LINES)
        assert translator.translate(kind(LINES)) == expected
        assert_same(list(translator.translate_stream(kind(LINES))), expected)
        assert translator.score(kind(LINES), kind(LINES)) == translator.score(LINES, LINES)

    @pytest.mark.parametrize("newline", ["\n", "\r\n"])
    def test_lines_may_be_an_open_file(self, translator, newline):
        lines = ["der hund", "", "a"]
        file = io.StringIO(newline.join(lines), newline="")
        assert translator.translate(file) == translator.translate(lines)

    @each_call
    def test_lines_of_wrong_type_are_type_errors(self, translator, name, call):
        kinds = {"one string": "der hund", "bytes": b"der hund", "NoneType": None, "int": 7}
        kinds |= {"dict": {"text": "der hund"}, "Table": Table(["text"])}
        for got, lines in kinds.items():
            if lines is None and name == "prefixes" or (name, lines) == ("lines", "der hund"):
                continue  # valid: no prefixes, or a single text
            with pytest.raises(TypeError, match=f"{name}: expected a list of lines, got {got}"):
                call(translator, lines)

    @each_call
    def test_line_of_wrong_type_is_a_type_error(self, translator, name, call):
        kinds = {"None (NoneType)": None, "NaN (float)": float("nan"), "1.5 (float)": 1.5}
        kinds |= {"7 (int)": 7, "b'der' (bytes)": b"der", "['der'] (list)": ["der"]}
        for got, value in kinds.items():
            with pytest.raises(TypeError) as caught:
                call(translator, ["a", "der", "", value, "a"])
            assert str(caught.value) == f"{name}[3]: expected a line of text, got {got}"


class TestOneText:
    """A single text is treated like a list with one text."""

    @pytest.mark.parametrize(
        ("more", "of_list"),
        [
            ({}, {}),
            (dict(n_best=2, beam_size=3), dict(n_best=2, beam_size=3)),
            (dict(prefixes="the"), dict(prefixes=["the"])),
            (dict(force_words="a\tdog", ban_words="the"), dict(force_words=["a\tdog"],
             ban_words=["the"])),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("text", ["der hund", "", "der\nhund"])
    def test_single_text_returns_one_translation(self, translator, text, more, of_list):
        assert [translator.translate(text, **more)] == translator.translate([text], **of_list)

    def test_single_text_returns_one_score(self, translator):
        assert [translator.score("der hund", "the dog")] == translator.score(
            ["der hund"], ["the dog"]
        )
        assert translator.score("", "the dog") is None
        for sides in (("der hund", ["the dog"]), (["der hund"], "the dog")):
            with pytest.raises(TypeError, match="expected a list of lines, got one string"):
                translator.score(*sides)

    def test_single_text_takes_one_prefix(self, translator):
        with pytest.raises(DataError, match="more prefixes than lines"):
            translator.translate("der hund", prefixes=["the", "a"])
        with pytest.raises(TypeError, match="prefixes"):
            translator.translate(["der hund"], prefixes="the")

    def test_option_warning_is_at_line_of_call(self, tiny_checkpoint):
        translator = Translator.from_pretrained(tiny_checkpoint, device="cpu")
        with pytest.warns(onmt_lite.OptionWarning) as caught:
            translator.translate("der hund", n_best_unique=True)
        assert caught[0].filename == __file__

    def test_line_breaks_in_text_become_spaces(self, translator, tmp_path):
        """A text in Python and a text in a file are treated alike and get a warning."""
        plain = translator.translate("der hund sieht den see")
        for char in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029":
            text = f"{char} der hund sieht{char}den see{char}"
            found = translator.translate(text)
            assert (found.text, found.notes) == (plain.text, ("line-breaks", *plain.notes))
            assert "line-breaks" not in translator.translate(f"{char}der hund{char}").notes
            (tmp_path / "src").write_text(json.dumps({"text": text}), encoding="utf-8")
            options = dict(output_format="jsonl", input_format="jsonl")
            summary = translator.translate_file(tmp_path / "src", tmp_path / "out", **options)
            assert summary.notes["line-breaks"].n_lines == 1


class TestStream:
    @pytest.fixture
    def fake(self, translator, monkeypatch):
        """Replace translation by a copy of the source and record window sizes."""
        sizes = []

        def translate_lines(lines, *args):
            sizes.append(len(lines))
            return [Translation(line.id, line.text) for line in lines]

        monkeypatch.setattr(translator.backend, "translate_lines", translate_lines)
        return sizes

    @pytest.mark.parametrize("prefixes", [None, PREFIXES])
    @pytest.mark.parametrize("options", [dict(beam_size=4, n_best=2), dict(do_sample=True)])
    def test_stream_equals_translate(self, translator, prefixes, options):
        expected = translator.translate(LINES, prefixes, **options)
        found = list(translator.translate_stream(LINES, prefixes, **options))
        assert_same(found, expected)
        assert [t.id for t in found] == list(range(len(LINES)))
        assert list(translator.translate_stream([], **options)) == []

    def test_stream_windows_grow_to_limit(self, translator, fake):
        n_read, most_waiting = 0, 0

        def lines():
            nonlocal n_read
            for i in range(5000):
                n_read += 1
                yield str(i)

        for n_given, translation in enumerate(translator.translate_stream(lines())):
            assert translation.src == str(n_given)
            most_waiting = max(most_waiting, n_read - n_given)
        assert fake == [2**i for i in range(10)] + [1024] * 3 + [5000 - 1023 - 3 * 1024]
        assert most_waiting == 1024

    def test_stream_long_lines_make_small_windows(self, translator, fake, monkeypatch):
        monkeypatch.setattr(text_lines, "MAX_WINDOW_BYTES", 100)
        assert len(list(translator.translate_stream(["x" * 40] * 30))) == 30
        assert max(fake) == 3

    def test_stream_abandoned_restores_threads(self, translator):
        before = torch.get_num_threads()
        stream = translator.translate_stream(itertools.repeat("a"), threads=before + 1)
        next(stream)
        assert torch.get_num_threads() == before
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stream.close()
        assert list(stream) == []

    def test_stream_yields_translations_before_error(self, translator):
        stream = translator.translate_stream(["a", None])
        assert next(stream).src == "a"
        with pytest.raises(TypeError, match=r"lines\[1\]"):
            next(stream)

    @pytest.mark.parametrize(
        ("n_lines", "n_prefixes", "message"),
        [(3, 2, r"more lines than prefixes \(2\)"), (2, 3, "more prefixes than lines")],
    )
    def test_stream_prefix_mismatch_is_an_error(self, translator, n_lines, n_prefixes, message):
        stream = translator.translate_stream(["a"] * n_lines, ["the"] * n_prefixes)
        with pytest.raises(DataError, match=message):
            list(stream)


class TestFile:
    @pytest.fixture
    def src(self, tmp_path):
        path = tmp_path / "src.txt"
        path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
        return path

    @pytest.fixture(autouse=True)
    def log(self):
        """Return a function that checks that the log configuration is unchanged."""
        logger = logging.getLogger("onmt_lite")
        state = logger.handlers, logger.propagate, logger.level
        yield lambda: (logger.handlers, logger.propagate, logger.level) == state
        logger.handlers, logger.propagate, logger.level = state

    @pytest.mark.parametrize(
        "options",
        [
            {},
            dict(n_best=3, beam_size=4, with_score=True),
            dict(output_format="jsonl", n_best=2),
            dict(tgt=True, tgt_file_prefix=True),
            dict(tgt=True, output_format="jsonl"),
        ],
    )
    def test_file_equals_command_line_output(
        self, translator, tiny_checkpoint, src, tmp_path, options
    ):
        if "tgt" in options:
            options["tgt"] = tmp_path / "tgt.txt"
            options["tgt"].write_text("".join(f"{line}\n" for line in PREFIXES), encoding="utf-8")
        summary = translator.translate_file(src, tmp_path / "found", **options)
        assert summary.n_lines == len(LINES)
        assert summary.notes["empty"].n_lines == LINES.count("")
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        words = [word.lower() if word in ("True", "False") else word for word in words]
        argv = ["-model", tiny_checkpoint, "-src", src, "-output", tmp_path / "expected", *words]
        run_job(load_options([*map(str, argv), "-device", "cpu", "-quiet"])[0])
        assert (tmp_path / "found").read_bytes() == (tmp_path / "expected").read_bytes()

    def test_file_error_keeps_existing_output(self, translator, src, tmp_path, capfd, log):
        src.write_bytes("der hund\n".encode("utf-16"))
        (tmp_path / "out").write_text("older\n", encoding="utf-8")
        with pytest.raises(DataError, match="UTF-16"):
            translator.translate_file(src, tmp_path / "out")
        assert (tmp_path / "out").read_text(encoding="utf-8") == "older\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "src.txt"]
        assert log() and capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("name", ["quiet", "print_model", "log_file", "device"])
    def test_file_rejects_command_line_options(self, translator, src, tmp_path, name):
        with pytest.raises(OptionError, match=f"{name}: "):
            translator.translate_file(src, tmp_path / "out", **{name: "x"})

    def test_file_uses_defaults_of_translator(self, tiny_checkpoint, src, tmp_path, capfd, log):
        options = dict(device="cpu", n_best=2, beam_size=2, verbose=True)
        translator = Translator.from_pretrained(tiny_checkpoint, **options)
        translator.translate_file(src, tmp_path / "out")
        texts = [h.text for t in translator.translate(LINES) for h in [*t.hyps, t.hyps[0]][:2]]
        assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1] == texts
        assert log() and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["translate", "translate_stream", "translate_file"])
def test_progress_counts_lines_and_tokens(translator, tmp_path, name):
    calls = []
    options = dict(progress=lambda *done: calls.append(done), batch_size=2)
    if name == "translate_file":
        (tmp_path / "src").write_text("\n".join(LINES), encoding="utf-8")
        translator.translate_file(tmp_path / "src", tmp_path / "out", **options)
    else:
        list(getattr(translator, name)(LINES, **options))
    n_tokens = sum(len(t.hyps[0].token_log_probs) for t in translator.translate(LINES))
    assert calls[-1] == (len(LINES), n_tokens)
    assert calls == sorted(set(calls))
    assert len(calls) > 3


def test_positional_arguments_of_other_tools_are_rejected(translator, tmp_path):
    for more in (("en", "de"), (None, {"beam_size": 3})):
        with pytest.raises(TypeError, match="progress: must be a function, got (str|dict)"):
            translator.translate("der hund", *more)
    with pytest.raises(TypeError, match="NoneType"):  # does not wait for standard input
        translator.translate_file(None, tmp_path / "out")


OTHER_PROCESS = (
    "ValueError: this Translator was loaded in another process; call Translator.from_pretrained() "
    "in each process"
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "options",
    [
        dict(threads=2),
        pytest.param(dict(threads=2, precision="fp32"), marks=pytest.mark.sweep),
        pytest.param(dict(threads=1), marks=pytest.mark.sweep),
        pytest.param(dict(workers=2), marks=pytest.mark.sweep),
    ],
)
def test_fork_raises_and_can_load_translator(options):
    """No call waits for torch threads that a fork does not have."""
    words = [sys.executable, "-m", "tests.support.fork_check", json.dumps(options)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = found.pop("here")
    loaded = dict.fromkeys(
        ("from_pretrained", "workers=2", "threads=2", "threads=2 in a call"), text
    )
    if "threads" in options and options["threads"] == 2:
        for name in ("threads=2", "threads=2 in a call"):
            loaded[name] = found[name]
            assert found[name].startswith("OptionError: threads=2: this process was forked after")
    elsewhere = ("translate", "translate_stream", "stream of the parent", "translate_file", "score")
    assert found == {
        **dict.fromkeys((*elsewhere, "after close", "Pool"), OTHER_PROCESS),
        "repr": found["repr"],
        "with": "left",
        "load_checkpoint": str(load_checkpoint(ROOT / "data" / "de-en").eos_id),
        **loaded,
    }
    assert found["repr"].startswith("Translator(") and text == "Good morning!"


class TestGlobalState:
    def test_random_state_of_torch_is_unchanged(self, tiny_checkpoint):
        torch.manual_seed(7)
        before = torch.get_rng_state()
        translator = Translator.from_pretrained(tiny_checkpoint, device="cpu", seed=3)
        first = translator.translate(LINES, do_sample=True)
        translator.score(LINES, LINES)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(8)
        assert translator.translate(LINES, do_sample=True) == first

    def test_threads_are_restored_after_error(self, translator, monkeypatch):
        before = torch.get_num_threads()

        def broken(*args, **more):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError("broken")

        monkeypatch.setattr(runner_module, "decode", broken)
        with pytest.raises(RuntimeError, match="broken"):
            translator.translate(["a"], threads=before + 1)
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (dict(num_beams=4), "unknown option num_beams; use beam_size instead"),
        (dict(data_type="img"), "data_type img: only text can be translated"),
        (dict(n_best=9, beam_size=4), "n_best=9 is more than beam_size=4"),
        (dict(patience=2.0), "patience: is not supported by search=opennmt"),
        (dict(nothing=1), "unknown option nothing; python -m onmt_lite -help all"),
    ],
)
def test_option_errors_have_command_line_hints(translator, tiny_checkpoint, given, hint):
    for call in (
        lambda: translator.translate(["a"], **given),
        lambda: translator.translate_stream(["a"], **given),  # before the first line
        lambda: Translator.from_pretrained(tiny_checkpoint, **given),
    ):
        with pytest.raises(OptionError, match=re.escape(hint)):
            call()
    with pytest.raises(TypeError):
        translator.translate_stream("a")


def test_translation_converts_to_str_and_dict(translator):
    blank, full = translator.translate(["", "der hund"], n_best=2)
    assert (blank.text, full.text) == ("", full.hyps[0].text)
    assert Translation(0, "a").text == str(Translation(0, "a")) == ""
    assert (str(blank), f"{full}") == ("", full.text)
    assert list(map(str, full.hyps)) == [hyp.text for hyp in full.hyps]
    record = json.loads(json.dumps(full.to_dict()))
    assert record["src"] == "der hund"
    assert [h["text"] for h in record["hyps"]] == [h.text for h in full.hyps]
    assert Hypothesis(**record["hyps"][0]) == full.hyps[0]
    assert repr(full.hyps[0]).startswith("Hypothesis(text=")
    assert "token" not in repr(full.hyps[0])


class TestMessageStyle:
    """Options in messages in Python style."""

    @pytest.mark.parametrize(
        ("template", "options", "words", "keywords"),
        [
            (
                "give -{gpu} for the CPU",
                dict(gpu=-1),
                "give -gpu -1 for the CPU",
                "give gpu=-1 for the CPU",
            ),
            ("-{search} has", dict(search="fairseq"), "-search fairseq has", "search=fairseq has"),
            (
                "{quiet}, {alpha}",
                dict(quiet=True, alpha=0.5),
                "quiet true, alpha 0.5",
                "quiet=True, alpha=0.5",
            ),
            ("; -{model} takes", dict(model=""), "; -model takes", "; model= takes"),
            ("{0} and {1}", {}, "{x} and beam_size 5", "{x} and beam_size=5"),
        ],
    )
    def test_message_formats_options_for_both_styles(self, template, options, words, keywords):
        message = Message.of(template, "{x}", Message.of("{beam_size}", beam_size=5), **options)
        assert (message, message.keywords) == (words, keywords)
        assert pickle.loads(pickle.dumps(message)).keywords == keywords

    def test_model_error_uses_keyword_style(self):
        with pytest.raises(CheckpointError, match=r"no model at nothing: .*; model= takes a model"):
            Translator.from_pretrained("nothing")

    def test_option_warning_uses_keyword_style(self, tiny_checkpoint):
        translator = Translator.from_pretrained(tiny_checkpoint, device="cpu")
        with pytest.warns(onmt_lite.OptionWarning, match="requires n_best=2 or more"):
            translator.translate("a", n_best_unique=True)


class TestTranslatorObject:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_repr_and_rejects_copying(self, tiny_checkpoint, workers):
        options = dict(device="cpu", precision="bf16", workers=workers)
        with Translator.from_pretrained(tiny_checkpoint, **options) as translator:
            many = ", workers=2" * (workers == 2)
            assert repr(translator) == f"Translator({str(tiny_checkpoint)!r}, cpu, bf16{many})"
            for take in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(
                    TypeError, match=r"Translator\.from_pretrained\(\) in the other"
                ):
                    take(translator)
            assert translator.translate("der hund").text

    def test_call_suggests_translate(self, translator):
        with pytest.raises(TypeError, match=r"not callable; use translator\.translate\(\.\.\.\)"):
            translator("der hund")

    @pytest.mark.parametrize(
        "given",
        [(), ("data/de-en",), ("data/de-en", TranslateOptions.of()), (None, {"beam_size": 3})],
    )
    def test_constructor_without_checkpoint_suggests_from_pretrained(self, given):
        with pytest.raises(TypeError, match=r"call Translator\.from_pretrained\(\)"):
            Translator(*given)

    def test_repr_of_shipped_and_loaded_model(self, translator):
        assert repr(Translator.from_pretrained(precision="fp32", device="cpu")) == (
            "Translator('de-en', cpu, fp32)"
        )
        other = Translator(translator.checkpoint, translator.options)
        assert repr(other) == "Translator('Transformer', cpu, fp32)"


def list_documented(name):
    """Yield a function or class and its public methods: name, docstring sources and callable."""
    thing = getattr(onmt_lite, name)
    members = vars(thing) if isinstance(thing, type) else {}
    init = members.get("__init__") if members else thing
    methods = {n: getattr(m, "__func__", m) for n, m in members.items() if not n.startswith("_")}
    yield name, [thing, init] if members else [thing], init
    yield from ((f"{name}.{n}", [m], m) for n, m in methods.items() if inspect.isfunction(m))


class TestPublicNames:
    def test_all_names_exist(self):
        for name in onmt_lite.__all__:
            assert getattr(onmt_lite, name) is not None
        assert set(onmt_lite.__all__) <= set(dir(onmt_lite))

    @pytest.mark.parametrize("name", sorted({*onmt_lite.__all__} - {"__version__"}))
    def test_docstrings_describe_all_parameters(self, name):
        """Args: or Attributes: list every parameter."""
        for place, sources, call in list_documented(name):
            doc = "\n".join(inspect.getdoc(source) or "" for source in sources) + "\n"
            listed = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n|\n)*)", doc, re.M)
            assert doc.strip(), place
            for parameter in inspect.signature(call).parameters if call else ():
                if parameter != "self" and parameter != "cls":
                    assert re.search(rf"^    {parameter}: \S", "".join(listed), re.M), place

    def test_loading_causes_no_warnings(self):
        """torch warns if numpy is missing; -W error turns warnings into errors."""
        code = "import sys; sys.modules['numpy'] = None; from onmt_lite import Translator"
        code += f"; Translator.from_pretrained({str(ROOT / 'data' / 'toy.json')!r})"
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_src_keeps_line_without_line_feed(translator):
    (found,) = translator.translate(["  der\nhund \n"])
    assert found.src == "  der\nhund "
