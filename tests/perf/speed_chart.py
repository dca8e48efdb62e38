"""How fast beside other systems: writes docs/speed.json and docs/speed.svg.

    pip install ctranslate2 transformers
    python -m tests.perf.speed_chart [-src FILE] [-threads 1] [-rounds 5] [-output docs/speed]

Each system that is installed translates the same lines with the weights of the shipped model: from
text to text, in batches of the size that suits it.  The systems take turns, round after round; the
chart shows the median.  The processor's time counts, all threads together, so that other work on
the machine matters little: with one thread, the time of a quiet machine.
"""

import argparse
import contextlib
import io
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import torch

from onmt_lite import Translator
from onmt_lite.chart import bar_chart
from onmt_lite.checkpoints import load_checkpoint
from onmt_lite.export import ExportOptions, export
from onmt_lite.shipped import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[2]
BEAMS = (5, 1)
MAX_LENGTH = 250  # of all systems, in tokens
Translate = Callable[[Sequence[str], int], list[str]]  # lines, beam_size -> translations


def onmt_lite(threads: int) -> Translate:
    translator = Translator.from_pretrained(device="cpu", precision="fp32", threads=threads)

    def translate(lines: Sequence[str], beam_size: int) -> list[str]:
        return [t.hyps[0].text for t in translator.translate(lines, beam_size=beam_size)]

    return translate


def ctranslate2(threads: int, compute_type: str = "float32") -> Translate:
    """The export to OpenNMT-py, converted by CTranslate2's own converter."""
    import ctranslate2
    from ctranslate2.converters import OpenNMTPyConverter

    pieces = load_checkpoint(DEFAULT_MODEL).tokenizers["sentencepiece"]
    with tempfile.TemporaryDirectory() as here:
        exported, converted = f"{here}/model.pt", f"{here}/converted"
        with contextlib.redirect_stderr(io.StringIO()):  # what an export has to say
            export(ExportOptions(model=str(DEFAULT_MODEL), to="opennmt-py", output=exported))
        with torch.serialization.safe_globals([argparse.Namespace]):
            OpenNMTPyConverter(exported).convert(converted)
        translator = ctranslate2.Translator(
            converted, compute_type=compute_type, intra_threads=threads, inter_threads=1
        )

    def translate(lines: Sequence[str], beam_size: int) -> list[str]:
        results = translator.translate_batch(
            [[*pieces.encode(line), "</s>"] for line in lines],
            beam_size=beam_size,
            max_decoding_length=MAX_LENGTH,
            max_batch_size=256,
            batch_type="tokens",
        )
        return [pieces.decode(result.hypotheses[0]) for result in results]

    return translate


