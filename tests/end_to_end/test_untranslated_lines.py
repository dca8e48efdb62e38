"""Exit code 7: a complete output with some empty lines."""

import json
import signal

import pytest

from onmt_lite import Translator
from onmt_lite.jobs.store import Store
from onmt_lite.system.terminal import Interrupted

NAN = [float("nan")] * 2


@pytest.fixture
def nan_table(tmp_path):
    """`bad` gives NaN at its second token, and `a` is always `x`."""
    rows = {"": [-9.0, 9.0]}
    sources = {"a": {"length": 1, "rows": rows, "default": [9.0, 0.0]}}
    sources["bad"] = {"length": 1, "rows": rows, "default": NAN}
    model = {"format": "onmt_lite-table-1", "vocab": ["</s>", "x"], "sources": sources}
    path = tmp_path / "nan.json"
    path.write_text(json.dumps(model), "ascii")
    return path


def test_untranslated_lines_output_is_complete(main, nan_table, tmp_path):
    lines = ["a", "bad", "", "bad"] + ["a", "bad"] * 4
    (tmp_path / "src").write_text("\n".join(lines) + "\n", "utf-8")
    options = ("-model", nan_table, "-src", "src", "-output", "out")
    done = main(*options, "-quiet")
    assert (done.code, done.out) == (7, b"")
    assert done.err == (
        "onmt_lite: error: 6 lines could not be translated (2, 4, 6, 8, 10 and 1 more); "
        "they are empty in the output, which is complete\n"
    )
    found = (tmp_path / "out").read_text("utf-8").split("\n")
    assert found == [{"a": "x"}.get(line, "") for line in lines] + [""]
    assert not (tmp_path / "out.parts").exists()
    logged = main(*options).err
    assert "lines 2, 4, 6, 8, 10 and 1 more: the model computed NaN or infinity" in logged
    done = main(*options, "-output_format", "jsonl", "-bucket_lines", "5")
    records = list(map(json.loads, (tmp_path / "out").read_text("utf-8").splitlines()))
    assert [r["id"] for r in records if "not-a-number" in r["notes"]] == [1, 3, 5, 7, 9, 11]
    assert (
        done.code == 7 and "6 lines could not be translated (2, 4, 6, 8, 10 and 1 more)" in done.err
    )


def test_untranslated_lines_are_reported_again_on_resume(main, nan_table, tmp_path, monkeypatch):
    """The output is complete, or all its parts are written but not yet joined."""
    (tmp_path / "src").write_text("a\nbad\n" * 6, "utf-8")
    options = ("-model", nan_table, "-src", "src", "-output", "out", "-report", "notes")

    def stopped(self, *args):
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "finish", stopped)
        assert main(*options).code == 143
    for message in ("12 of 12 lines are done", "is already complete"):
        done = main(*options, "-resume")
        assert done.code == 7 and "6 lines could not be translated (2, 4, 6, 8, 10" in done.err
        assert message in done.err


def test_untranslated_single_line_with_other_warnings(main, nan_table, tmp_path):
    options = ("-model", nan_table, "-src", "src.jsonl", "-output", "out", "-quiet")
    (tmp_path / "src.jsonl").write_text('{"text": "a"}\n{"text": ""}\nx\n', "utf-8")
    done = main(*options)
    assert done.code == 7
    assert done.err == (
        "onmt_lite: error: 1 line could not be translated (3); "
        "it is empty in the output, which is complete\n"
    )
    (tmp_path / "src.jsonl").write_text('{"text": "bad"}\n{"text": "a"}\nx\n', "utf-8")
    assert "2 lines could not be translated (1 and 3)" in main(*options).err
    (tmp_path / "src.jsonl").write_text('{"text": "a"}\n{"text": ""}\n', "utf-8")
    assert (main(*options).code, main(*options).err) == (0, "")


def test_untranslated_lines_in_python_summary(nan_table, tmp_path):
    (tmp_path / "src").write_text("a\nbad\n", "utf-8")
    translator = Translator.from_pretrained(nan_table)
    summary = translator.translate_file(tmp_path / "src", tmp_path / "out")
    assert (tmp_path / "out").read_text("utf-8") == "x\n\n"
    assert (summary.untranslated.n_lines, summary.untranslated.first) == (1, [2])
    found = translator.translate(["bad", "a"])
    assert [(t.text, t.notes) for t in found] == [("", ("not-a-number",)), ("x", ())]
