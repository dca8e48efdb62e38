"""How each system translates lines, from text to text; what runs inside of its process.

Nothing of a peer is imported before its own function runs, and none of torch in a process of
CTranslate2, so that memory is that of the system alone.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onmt_lite.inference.translator import Translator

CTRANSLATE2_BATCH = 32  # examples; with one worker per processor its fastest here
TRANSFORMERS_BATCH = 64
OPENNMT_BATCH = 64
WARM_UP = 16  # lines
MAX_LENGTH = 250  # tokens of an output


@dataclass(frozen=True)
class Kind:
    """A system with a number type, as tables name it.

    package    that must be installed
    option     what onmt_translate -against, and the choice of ours, calls the system
    precision  "" is what the system chooses by itself
    """

    name: str
    package: str
    option: str
    precision: str

    @property
    def search(self) -> str:
        """Our -search that finds what the system finds with the same numbers."""
        if self.option == "transformers":
            return "transformers-5" if int(self.version.split(".")[0]) >= 5 else "transformers"
        return {"ctranslate2": "ctranslate2", "opennmt-py": "opennmt-3"}.get(self.option, "opennmt")

    @property
    def version(self) -> str:
        """ "" where it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


OURS = [
    Kind("onmt_lite", "torch", "ours", ""),
    *(Kind(f"onmt_lite {p}", "torch", "ours", p) for p in ("fp32", "bf16", "int8")),
]
PEERS = [
    Kind("CTranslate2 int8", "ctranslate2", "ctranslate2", "int8"),
    Kind("CTranslate2 float32", "ctranslate2", "ctranslate2", "float32"),
    Kind("transformers float32", "transformers", "transformers", "float32"),
    Kind("transformers bfloat16", "transformers", "transformers", "bfloat16"),
    Kind("OpenNMT-py", "OpenNMT-py", "opennmt-py", "fp32"),
]


@dataclass(frozen=True)
class Job:
    """What a process is to be.

    option, precision  of a `Kind`
    model    what -model of onmt_lite takes
    folder   where the formats of the other systems are, see `workloads.Formats`
    n_lines  of a run
    threads  processors that it may use; 0: as many as it chooses (ours)
    length   tokens of every output; None: as the model ends them
    """

    option: str
    precision: str
    model: str
    folder: str
    n_lines: int
    threads: int
    beam_size: int
    length: int | None


class System:
    """What has a model and translates."""

    def __init__(self, job: Job):
        self.job = job
        self.detail = ""  # what it has chosen by itself
        self.precision = job.precision

    def translate(self, lines: Sequence[str]) -> tuple[list[str], int]:
        """Translations in the order of the lines, and how many tokens they have together, the end
        tokens counted."""
        raise NotImplementedError

    def n_tokens(self, outputs: Sequence[list[str]]) -> int:
        """Of outputs without end tokens; those of a fixed length have none."""
        return sum(map(len, outputs)) + (0 if self.job.length else len(outputs))

    def translate_as(self, lines: Sequence[str], search: str) -> list[str]:
        """Ours alone: translations with another -search."""
        raise NotImplementedError

    def phases(self, lines: Sequence[str]) -> dict[str, Any]:
        """Ours alone: where the time goes, see `onmt_lite.bench.phases`."""
        raise NotImplementedError


def build(job: Job) -> System:
    kinds: dict[str, Callable[[Job], System]] = {
        "ours": Ours,
        "ctranslate2": CTranslate2,
        "transformers": Transformers,
        "opennmt-py": OpenNMTpy,
    }
    return kinds[job.option](job)


