"""Calibrate a model on held-out sentence pairs: `python -m onmt_lite.train.calibrate -help`.

The program translates the sources with the model and writes two fields to its model.json:

confidence  the probability that a translation is correct, as a logistic function of its mean
            log-probability per token and its length; a translation counts as correct if its chrF is
            50 or more.  Fitted to single lines and to concatenated neighbors, for longer text
attention   the decoder attention head that aligns most of the words that source and translation
            share; used to restore placeholders
"""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from onmt_lite.system.resources import prepare_environment

if __name__ == "__main__":
    prepare_environment()

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.checkpoint import Checkpoint, Confidence, LanguagePair
from onmt_lite.config.cli import run_program
from onmt_lite.config.files import write_text
from onmt_lite.config.option import META_GROUPS, File, Option, collect_options, opt
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.rules import Values, reject_all, reject_if, require_paths
from onmt_lite.config.sources import Program
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.inference.records import Example, Translation
from onmt_lite.jobs.reports import has_sacrebleu
from onmt_lite.text.lines import Line, make_lines_from_texts
from onmt_lite.text.placeholders import is_one_word
from onmt_lite.text.sentence_splitter import split_sentences
from onmt_lite.text.tag_projection import TextUnits
from onmt_lite.train.data import read_pairs

USAGE = """\
-model PATH -valid FILE [FILE ...] [options]

Translates held-out text with an onmt_lite model, estimates how reliable the translations are, and
writes the result to its model.json.  The weights do not change."""

MIN_CHRF = 50.0  # of a correct translation
RARE = 5_000  # a symbol is rare if fewer than one in 5,000 lines contains it


@dataclass(frozen=True)
class CalibrateOptions:
    """The model to calibrate, the data, and fields of model.json to set."""

    title: ClassVar[str] = "Calibrate"

    model: str = opt("", metavar="PATH")
    valid: tuple[File, ...] = ()
    train: tuple[File, ...] = ()
    unknown: Literal["copy", "drop", "model"] | None = None
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    split_longer: int | None = opt(None, min=0)
    languages: tuple[str, ...] = opt((), metavar="CODE")


def find_invalid_words(v: Values) -> list[str]:
    """Return an error for each placeholder or symbol name that is not a single word."""
    problems = [
        f"{name}: {word!r} must be a single word, without spaces"
        for name in ("names", "numbers")
        for word in v[name]
        if not is_one_word(word)
    ]
    for pair in v.words:
        sides = pair.split("=")
        if len(sides) != 2 or not all(map(is_one_word, sides)):
            problems.append(f"words: {pair!r} must have the form mark=word")
    return problems


OPTIONS: dict[str, Option] = collect_options((CalibrateOptions, *META_GROUPS), ("calibrate",))
RULES = (
    require_paths("model", "valid"),
    reject_all(find_invalid_words),
    reject_if(
        lambda v: len(v.languages) not in (0, 2) or "" in v.languages,
        "languages: must be two codes, source and target",
    ),
    reject_if(
        lambda v: not has_sacrebleu(),
        "chrF needs sacrebleu 2, which is not installed (pip install sacrebleu)",
    ),
)
PROGRAM = Program(
    "onmt_lite.train.calibrate",
    USAGE,
    OPTIONS,
    RULES,
    build=lambda resolved: resolved.build(CalibrateOptions),
)
load_calibrate_options = PROGRAM.load


