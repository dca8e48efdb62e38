"""Output of -dump_beam: traces as JSON, or as an HTML page that needs no network.

The page works without a mouse: sections fold (`details`), and each row links to its parent; a
script adds the arrow keys.  Colors follow the reader's light or dark theme, and each state also has
a mark.  The templates are in page.html.
"""

import html
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import accumulate, takewhile
from operator import itemgetter
from string import Formatter

from onmt_lite.inference.records import Continuation, Trace, make_json_safe

# OpenNMT-py's keys, and the attributes of a row
KEYS = {
    "predicted_ids": "text",
    "beam_parent_ids": "parent",
    "scores": "score",
    "log_probs": "log_prob",
}
MARKS = {"open": "", "finished": "■", "ended": "×", "blocked": "!", "lost": "–"}
# Characters that XML 1.0 does not allow
INVALID_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_json(traces: Sequence[Trace]) -> str:
    """Return traces as JSON: for each key and line, a list of steps, each a list of rows.

    The first beam_size rows of a step can be parents in the next step.  They are followed by
    finished hypotheses that took no row.  A missing row has "" and null.
    """
    columns = {
        key: [
            [[make_json_safe(getattr(row, name)) for row in rows] for rows in t.steps]
            for t in traces
        ]
        for key, name in KEYS.items()
    }
    return json.dumps(columns, ensure_ascii=False, allow_nan=False) + "\n"


def to_html(traces: Sequence[Trace]) -> str:
    """Return an HTML page with one section per trace; the first one is open."""
    lines = []
    for i, trace in enumerate(traces):
        result, body = Html(" (not translated)"), Html()
        if trace.hypotheses:
            result, body = fill_template("result", best=trace.hypotheses[0]), render_body(trace)
        parts = dict(trace=trace, number=trace.id + 1, result=result, body=body)
        lines.append(fill_template("line", open=" open" * (i == 0), **parts))
    style = "\n".join(TEMPLATES[name] for name in ("colors", "style", "drawing style"))
    return (
        fill_template("page", style=Html(style), lines=lines, script=Html(TEMPLATES["script"]))
        + "\n"
    )


# -- templates -----------------------------------------------------------------------------------


class Html(str):
    """Text that is already markup."""


class TemplateFormatter(Formatter):
    """Formatter that escapes values, unless the template has a format for them."""

    def format_field(self, value: object, spec: str) -> str:
        return format(value, spec) if spec else format_value(value)


def fill_template(template: str, **values: object) -> Html:
    """Fill in a template of the page."""
    return Html(TemplateFormatter().vformat(TEMPLATES[template], (), values))


def format_value(value: object) -> str:
    """Return a value as markup: floats with 4 decimals and U+2212 as minus, lists concatenated."""
    if isinstance(value, Html):
        return value
    if isinstance(value, list):
        return "".join(map(format_value, value))
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.4f}".replace("-", "\N{MINUS SIGN}")
    text = "" if value is None else str(value)
    return html.escape(INVALID_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text))


# Templates by name; the comment before a template is its name
_, *PARTS = re.split(
    r"<!-- (.*) -->\n",
    files("onmt_lite.trace").joinpath("page.html").read_text(encoding="utf-8"),
)
TEMPLATES = {name: body[:-1] for name, body in zip(PARTS[::2], PARTS[1::2])}


# -- one line -------------------------------------------------------------------------------------


def render_body(trace: Trace) -> Html:
    """Return the drawing, hypotheses, explanation, steps and attention of one line."""
    hypotheses = [
        fill_template(
            "hypothesis",
            hyp=hyp,
            mark=Html(' class="best"' * (rank == 1)),
            rank=rank,
            row=make_anchor(trace, hyp.step - 1, hyp.row),
            cut_off="" if hyp.ended else " (cut off)",
        )
        for rank, hyp in enumerate(trace.hypotheses, 1)
    ]
    width = max(map(len, trace.steps))
    heads = [f"row {k + 1}" for k in range(trace.beam_size)]
    heads += ["finished, no row"] * (width - trace.beam_size)
    return fill_template(
        "body",
        trace=trace,
        drawing=render_drawing(trace),
        tokens=Html(" ".join(fill_template("token", text=token) for token in trace.src_tokens)),
        n_steps=len(trace.steps),
        hypotheses=hypotheses,
        why=[fill_template("paragraph", text=sentence) for sentence in explain_second_best(trace)],
        heads=[fill_template("head", name=name) for name in ("step", *heads, "pruned and blocked")],
        steps=[render_step(trace, t, width) for t in range(len(trace.steps))],
        attention=render_attention(trace) if trace.attention else fill_template("no attention"),
    )