class Ours(System):
    """onmt_lite as a job of its command line does it, with default options but for what is asked:
    buckets of lines, and workers where they pay."""

    def __init__(self, job: Job):
        from onmt_lite.config.environment import prepare_environment

        prepare_environment()
        from onmt_lite.config.options import TranslateOptions
        from onmt_lite.job import choose_engine

        super().__init__(job)
        given: dict[str, Any] = {"model": (job.model,), "device": "cpu", "beam_size": job.beam_size}
        if job.precision:
            given["precision"] = job.precision
        if job.threads:
            given |= {"workers": job.threads, "threads": 1}
        if job.length:
            given |= {"min_length": job.length, "max_length": job.length}
        self.options = TranslateOptions.of(**given)
        self.engine = choose_engine(self.options, None, job.n_lines).__enter__()
        self.precision = self.engine.machine["precision"]
        n_workers = getattr(self.engine, "n", 1)
        self.detail = f"{self.precision}, {n_workers} worker{'' if n_workers == 1 else 's'}"

    def translate(self, lines: Sequence[str]) -> tuple[list[str], int]:
        from onmt_lite.buckets import Bucket, lines_per_bucket
        from onmt_lite.text.lines import from_text

        size = lines_per_bucket(self.options, "cpu", len(lines))
        buckets = [
            Bucket(start // size, [from_text(lines[i], i) for i in range(start, end)])
            for start in range(0, len(lines), size)
            for end in [min(start + size, len(lines))]
        ]
        counts = []  # tokens of each batch
        found = self.engine.run(buckets, lambda n_lines, n_tokens: counts.append(n_tokens))
        text = b"".join(done.data for done in found).decode("utf-8")
        return text.removesuffix("\n").split("\n"), sum(counts)

    def translate_as(self, lines: Sequence[str], search: str) -> list[str]:
        limits: dict[str, Any] = {"max_length": MAX_LENGTH}
        if self.job.length:  # transformers counts the start token
            n = self.job.length + search.startswith("transformers")
            limits = {"min_length": n, "max_length": n}
        found = self._translator(search=search, **limits).translate(lines)
        return [t.hyps[0].text for t in found]

    def phases(self, lines: Sequence[str]) -> dict[str, Any]:
        from onmt_lite.bench.phases import profile

        translator = self._translator(threads=1)
        translator.translate(lines[:WARM_UP])
        return profile(lambda: translator.translate(lines), self.precision)

    def _translator(self, **options: Any) -> "Translator":
        """The same in this process."""
        from onmt_lite.inference.translator import Translator

        return Translator.load(self.options.updated(**{**options, "workers": 1}))


class Parts:
    """Pieces and ids, of files that `workloads.write_formats` has written."""

    def __init__(self, folder: Path):
        described = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
        self.src_tokens: list[str] = described["src_tokens"]
        self.tgt_tokens: list[str] = described["tgt_tokens"]
        self.src_end: list[int] = described["src_end"]
        self.start_id: int = described["start_id"]
        self.eos_id: int = described["eos_id"]
        self.pad_id: int = described["pad_id"]
        self.never_ids: list[int] = described["never_ids"]
        self.source = self.target = None
        if described["has_pieces"]:
            self.source = read_pieces(folder / "source.spm")
            self.target = read_pieces(folder / "target.spm")

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """Tokens of each line, without the end token."""
        if self.source is None:
            return [line.split() for line in lines]
        return self.source.encode(list(lines), out_type=str)

    def decode(self, outputs: Sequence[list[str]]) -> list[str]:
        if self.target is None:
            return [" ".join(tokens) for tokens in outputs]
        return [self.target.decode(tokens) for tokens in outputs]


def read_pieces(path: Path) -> Any:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(path))


class CTranslate2(System):
    """As its documentation advises for throughput: workers of one thread each, small batches."""

    def __init__(self, job: Job):
        import ctranslate2

        super().__init__(job)
        folder = Path(job.folder)
        self.parts = Parts(folder)
        self.ends = [self.parts.src_tokens[i] for i in self.parts.src_end]
        self.translator = ctranslate2.Translator(
            str(folder / "ctranslate2"),
            compute_type=job.precision,
            inter_threads=job.threads,
            intra_threads=1,
        )
        self.limits = {"max_decoding_length": job.length or MAX_LENGTH}
        if job.length:
            self.limits["min_decoding_length"] = job.length

    def translate(self, lines: Sequence[str]) -> tuple[list[str], int]:
        results = self.translator.translate_batch(
            [tokens + self.ends for tokens in self.parts.encode(lines)],
            beam_size=self.job.beam_size,
            max_batch_size=CTRANSLATE2_BATCH,
            **self.limits,
        )
        outputs: list[list[str]] = [result.hypotheses[0] for result in results]
        return self.parts.decode(outputs), self.n_tokens(outputs)


