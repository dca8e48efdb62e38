"""Options of the model, of how lines become tokens and tokens text, and of input and output.

`transforms` and the options that belong to it mean what they mean to `onmt_translate` of OpenNMT-py
3.5.1, so that its YAML files work as they stand.  `-tokenizer` and `-detokenizer` are ours, for
models of any toolkit.
"""

import ast
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onmt_lite.config.endings import format_of
from onmt_lite.config.option import File, opt, switch
from onmt_lite.text.bpe import SubwordFile

# Transforms of OpenNMT-py
SUBWORDS = ("sentencepiece", "bpe", "onmt_tokenize")  # cut lines; one of them may be given
PERFORMED = (*SUBWORDS, "prefix", "suffix")
REWRITING = ("normalize", "uppercase")  # whatever cuts the line
OF_TRAINING = ("filtertoolong", "switchout", "tokendrop", "tokenmask", "bart", "clean")
OF_REFERENCES = ("text", "jsonl")  # output formats that -score_only can have
NO_KWARGS = "{'mode': 'none'}"  # cut at nothing but the subwords: the original's default


@dataclass(frozen=True)
class ModelOptions:
    """Models and languages."""

    title: ClassVar[str] = "Model"

    model: tuple[str, ...] = opt(
        (),
        "Translate with this model: a directory (ours, Hugging Face, Marian, CTranslate2, "
        "fairseq), a .pt file of OpenNMT-py or fairseq, an .npz file of Marian, the .json file of "
        "a table model, or the name of a shipped model or of one of the Hugging Face hub, "
        "TEAM/NAME or TEAM/NAME@REVISION; several models are an ensemble. Without -model: de-en, "
        "German to English",
        value="PATH",
        example="opus-mt-de-en",
    )
    src_lang: str = opt(
        "",
        "Translate from this language, by the code that the model has for it; a line that begins "
        "with >>SRC:TGT<< has its own. The default is what the model's files say",
        value="CODE",
        example="deu_Latn -tgt_lang eng_Latn -model nllb-200-distilled-600M",
    )
    tgt_lang: str = opt(
        "",
        "Translate into this language; a line's >>TGT<< wins. -print_model lists the codes",
        value="CODE",
        example="eng_Latn -src_lang deu_Latn -model nllb-200-distilled-600M",
    )
    model_weights: tuple[float, ...] = opt(
        (),
        "Weigh the models of an ensemble, one weight each; without weights all count alike",
        above=0,
        max=1e6,
        example="2 1 -model first.pt second.pt",
    )
    avg_raw_probs: bool = switch(
        "Average probabilities in an ensemble, not log-probabilities",
        example="-model first.pt second.pt",
    )


