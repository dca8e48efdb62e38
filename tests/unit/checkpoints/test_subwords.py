"""BPE segmentation and detokenization equal subword-nmt and pyonmttok.

`data/subwords.json` contains the output of subword-nmt 0.3.8 (`BPE.segment`, with merges from
learn-bpe and hand-written merges of version 0.1) and pyonmttok 1.38.1 (`Tokenizer.detokenize`).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onmt_lite.checkpoints.subwords import read_bpe_codes
from onmt_lite.errors import CheckpointError
from onmt_lite.text.bpe import BytePairEncoder, detokenize_bpe, parse_codes, parse_vocabulary
from onmt_lite.text.tokenizers import DETOKENIZERS, detokenize_sentencepiece

STORED = json.loads((Path(__file__).parents[2] / "data" / "subwords.json").read_text("utf-8"))


def count_executed_lines(function: Callable[[], object]) -> int:
    """Count the Python lines that a call executes: a measure that is independent of the load."""
    n_lines, before = 0, sys.gettrace()

    def count(frame, event, arg):
        nonlocal n_lines
        n_lines += event == "line"
        return count

    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return n_lines


@pytest.mark.parametrize("case", STORED["bpe"], ids=lambda case: case["name"])
class TestBytePairEncoder:
    @pytest.fixture
    def encoder(self, case):
        known = case["vocabulary"]
        vocabulary = None if known is None else parse_vocabulary(known, case["threshold"])
        return BytePairEncoder(parse_codes(case["codes"]), vocabulary)

    def test_encode_equals_subword_nmt(self, encoder, case):
        assert [[line, encoder.encode(line)] for line, _ in case["lines"]] == case["lines"]

    def test_join_bpe_inverts_encode(self, encoder, case):
        for line in ("der hund sieht die katzenhunde", "aaaaaaabababab x 😀é"):
            assert detokenize_bpe(encoder.encode(line)) == line

    def test_encode_long_word_takes_linear_time(self, encoder, case):
        words = ["katzenhundeaaabab" * n for n in (100, 400)]
        short, long = (
            count_executed_lines(lambda word=word: encoder.encode(word)) for word in words
        )
        assert long < 5 * short
        assert detokenize_bpe(encoder.encode(words[1])) == words[1]


VERSION_2 = [case for case in STORED["bpe"] if case["codes"].startswith("#version: 0.2")]


def convert_to_fastbpe(codes: str) -> str:
    """Convert a codes file of version 0.2 to the fastBPE format, which has counts."""
    merges = codes.rstrip("\n").split("\n")[1:]
    return "".join(f"{merge} {9000 - i}\n" for i, merge in enumerate(merges))


@pytest.mark.parametrize("case", VERSION_2, ids=lambda case: case["name"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encode_fastbpe_codes_equals_subword_nmt(case, end):
    """Without a vocabulary, fastBPE 0.1.0 agrees on these and on 4,000 random lines."""
    known = case["vocabulary"]
    vocabulary = None if known is None else parse_vocabulary(known, case["threshold"])
    codes = parse_codes(convert_to_fastbpe(case["codes"]).replace("\n", end))
    encoder = BytePairEncoder(codes, vocabulary)
    assert codes == parse_codes(case["codes"])
    assert [[line, encoder.encode(line)] for line, _ in case["lines"]] == case["lines"]


def test_read_bpe_codes_damaged_fastbpe_file_reports_line(tmp_path):
    file = tmp_path / "bpecodes"
    file.write_text("e n</w> 1423551864\ne r\n", encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        read_bpe_codes(str(file))
    assert str(caught.value) == (
        f"{file}: not BPE codes of subword-nmt or fastBPE: line 2: expected two subwords "
        "separated by a space and a count; use the file that learn-bpe wrote"
    )


def test_encode_blank_line_returns_no_subwords():
    encoder = BytePairEncoder(parse_codes("#version: 0.2\na b\n"))
    assert [encoder.encode(line) for line in ("", "  ", "\t", "\u3000")] == [[], [], [], []]


def test_parse_codes_headers_and_vocabularies():
    headers = {"": False, "#version: 0.1\n": False, "#version: 0.2\n": True}
    for header, marks_last in headers.items():
        assert parse_codes(header + "a b\n").marks_last == marks_last
    assert parse_codes("#version: 0.2.0\r\na b\r\n").pairs == [("a", "b")]
    assert parse_vocabulary("a@@ 3\nb 2\nc\t1\n", 2) == {"a@@", "b"}
    with pytest.raises(ValueError, match="^line 2:"):
        parse_vocabulary("a 3\nb\n", 1)


@pytest.mark.parametrize(
    "text, line",
    [
        ("", 1),
        ("#version: 0.2\n", 2),
        ("#version: 0.3\na b\n", 1),
        ("#version: 0.2\na b\na b c\n", 3),
        ("a b\n\na b\n", 2),
        ("ab\n", 1),
        ("a b 3\na b x\n", 2),
        ("a b 3\n\na b 3\n", 2),
        ("a b 3 4\n", 1),
        ("a b x\n", 1),
        ("a b\na b 3\n", 2),
        ("#version: 0.2\na b 3\n", 2),
    ],
)
def test_parse_codes_malformed_file_reports_line(text, line):
    with pytest.raises(ValueError, match=f"^line {line}:"):
        parse_codes(text)


def test_join_misplaced_subword_markers_are_kept():
    """A model may stop inside a word or produce a marker in the wrong position."""
    assert detokenize_bpe(["a@@", "b", "c@@"]) == "ab c"
    assert detokenize_bpe(["a@@b", "@@", "c"]) == "a@@b c"
    assert detokenize_sentencepiece(["▁a", "b", "▁", "▁c"]) == "ab  c"


@pytest.mark.parametrize("name", ["joiner", "spacer"])
def test_detokenize_joiner_and_spacer_equals_pyonmttok(name):
    for tokens, text in STORED["detokenize"][name]:
        assert DETOKENIZERS[name](tokens) == text, tokens


def test_detokenize_escaped_characters_equals_pyonmttok():
    """Escaped surrogates are left as they are, because they are not characters."""
    for detokenize in (DETOKENIZERS["joiner"], DETOKENIZERS["spacer"]):
        assert detokenize(["％0020\u0301"]) == " \u0301"
        assert detokenize(["％00200020"]) == " 0020"
        assert detokenize(["％00E9％00é"]) == "％00E9％00é"
        assert detokenize(["｟a％0020b｠"]) == "｟a％0020b｠"
        assert detokenize(["％d800"]) == "％d800"