class Transformers(System):
    """`generate` on batches of lines of about one length."""

    def __init__(self, job: Job):
        import torch

        from onmt_lite.bench.m2m100 import read_model

        super().__init__(job)
        folder = Path(job.folder)
        torch.set_num_threads(job.threads)
        self.parts = parts = Parts(folder)
        self.model = read_model(folder / "marian", job.model)
        self.model.to(getattr(torch, job.precision)).eval()
        self.src_ids = {token: i for i, token in enumerate(parts.src_tokens)}
        self.unk_id = self.src_ids["<unk>"]
        limits = {"max_new_tokens": job.length or MAX_LENGTH - 1}
        if job.length:
            limits["min_new_tokens"] = job.length
        self.options = dict(
            num_beams=job.beam_size,
            pad_token_id=parts.pad_id,
            eos_token_id=parts.eos_id,
            decoder_start_token_id=parts.start_id,
            suppress_tokens=parts.never_ids,
            **limits,
        )

    def translate(self, lines: Sequence[str]) -> tuple[list[str], int]:
        get, unk = self.src_ids.get, self.unk_id
        sources = [
            [*(get(token, unk) for token in tokens), *self.parts.src_end]
            for tokens in self.parts.encode(lines)
        ]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        outputs: list[list[str]] = [[]] * len(sources)
        for start in range(0, len(order), TRANSFORMERS_BATCH):
            chosen = order[start : start + TRANSFORMERS_BATCH]
            for i, output in zip(chosen, self._generate([sources[i] for i in chosen])):
                outputs[i] = [self.parts.tgt_tokens[j] for j in output]
        return self.parts.decode(outputs), self.n_tokens(outputs)

    def _generate(self, sources: list[list[int]]) -> list[list[int]]:
        import torch
        from transformers import GenerationConfig

        pad, eos, width = self.parts.pad_id, self.parts.eos_id, max(map(len, sources))
        ids = torch.tensor([source + [pad] * (width - len(source)) for source in sources])
        mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sources])
        found = self.model.generate(
            input_ids=ids, attention_mask=mask, generation_config=GenerationConfig(**self.options)
        )
        rows = [row[1:] for row in found.tolist()]  # without the start token
        return [row[: row.index(eos)] if eos in row else row for row in rows]


class OpenNMTpy(System):
    """OpenNMT-py 3, by the engine of its onmt_translate."""

    def __init__(self, job: Job):
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it is older than that rule of torch
        import torch
        from onmt.inference_engine import InferenceEnginePY
        from onmt.opts import translate_opts
        from onmt.utils.parse import ArgumentParser

        super().__init__(job)
        folder = Path(job.folder)
        torch.set_num_threads(job.threads)
        self.parts = Parts(folder)
        self.ends = [self.parts.src_tokens[i] for i in self.parts.src_end]
        parser = ArgumentParser()
        translate_opts(parser)
        words = f"-src - -gpu -1 -beam_size {job.beam_size} -batch_size {OPENNMT_BATCH}"
        words += f" -max_length {job.length or MAX_LENGTH} -min_length {job.length or 0}"
        files = ["-model", str(folder / "model.pt"), "-output", str(folder / "pred.txt")]
        options = parser.parse_args([*words.split(), *files])
        ArgumentParser.validate_translate_opts(options)
        ArgumentParser._get_all_transform_translate(options)
        ArgumentParser._validate_transforms_opts(options)
        self.engine = InferenceEnginePY(options)

    def translate(self, lines: Sequence[str]) -> tuple[list[str], int]:
        sources = [" ".join(tokens + self.ends) for tokens in self.parts.encode(lines)]
        _, found = self.engine.infer_list(sources)
        outputs = [best[0].split() for best in found]
        return self.parts.decode(outputs), self.n_tokens(outputs)