def transformers(threads: int) -> Translate:
    """The weights in the one architecture of transformers with norms before the sublayers,
    sinusoidal positions and ReLU: M2M100."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    from transformers import GenerationConfig, M2M100ForConditionalGeneration

    checkpoint = load_checkpoint(DEFAULT_MODEL)
    pieces, src_vocab, tgt_vocab = (
        checkpoint.tokenizers["sentencepiece"],
        checkpoint.src_vocab,
        checkpoint.tgt_vocab,
    )
    model = M2M100ForConditionalGeneration(m2m100_config(checkpoint)).eval()
    model.lm_head = torch.nn.Linear(model.config.d_model, model.config.vocab_size)
    take_weights(model, checkpoint.model)
    pad_id = src_vocab.pad_id

    def translate(lines: Sequence[str], beam_size: int) -> list[str]:
        torch.set_num_threads(threads)
        sources = [[*src_vocab.encode(pieces.encode(line)), *checkpoint.src_end] for line in lines]
        order = sorted(range(len(lines)), key=lambda i: -len(sources[i]))
        found = [""] * len(lines)
        for start in range(0, len(order), 64):
            chosen = order[start : start + 64]
            width = max(len(sources[i]) for i in chosen)
            ids = torch.tensor([sources[i] + [pad_id] * (width - len(sources[i])) for i in chosen])
            outputs = model.generate(
                input_ids=ids,
                attention_mask=(ids != pad_id).long(),
                generation_config=GenerationConfig(
                    num_beams=beam_size,
                    max_length=MAX_LENGTH,
                    pad_token_id=pad_id,
                    eos_token_id=tgt_vocab.eos_id,
                    decoder_start_token_id=checkpoint.start_id,
                    suppress_tokens=list(checkpoint.never_ids),
                ),
            )
            for i, output in zip(chosen, outputs.tolist()):
                end = output.index(tgt_vocab.eos_id) if tgt_vocab.eos_id in output else None
                found[i] = pieces.decode(tgt_vocab.decode(output[1:end]))
        return found

    return translate


def m2m100_config(checkpoint):
    from transformers import M2M100Config

    cfg = checkpoint.model.cfg
    return M2M100Config(
        vocab_size=cfg.tgt_vocab_size,
        d_model=cfg.d_model,
        encoder_layers=cfg.enc_layers,
        decoder_layers=cfg.dec_layers,
        encoder_attention_heads=cfg.heads,
        decoder_attention_heads=cfg.heads,
        encoder_ffn_dim=cfg.d_ff,
        decoder_ffn_dim=cfg.d_ff,
        activation_function=cfg.activation,
        scale_embedding=cfg.scale_embedding,
        max_position_embeddings=cfg.max_positions,
        pad_token_id=checkpoint.src_vocab.pad_id,
        tie_word_embeddings=False,
    )


def take_weights(theirs: torch.nn.Module, ours: torch.nn.Module) -> None:
    """Copies our Transformer into a M2M100 of the same shape."""
    names = {
        "encoder": "model.encoder.layers",
        "decoder": "model.decoder.layers",
        "self_attn.out": "self_attn.out_proj",
        "cross_attn.out": "encoder_attn.out_proj",
        "cross_attn.q": "encoder_attn.q_proj",
        "self_attn_residual.norm": "self_attn_layer_norm",
        "cross_attn_residual.norm": "encoder_attn_layer_norm",
        "ffn_residual.norm": "final_layer_norm",
        "ffn.up": "fc1",
        "ffn.down": "fc2",
        "enc_norm": "model.encoder.layer_norm",
        "dec_norm": "model.decoder.layer_norm",
        "src_embedding.token": "model.encoder.embed_tokens",
        "tgt_embedding.token": "model.decoder.embed_tokens",
        "output": "lm_head",
    }
    joined = {"self_attn.qkv": ("self_attn", "qkv"), "cross_attn.kv": ("encoder_attn", "kv")}
    taken = {}
    for name, weight in ours.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        place = ""
        if stem.split(".")[0] in ("encoder", "decoder"):
            side, layer, stem = stem.split(".", 2)
            place = f"{names[side]}.{layer}."
        if stem in joined:
            attention, parts = joined[stem]
            for part, piece in zip(parts, weight.chunk(len(parts))):
                taken[f"{place}{attention}.{part}_proj.{kind}"] = piece
        else:
            taken[f"{place}{names[stem]}.{kind}"] = weight
    taken["model.shared.weight"] = taken["model.decoder.embed_tokens.weight"]
    theirs.load_state_dict(taken)
    for module in theirs.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = ours.cfg.norm_eps
    for half in (theirs.model.encoder, theirs.model.decoder):
        half.embed_positions.register_buffer("weights", positions_of(ours), persistent=False)


def positions_of(ours: torch.nn.Module) -> torch.Tensor:
    """Our position vectors behind as many rows as M2M100 leaves free at the start."""
    table = ours.src_embedding.position
    first = 2  # M2M100 counts positions from one more than the id of padding, which is 1
    return torch.cat([table.new_zeros(first, table.size(1)), table])


@dataclass(frozen=True)
class System:
    """One that is measured: the package it needs, what makes it for so many threads, and the
    `-search` that should translate alike."""

    package: str
    build: Callable[[int], Translate]
    search: str


SYSTEMS = {
    "onmt_lite": System("onmt_lite", onmt_lite, "opennmt"),
    "transformers": System("transformers", transformers, "transformers"),
    "CTranslate2": System("ctranslate2", ctranslate2, "ctranslate2"),
    "CTranslate2, int8": System(
        "ctranslate2", lambda threads: ctranslate2(threads, "int8"), "ctranslate2"
    ),
}


def installed(package: str) -> str | None:
    if package == "onmt_lite":
        import onmt_lite

        return onmt_lite.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-src", default=ROOT / "data" / "sample.de.txt", type=Path)
    parser.add_argument("-threads", default=1, type=int)
    parser.add_argument("-rounds", default=5, type=int)
    parser.add_argument("-output", default=ROOT / "docs" / "speed", type=Path)
    given = parser.parse_args()
    lines = [line for line in given.src.read_text(encoding="utf-8").split("\n") if line]
    lines = lines * max(1, 240 // len(lines))
    systems, versions = {}, {}
    for name, system in SYSTEMS.items():
        versions[name] = installed(system.package)
        if versions[name] is None:
            print(f"{name}: not installed, left out", file=sys.stderr)
        else:
            systems[name] = system.build(given.threads)
    measured = measure(systems, lines, given.rounds)
    record = {
        "lines": len(lines),
        "threads": given.threads,
        "processor": processor(),
        "torch": torch.__version__,
        "systems": {name: {"version": versions[name], **measured[name]} for name in measured},
    }
    text = json.dumps(record, indent=1)
    given.output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    given.output.with_suffix(".svg").write_text(chart_of(record), encoding="utf-8")
    print(table_of(record))


def measure(systems: dict[str, Translate], lines: Sequence[str], rounds: int) -> dict[str, dict]:
    """By system, both by beam size: lines per second of each round, and how many translations are
    those of our `-search` of its name."""
    measured: dict[str, dict] = {}
    for name, translate in systems.items():
        same = {}
        for beam in BEAMS:  # the first time, which is not counted, is for the translations
            ours = reproduced(SYSTEMS[name].search, lines, beam)
            same[str(beam)] = sum(map(str.__eq__, translate(lines, beam), ours))
        measured[name] = {"lines_per_second": {str(beam): [] for beam in BEAMS}, "same": same}
    for _ in range(rounds):
        for name, translate in systems.items():
            for beam in BEAMS:
                start = time.process_time()
                translate(lines, beam)
                rate = len(lines) / (time.process_time() - start)
                measured[name]["lines_per_second"][str(beam)].append(round(rate, 1))
                print(f"{name:18} beam {beam} {rate:8.1f} lines/s", file=sys.stderr, flush=True)
    return measured


def reproduced(search: str, lines: Sequence[str], beam_size: int) -> list[str]:
    translator = Translator.from_pretrained(device="cpu", precision="fp32", search=search)
    found = translator.translate(lines, beam_size=beam_size, max_length=MAX_LENGTH)
    return [t.hyps[0].text for t in found]


def chart_of(record: dict) -> str:
    """The SVG of a measurement."""
    groups = {
        name: {
            f"beam {beam}": float(round(median(rates)))
            for beam, rates in system["lines_per_second"].items()
        }
        for name, system in record["systems"].items()
    }
    s = "" if record["threads"] == 1 else "s"
    title = f"The shipped model on {record['threads']} CPU thread{s}"
    return bar_chart(title, "lines per second of processor time", groups)


def table_of(record: dict) -> str:
    """The Markdown table of a measurement."""
    lines = ["| system | beam | lines/s | slowest – fastest | to ours | as our `-search` |"]
    lines.append("|---|---|---|---|---|---|")
    ours = record["systems"]["onmt_lite"]["lines_per_second"]
    for name, system in record["systems"].items():
        number = "" if name == "onmt_lite" else f" ({system['version']})"
        for beam, rates in system["lines_per_second"].items():
            middle, ratio = median(rates), median(rates) / median(ours[beam])
            spread = f"{min(rates):.0f} – {max(rates):.0f}"
            same = f"{system['same'][beam]:,} of {record['lines']:,}"
            cells = [f"{name}{number}", beam, f"{middle:.0f}", spread, f"{ratio:.2f}", same]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def processor() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip()
        for line in (info.read_text(encoding="utf-8").split("\n") if info.exists() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
