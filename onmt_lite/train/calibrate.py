"""Calibrate a model on held-out pairs of lines: `python -m onmt_lite.train.calibrate -help`.

The model's own translations of the sources give two fields of its description:

confidence  the probability that a translation is right, as a logistic curve of its mean
            log-probability per token and its length; a translation is right if its chrF is 50 or
            more.  Fitted to the lines and to neighbours joined, for longer text
attention   the decoder's head that finds most of the words that source and translation share, by
            which placeholders are put back in their places
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
from onmt_lite.text.lines import Line, lines_from_texts
from onmt_lite.text.placeholders import is_one_word
from onmt_lite.text.tag_projection import TextUnits
from onmt_lite.train.data import read_pairs

USAGE = """\
-model PATH -valid FILE [FILE ...] [options]

Translates held-out text with a model of our format, learns how reliable the translations are, and
writes that into its model.json.  The weights stay as they are."""

RIGHT = 50.0  # chrF from which on a translation counts as right
RARE = 5_000  # a mark is rare if fewer than one in so many lines has it


@dataclass(frozen=True)
class CalibrateOptions:
    """What is calibrated, and on what."""

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
    """Find placeholders and marks that are not single words."""
    problems = [
        f"{name}: {word!r} is not one word; give one without spaces"
        for name in ("names", "numbers")
        for word in v[name]
        if not is_one_word(word)
    ]
    for pair in v.words:
        sides = pair.split("=")
        if len(sides) != 2 or not all(map(is_one_word, sides)):
            problems.append(f"words: {pair!r} is not of the form mark=word")
    return problems


OPTIONS: dict[str, Option] = collect_options((CalibrateOptions, *META_GROUPS), ("calibrate",))
RULES = (
    require_paths("model", "valid"),
    reject_all(find_invalid_words),
    reject_if(
        lambda v: len(v.languages) not in (0, 2) or "" in v.languages,
        "languages: give two codes, source and target",
    ),
    reject_if(
        lambda v: not has_sacrebleu(), "chrF is computed by sacrebleu 2; pip install sacrebleu"
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
    """Run the whole program.  Raises OnmtLiteError if something cannot be read or written."""
    path = Path(options.model)
    if not native.can_load(path):
        raise CheckpointError(f"{path}: not a model of our format; only such can be calibrated")
    import sacrebleu  # optional

    files = [read_pairs(file) for file in options.valid]
    pairs, joined = [*chain(*files)], [*chain(*map(join_neighbors, files))]
    checkpoint = apply_options(native.load(path), options)
    pipeline = Pipeline(checkpoint, TranslateOptions.of())
    made = pipeline.translate_lines(list(lines_from_texts((src for src, _ in pairs), "lines")))
    config, n_found, n_shared = find_alignment_head(pipeline, made)
    made += pipeline.translate_lines(list(lines_from_texts((src for src, _ in joined), "lines")))
    points = [
        Point(
            hyp.log_prob / len(hyp.token_log_probs),
            len(hyp.token_log_probs),
            sacrebleu.sentence_chrf(t.text, [ref]).score >= RIGHT,
        )
        for t, (_, ref) in zip(made, pairs + joined)
        if (hyp := t.hyps[0]).token_log_probs
    ]
    curve = fit_confidence(points)
    described = (checkpoint.unknown, curve, checkpoint.split_longer, checkpoint.language_pair)
    native.update_manifest(path, config, *described)
    write_text(
        f"confidence: {len(pairs)} lines, {len(joined)} joined; {sum(p.right for p in points)} of "
        f"{len(points)} are right, half of those of ten tokens at {curve.threshold(10):.3f} per "
        f"token\n{format_reliability_table(points, curve)}"
        f"attention: {config or 'unchanged'}; finds {n_found} of {n_shared} words that both sides "
        "share\n"
    )


def apply_options(checkpoint: Checkpoint, options: CalibrateOptions) -> Checkpoint:
    """Return the checkpoint with the values that the options set."""
    unknown: dict[str, Any] = {
        "rule": options.unknown,
        "names": options.names,
        "numbers": options.numbers,
        "words": dict(pair.split("=") for pair in options.words),
    }
    unknown = {name: value for name, value in unknown.items() if value}
    if options.train:
        seen = (src for file in options.train for src, _ in read_pairs(file))
        known = {char for token in checkpoint.src_vocab.tokens for char in token}
        unknown["rare"] = find_rare_marks(known, seen)
    changes: dict[str, Any] = {"unknown": replace(checkpoint.unknown, **unknown)}
    if options.split_longer is not None:
        changes["split_longer"] = options.split_longer
    if options.languages:
        changes["language_pair"] = LanguagePair(*options.languages)
    return replace(checkpoint, **changes)


def find_rare_marks(known: Iterable[str], lines: Iterable[str]) -> str:
    """Return the marks among the `known` characters that are rare in the lines."""
    n_lines, n_with = 0, Counter[str]()
    for line in lines:
        n_lines += 1
        n_with.update(set(line))
    marks = [char for char in set(known) if not char.isalnum() and char != "▁"]
    return "".join(sorted(char for char in marks if n_with[char] * RARE < n_lines))


# -- confidence -----------------------------------------------------------------------------------


class Point(NamedTuple):
    """Mean log-probability per token of a translation, its tokens, and whether it is right."""

    mean: float
    n_tokens: int
    right: bool


def join_neighbors(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join the pairs two and two."""
    return [(f"{a} {b}", f"{x} {y}") for (a, x), (b, y) in zip(pairs[::2], pairs[1::2])]


