"""Kits of damaged files: K6 checkpoints, K7 sentencepiece models, K8 configurations.

Damage that a checksum detects must be rejected or change nothing.  If the checksum is corrected
after the damage, or the value of an option changes, other translations are correct, too: then the
job must end with the documented exit code and one output line per input line.
"""

import json
import random as randomness
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml

from onmt_lite.checkpoints import native
from tests.support import tiny
from tests.support.job_runner import ROOT, Bench, TrialResult, check_exit, fail, hash_file

CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"
LIMITS = {"RLIMIT_AS": 6 << 30}
SECONDS = 60.0
MORE_MB = 300.0  # memory that damage may cost
LINES = b"der hund sieht den garten\n\nein kind\ntoday it rains\n"


@dataclass
class Model:
    """A model to damage, and the output of a clean run."""

    path: Path
    gold: bytes
    peak_mb: float


class Models:
    """Models in the directory of a bench, written once."""

    def __init__(self, bench: Bench):
        self.bench = bench
        self.src = bench.folder / "lines.txt"
        self.src.write_bytes(LINES)
        native_path = bench.folder / "native"
        native_path.mkdir(exist_ok=True)
        tiny.write_checkpoint(native_path, tiny.train_pieces())
        self.native = self._model(native_path)
        self.zip = self._model(CHECKPOINTS / "onmt351_transformer.pt")

    def _model(self, path: Path) -> Model:
        row, out, peak_mb = self.run(TrialResult("clean", 0, path.name), path)
        assert row.code == 0, row
        return Model(path, out, peak_mb)

    def run(self, row: TrialResult, path: Path, *argv: object) -> tuple[TrialResult, bytes, float]:
        """Translate with the model at `path`: the output, and the peak of memory in MB."""
        room = self.bench.room()
        words = ["-model", path, "-src", self.src, "-output", "out", *argv]
        ended = self.bench.run(room, *words, bare=True, limits=LIMITS, seconds=SECONDS)
        check_exit(row, ended, 0, 4, 7)
        if ended.code == 4 and ended.err.count("\n") != 1:
            fail(row, f"{ended.err.count(chr(10))} lines of errors")
        out = (room / "out").read_bytes() if ended.code in (0, 7) else b""
        if not row.problem:
            self.bench.clear(room)
        return row, out, ended.peak_mb

    def judge(self, row: TrialResult, path: Path, model: Model, sealed: bool) -> TrialResult:
        row, out, peak_mb = self.run(row, path)
        if row.code == 7 and not sealed or row.code == 0 and not sealed and out != model.gold:
            fail(row, "silently another translation")
        if row.code in (0, 7) and sealed and out.count(b"\n") != LINES.count(b"\n"):
            fail(row, f"{out.count(bytes([10]))} lines")
        if peak_mb > model.peak_mb + MORE_MB:
            fail(row, f"{peak_mb:.0f} MB instead of {model.peak_mb:.0f}")
        return row


def k6(bench: Bench, random: Random, n: int) -> Iterator[TrialResult]:
    """Damage n checkpoints, 70 % of them in the config and index."""
    models, room = Models(bench), bench.room()
    for i in range(n):
        if i % 5 < 2:
            row, path = damage_zip(random, TrialResult("K6", i, "zip"), models.zip, room)
            row = models.judge(row, path, models.zip, sealed=False)
        else:
            sealed = i % 5 == 4
            name = random.choices([native.MANIFEST, native.WEIGHTS], [7, 3])[0]
            path = copied(models.native, room)
            done = damage_manifest(random, path) if sealed else damage_bytes(random, path / name)
            row = TrialResult("K6", i, f"{name}, {'sealed' if sealed else 'bytes'}: {done}")
            row = models.judge(row, path, models.native, sealed)
        if not row.problem:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield row
    canary = Path("/tmp/onmt_lite_canary")
    for i, name in enumerate(["evil.pt", "evil2.pt"]):
        row, _, _ = models.run(TrialResult("K6", n + i, f"exploit {name}"), CHECKPOINTS / name)
        if row.code != 4 or canary.exists():
            fail(row, "an exploit was loaded")
        yield row


def copied(model: Model, room: Path) -> Path:
    path = room / f"model-{randomness.randrange(1 << 40)}"
    return shutil.copytree(model.path, path)


def damage_zip(
    random: Random, row: TrialResult, model: Model, room: Path
) -> tuple[TrialResult, Path]:
    """Damage a PyTorch file: its index, its pickle (the first member) or any byte."""
    path = room / f"model-{randomness.randrange(1 << 40)}.pt"
    shutil.copy(model.path, path)
    size = path.stat().st_size
    part = random.choices(["index", "pickle", "anywhere"], [3, 4, 3])[0]
    start, end = {"index": (size - 4000, size), "pickle": (0, 6000), "anywhere": (0, size)}[part]
    row.action += f" {part}: {damage_bytes(random, path, start, end)}"
    return row, path


