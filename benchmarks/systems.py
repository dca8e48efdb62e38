"""Worker process that translates text with one system: `python -m benchmarks.systems`.

The process reads JSON objects from standard input, one per line: first a job (see `compare`), then
lines to translate.  Each loader imports only its system's packages, so that the process memory is
that of one system.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

CTRANSLATE2_BATCH = 32  # sentences; the fastest value with one worker per core
TRANSFORMERS_BATCH = 64  # sentences
MAX_LENGTH = 250  # tokens per output

Job = dict[str, Any]
# (lines, search) -> translations and their number of tokens, including EOS
Translate = Callable[[list[str], str], tuple[list[str], int]]


class System(NamedTuple):
    """A Python package and a dtype ("": the default of the package)."""

    package: str
    precision: str


OURS, EXACT = "onmt_lite", "onmt_lite fp32"
SYSTEMS = {
    OURS: System("onmt_lite", ""),
    EXACT: System("onmt_lite", "fp32"),
    "onmt_lite int8": System("onmt_lite", "int8"),
    "CTranslate2 int8": System("ctranslate2", "int8"),
    "CTranslate2 float32": System("ctranslate2", "float32"),
    "transformers float32": System("transformers", "float32"),
    "transformers bfloat16": System("transformers", "bfloat16"),
}


def get_package_version(name: str) -> str:
    """Return the version of a system's package; "" if it is onmt_lite or not installed."""
    package = SYSTEMS[name].package
    try:
        return version(package) if package != OURS else ""
    except PackageNotFoundError:
        return ""


def get_matching_search(name: str) -> str:
    """Return the -search of onmt_lite that reproduces the system."""
    package = SYSTEMS[name].package
    if package == "transformers":
        return "transformers-5" if int(get_package_version(name).split(".")[0]) >= 5 else package
    return "opennmt" if package == OURS else package


# Each loader returns (translate function, settings for the table, precision)


def load_onmt_lite(job: Job) -> tuple[Translate, str, str]:
    """Load onmt_lite, to translate files like the command line with default options."""
    from onmt_lite.system.resources import prepare_environment

    prepare_environment()
    from onmt_lite import Translator

    n, length = job["threads"], job["length"]
    options = {"device": "cpu", "workers": n, "threads": 1, "beam_size": job["beam_size"]}
    if job["precision"]:
        options["precision"] = job["precision"]
    translator: Any = Translator.from_pretrained(job["model"], **options)
    precision = translator.machine["precision"]
    src, output = (Path(job["directory"], f"{os.getpid()}.{end}") for end in ("src", "out"))

    def translate(lines: list[str], search: str) -> tuple[list[str], int]:
        limits = {"search": search or "opennmt"}
        if length:  # transformers also counts the start token
            fixed = length + search.startswith("transformers")
            limits |= {"min_length": fixed, "max_length": fixed}
        counts = [(0, 0)]
        src.write_text("\n".join(lines) + "\n", encoding="utf-8")
        translator.translate_file(src, output, lambda *done: counts.append(done), **limits)
        return output.read_text(encoding="utf-8").removesuffix("\n").split("\n"), counts[-1][1]

    return translate, f"{precision}, {n} worker{'s' * (n > 1)}", precision


def read_parts(job: Job) -> tuple[dict[str, Any], Callable[..., Any], Callable[..., Any]]:
    """Read the files of `workloads.write_formats`.

    Returns:
        Vocabularies and special IDs, a function from a line to tokens, and its inverse.
    """
    directory = Path(job["directory"])
    parts = json.loads((directory / "parts.json").read_text(encoding="utf-8"))
    from sentencepiece import SentencePieceProcessor

    source = SentencePieceProcessor(model_file=str(directory / "source.spm"))
    target = SentencePieceProcessor(model_file=str(directory / "target.spm"))
    return parts, lambda line: source.encode(line, out_type=str), target.decode


def count_tokens(outputs: Sequence[list[str]], job: Job) -> int:
    """Count tokens including EOS.  Outputs of a fixed length have no EOS."""
    return sum(map(len, outputs)) + (0 if job["length"] else len(outputs))


