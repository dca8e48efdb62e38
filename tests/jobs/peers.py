"""What CTranslate2 and this program do where an output cannot be written or is the input.

    python -m tests.jobs.peers -python PYTHON     an interpreter in which ctranslate2 is installed

Both translate the same lines with the same CTranslate2 directory, each in a process of its own.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.jobs.bench import ROOT, TOOL

MODEL = ROOT / "tests" / "data" / "checkpoints" / "ct2" / "marian_int8"
CTRANSLATE2 = """
import sys, ctranslate2
model, src, out = sys.argv[1:]
done = ctranslate2.Translator(model).translate_file(src, out, max_decoding_length=5)
print("reports", done.num_examples, "translations")
"""
N_LINES = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-python", default=sys.executable)
    args = parser.parse_args()
    peer = [args.python, "-c", "import ctranslate2; print(ctranslate2.__version__)"]
    found = subprocess.run(peer, capture_output=True, text=True)
    programs = {"onmt_lite": ours}
    if found.returncode == 0:
        programs[f"CTranslate2 {found.stdout.strip()}"] = lambda src, out: [
            *(args.python, "-c", CTRANSLATE2, str(MODEL), str(src), str(out))
        ]
    else:
        print(f"{args.python} has no ctranslate2: only onmt_lite is tried")
    for case, place in CASES.items():
        for name, words in programs.items():
            with tempfile.TemporaryDirectory() as folder:
                src = Path(folder) / "src"
                src.write_text("a b c\n" * N_LINES)
                print(f"{case:27} {name:17} {said(place(src), words, src)}", flush=True)
    return 0


def ours(src: Path, out: Path) -> list[str]:
    words = ["-model", MODEL, "-tokenizer", "space", "-src", src, "-output", out, "-max_length", 5]
    return [*TOOL, *map(str, words)]


CASES = {
    "output on a full disk": lambda src: Path("/dev/full"),
    "output is the input": lambda src: src,
    "output is a link to it": lambda src: link(src),
    "killed after the first line": lambda src: src.parent / "out",
}


def link(src: Path) -> Path:
    path = src.parent / "link"
    path.symlink_to(src)
    return path


def said(out: Path, words, src: Path) -> str:
    """Exit code, the last line that was printed, and what became of the input."""
    before = src.read_bytes()
    command = words(src, out)
    if out.name == "out":
        return killed(command, out)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    last = (done.stdout + done.stderr).strip().split("\n")[-1]
    after = src.read_bytes()
    lost = "" if after == before else f"; the input has {len(after)} of {len(before)} bytes"
    return f"exit {done.returncode}{lost}: {last[:150].replace(str(src.parent), '...')}"


def killed(command: list[str], out: Path) -> str:
    """What is at the place of the output when a job has died at work."""
    store = Path(f"{out}.parts")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        while job.poll() is None and not list(store.glob("[0-9]*")) and not out.exists():
            time.sleep(0.001)
        job.kill()
    if not out.exists():
        return "no output; -resume goes on"
    return f"an output of {out.read_bytes().count(10)} of {N_LINES} lines"


if __name__ == "__main__":
    sys.exit(main())
