"""Draw the pictures of README.md from the program's own output: python docs/pictures.py

terminal.svg is a terminal session; search.svg is the drawing of a `-dump_beam` page. Both use plain
SVG attributes, because many viewers support neither style sheets nor CSS variables.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.text.lines import Line
from onmt_lite.trace.page import render_drawing

ROOT = Path(__file__).resolve().parents[1]
SEARCHED = "Lass mich in Ruhe."  # the sentence of search.svg
SENTENCE = "Mein Bruder wohnt seit drei Jahren in Berlin."  # from data/sample.de.txt
INPUT = (  # input.de
    "Guten Morgen! Wie geht es dir?\nWo ist der Bahnhof?\nEs waren 12.345.678 Menschen.\n"
)
SESSION = (
    f'echo "{SENTENCE}" | python translate.py -n_best 3 -with_score',
    "python translate.py -src input.de -output output.en",
    "python translate.py -src input.de -num_beams 4",
)
COLUMNS, LETTER, ROW, MARGIN = 98, 8.5, 21, 20  # terminal width in characters; sizes in pixels
FONT = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INK, SOFT, LINE, PAGE, BOX = "#1b1f24", "#57606a", "#c9d1d9", "#ffffff", "#f3f5f7"
BEST, BEST_BOX, FINISHED = "#0550ae", "#dbeaff", "#116329"

# Edges and boxes by class; a class that is missing here fails
EDGES = {
    "pale": {"stroke": LINE, "stroke-width": "1"},
    "kept": {"stroke": SOFT, "stroke-width": "1.5"},
    "best": {"stroke": BEST, "stroke-width": "5"},
}
BOXES = {
    "pale": {"fill": PAGE, "stroke": LINE},
    "kept": {"fill": BOX, "stroke": SOFT},
    "best": {"fill": BEST_BOX, "stroke": BEST, "stroke-width": "2"},
}


def draw_search() -> str:
    """Return search.svg; fp32, because all processors agree on its digits."""
    translator = Translator.from_pretrained(str(ROOT / "data/de-en"), precision="fp32")
    line, options = Line(0, SEARCHED, traced=True), TranslateOptions.of(beam_size=4)
    (translation,) = translator.pipeline.translate_lines([line], None, options)
    assert translation.trace is not None
    drawing = ElementTree.fromstring(render_drawing(translation.trace))
    picture = start_picture(int(drawing.get("width", "")), int(drawing.get("height", "")))
    for element in drawing:
        for flat in flatten(element):
            picture.append(flat)
    return to_text(picture)


def flatten(element: Element) -> Iterator[Element]:
    """Yield an element of the drawing with attributes instead of classes; a node is a group."""
    tag, classes = element.tag, element.get("class", "").split()
    if tag == "circle":
        yield Element("circle", keep(element, "cx", "cy", "r") | {"fill": BEST})
    elif tag == "text":
        yield text_element(element, SOFT, 11)
    elif tag == "path" and classes[0] == "edge":
        yield Element("path", keep(element, "d") | {"fill": "none"} | EDGES[classes[1]])
    elif tag == "path":  # separates hypotheses that finished from the beam
        yield Element("path", keep(element, "d") | {"stroke": LINE, "stroke-dasharray": "4"})
    elif tag == "a":
        yield node_group(element, classes)
    else:
        raise ValueError(f"unknown element {tag} in the drawing")


def node_group(node: Element, classes: list[str]) -> Element:
    """Return the box of a hypothesis with its token, and its score if it finished."""
    (style,) = {*classes} & {*BOXES}
    (box,) = node.findall("svg")
    group = Element("g", {"transform": f"translate({box.get('x')} {box.get('y')})"})
    for element in box:
        if element.tag == "rect":
            colors = dict(BOXES[style])
            if "finished" in classes and style != "best":
                colors |= {"stroke": FINISHED, "stroke-width": "2"}
            SubElement(group, "rect", keep(element, "x", "y", "width", "height", "rx") | colors)
        elif element.get("class") == "token":
            group.append(text_element(element, SOFT if style == "pale" else INK, 13))
            if style == "best":
                group[-1].set("font-weight", "700")
        elif "ranked" in classes:
            group.append(text_element(element, SOFT if style == "pale" else INK, 11))
    return group


def keep(element: Element, *names: str) -> dict[str, str]:
    """Return the attributes with these names."""
    return {name: value for name, value in element.items() if name in names}


def text_element(element: Element, color: str, size: int) -> Element:
    """Return a centered text in this color and size."""
    text = Element("text", keep(element, "x", "y"))
    for name, value in (("fill", color), ("font-size", str(size)), ("text-anchor", "middle")):
        text.set(name, value)
    text.text = "".join(element.itertext())
    return text


def draw_terminal(session: Sequence[tuple[str, str]]) -> str:
    """Return terminal.svg: each command with its output.

    Args:
        session: pairs of a command and its output.
    """
    rows = list[tuple[bool, str]]()  # whether a person typed it, text
    for command, output in session:
        rows.append((True, f"$ {command}"))
        for line in output.removesuffix("\n").expandtabs(4).split("\n"):
            starts = range(0, max(1, len(line)), COLUMNS)  # wraps like a terminal
            rows += [(False, line[i : i + COLUMNS]) for i in starts]
    width, height = round(2 * MARGIN + COLUMNS * LETTER), 2 * MARGIN + (len(rows) + 1) * ROW
    picture = start_picture(width, height)
    for i in range(3):
        dot = {"cx": f"{MARGIN + 6 + 20 * i}", "cy": "20", "r": "6", "fill": LINE}
        SubElement(picture, "circle", dot)
    for i, (is_typed, text) in enumerate(rows):
        color = {"fill": BEST, "font-weight": "700"} if is_typed else {"fill": INK}
        place = {"x": f"{MARGIN}", "y": f"{MARGIN + ROW * (i + 2)}", "font-size": "14"}
        row = SubElement(picture, "text", place | color | {"xml:space": "preserve"})
        row.text = text
    return to_text(picture)


def start_picture(width: int, height: int) -> Element:
    """Return an empty picture with a light background and a frame."""
    size = {"width": f"{width}", "height": f"{height}", "viewBox": f"0 0 {width} {height}"}
    head = {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "font-family": FONT}
    picture = Element("svg", head)
    frame = {"x": "0.5", "y": "0.5", "width": f"{width - 1}", "height": f"{height - 1}", "rx": "8"}
    SubElement(picture, "rect", frame | {"fill": PAGE, "stroke": LINE})
    return picture


def to_text(picture: Element) -> str:
    """Return the SVG file, one element a line."""
    ElementTree.indent(picture, space=" ")
    return ElementTree.tostring(picture, encoding="unicode") + "\n"


def run(command: str, folder: Path) -> str:
    """Return the output of a shell command, errors included."""
    command = command.replace("python ", f'"{sys.executable}" ')
    process = subprocess.run(
        ["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return process.stdout.decode("utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in ("translate.py", "onmt_lite", "data"):
            (folder / path).symlink_to(ROOT / path)
        (folder / "input.de").write_text(INPUT, encoding="utf-8")
        session = [(command, run(command, folder)) for command in SESSION]
    pictures = {"terminal.svg": draw_terminal(session), "search.svg": draw_search()}
    for file, text in pictures.items():
        (ROOT / "docs" / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