@dataclass(frozen=True)
class TextOptions:
    """How text is cut and joined; cannot be changed once the model is loaded."""

    title: ClassVar[str] = "Text"

    tokenizer: Literal["auto", "space", "sentencepiece", "bpe"] = opt(
        "auto",
        "Cut lines into tokens as `transforms` say, or else as the model does (`auto`), at spaces "
        "only (`space`: lines and output are tokens), or by the file src_subword_model (`bpe`; "
        "`sentencepiece` if the model brings none)",
        example="space",
    )
    detokenizer: Literal["auto", "space", "bpe", "sentencepiece", "joiner", "spacer"] = opt(
        "auto",
        "Join output tokens: the way back of how lines were cut (`auto`), by spaces (`space`), "
        "without @@ (`bpe`), with a space for ▁ (`sentencepiece`, `spacer`) or none at ￭ "
        "(`joiner`)",
        example="bpe",
    )
    unknown: Literal["auto", "copy", "drop", "model"] = opt(
        "auto",
        "Take characters that the model does not know, tags and placeholders out of each line "
        "and put them back (`copy`) or leave them out (`drop`), or show them to the model "
        "(`model`); `auto` is what the model's description says, or else `model`",
        example="copy",
    )
    replace_unk: bool = opt(
        False, "Replace each unknown token of the output by the source token attended to most"
    )
    phrase_table: File = opt(
        "",
        "Replace unknown tokens by this file of `source|||target` lines first",
        example="phrases.txt -replace_unk",
    )
    split_longer: int | None = opt(
        None,
        "Translate the sentences of a line of more than N characters one by one; 0 does not; lines "
        "with a prefix, forced phrases or a language's tag stay whole; by default, under -search "
        "opennmt, what the model asks for: the shipped one 100, others 0",
        min=0,
        example="200",
    )
    transforms: tuple[str, ...] = opt(
        (),
        "Apply these OpenNMT-py transforms to each line, in order, and to the output in reverse: "
        "`sentencepiece`, `bpe`, `onmt_tokenize`, `prefix`, `suffix`; `normalize` (punctuation, as "
        "Moses) and `uppercase` rewrite what is read alone; transforms of training (filtertoolong "
        "and the like) do nothing",
        example="sentencepiece prefix -src_subword_model spm.model -share_vocab -src_prefix en",
    )
    src_subword_model: File = opt(
        "",
        "Cut the source by this file: a sentencepiece model, or BPE codes of subword-nmt or "
        "fastBPE",
        example="codes.bpe -tokenizer bpe",
    )
    tgt_subword_model: File = opt(
        "",
        "Cut and join the target by this file",
        example="target.model -src_subword_model source.model -transforms sentencepiece",
    )
    share_vocab: bool = switch(
        "Use src_subword_model for the target too",
        example="-src_subword_model both.model -transforms sentencepiece",
    )
    src_subword_type: Literal["none", "sentencepiece", "bpe"] = opt(
        "none",
        "Say what src_subword_model is",
        example="bpe -src_subword_model codes.bpe -share_vocab -transforms onmt_tokenize",
    )
    tgt_subword_type: Literal["none", "sentencepiece", "bpe"] = opt(
        "none",
        "Say what tgt_subword_model is",
        example="bpe -tgt_subword_model codes.bpe -transforms onmt_tokenize",
    )
    src_subword_vocab: File = opt(
        "",
        "Cut source subwords further that this file of subwords and counts counts too rarely",
        example="vocab.de -src_vocab_threshold 50 -src_subword_model codes.bpe -tokenizer bpe",
    )
    tgt_subword_vocab: File = opt(
        "",
        "Cut target subwords further that this file counts too rarely",
        example="vocab.en -tgt_vocab_threshold 50 -src_subword_model codes.bpe -tokenizer bpe",
    )
    src_vocab_threshold: int = opt(
        0,
        "Use source subwords with this count in src_subword_vocab or a higher one; 0 uses all",
        min=0,
        example="50 -src_subword_vocab vocab.de -src_subword_model codes.bpe -tokenizer bpe",
    )
    tgt_vocab_threshold: int = opt(
        0,
        "Use target subwords with this count in tgt_subword_vocab or a higher one; 0 uses all",
        min=0,
        example="50 -tgt_subword_vocab vocab.en -src_subword_model codes.bpe -tokenizer bpe",
    )
    src_prefix: str = opt(
        "",
        "Put these words before each source line, such as a language's token",
        example="eng_Latn -transforms prefix",
    )
    tgt_prefix: str = opt(
        "",
        "Expect these words before each target line, and take them off the output; with "
        "tgt_file_prefix, force each output to begin with them",
        example="deu_Latn -transforms prefix",
    )
    src_suffix: str = opt(
        "", "Put these words after each source line", example="</s> -transforms suffix"
    )
    tgt_suffix: str = opt(
        "",
        "Expect these words after each target line, and take them off the output",
        example="</s> -transforms suffix",
    )
    src_onmttok_kwargs: str = opt(
        NO_KWARGS,
        "Pass this dict to pyonmttok for the source; any but `mode` none with sentencepiece needs "
        "the package pyonmttok",
        table=True,
        value="DICT",
        example="\"{'mode': 'space'}\" -transforms onmt_tokenize",
    )
    tgt_onmttok_kwargs: str = opt(
        NO_KWARGS,
        "Pass this dict to pyonmttok for the target",
        table=True,
        value="DICT",
        example="\"{'mode': 'space'}\" -transforms onmt_tokenize",
    )
    penn: bool = opt(
        True,
        "Let `normalize` rewrite the quotation marks of the Penn Treebank, `` and ''",
        example="false -transforms normalize",
    )
    norm_quote_commas: bool = opt(
        True,
        "Let `normalize` place commas and quotation marks as in src_lang/tgt_lang (en, de, es, fr)",
        example="false -transforms normalize",
    )
    norm_numbers: bool = opt(
        True,
        "Let `normalize` replace a non-breaking space inside a number by a comma or a point",
        example="false -transforms normalize",
    )
    pre_replace_unicode_punct: bool = switch(
        "Let `normalize` replace full-width digits and punctuation first",
        example="-transforms normalize",
    )
    post_remove_control_chars: bool = switch(
        "Let `normalize` remove control characters at the end", example="-transforms normalize"
    )
    upper_corpus_ratio: float = opt(
        0.01,
        "Let `uppercase` write lines in capital letters with 1; with less, a share of the lines of "
        "a training corpus, it does nothing",
        within=(0, 1),
        example="1 -transforms uppercase",
    )

    @property
    def performed(self) -> tuple[str, ...]:
        """The transforms that cut lines or put something around them."""
        return tuple(name for name in self.transforms if name in PERFORMED)

    @property
    def rewriting(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The transforms that rewrite the line before it is cut, and its tokens after that."""
        cut = [self.transforms.index(name) for name in SUBWORDS if name in self.transforms]
        at = cut[0] if cut else len(self.transforms)
        idle = () if self.upper_corpus_ratio >= 1 else ("uppercase",)
        names = [n if n in REWRITING and n not in idle else "" for n in self.transforms]
        return tuple(filter(None, names[:at])), tuple(filter(None, names[at:]))

    def subword_files(self) -> tuple[SubwordFile, SubwordFile]:
        """Of the source and of the target, whose path is "" if none is given.  As in the original:
        one file for both if the vocabulary is shared and restricted alike."""
        src = SubwordFile(self.src_subword_model, self.src_subword_vocab, self.src_vocab_threshold)
        tgt = SubwordFile(self.tgt_subword_model, self.tgt_subword_vocab, self.tgt_vocab_threshold)
        if self.share_vocab and (src[1:] == tgt[1:] or not tgt.path):
            tgt = tgt._replace(path=src.path)
        return src, tgt


@dataclass(frozen=True)
class DataOptions:
    """Files and formats of input and output."""

    title: ClassVar[str] = "Input and output"

    src: File = opt(
        "-",
        "Translate this file, one sentence per line, plain or gzip; - is standard input",
        example="input.de",
    )
    input_format: Literal["auto", "text", "jsonl"] = opt(
        "auto",
        "Read lines of text, or one JSON object per line (`jsonl`), whose other fields are passed "
        "on to -output_format jsonl; `auto` is jsonl for names that end in .jsonl or .jsonl.gz",
        example="jsonl",
    )
    text_field: str = opt(
        "text",
        "Translate this field of the objects of a JSONL input",
        value="NAME",
        example="sentence -src input.jsonl",
    )
    output: File = opt(
        "-",
        "Write the translations to this file, complete or not at all, as gzip data if the name "
        "ends in .gz; - is standard output",
        example="output.en",
    )
    output_format: Literal["auto", "text", "jsonl", "moses", "tsv"] = opt(
        "auto",
        "Write n_best lines per source line (`text`), one JSON object (`jsonl`), or lines with "
        "scores (`moses`, `tsv`): `id ||| text ||| log_prob= X ||| score`, or `id`, `rank`, "
        "`score`, `log_prob` and `text` with tabs between them; `auto` is jsonl or tsv if the name "
        "of the output ends so (before .gz too), else text",
        example="jsonl",
    )
    with_score: bool = switch("Append a tab and the score to each translation")
    token_scores: bool = switch(
        "Append a tab and the log-probabilities of all tokens and the end token to each "
        "translation; in moses they are the feature `WordScores=`, in jsonl the field "
        "`word_log_probs` has the sums of words"
    )
    tgt: File | None = opt(
        None,
        "Score the references of this file line by line, and report their log-probabilities (GOLD)",
        example="reference.en",
    )
    score_only: bool = switch(
        "Translate nothing: write the log-probability of each line of tgt, its tokens (the end "
        "token counted) and its perplexity, with tabs between them, or objects with "
        "-output_format jsonl",
        example="-tgt reference.en",
    )
    tgt_file_prefix: bool = switch(
        "Begin each translation with its line of tgt; without tgt, with the words of tgt_prefix",
        example="-tgt begin.en",
    )

    @property
    def format(self) -> str:
        """The output format, which `auto` takes from the ending of the output."""
        if self.output_format != "auto":
            return self.output_format
        found = format_of(self.output) or "text"
        return "text" if self.score_only and found not in OF_REFERENCES else found

    def is_jsonl(self, path: str) -> bool:
        """Return whether the lines of an input, src or tgt, are JSON objects.

        -input_format jsonl speaks of src; a tgt of objects has a name that says so.
        """
        if path == self.src and self.input_format == "jsonl":
            return True
        return self.input_format != "text" and path.lower().endswith((".jsonl", ".jsonl.gz"))


def parse_kwargs(text: str) -> dict[str, Any]:
    """Read a dict of plain values, written as in Python.  Raises ValueError for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(name) is str for name in found):
        raise ValueError(f"expected a dict like {NO_KWARGS!r}, got {text[:50]!r}")
    return found