def render_attention(trace: Trace) -> Html:
    """Return a heat map of the best hypothesis: its tokens by source tokens."""
    rows = []
    for token, weights in zip(trace.hypotheses[0].tokens, trace.attention):
        percent = [f"{100 * weight:.0f}" if weight >= 0.005 else "" for weight in weights]
        depth = [min(1.0, max(0.0, weight)) * 0.6 for weight in weights]
        cells = [fill_template("weight", depth=d, percent=p) for d, p in zip(depth, percent)]
        rows.append(fill_template("attended", token=token, cells=cells))
    return fill_template(
        "attention", heads=[fill_template("head", name=x) for x in trace.src_tokens], rows=rows
    )


# -- drawing ----------------------------------------------------------------------------------

# Pixels: width of a letter, height of a node, distance between rows, space between steps
LETTER, NODE, LANE, GAP = 8, 30, 52, 44
MAX_TOKEN_WIDTH = 14  # letters
STYLES = ("pale", "kept", "best")  # of nodes and edges; edges are drawn in this order


def render_drawing(trace: Trace) -> Html:
    """Draw the search as SVG: one column per step, one node per row, edges to the parents."""
    ranks = {(hyp.step - 1, hyp.row): rank for rank, hyp in enumerate(trace.hypotheses)}
    styles = {node: "kept" for t, k in ranks for node in walk_back(trace, t, k)}
    styles |= dict.fromkeys(enumerate(trace.path), "best")
    size, lanes = trace.beam_size, range(max(map(len, trace.steps)))
    tops = [24 + LANE * k + 14 * (k >= size) for k in lanes]
    parents, right = [(tops[0] + tops[size - 1]) // 2] * len(lanes), 14  # y and x of the start
    start = fill_template("start", x=right, y=parents[0] + NODE // 2)
    columns, edges, nodes = [], [], []
    for t, rows in enumerate(trace.steps):
        labels = {k: make_label(row) for k, row in enumerate(rows) if row.state != "none"}
        width = LETTER * (2 + max(map(measure_width, labels.values()), default=1))
        left, right = right + GAP, right + GAP + width
        columns.append(fill_template("column", x=left + width // 2, number=t + 1))
        for k, label in labels.items():
            style = styles.get((t, k), "pale")
            line = dict(x1=left - GAP, y1=parents[rows[k].parent] + NODE // 2, x2=left)
            line |= dict(y2=tops[k] + NODE // 2, x=left - GAP // 2)
            edges.append((STYLES.index(style), fill_template("edge", style=style, **line)))
            # Clipped to half of the gaps on both sides, so that labels cannot overlap
            box = dict(x=left - 20, y=tops[k], width=width + 40, inside=width - 4)
            box["middle"] = 20 + width // 2
            nodes.append(
                render_node(trace, t, k, ranks.get((t, k)), style=style, label=label, **box)
            )
        parents = tops
    return fill_template(
        "drawing",
        trace=trace,
        n_steps=len(trace.steps),
        width=right + 14,
        height=tops[-1] + LANE,
        columns=[start, *columns],
        beside=fill_template("beside", y=tops[size] - 9, width=right) if len(lanes) > size else "",
        edges=[edge for _, edge in sorted(edges, key=itemgetter(0))],
        nodes=nodes,
    )


def walk_back(trace: Trace, t: int, k: int) -> Iterator[tuple[int, int]]:
    """Yield (step, row), both from 0, of a hypothesis from its last token to its first.

    Args:
        trace: the trace.
        t: step of the last token, from 0.
        k: row of the last token.
    """
    for step in range(t, -1, -1):
        yield step, k
        k = trace.steps[step][k].parent


def render_node(
    trace: Trace, t: int, k: int, rank: int | None, style: str, **layout: object
) -> Html:
    """Return the node of a row.

    Args:
        trace: the trace.
        t: the step, from 0.
        k: the row.
        rank: rank, from 0, of the finished hypothesis that ends in this row, if any.
        style: one of STYLES.
        layout: label, position and size.
    """
    row, notes = trace.steps[t][k], list[str]()
    score = format_value(row.score)
    if t:
        notes.append(f"from row {row.parent + 1}")
    if row.why:
        notes.append(row.why)
    classes = style
    if rank is not None:
        hyp, classes = trace.hypotheses[rank], f"{style} ranked"
        score = f"#{rank + 1} {format_value(hyp.score)}"
        end = "finished" if hyp.ended else "cut off"
        notes.append(f"{end}, rank {rank + 1} with score {format_value(hyp.score)}")
    notes += {"best": ["on the best path"], "pale": ["pruned"]}.get(style, [])
    numbers = dict(step=t + 1, number=k + 1, origin=row.parent + 1)
    return fill_template(
        "node",
        row=row,
        classes=classes,
        score=score,
        notes="; ".join(notes),
        name=make_anchor(trace, t, k),
        **numbers,
        **layout,
    )


def make_label(row: Continuation) -> str:
    """Return mark and token, with visible spaces, truncated to MAX_TOKEN_WIDTH."""
    token = re.sub(r"\s", "\N{OPEN BOX}", row.text)
    fitting = sum(width <= MAX_TOKEN_WIDTH for width in accumulate(map(measure_width, token)))
    if fitting < len(token):
        token = token[: fitting - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"{MARKS[row.state]} {token}".strip()


def measure_width(text: str) -> int:
    """Return the width in letters of a monospaced font; East Asian wide characters count twice."""
    visible = [c for c in text if unicodedata.category(c) not in ("Mn", "Me", "Cf")]
    return len(visible) + sum(unicodedata.east_asian_width(c) in "WF" for c in visible)


# -- step by step ---------------------------------------------------------------------------------


def render_step(trace: Trace, t: int, width: int) -> Html:
    """Return the table row of a step: its rows, finished hypotheses and pruned continuations.

    Args:
        trace: the trace.
        t: the step, from 0.
        width: number of cells, the last one for pruned continuations excluded.
    """
    pruned = trace.pruned[t]
    n_blocked = sum(c.state == "blocked" for c in pruned)
    summary = f"{len(pruned) - n_blocked} pruned" + f", {n_blocked} blocked" * (n_blocked > 0)
    items = [
        fill_template("item", mark=MARKS[c.state], number=c.parent + 1, candidate=c) for c in pruned
    ]
    return fill_template(
        "step",
        number=t + 1,
        rows=[render_row(trace, t, k) for k in range(width)],
        pruned=fill_template("pruned", summary=summary, items=items) if pruned else "",
    )


def render_row(trace: Trace, t: int, k: int) -> Html:
    """Return the table cell of a row: token, scores, link to the parent, and state.

    Args:
        trace: the trace.
        t: the step, from 0.
        k: the row.
    """
    if k >= len(trace.steps[t]):
        return fill_template("empty cell")
    row, origin, name = trace.steps[t][k], Html(), make_anchor(trace, t, k)
    if row.state == "none":
        return fill_template("no row")
    if t:
        origin = fill_template(
            "origin", name=make_anchor(trace, t - 1, row.parent), number=row.parent + 1
        )
    why = ", ".join(filter(None, ("" if row.state == "open" else row.state, row.why)))
    on_path = trace.path[t : t + 1] == [k]
    state, star = row.state + " best" * on_path, "\N{BLACK STAR} " * on_path
    texts = dict(state=state, star=star, mark=MARKS[row.state], origin=origin, why=why)
    return fill_template("row", row=row, name=name, **texts)


def make_anchor(trace: Trace, t: int, k: int) -> str:
    """Return the ID of a row's cell on the page.

    Args:
        trace: the trace.
        t: the step, from 0.
        k: the row.
    """
    return f"line{trace.id}step{t + 1}row{k + 1}"


# -- explanation -----------------------------------------------------------------------------


def explain_second_best(trace: Trace) -> list[Html]:
    """Return paragraphs for readers new to beam search: why the second hypothesis lost."""
    if len(trace.hypotheses) < 2:
        return [fill_template("only one")]
    best, second = trace.hypotheses[:2]
    pair, gap = dict(best=best, second=second), best.score - second.score
    winner = [fill_template("winner", gap=gap, **pair), *[fill_template("tie")] * (gap == 0)]
    # Sums of log-probabilities, and the effect of length normalization
    is_normalized = not best.norm == second.norm == 1.0
    sums = [fill_template("normalized sums" if is_normalized else "sums", **pair)]
    if is_normalized and best.log_prob < second.log_prob:
        sums.append(fill_template("length decides"))
    if any(abs(hyp.penalty) > 1e-4 for hyp in (best, second)):
        sums.append(fill_template("penalties", **pair))
    pairs = zip(best.tokens, second.tokens)
    n_equal = len([*takewhile(lambda tokens: tokens[0] == tokens[1], pairs)])
    rest = dict(best=sum(best.log_probs[n_equal:]), second=sum(second.log_probs[n_equal:]))
    difference = [fill_template("difference", number=n_equal + 1, **rest)]
    return [Html("".join(sentences)) for sentences in (winner, sums, difference)]