def damage_bytes(random: Random, path: Path, start: int = 0, end: int | None = None) -> str:
    """Change bytes of a file in a range; return a description."""
    data = bytearray(path.read_bytes())
    at = random.randrange(max(0, start), len(data) if end is None else end)
    n = random.choice([1, 2, 8, 300])
    kind = random.choice(["bit", "byte", "cut out", "twice", "zeros", "cut off", "junk", "swapped"])
    part = data[at : at + n]
    if kind == "bit":
        data[at] ^= 1 << random.randrange(8)
    elif kind == "byte":
        data[at] = random.randrange(256)
    elif kind == "cut out":
        del data[at : at + n]
    elif kind == "twice":
        data[at:at] = part
    elif kind == "zeros":
        data[at : at + n] = bytes(len(part))
    elif kind == "cut off":
        del data[at:]
    elif kind == "junk":
        data[at:at] = random.randbytes(n)
    else:
        data[at : at + n] = part[::-1]
    path.write_bytes(data)
    return f"{kind} at {at}"


STRANGE = [
    *(0, 1, -1, 3, 10**6, 10**12, 10**30, 2.5, True, None, "", "x", [], {}, [1], "\ud800"),
    *(float("nan"), float("inf")),
]


def damage_manifest(random: Random, path: Path) -> str:
    """Change or remove entries of model.json, with a correct checksum."""
    manifest = json.loads((path / native.MANIFEST).read_text("utf-8"))
    done = []
    for _ in range(random.choice([1, 1, 1, 2])):
        place = manifest["config"] if random.random() < 0.8 else manifest
        key = random.choice([name for name in place if name != "sha256"])
        if random.random() < 0.1:
            del place[key]
            done.append(f"without {key}")
        else:
            place[key] = random.choice(STRANGE)
            done.append(f"{key}={place[key]!r}")
        if not isinstance(manifest.get("config"), dict) or not manifest["config"]:
            break
    write_manifest(path, manifest)
    return ascii(", ".join(done))


def write_manifest(path: Path, manifest: dict) -> None:
    """Write a manifest with its correct checksum."""
    manifest.pop("sha256")
    manifest["sha256"] = native._checksum(manifest)
    (path / native.MANIFEST).write_text(json.dumps(manifest), encoding="ascii")


def k7(bench: Bench, random: Random, n: int) -> Iterator[TrialResult]:
    """Damage n sentencepiece models, half of them with a correct checksum."""
    models, room = Models(bench), bench.room()
    for i in range(n):
        path, sealed = copied(models.native, room), i % 2 == 1
        row = TrialResult("K7", i, "sealed " if sealed else "")
        row.action += damage_bytes(random, path / native.SENTENCEPIECE)
        if sealed:
            manifest = json.loads((path / native.MANIFEST).read_text("utf-8"))
            manifest["files"][native.SENTENCEPIECE] = hash_file(path / native.SENTENCEPIECE)
            write_manifest(path, manifest)
        row = models.judge(row, path, models.native, sealed)
        if not row.problem:
            shutil.rmtree(path)
        yield row


# -- K8: configurations ----------------------------------------------------------------------------

CONFIG = """\
# a search
beam_size: 3
n_best: 1
length_penalty: wu
alpha: 0.6
min_length: 1
max_length: 40
max_length_ratio: 3.0
block_ngram_repeat: 3
batch_size: 16
batch_type: sents
output_format: text
with_score: false
"""
KEYS = [line.split(":")[0] for line in CONFIG.split("\n") if ":" in line]
BY_HAND = [
    "beam_size: !!python/object/apply:os.system ['touch canary']\n",
    "beam_size: !!int 'x'\n",
    "a: &a [*a]\n",
    "beam_size: &x 3\nn_best: *x\n",
    "[" * 500,
    "x: " + "y" * (1 << 20) + "\n",
    "beam_size: 3\n---\nbeam_size: 4\n",
    "- beam_size\n- 3\n",
    "beam_size: 3\0\n",
    "\tbeam_size: 3\n",
    "beam_size: 1e-3\n",
    "alpha: .nan\n",
    "alpha: .inf\n",
    "max_length: 1:30\n",
    "batch_type: no\n",
    "beam_size: 010\n",
    "beam_size: true\n",
    "beam_size: '5'\n",
    "beam_size: 5.0\n",
    "beam_size: 1000000000\n",
    "beam_size: 0\n",
    "n_best: 9\n",
    "min_length: 50\n",
    "batch_size: 0\n",
    "beam_size: [3]\n",
    "beam_size: {3: 3}\n",
    "? beam_size\n: 3\n: 4\n",
    "beam_size: ${HOME}\n",
    "<<: {beam_size: 3}\n",
    "3: 3\n",
    "null: 3\n",
    "beam_size\n",
    "just a text\n",
]


