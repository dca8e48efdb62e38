"""A program that calls its Translator in forked processes and prints the result of each call.

`python -m tests.support.fork_check '{"threads": 2}'` passes the options of the parent's Translator.
A fork that takes too long is killed.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from pathlib import Path

from onmt_lite import Translator, load_checkpoint

MODEL = str(Path(__file__).resolve().parents[2] / "data" / "de-en")
TEXT = "Guten Morgen!"
TIMEOUT = 60  # seconds
shared = []  # the parent's Translator, as in a program with a multiprocessing Pool


def list_calls(translator, directory):
    """Return calls by name; some use the parent's Translator."""
    stream = translator.translate_stream([TEXT, TEXT])

    def load(**options):
        with Translator.from_pretrained(MODEL, **options) as loaded:
            assert loaded.score(TEXT, "Good morning!") < 0
            return loaded.translate(TEXT).text

    def use_context_manager():
        with translator:
            return "left"

    return {
        "translate": lambda: translator.translate(TEXT),
        "translate_stream": lambda: translator.translate_stream([TEXT]),
        "stream of the parent": lambda: next(stream),
        "translate_file": lambda: translator.translate_file(f"{directory}/src", f"{directory}/out"),
        "score": lambda: translator.score(TEXT, "Good morning!"),
        "after close": lambda: translator.close() or translator.translate(TEXT),
        "repr": lambda: repr(translator),
        "with": use_context_manager,
        "load_checkpoint": lambda: load_checkpoint(MODEL).eos_id,
        "from_pretrained": load,
        "workers=2": lambda: load(workers=2),
        "threads=2": lambda: load(threads=2),
        "threads=2 in a call": lambda: Translator.from_pretrained(MODEL).translate(TEXT, threads=2),
    }


def translate_shared():
    return shared[0].translate(TEXT)


def describe_outcome(call):
    """Return the result or the error of a call as a string."""
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run_in_fork(call):
    """Return the result or the error of a call in a fork; "hangs" if it times out."""
    here, there = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        there.send(describe_outcome(call))
        os._exit(0)
    there.close()
    found = here.recv() if here.poll(TIMEOUT) else "hangs"
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return found


def main():
    """Print a JSON object with the result of each call."""
    warnings.simplefilter("ignore")  # from Python 3.12 about forks of a process with threads
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "src").write_text(TEXT, encoding="utf-8")
        with Translator.from_pretrained(MODEL, **json.loads(sys.argv[1])) as translator:
            found = {
                name: run_in_fork(call) for name, call in list_calls(translator, directory).items()
            }
            shared.append(translator)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                found["Pool"] = pool.apply_async(describe_outcome, (translate_shared,)).get(TIMEOUT)
            found["here"] = translator.translate(TEXT).text
    print(json.dumps(found))


if __name__ == "__main__":
    main()
