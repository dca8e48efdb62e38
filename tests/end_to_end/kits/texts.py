"""Kits of inputs: K9 unusual text, gzip and JSONL; K14 batching; K15 memory."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.support import tiny
from tests.support.job_runner import Bench, TrialResult, check_exit, check_files, fail

SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"
ODD = [
    *("</s>", "<unk>", "<s> </s>", "▁", "▁▁ der", "\ufeffder hund", "der\ufeffhund", "\u200b"),
    *("👩‍👩‍👧 haus", "שלום \u202eabc\u202c", "e\u0301\u0301\u0301"),
    *("\U0010ffff", "\ue000", "\ufffd"),
    *("DER HUND", "a" * 300, "der " * 200, "!" * 50, "<0x0A>", "\x01\x02", "\x7f", "&lt;"),
    *(">>de<< der hund", "￨ ￭ ￨", "{}", '{"text": "x"}', "%s %d", "\\n", "$HOME", "-output x"),
]
BAD = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf", b"der \x80 hund"]
BLANK = ["", " ", "\t", "\u00a0", "\u3000 "]
N_PLAIN = 160  # lines before the first odd one: a file is known as binary by its first 4 KB


def make_fuzzed_lines(random: Random, known: list[str], n: int) -> list[tuple[bytes, int | None]]:
    """Return lines without line ends, and which known line each of them is."""
    lines: list[tuple[bytes, int | None]] = []
    while len(lines) < n:
        kind = random.randrange(8) if len(lines) >= N_PLAIN else 0
        if kind < 3:
            k = random.randrange(len(known))
            lines.append((known[k].encode() + random.choice([b"", b"\r"]), k))
            continue
        if kind == 3:
            text = random.choice(SEPARATORS).join(random.choices(known, k=2))
        elif kind == 4:
            text = random.choice(ODD)
        elif kind == 5:
            text = random.choice(BLANK)
        elif kind == 6:
            text = "".join(chr(random.choice(PLANES)(random)) for _ in range(random.randrange(40)))
        else:
            part = random.choice([random.choice(BAD), random.randbytes(random.randrange(1, 60))])
            line = random.choice(known).encode()[: random.randrange(9)] + part
            lines.append((line.replace(b"\n", b"").replace(b"\0\0", b"\0"), None))
            continue
        lines.append((text.encode("utf-8", "replace").replace(b"\n", b""), None))
    lines[-1] = (known[0].encode(), 0)  # it may come without a line feed
    return lines


PLANES = [
    lambda random: random.randrange(32, 127),
    lambda random: random.randrange(160, 0x600),
    lambda random: random.randrange(0x4E00, 0x5000),
    lambda random: random.randrange(0x1F300, 0x1F700),
    lambda random: random.randrange(0xE000, 0xFFFE),
]


def decode_line(line: bytes) -> str:
    """Decode a line as the program does."""
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def k9(bench: Bench, random: Random, n: int, *argv: object) -> Iterator[TrialResult]:
    """Translate n files of unusual lines among known lines, whose translations must not change."""
    model, known = make_text_model(bench)
    gold = translate_separately(bench, model, known)
    kits = [fuzz_text, fuzz_notes, fuzz_gzip, fuzz_jsonl]
    if bench.simple:
        kits = [fuzz_text]
    for i in range(n):
        lines = make_fuzzed_lines(random, known, 1000)
        kit = kits[i % len(kits)]
        room = bench.room()
        row = kit(bench, TrialResult("K9", i, kit.__name__), room, random, model, lines, gold)
        if not row.problem:
            bench.clear(room)
        yield row


def make_text_model(bench: Bench) -> tuple[Path, list[str]]:
    """Build a model that accepts any text, and lines for it; a simple tool uses the table model."""
    if bench.simple:
        return bench.model, [f"n{k}" for k in range(20)]
    path = bench.folder / "text-model"
    if not path.exists():
        path.mkdir()
        tiny.write_checkpoint(path, tiny.train_pieces())
    return path, tiny.SENTENCES


def translate_separately(bench: Bench, model: Path, known: list[str]) -> list[bytes]:
    """Translate the known lines in a separate file."""
    room = bench.room()
    (room / "src").write_text("".join(f"{line}\n" for line in known), encoding="utf-8")
    ended = bench.run(room, *get_short_search_options(model, "-src", "src"), bare=True)
    assert ended.code == 0, ended
    gold = lines_out(room)
    bench.clear(room)
    return gold


def write_lines(path: Path, random: Random, lines: list[tuple[bytes, int | None]]) -> bytes:
    data = random.choice([b"", b"\xef\xbb\xbf"]) + b"\n".join(line for line, _ in lines)
    data += random.choice([b"", b"\n"])
    path.write_bytes(data)
    return data


def check_lines(row: TrialResult, out: list, lines: list, gold: list) -> TrialResult:
    """Check the number of lines and the translations of the known lines."""
    row.lost, row.doubled = max(0, len(lines) - len(out)), max(0, len(out) - len(lines))
    if len(out) != len(lines):
        return fail(row, f"{len(out)} lines out of {len(lines)}")
    row.moved = sum(k is not None and got != gold[k] for got, (_, k) in zip(out, lines))
    return fail(row, f"{row.moved} known lines are others") if row.moved else row


def get_short_search_options(model: Path, *more: object) -> list[object]:
    """Return options for short searches, because only lines are counted."""
    short = ["-beam_size", 2, "-max_length", 12]
    return ["-model", model, "-output", "out", "-bucket_lines", 100, *short, *more]


def lines_out(room: Path) -> list[bytes]:
    return (room / "out").read_bytes().split(b"\n")[:-1]


def read_records(room: Path) -> tuple[list[dict], list[bytes]]:
    """Return the records of an output and their texts."""
    records = list(map(json.loads, lines_out(room)))
    return records, [(r["hyps"] or [{"text": ""}])[0]["text"].encode() for r in records]


def fuzz_text(bench, row, room, random, model, lines, gold) -> TrialResult:
    write_lines(room / "src", random, lines)
    row.action = "text"
    ended = bench.run(room, *get_short_search_options(model, "-src", "src"), bare=True)
    if check_exit(row, ended, 0, 7).problem:
        return row
    return check_lines(row, lines_out(room), lines, gold)


def fuzz_notes(bench, row, room, random, model, lines, gold) -> TrialResult:
    write_lines(room / "src", random, lines)
    row.action = "text to JSONL"
    words = get_short_search_options(model, "-src", "src", "-output_format", "jsonl")
    if check_exit(row, bench.run(room, *words, bare=True), 0, 7).problem:
        return row
    records, texts = read_records(room)
    check_lines(row, texts, lines, gold)
    for i, (record, (line, _)) in enumerate(zip(records, lines)):
        if record["id"] != i or not record["hyps"]:
            fail(row, f"record {i} is {record}")
        if ("invalid-utf8" in record["notes"]) != (not is_utf8(line)):
            fail(row, f"line {i + 1} {line!r} has the notes {record['notes']}")
        if not decode_line(line).strip() and "empty" not in record["notes"]:
            fail(row, f"line {i + 1} {line!r} has the notes {record['notes']}")
    return row


def is_utf8(line: bytes) -> bool:
    try:
        line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def fuzz_gzip(bench, row, room, random, model, lines, gold) -> TrialResult:
    """Translate gzip data, whole or damaged: exit code 5, or the same lines."""
    data = write_lines(room / "plain", random, lines)
    half = random.randrange(len(data))
    packed = bytearray(gzip.compress(data[:half]) + gzip.compress(data[half:]))
    kind = random.choice(["whole", "cut off", "bit", "junk behind"])
    row.action = f"gzip, {kind}"
    if kind == "cut off":
        del packed[random.randrange(3, len(packed)) :]
    elif kind == "bit":
        packed[random.randrange(2, len(packed))] ^= 1 << random.randrange(8)
    elif kind == "junk behind":
        packed += b"junk"
    (room / "src.gz").write_bytes(packed)
    try:
        same = gzip.decompress(bytes(packed)) == data
    except (OSError, EOFError, ValueError, zlib.error):
        same = False
    ended = bench.run(room, *get_short_search_options(model, "-src", "src.gz"), bare=True)
    check_exit(row, ended, *((0, 7) if same else (0, 3, 5, 7) if kind != "cut off" else (5,)))
    return check_lines(row, lines_out(room), lines, gold) if ended.code in (0, 7) else row


def fuzz_jsonl(bench, row, room, random, model, lines, gold) -> TrialResult:
    """Translate objects with text and other fields; a few lines are invalid."""
    row.action = "JSONL"
    objects, bad = [], set()
    for i, (line, _) in enumerate(lines):
        record = {"n": i, "text": decode_line(line), "é": [None, {"id": 3}]}
        data = json.dumps(record, ensure_ascii=i % 2)
        if random.random() < 0.02:
            bad.add(i)
            wrong = ['{"n": 1}', "[1]", '{"text": 5}', "{", '{"text": "a"} x', "null", data[:-1]]
            data = random.choice(wrong)
        objects.append(data.encode("utf-8"))
    (room / "src.jsonl").write_bytes(b"\n".join(objects) + b"\n")
    words = get_short_search_options(model, "-src", "src.jsonl", "-output_format", "jsonl")
    if check_exit(row, bench.run(room, *words, bare=True), 7 if bad else 0).problem:
        return row
    records, texts = read_records(room)
    kept = [(line, None if i in bad else k) for i, (line, k) in enumerate(lines)]
    check_lines(row, texts, kept, gold)
    for i, record in enumerate(records):
        note = "no-text-field" if objects[i] == b'{"n": 1}' else "invalid-json"
        if (note in record["notes"]) != (i in bad):
            fail(row, f"line {i + 1} {objects[i][:60]!r} has the notes {record['notes']}")
        if i not in bad and record.get("fields") != {"n": i, "é": [None, {"id": 3}]}:
            fail(row, f"record {i} has the fields {record.get('fields')}")
    return row


# -- K14: the same whatever the batches ------------------------------------------------------------


def k14(bench: Bench, random: Random, n: int) -> Iterator[TrialResult]:
    """Check that batches, order, buckets, shards, workers and threads do not change the output."""
    model, known = make_text_model(bench)
    lines = [line for line, _ in make_fuzzed_lines(random, known, 400)][N_PLAIN - 60 :]
    room = bench.room()
    src = room / "src"
    src.write_bytes(b"\n".join(lines) + b"\n")

    def run(name: str, *argv: object) -> tuple[TrialResult, list[bytes]]:
        place = bench.room()
        row = TrialResult("K14", 0, name)
        words = get_short_search_options(model, "-src", src, *argv)
        check_exit(row, bench.run(place, *words, bare=True), 0, 7)
        check_files(row, place, "out")
        return row, lines_out(place) if (place / "out").exists() else []

    first, gold = run("clean")
    yield first
    by_lines = ("-batch_type", "sents", "-batch_size")
    for name, argv in {
        **{f"batches of {size}": (*by_lines, size) for size in (1, 2, 7, 64)},
        "batches of 50 tokens": ("-batch_size", 50, "-batch_type", "tokens"),
        "buckets of 1": ("-bucket_lines", 1),
        "buckets of 37": ("-bucket_lines", 37),
        "2 threads": ("-threads", 2),
        "2 workers": ("-workers", 2, "-bucket_lines", 37),
        "3 workers": ("-workers", 3, "-bucket_lines", 10),
    }.items():  # fmt: skip
        row, out = run(name, *argv)
        yield check_lines(row, out, [(b"", i) for i in range(len(gold))], gold)
    order = list(range(len(lines)))
    random.shuffle(order)
    src.write_bytes(b"\n".join(lines[i] for i in order) + b"\n")
    row, out = run("shuffled")
    yield check_lines(row, out, [(b"", i) for i in order], gold)
    src.write_bytes(b"\n".join(lines) + b"\n")
    for n_shards in (1, 3, 8):
        joined: list[bytes] = []
        for i in range(1, n_shards + 1):
            row, out = run(f"{n_shards} shards", "-shard", f"{i}/{n_shards}", "-bucket_lines", 20)
            joined += out
            if row.problem:
                yield row
        yield check_lines(row, joined, [(b"", i) for i in range(len(gold))], gold)


# -- K15: memory -----------------------------------------------------------------------------------


def k15(bench: Bench, random: Random, n: int) -> Iterator[TrialResult]:
    """Compare peak memory over n lines and a tenth of them: within 5 %, with correct output."""
    peaks = []
    for n_lines in (n // 10, n):
        room = bench.room()
        row = TrialResult("K15", n_lines, f"{n_lines:,} lines")
        times = -(-n_lines // len(bench.lines))
        block = b"\n".join(bench.lines) + b"\n"
        with open(room / "src", "wb") as src:
            for _ in range(times):
                src.write(block)
        words = ["-model", bench.model, "-src", "src", "-output", "out", "-beam_size", 1]
        ended = bench.run(room, *words, bare=True, seconds=6000)
        check_exit(row, ended, 0)
        peaks.append(ended.peak_mb)
        if not same_blocks(room / "out", bench.expected_output, times):
            fail(row, "the output differs")
        if peaks[-1] > 1.05 * peaks[0]:
            fail(row, f"{peaks[-1]:.0f} MB instead of {peaks[0]:.0f}")
        if not row.problem:
            bench.clear(room)
        yield row


def same_blocks(path: Path, block: bytes, times: int) -> bool:
    if not path.exists() or path.stat().st_size != len(block) * times:
        return False
    with open(path, "rb") as out:
        return all(out.read(len(block)) == block for _ in range(times))