def k8(bench: Bench, random: Random, n: int) -> Iterator[TrialResult]:
    """Damage n configurations: bytes (40 %), words (40 %), the rest by hand."""
    file = bench.folder / "config.yml"
    lines = bench.folder / "few.txt"
    lines.write_bytes(b"\n".join(bench.lines[:20]) + b"\n")
    gold = configured(bench, TrialResult("clean", 0, ""), file, lines, CONFIG.encode())[1]
    for i in range(n):
        if i % 5 < 2:
            row, data = TrialResult("K8", i, "bytes"), changed_bytes(random)
        elif i % 5 < 4:
            row, data = change_words(random, i)
        else:
            data = BY_HAND[i // 5 % len(BY_HAND)].encode()
            row = TrialResult("K8", i, f"by hand: {data[:40]!r}")
        row, out = configured(bench, row, file, lines, data)
        yield check_config(row, out, gold, data)


def configured(
    bench: Bench, row: TrialResult, file: Path, lines: Path, data: bytes
) -> tuple[TrialResult, bytes]:
    file.write_bytes(data)
    room = bench.room()
    words = ["-config", file, "-model", bench.model, "-src", lines, "-output", "out"]
    ended = bench.run(room, *words, bare=True, seconds=SECONDS)
    check_exit(row, ended, 0, 2)
    out = (room / "out").read_bytes() if ended.code == 0 else b""
    if (room / "canary").exists():
        fail(row, "a tag was run")
    row.stderr = ended.err
    if not row.problem:
        bench.clear(room)
    return row, out


def changed_bytes(random: Random) -> bytes:
    data = bytearray(CONFIG.encode())
    more = [b"\n", b" ", b"\t", b"\0", b":", b"'", b"\xff", b"- ", b"&"]
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(len(data))
        kind = random.choice(["bit", "byte", "cut", "more"])
        if kind == "bit":
            data[at] ^= 1 << random.randrange(8)
        elif kind == "byte":
            data[at] = random.randrange(256)
        elif kind == "cut":
            del data[at : at + random.choice([1, 1, 9])]
        else:
            data[at:at] = random.choice(more)
    return bytes(data)


def change_words(random: Random, i: int) -> tuple[TrialResult, bytes]:
    """Make a mistake that a person might make."""
    lines = CONFIG.split("\n")[:-1]
    at = random.randrange(1, len(lines))
    key, value = lines[at].split(": ")
    kind = random.choice(["typo", "typo", "type", "gone", "twice", "indented", "no space"])
    said = ""
    if kind == "typo":
        wrong = misspell(random, key)
        said, lines[at] = f"{wrong} for {key}", f"{wrong}: {value}"
    elif kind == "type":
        lines[at] = f"{key}: " + random.choice(["x", "'1'", "[1]", "{a: 1}", "1.5", "-1", "~", ""])
    elif kind == "gone":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "indented":
        lines[at] = "  " + lines[at]
    else:
        lines[at] = f"{key}:{value}"
    row = TrialResult("K8", i, f"{kind}: {said or lines[min(at, len(lines) - 1)]}")
    return row, "\n".join([*lines, ""]).encode()


def misspell(random: Random, key: str) -> str:
    """Return a key with one or two edits that is not another option."""
    word = list(key)
    for _ in range(random.choice([1, 1, 2])):
        at = random.randrange(len(word) - 1)
        kind = random.choice(["swap", "gone", "more", "other"])
        if kind == "swap":
            word[at], word[at + 1] = word[at + 1], word[at]
        elif kind == "gone":
            del word[at]
        elif kind == "more":
            word.insert(at, random.choice("aeinrst_"))
        else:
            word[at] = random.choice("aeinrst")
    wrong = "".join(word)
    return wrong if wrong not in KEYS else wrong + "x"


def check_config(row: TrialResult, out: bytes, gold: bytes, data: bytes) -> TrialResult:
    """Check that equal configs translate equally, and others are valid or rejected with a line."""
    if row.code == 0:
        try:
            same = yaml.safe_load(data) == yaml.safe_load(CONFIG)
        except (yaml.YAMLError, ValueError, RecursionError):
            return fail(row, "invalid YAML was accepted")
        if same and out != gold:
            fail(row, "silently another translation")
        if row.action.startswith("typo"):
            fail(row, "a misspelt key was taken")
    elif row.code == 2:
        problems = row.stderr.split("\n")[:-1]
        if not all(line.startswith("onmt_lite: error: ") for line in problems):
            fail(row, f"says {row.stderr!r}")
        # Conflicting options are named
        if "config.yml" not in row.stderr and not any(key in row.stderr for key in KEYS):
            fail(row, f"names neither file nor option: {row.stderr!r}")
        if match := re.match(r"typo: (\S+) for (\S+)", row.action):
            if not re.search(rf"\b{match[2]}\b", row.stderr):
                fail(row, f"does not suggest {match[2]}: {row.stderr!r}")
    return row