def fit_confidence(points: Sequence[Point]) -> Confidence:
    """Fit the curve of maximum likelihood, with a normal prior of variance 1 on
    `per_log_token`, so that a few lines of a few lengths do not decide it.

    Raises OptionError if the points do not determine a curve: all are right, all are wrong, or a
    threshold separates the two.
    """
    rights = [p.mean for p in points if p.right]
    wrongs = [p.mean for p in points if not p.right]
    if not rights or not wrongs or max(wrongs) <= min(rights) or max(rights) <= min(wrongs):
        raise OptionError(
            f"valid: {len(rights)} right and {len(wrongs)} wrong translations do not "
            "determine a curve; give more pairs"
        )
    columns = [[1.0, p.mean, math.log(p.n_tokens)] for p in points]
    inputs = torch.tensor(columns, dtype=torch.float64)  # (N, 3)
    targets = torch.tensor([float(p.right) for p in points], dtype=torch.float64)  # (N,)
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    exact: dict[str, Any] = dict(tolerance_grad=1e-12, tolerance_change=1e-14)
    optimizer = torch.optim.LBFGS([weights], max_iter=1000, line_search_fn="strong_wolfe", **exact)

    def cost() -> Tensor:
        optimizer.zero_grad()
        unlikely = binary_cross_entropy_with_logits(inputs @ weights, targets, reduction="sum")
        total = unlikely + weights[2] ** 2 / 2
        total.backward()
        return total

    optimizer.step(cost)
    at_zero, per_nat, per_log_token = (round(weight, 4) for weight in weights.tolist())
    if per_nat <= 0:
        raise OptionError(
            "valid: better scores do not mean better translations here; give other pairs"
        )
    return Confidence(at_zero, per_nat, per_log_token)


def format_reliability_table(points: Sequence[Point], curve: Confidence) -> str:
    """Compare predicted with observed shares in ten bins, as Markdown."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(10)]
    for mean, n_tokens, right in points:
        p = curve.probability(mean, n_tokens)
        bins[min(9, int(10 * p))].append((p, right))
    rows = ["| confidence | lines | predicted right | observed right |", "|---|---|---|---|"]
    for i, found in enumerate(bins):
        if found:
            predicted, observed = (sum(column) / len(found) for column in zip(*found))
            rows.append(
                f"| {i / 10:.1f} to {(i + 1) / 10:.1f} | {len(found)} | {predicted:.0%} "
                f"| {observed:.0%} |"
            )
    return "".join(f"{row}\n" for row in rows)


# -- attention ------------------------------------------------------------------------------------


def find_alignment_head(
    pipeline: Any, made: Sequence[Translation]
) -> tuple[dict[str, Any], int, int]:
    """Find the head that attends to most of the words that both sides share, at their own step or
    (late) the next.

    Returns its fields of the model's configuration, {} if no words are shared, the number of words
    that it finds, and the number of shared words.
    """
    found: Counter[tuple[int, int, bool]] = Counter()
    n_shared = 0
    for translation in made:
        example = pipeline.preprocessor.make_example(Line(translation.id, translation.src))
        tokens = translation.hyps[0].tokens
        source, target = TextUnits(example.src_tokens), TextUnits(tokens)
        shared = source.unique.keys() & target.unique.keys()
        places = find_attended_tokens(pipeline, example, tokens) if shared else []
        for word in shared:
            if target.unique[word] not in target.of_token:
                continue  # it begins inside a token, so no step is its own
            n_shared += 1
            t = target.of_token.index(target.unique[word])
            for layer, heads in enumerate(places):
                for head, place in enumerate(heads):
                    for late in (False, True):
                        hit = source.of_token[place[t + late]] == source.unique[word]
                        found[layer, head, late] += hit
    if not found:
        return {}, 0, 0
    (layer, head, late), n_found = max(found.items(), key=lambda item: item[1])
    config = {"align_layer": layer + 1, "align_head": head, "align_late": late}
    return config, n_found, n_shared


def find_attended_tokens(
    pipeline: Any, example: Example, tokens: list[str]
) -> list[list[list[int]]]:
    """Return by layer and head the source token that each step attends to most."""
    model, device = pipeline.model, pipeline.device
    src = torch.tensor([example.src_ids], device=device)
    ids = [pipeline.checkpoint.start_id, *pipeline.checkpoint.tgt_vocab.encode(tokens)]
    tgt = torch.tensor([ids], device=device)
    with torch.inference_mode():
        memory = model.encode(src, torch.tensor([src.size(1)], device=device))
        maps = [model.layer_attention(memory, tgt, layer) for layer in range(len(model.decoder))]
    return [m[0, :, :, : len(example.src_tokens)].argmax(-1).tolist() for m in maps]


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, calibrate)


if __name__ == "__main__":
    sys.exit(main())