def calibrate(options: CalibrateOptions) -> None:
    """Calibrate a model and write the result to its model.json.

    Raises:
        CheckpointError: the model is not an onmt_lite model
        OnmtLiteError: a file cannot be read or written, or no curve can be fitted to the data
    """
    path = Path(options.model)
    if not native.can_load(path):
        raise CheckpointError(
            f"{path}: only onmt_lite models can be calibrated; use a model trained by onmt_lite"
        )
    import sacrebleu  # optional

    files = [read_pairs(file) for file in options.valid]
    pairs, concatenations = [*chain(*files)], [*chain(*map(join_neighbors, files))]
    checkpoint = apply_options(native.load(path), options)
    pipeline = Pipeline(checkpoint, TranslateOptions.of())
    translations = pipeline.translate_lines(
        list(make_lines_from_texts((src for src, _ in pairs), "lines"))
    )
    config, n_found, n_shared = find_alignment_head(pipeline, translations)
    translations += pipeline.translate_lines(
        list(make_lines_from_texts((src for src, _ in concatenations), "lines"))
    )
    points = [
        Point(
            hyp.log_prob / len(hyp.token_log_probs),
            len(hyp.token_log_probs),
            sacrebleu.sentence_chrf(t.text, [ref]).score >= MIN_CHRF,
        )
        for t, (_, ref) in zip(translations, pairs + concatenations)
        # The confidence of a split line is that of a sentence
        if (hyp := t.hyps[0]).token_log_probs and not is_split(t.src, checkpoint.split_longer)
    ]
    curve = fit_confidence(points)
    fields = (checkpoint.unknown, curve, checkpoint.split_longer, checkpoint.language_pair)
    native.update_manifest(path, config, *fields)
    n_correct = sum(p.is_correct for p in points)
    write_text(
        f"confidence: {len(pairs)} lines, {len(concatenations)} concatenations of two; "
        f"{n_correct} of {len(points)} correct; "
        f"50 % at {curve.compute_threshold(10):.3f} per token for ten tokens\n"
        f"{format_reliability_table(points, curve)}"
        f"attention: {config or 'unchanged'}; aligns {n_found} of {n_shared} shared words\n"
    )


def apply_options(checkpoint: Checkpoint, options: CalibrateOptions) -> Checkpoint:
    """Return the checkpoint with the values set by the options."""
    unknown: dict[str, Any] = {
        "rule": options.unknown,
        "names": options.names,
        "numbers": options.numbers,
        "words": dict(pair.split("=") for pair in options.words),
    }
    unknown = {name: value for name, value in unknown.items() if value}
    if options.train:
        sources = (src for file in options.train for src, _ in read_pairs(file))
        known = {char for token in checkpoint.src_vocab.tokens for char in token}
        unknown["rare"] = find_rare_symbols(known, sources)
    changes: dict[str, Any] = {"unknown": replace(checkpoint.unknown, **unknown)}
    if options.split_longer is not None:
        changes["split_longer"] = options.split_longer
    if options.languages:
        changes["language_pair"] = LanguagePair(*options.languages)
    return replace(checkpoint, **changes)


def find_rare_symbols(known: Iterable[str], lines: Iterable[str]) -> str:
    """Return the symbols among the `known` characters that are rare in the lines, sorted."""
    n_lines, counts = 0, Counter[str]()
    for line in lines:
        n_lines += 1
        counts.update(set(line))
    symbols = [char for char in set(known) if not char.isalnum() and char != "▁"]
    return "".join(sorted(char for char in symbols if counts[char] * RARE < n_lines))


# -- confidence ------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A translation as a data point: mean log-probability per token, length and correctness."""

    mean: float
    n_tokens: int
    is_correct: bool


def is_split(line: str, split_longer: int) -> bool:
    """Return True if the sentences of a line are translated separately."""
    return 0 < split_longer < len(line) and len(split_sentences(line)) > 1