def load_ctranslate2(job: Job) -> tuple[Translate, str, str]:
    """Load CTranslate2 as documented for throughput: single-threaded workers, small batches."""
    from ctranslate2 import Translator

    parts, encode, decode = read_parts(job)
    ends = [parts["src_tokens"][i] for i in parts["src_end"]]
    limits = {"max_decoding_length": job["length"] or MAX_LENGTH}
    if job["length"]:
        limits["min_decoding_length"] = job["length"]
    translator = Translator(
        str(Path(job["directory"], "ctranslate2")),
        compute_type=job["precision"],
        inter_threads=job["threads"],
        intra_threads=1,
    )

    def translate(lines: list[str], search: str) -> tuple[list[str], int]:
        results = translator.translate_batch(
            [encode(line) + ends for line in lines],
            beam_size=job["beam_size"],
            max_batch_size=CTRANSLATE2_BATCH,
            **limits,
        )
        outputs = [result.hypotheses[0] for result in results]
        return [*map(decode, outputs)], count_tokens(outputs, job)

    return translate, "", job["precision"]


def load_transformers(job: Job) -> tuple[Translate, str, str]:
    """Load transformers, to run `generate` on batches of lines of similar length."""
    import torch
    from transformers import GenerationConfig, MarianMTModel

    from benchmarks.m2m100 import to_m2m100

    torch.set_num_threads(job["threads"])
    parts, encode, decode = read_parts(job)
    pad, eos = parts["pad_id"], parts["eos_id"]
    token_ids = {token: i for i, token in enumerate(parts["src_tokens"])}
    model = (MarianMTModel.from_pretrained if job["is_marian"] else to_m2m100)(job["model"])
    model.to(getattr(torch, job["precision"])).eval()
    limits = {"max_new_tokens": job["length"] or MAX_LENGTH - 1}
    if job["length"]:
        limits["min_new_tokens"] = job["length"]
    config = GenerationConfig(
        num_beams=job["beam_size"],
        pad_token_id=pad,
        eos_token_id=eos,
        decoder_start_token_id=parts["start_id"],
        suppress_tokens=parts["banned_ids"],
        **limits,
    )

    def generate(sources: list[list[int]]) -> list[list[int]]:
        width = max(map(len, sources))
        ids = torch.tensor([source + [pad] * (width - len(source)) for source in sources])
        mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sources])
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        rows = [row[1:] for row in output.tolist()]  # without the start token
        return [row[: row.index(eos)] if eos in row else row for row in rows]

    def translate(lines: list[str], search: str) -> tuple[list[str], int]:
        unknown = token_ids["<unk>"]
        sources = [
            [*(token_ids.get(token, unknown) for token in encode(line)), *parts["src_end"]]
            for line in lines
        ]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        outputs: list[list[str]] = [[]] * len(sources)
        for start in range(0, len(order), TRANSFORMERS_BATCH):
            batch = order[start : start + TRANSFORMERS_BATCH]
            for i, output in zip(batch, generate([sources[i] for i in batch])):
                outputs[i] = [parts["tgt_tokens"][j] for j in output]
        return [*map(decode, outputs)], count_tokens(outputs, job)

    return translate, "", job["precision"]


def main() -> None:
    """Serve requests until standard input ends."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some systems print to standard output

    def respond(**values: Any) -> None:
        print(json.dumps(values), file=responses, flush=True)

    job = json.loads(sys.stdin.readline())
    load = {
        "onmt_lite": load_onmt_lite,
        "ctranslate2": load_ctranslate2,
        "transformers": load_transformers,
    }[job["package"]]
    translate, detail, precision = load(job)
    respond(detail=detail, precision=precision)
    for request in map(json.loads, sys.stdin):
        start = time.perf_counter()
        texts, n = translate(request["lines"], request["search"])
        respond(seconds=time.perf_counter() - start, n_tokens=n, texts=texts)


if __name__ == "__main__":
    main()
