"""Draw the pictures of README.md from what the program prints: python docs/pictures.py

terminal.svg is a session, search.svg the drawing of a page of -dump_beam.  Both follow the reader's
choice of light or dark.
"""

import html
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.text.lines import Line
from onmt_lite.trace.page import BLOCKS, render_drawing

ROOT = Path(__file__).resolve().parents[1]
SEARCHED = "Lass mich in Ruhe."  # in search.svg
SENTENCE = "Mein Bruder wohnt seit drei Jahren in Berlin."  # of data/sample.de.txt
INPUT = (  # input.de
    "Guten Morgen! Wie geht es dir?\nWo ist der Bahnhof?\n"
    "Die Sitzung beginnt um 14.30 Uhr in Raum 212.\n"
)
SESSION = (
    f'echo "{SENTENCE}" | python translate.py -n_best 3 -with_score',
    "python translate.py -src input.de -output output.en",
    "python translate.py -src input.de -num_beams 4",
)
COLUMNS, LETTER, ROW, MARGIN = 98, 8.5, 21, 20  # of the terminal; letters that fit, pixels
TERMINAL_STYLE = """\
text{font:14px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink);
white-space:pre}
.typed{fill:var(--best);font-weight:700}
.dot{fill:var(--line)}"""


def picture_of_search() -> str:
    """The search of one sentence, in the precision in which every processor says the same."""
    translator = Translator.from_pretrained(str(ROOT / "data/de-en"), precision="fp32")
    line, options = Line(0, SEARCHED, traced=True), TranslateOptions.of(beam_size=4)
    (found,) = translator.pipeline.translate_lines([line], None, options)
    assert found.trace is not None
    drawing = render_drawing(found.trace)
    head, rest = drawing.split(">", 1)
    return picture(head.removeprefix("<svg "), BLOCKS["drawing style"], rest.removesuffix("</svg>"))


def picture_of_terminal(session: Sequence[tuple[str, str]]) -> str:
    """Commands, and what each has printed."""
    rows = list[tuple[str, str]]()
    for command, printed in session:
        rows.append(("typed", f"$ {command}"))
        for line in printed.removesuffix("\n").expandtabs(4).split("\n"):
            parts = range(0, max(1, len(line)), COLUMNS)  # cut as a terminal does
            rows += [("told", line[i : i + COLUMNS]) for i in parts]
    width, height = round(2 * MARGIN + COLUMNS * LETTER), 2 * MARGIN + (len(rows) + 1) * ROW
    dots = [f'<circle class="dot" cx="{MARGIN + 6 + 20 * i}" cy="20" r="6"/>' for i in range(3)]
    lines = [
        f'<text class="{kind}" x="{MARGIN}" y="{MARGIN + ROW * (i + 2)}">{html.escape(text)}</text>'
        for i, (kind, text) in enumerate(rows)
    ]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
    return picture(size, TERMINAL_STYLE, "\n".join([*dots, *lines]) + "\n")


def picture(head: str, style: str, body: str) -> str:
    """An SVG file: attributes, style and content, on a ground of its own."""
    ground = '<rect width="100%" height="100%" rx="8" style="fill:var(--page);stroke:var(--line)"/>'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {head}>'
    style = f"<style>\n{BLOCKS['colours']}\n{style}\n</style>"
    return "\n".join([start, style, ground, body.lstrip("\n") + "</svg>\n"])


def run(command: str, folder: Path) -> str:
    """What a command prints, errors among it."""
    command = command.replace("python ", f'"{sys.executable}" ')
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout.decode("utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in ("translate.py", "onmt_lite", "data"):
            (folder / path).symlink_to(ROOT / path)
        (folder / "input.de").write_text(INPUT, encoding="utf-8")
        session = [(command, run(command, folder)) for command in SESSION]
    drawn = {"terminal.svg": picture_of_terminal(session), "search.svg": picture_of_search()}
    for file, text in drawn.items():
        (ROOT / "docs" / file).write_text(text, encoding="utf-8")