def join_neighbors(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Concatenate pairs two by two; an odd last pair is dropped."""
    return [(f"{a} {b}", f"{x} {y}") for (a, x), (b, y) in zip(pairs[::2], pairs[1::2])]


def fit_confidence(points: Sequence[Point]) -> Confidence:
    """Fit the confidence curve by maximum likelihood.

    A normal prior of variance 1 keeps `per_log_token` small if the lines have similar lengths.

    Raises:
        OptionError: no curve can be fitted because all points are correct, all are wrong, or a
            threshold separates the two
    """
    correct = [p.mean for p in points if p.is_correct]
    wrong = [p.mean for p in points if not p.is_correct]
    if not correct or not wrong or max(wrong) <= min(correct) or max(correct) <= min(wrong):
        raise OptionError(
            f"valid: {len(correct)} correct and {len(wrong)} wrong translations are "
            "not enough to fit a curve; add more pairs"
        )
    columns = [[1.0, p.mean, math.log(p.n_tokens)] for p in points]
    inputs = torch.tensor(columns, dtype=torch.float64)  # (N, 3)
    targets = torch.tensor([float(p.is_correct) for p in points], dtype=torch.float64)  # (N,)
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    exact: dict[str, Any] = dict(tolerance_grad=1e-12, tolerance_change=1e-14)
    optimizer = torch.optim.LBFGS([weights], max_iter=1000, line_search_fn="strong_wolfe", **exact)

    def cost() -> Tensor:
        optimizer.zero_grad()
        nll = binary_cross_entropy_with_logits(inputs @ weights, targets, reduction="sum")
        total = nll + weights[2] ** 2 / 2
        total.backward()
        return total

    optimizer.step(cost)
    at_zero, per_nat, per_log_token = (round(weight, 4) for weight in weights.tolist())
    if per_nat <= 0:
        raise OptionError(
            "valid: better scores do not mean better translations on these pairs; use different "
            "pairs"
        )
    return Confidence(at_zero, per_nat, per_log_token)


def format_reliability_table(points: Sequence[Point], curve: Confidence) -> str:
    """Format predicted and observed accuracy in ten bins as a Markdown table."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(10)]
    for mean, n_tokens, is_correct in points:
        p = curve.compute_probability(mean, n_tokens)
        bins[min(9, int(10 * p))].append((p, is_correct))
    rows = ["| confidence | lines | predicted correct | observed correct |", "|---|---|---|---|"]
    for i, lines in enumerate(bins):
        if lines:
            predicted, observed = (sum(column) / len(lines) for column in zip(*lines))
            rows.append(
                f"| {i / 10:.1f} to {(i + 1) / 10:.1f} | {len(lines)} | {predicted:.0%} "
                f"| {observed:.0%} |"
            )
    return "".join(f"{row}\n" for row in rows)


# -- attention -------------------------------------------------------------------------------------


def find_alignment_head(
    pipeline: Any, translations: Sequence[Translation]
) -> tuple[dict[str, Any], int, int]:
    """Find the attention head that aligns most of the words that both sides share.

    A head may attend to a word at the word's own step, or "late", at the next step.

    Args:
        pipeline: the pipeline of the model
        translations: translations by this model

    Returns:
        The head's fields in the model config ({} if no words are shared), the number of words that
        it aligns, and the number of shared words.
    """
    n_hits: Counter[tuple[int, int, bool]] = Counter()
    n_shared = 0
    for translation in translations:
        example = pipeline.preprocessor.make_example(Line(translation.id, translation.src))
        tokens = translation.hyps[0].tokens
        source, target = TextUnits(example.src_tokens), TextUnits(tokens)
        shared = source.unique.keys() & target.unique.keys()
        attended = find_attended_tokens(pipeline, example, tokens) if shared else []
        for word in shared:
            if target.unique[word] not in target.unit_of_token:
                continue  # the word starts inside a token, so it has no step
            n_shared += 1
            t = target.unit_of_token.index(target.unique[word])
            for layer, heads in enumerate(attended):
                for head, sources in enumerate(heads):
                    for late in (False, True):
                        hit = source.unit_of_token[sources[t + late]] == source.unique[word]
                        n_hits[layer, head, late] += hit
    if not n_hits:
        return {}, 0, 0
    (layer, head, late), n_found = max(n_hits.items(), key=lambda item: item[1])
    config = {"align_layer": layer + 1, "align_head": head, "align_late": late}
    return config, n_found, n_shared


def find_attended_tokens(
    pipeline: Any, example: Example, tokens: list[str]
) -> list[list[list[int]]]:
    """Find the source token that each decoding step attends to most.

    Args:
        pipeline: the pipeline of the model
        example: the source
        tokens: T target tokens

    Returns:
        Source token indices by decoder layer, head and step; T + 1 steps, the last one for EOS.
    """
    model, device = pipeline.model, pipeline.device
    src = torch.tensor([example.src_ids], device=device)
    ids = [pipeline.checkpoint.start_id, *pipeline.checkpoint.tgt_vocab.encode(tokens)]
    tgt = torch.tensor([ids], device=device)
    with torch.inference_mode():
        memory = model.encode(src, torch.tensor([src.size(1)], device=device))
        maps = [
            model.get_layer_attention(memory, tgt, layer) for layer in range(len(model.decoder))
        ]
    return [m[0, :, :, : len(example.src_tokens)].argmax(-1).tolist() for m in maps]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.  Returns the exit code."""
    return run_program(argv, PROGRAM, calibrate)


if __name__ == "__main__":
    sys.exit(main())
