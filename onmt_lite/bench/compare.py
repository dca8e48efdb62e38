"""One workload: start the systems, let them take turns, and see where the time of ours goes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from onmt_lite.bench.child import Child, Gone
from onmt_lite.bench.m2m100 import obstacle
from onmt_lite.bench.options import Options
from onmt_lite.bench.systems import OURS, PEERS, Job, Kind
from onmt_lite.bench.workloads import Formats, Workload, convert_to_ctranslate2, write_formats
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.console import CONSOLE

DEFAULT, EXACT = "onmt_lite", "onmt_lite fp32"  # the default may be the other one
WARM_UP = 64  # lines of ours, enough for all workers
WARM_UP_PEERS = 16
PROFILE_LINES = 512
PAUSE = 0.2  # seconds after a run, in which threads of a system stop looking for work


def compare(
    workload: Workload, options: Options, environment: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Everything about a workload, as the JSON file has it."""
    tell(f"{workload.name}: {workload.about}, {len(workload.lines)} lines")
    formats = write_formats(workload, folder / "formats")
    left_out: dict[str, str] = {}
    with ExitStack() as running:
        children: dict[str, Child] = {}
        for kind in kinds(options, workload, formats, left_out):
            if kind.option == "ours" and children and children[DEFAULT].precision == kind.precision:
                continue
            job = job_of(kind, workload, options, formats)
            try:
                child = Child(kind.name, job, environment, folder / f"{kind.name}.log")
            except Gone as gone:
                if kind.name == DEFAULT:
                    raise
                left_out[kind.name] = str(gone)
                continue
            children[kind.name] = running.enter_context(closing(child))
            tell(f"  {kind.name} is ready")
        warm_up(children, workload.lines)
        systems = run(children, workload.lines, options.bench.rounds)
        judge(children, systems, workload.references)
        profiled = profiles(children, workload.lines, options.n_threads)
    for name, why in left_out.items():
        tell(f"  {name}: left out; {why}")
    return {
        "about": workload.about,
        "lines": len(workload.lines),
        "systems": systems,
        "left_out": left_out,
        "profiles": profiled,
    }


def tell(line: str) -> None:
    print(line, file=CONSOLE, flush=True)


# -- which systems --------------------------------------------------------------------------------


def kinds(
    options: Options, workload: Workload, formats: Formats, left_out: dict[str, str]
) -> Iterator[Kind]:
    """Those that can run, of which each has what it needs; the others are noted as left out."""
    yield from OURS
    problems: dict[str, str] = {}
    for kind in PEERS:
        if kind.option not in options.bench.against:
            continue
        if kind.option not in problems:
            problems[kind.option] = prepare(kind, workload, formats)
        if problems[kind.option]:
            left_out[kind.name] = problems[kind.option]
        else:
            yield kind


def prepare(kind: Kind, workload: Workload, formats: Formats) -> str:
    """Convert the model for a peer; why that cannot be, "" if it is done."""
    if not kind.version:
        return f"it is not installed; run: pip install {kind.package}"
    if kind.option == "opennmt-py" and formats.opennmt is None:
        return formats.why_not
    if kind.option == "transformers" and formats.marian is None:
        why = obstacle(load_checkpoint(workload.model))
        return f"it has no architecture for this model: {why}" if why else ""
    if kind.option == "ctranslate2":
        if formats.marian is None and formats.opennmt is None:
            return formats.why_not
        try:
            convert_to_ctranslate2(formats)
        except (
            ImportError,
            AttributeError,
            KeyError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            return f"its converter failed: {type(error).__name__}: {error}"
    return ""


def job_of(kind: Kind, workload: Workload, options: Options, formats: Formats) -> Job:
    threads = options.n_threads
    if kind.option == "ours":
        threads = options.bench.threads or 0
    return Job(
        kind.option,
        kind.precision,
        workload.model,
        str(formats.folder),
        len(workload.lines),
        threads,
        options.bench.beam_size,
        workload.length,
    )


# -- the runs -------------------------------------------------------------------------------------


def warm_up(children: Mapping[str, Child], lines: Sequence[str]) -> None:
    """Run a few lines, which are not counted; from here on the peak of memory counts."""
    tell("  warming up")
    for name, child in children.items():
        n = WARM_UP if name.startswith(DEFAULT) else WARM_UP_PEERS
        child.ask(do="translate", lines=list(lines[:n]))
        child.forget_peak()


def run(
    children: Mapping[str, Child], lines: Sequence[str], n_rounds: int
) -> dict[str, dict[str, Any]]:
    """Let the systems take turns; by name, seconds of each round and what else is known."""
    by_name = {kind.name: kind for kind in (*OURS, *PEERS)}
    systems: dict[str, dict[str, Any]] = {
        name: {
            "version": by_name[name].version if by_name[name] in PEERS else "",
            "detail": child.detail,
            "seconds": [],
            "processor_seconds": [],
        }
        for name, child in children.items()
    }
    for i in range(n_rounds):
        for name, child in children.items():
            system, before = systems[name], child.processor_seconds()
            answer = child.ask(do="translate", lines=list(lines))
            after = child.processor_seconds()
            system["seconds"].append(round(answer["seconds"], 4))
            system["n_tokens"] = answer["n_tokens"]
            if before is not None and after is not None:
                system["processor_seconds"].append(round(after - before, 2))
            rate = len(lines) / answer["seconds"]
            tell(f"  round {i + 1} of {n_rounds}: {name:22} {rate:8.1f} lines/s")
            time.sleep(PAUSE)
    for name, child in children.items():
        systems[name]["memory"] = child.peak_memory()
    return systems


def judge(
    children: Mapping[str, Child],
    systems: dict[str, dict[str, Any]],
    references: list[str] | None,
) -> None:
    """Count the lines that equal what ours finds in fp32 with the search of each system, and
    compute BLEU where there are references."""
    by_name = {kind.name: kind for kind in (*OURS, *PEERS)}
    exact = children.get(EXACT, children[DEFAULT])
    expected = {by_name[EXACT].search: exact.ask(do="texts")["texts"]}
    bleu = None if references is None else bleu_of(references)
    for name, child in children.items():
        search = by_name[name].search
        if search not in expected:
            expected[search] = exact.ask(do="texts as", search=search)["texts"]
        texts = child.ask(do="texts")["texts"]
        systems[name] |= {
            "search": search,
            "equal": sum(map(str.__eq__, texts, expected[search])),
            "bleu": None if bleu is None else round(bleu(texts), 2),
        }


def bleu_of(references: list[str]) -> Any:
    """A function from translations to BLEU; None without sacrebleu."""
    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        tell("  BLEU: left out; sacrebleu is not installed; run: pip install sacrebleu")
        return None
    return lambda texts: corpus_bleu(texts, [references]).score


def profiles(
    children: Mapping[str, Child], lines: Sequence[str], n_threads: int
) -> dict[str, dict[str, Any]]:
    """Where the time of ours goes, in one process of one thread, on the lines that are its
    share."""
    n = max(1, min(PROFILE_LINES, len(lines) // n_threads))
    found = {}
    for name in [name for name in (DEFAULT, EXACT) if name in children]:
        tell(f"  where the time of {name} goes")
        child = children[name]
        answer = child.ask(do="phases", lines=lines[:n])
        found[name] = {"lines": n, "precision": child.precision, **answer}
    return found
