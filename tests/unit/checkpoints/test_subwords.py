"""Words to pieces and back: as the packages that made the pieces do it.

`data/subwords.json` holds what subword-nmt 0.3.8 (`BPE.segment`, with merges of its learn-bpe and
some of version 0.1 written by hand) and pyonmttok 1.38.1 (`Tokenizer.detokenize`) returned.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onmt_lite.checkpoints.subwords import read_bpe_codes
from onmt_lite.errors import CheckpointError
from onmt_lite.text.bpe import BytePairEncoder, join_bpe, parse_codes, parse_vocabulary
from onmt_lite.text.tokenizers import DETOKENIZERS, join_pieces

STORED = json.loads((Path(__file__).parents[2] / "data" / "subwords.json").read_text("utf-8"))


def lines_run(function: Callable[[], object]) -> int:
    """Lines of Python that a call runs, which do not depend on what else the machine does."""
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
class TestBytePairs:
    @pytest.fixture
    def encoder(self, case):
        known = case["vocabulary"]
        vocabulary = None if known is None else parse_vocabulary(known, case["threshold"])
        return BytePairEncoder(parse_codes(case["codes"]), vocabulary)

    def test_pieces_are_those_of_subword_nmt(self, encoder, case):
        assert [[line, encoder.encode(line)] for line, _ in case["lines"]] == case["lines"]

    def test_the_pieces_make_the_words_again(self, encoder, case):
        for line in ("der hund sieht die katzenhunde", "aaaaaaabababab x 😀é"):
            assert join_bpe(encoder.encode(line)) == line

    def test_four_times_as_long_a_word_takes_four_times_the_steps(self, encoder, case):
        words = ["katzenhundeaaabab" * n for n in (100, 400)]
        short, long = (lines_run(lambda word=word: encoder.encode(word)) for word in words)
        assert long < 5 * short
        assert join_bpe(encoder.encode(words[1])) == words[1]


VERSION_2 = [case for case in STORED["bpe"] if case["codes"].startswith("#version: 0.2")]


def fast_codes(codes: str) -> str:
    """The merges of a codes file of version 0.2 as fastBPE writes them: with counts."""
    merges = codes.rstrip("\n").split("\n")[1:]
    return "".join(f"{merge} {9000 - i}\n" for i, merge in enumerate(merges))


@pytest.mark.parametrize("case", VERSION_2, ids=lambda case: case["name"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_fastbpe_codes_cut_as_subword_nmt_with_the_same_merges(case, end):
    """Without a vocabulary, fastBPE 0.1.0 gives the same for these and for 4,000 random lines."""
    known = case["vocabulary"]
    vocabulary = None if known is None else parse_vocabulary(known, case["threshold"])
    codes = parse_codes(fast_codes(case["codes"]).replace("\n", end))
    encoder = BytePairEncoder(codes, vocabulary)
    assert codes == parse_codes(case["codes"])
    assert [[line, encoder.encode(line)] for line, _ in case["lines"]] == case["lines"]


def test_codes_file_of_fastbpe_that_is_damaged_is_refused_with_its_line(tmp_path):
    file = tmp_path / "bpecodes"
    file.write_text("e n</w> 1423551864\ne r\n", encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        read_bpe_codes(str(file))
    assert str(caught.value) == (
        f"{file}: not BPE codes of subword-nmt or fastBPE: line 2: a merge is two pieces with a "
        "space between them and a count; use the file that learn-bpe wrote"
    )


def test_blank_lines_have_no_pieces():
    encoder = BytePairEncoder(parse_codes("#version: 0.2\na b\n"))
    assert [encoder.encode(line) for line in ("", "  ", "\t", "\u3000")] == [[], [], [], []]


def test_headers_and_vocabularies():
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
def test_what_is_no_codes_file(text, line):
    with pytest.raises(ValueError, match=f"^line {line}:"):
        parse_codes(text)


def test_marks_within_a_line_that_was_cut_off():
    """The model may stop inside a word, or write a mark where none belongs."""
    assert join_bpe(["a@@", "b", "c@@"]) == "ab c"
    assert join_bpe(["a@@b", "@@", "c"]) == "a@@b c"
    assert join_pieces(["▁a", "b", "▁", "▁c"]) == "ab  c"


@pytest.mark.parametrize("name", ["joiner", "spacer"])
def test_marked_tokens_are_joined_as_by_opennmt(name):
    for tokens, text in STORED["detokenize"][name]:
        assert DETOKENIZERS[name](tokens) == text, tokens


def test_escaped_characters():
    """As pyonmttok returns them; half a character would be none."""
    for joined in (DETOKENIZERS["joiner"], DETOKENIZERS["spacer"]):
        assert joined(["％0020\u0301"]) == " \u0301"
        assert joined(["％00200020"]) == " 0020"
        assert joined(["％00E9％00é"]) == "％00E9％00é"
        assert joined(["｟a％0020b｠"]) == "｟a％0020b｠"
        assert joined(["％d800"]) == "％d800"
