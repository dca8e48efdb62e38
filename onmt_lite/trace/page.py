"""The file of -dump_beam: traces as JSON, or as a page that needs no network.

Foldable parts of the page are `details`, and links lead from a row to its parent, so that a
keyboard is enough; a script adds the arrow keys.  Colours follow the reader's choice of light or
dark, and no meaning is in a colour alone: each state has its mark.  The blocks of the page are in
page.html.
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

from onmt_lite.inference.records import Continuation, Trace, json_safe

# OpenNMT-py's keys, and what a row has there
KEYS = {
    "predicted_ids": "text",
    "beam_parent_ids": "parent",
    "scores": "score",
    "log_probs": "log_prob",
}
MARKS = {"open": "", "finished": "■", "ended": "×", "blocked": "!", "lost": "–"}
# Characters that XML 1.0 cannot write
UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_json(traces: Sequence[Trace]) -> str:
    """By key, for each line a list of steps, each a list of rows.

    The first beam_size rows of a step are continued by the next step.  Hypotheses that ended and
    made room for a row follow them.  A row that does not exist has "" and null.
    """
    columns = {
        key: [[[json_safe(getattr(row, name)) for row in rows] for rows in t.steps] for t in traces]
        for key, name in KEYS.items()
    }
    return json.dumps(columns, ensure_ascii=False, allow_nan=False) + "\n"


def to_html(traces: Sequence[Trace]) -> str:
    """A page with a part for each trace, the first of them open."""
    lines = []
    for i, trace in enumerate(traces):
        result, body = Html(" (not translated)"), Html()
        if trace.hypotheses:
            result, body = render_block("result", best=trace.hypotheses[0]), render_body(trace)
        parts = dict(trace=trace, number=trace.id + 1, result=result, body=body)
        lines.append(render_block("line", open=" open" * (i == 0), **parts))
    style = "\n".join(BLOCKS[name] for name in ("colours", "style", "drawing style"))
    return (
        render_block("page", style=Html(style), lines=lines, script=Html(BLOCKS["script"])) + "\n"
    )


# -- blocks ---------------------------------------------------------------------------------------


class Html(str):
    """Text that is markup already."""


class Markup(Formatter):
    """Fills in values as markup, unless the block formats them itself."""

    def format_field(self, value: object, spec: str) -> str:
        return format(value, spec) if spec else format_value(value)


def render_block(block: str, **values: object) -> Html:
    """A block of the page with these values."""
    return Html(Markup().vformat(BLOCKS[block], (), values))


def format_value(value: object) -> str:
    """A value as markup: numbers with a true minus sign, lists as their items one by one."""
    if isinstance(value, Html):
        return value
    if isinstance(value, list):
        return "".join(map(format_value, value))
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.4f}".replace("-", "\N{MINUS SIGN}")
    text = "" if value is None else str(value)
    return html.escape(UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text))


# The blocks by their names, which are comments before them
_, *PARTS = re.split(
    r"<!-- (.*) -->\n",
    files("onmt_lite.trace").joinpath("page.html").read_text(encoding="utf-8"),
)
BLOCKS = {name: body[:-1] for name, body in zip(PARTS[::2], PARTS[1::2])}


# -- one line -------------------------------------------------------------------------------------


def render_body(trace: Trace) -> Html:
    """Result, reasons, steps and attention of one line."""
    endings = [
        render_block(
            "ending",
            ending=ending,
            mark=Html(' class="best"' * (rank == 1)),
            rank=rank,
            row=make_anchor(trace, ending.step - 1, ending.row),
            cut_off="" if ending.ended else " (cut off)",
        )
        for rank, ending in enumerate(trace.hypotheses, 1)
    ]
    width = max(map(len, trace.steps))
    heads = [f"row {k + 1}" for k in range(trace.beam_size)]
    heads += ["finished beside them"] * (width - trace.beam_size)
    return render_block(
        "body",
        trace=trace,
        drawing=render_drawing(trace),
        tokens=Html(" ".join(render_block("token", text=token) for token in trace.src_tokens)),
        n_steps=len(trace.steps),
        endings=endings,
        why=[render_block("paragraph", text=sentence) for sentence in explain_second_best(trace)],
        heads=[render_block("head", name=name) for name in ("step", *heads, "dropped and blocked")],
        steps=[render_step(trace, t, width) for t in range(len(trace.steps))],
        attention=render_attention(trace) if trace.attention else render_block("no attention"),
    )


def render_attention(trace: Trace) -> Html:
    """A heat map of the winner: a row for each of its tokens, a column for each of the source."""
    rows = []
    for token, weights in zip(trace.hypotheses[0].tokens, trace.attention):
        percent = [f"{100 * weight:.0f}" if weight >= 0.005 else "" for weight in weights]
        depth = [min(1.0, max(0.0, weight)) * 0.6 for weight in weights]
        cells = [render_block("weight", depth=d, percent=p) for d, p in zip(depth, percent)]
        rows.append(render_block("attended", token=token, cells=cells))
    return render_block(
        "attention", heads=[render_block("head", name=x) for x in trace.src_tokens], rows=rows
    )


# -- the drawing ----------------------------------------------------------------------------------

# Pixels: a letter, the height of a node, from a row to the next, from a step to the next
LETTER, NODE, LANE, BETWEEN = 8, 30, 52, 44
LONGEST = 14  # width of a token, in letters
KINDS = ("pale", "kept", "best")  # of nodes and lines, in the order in which lines are drawn


def render_drawing(trace: Trace) -> Html:
    """A search as SVG: a column for each step, a node for each row, lines to their parents."""
    ranks = {(e.step - 1, e.row): rank for rank, e in enumerate(trace.hypotheses)}
    kinds = {place: "kept" for t, k in ranks for place in walk_back(trace, t, k)}
    kinds |= dict.fromkeys(enumerate(trace.path), "best")
    size, lanes = trace.beam_size, range(max(map(len, trace.steps)))
    tops = [24 + LANE * k + 14 * (k >= size) for k in lanes]
    parents, right = [(tops[0] + tops[size - 1]) // 2] * len(lanes), 14  # of the start
    start = render_block("start", x=right, y=parents[0] + NODE // 2)
    columns, edges, nodes = [], [], []
    for t, rows in enumerate(trace.steps):
        labels = {k: make_label(row) for k, row in enumerate(rows) if row.state != "none"}
        width = LETTER * (2 + max(map(text_width, labels.values()), default=1))
        left, right = right + BETWEEN, right + BETWEEN + width
        columns.append(render_block("column", x=left + width // 2, number=t + 1))
        for k, label in labels.items():
            kind = kinds.get((t, k), "pale")
            ways = dict(x1=left - BETWEEN, y1=parents[rows[k].parent] + NODE // 2, x2=left)
            ways |= dict(y2=tops[k] + NODE // 2, x=left - BETWEEN // 2)
            edges.append((KINDS.index(kind), render_block("edge", kind=kind, **ways)))
            # Clipped to half of the ways beside it, so that no text meets another
            box = dict(x=left - 20, y=tops[k], width=width + 40, inside=width - 4)
            box["middle"] = 20 + width // 2
            nodes.append(render_node(trace, t, k, ranks.get((t, k)), kind=kind, label=label, **box))
        parents = tops
    return render_block(
        "drawing",
        trace=trace,
        n_steps=len(trace.steps),
        width=right + 14,
        height=tops[-1] + LANE,
        columns=[start, *columns],
        beside=render_block("beside", y=tops[size] - 9, width=right) if len(lanes) > size else "",
        edges=[edge for _, edge in sorted(edges, key=itemgetter(0))],
        nodes=nodes,
    )


def walk_back(trace: Trace, t: int, k: int) -> Iterator[tuple[int, int]]:
    """The places (step, row) of a hypothesis, from its last token to its first."""
    for step in range(t, -1, -1):
        yield step, k
        k = trace.steps[step][k].parent


def render_node(trace: Trace, t: int, k: int, rank: int | None, kind: str, **place: object) -> Html:
    """A row; `rank`, from 0, of the hypothesis that ends with it."""
    row, told = trace.steps[t][k], list[str]()
    score = format_value(row.score)
    if t:
        told.append(f"from row {row.parent + 1}")
    if row.why:
        told.append(row.why)
    if rank is not None:
        ending, kind = trace.hypotheses[rank], f"{kind} ranked"
        score = f"#{rank + 1} {format_value(ending.score)}"
        end = "finished" if ending.ended else "cut off"
        told.append(f"{end}, rank {rank + 1} with the score {format_value(ending.score)}")
    told += {"best": ["on the winning path"], "pale": ["dropped"]}.get(kind.split()[0], [])
    more = dict(name=make_anchor(trace, t, k), step=t + 1, number=k + 1, origin=row.parent + 1)
    return render_block(
        "node", row=row, kind=kind, score=score, told="; ".join(told), **more, **place
    )


def make_label(row: Continuation) -> str:
    """Mark and token, which is cut to LONGEST; its blanks are made visible."""
    token = re.sub(r"\s", "\N{OPEN BOX}", row.text)
    fitting = sum(width <= LONGEST for width in accumulate(map(text_width, token)))
    if fitting < len(token):
        token = token[: fitting - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"{MARKS[row.state]} {token}".strip()


def text_width(text: str) -> int:
    """Width of a text in letters of equal width, of which a Chinese one takes two."""
    seen = [c for c in text if unicodedata.category(c) not in ("Mn", "Me", "Cf")]
    return len(seen) + sum(unicodedata.east_asian_width(c) in "WF" for c in seen)


# -- step by step ---------------------------------------------------------------------------------


def render_step(trace: Trace, t: int, width: int) -> Html:
    """A step: its rows, the hypotheses that finished beside them, the dropped continuations."""
    others = trace.pruned[t]
    n_blocked = sum(other.state == "blocked" for other in others)
    n_shown = f"{len(others) - n_blocked} dropped" + f", {n_blocked} blocked" * (n_blocked > 0)
    items = [
        render_block("item", mark=MARKS[o.state], number=o.parent + 1, other=o) for o in others
    ]
    return render_block(
        "step",
        number=t + 1,
        rows=[render_row(trace, t, k) for k in range(width)],
        dropped=render_block("dropped", shown=n_shown, items=items) if others else "",
    )


def render_row(trace: Trace, t: int, k: int) -> Html:
    """Token, score, log-probability, the row that it continues and what became of it."""
    if k >= len(trace.steps[t]):
        return render_block("nothing")
    row, origin, name = trace.steps[t][k], Html(), make_anchor(trace, t, k)
    if row.state == "none":
        return render_block("no row")
    if t:
        origin = render_block(
            "origin", name=make_anchor(trace, t - 1, row.parent), number=row.parent + 1
        )
    why = ", ".join(filter(None, ("" if row.state == "open" else row.state, row.why)))
    on_path = trace.path[t : t + 1] == [k]
    state, star = row.state + " best" * on_path, "\N{BLACK STAR} " * on_path
    more = dict(state=state, star=star, mark=MARKS[row.state], origin=origin, why=why)
    return render_block("row", row=row, name=name, **more)


def make_anchor(trace: Trace, t: int, k: int) -> str:
    return f"line{trace.id}step{t + 1}row{k + 1}"


# -- who won, and why -----------------------------------------------------------------------------


def explain_second_best(trace: Trace) -> list[Html]:
    """In sentences for somebody who has never seen a beam search."""
    if len(trace.hypotheses) < 2:
        return [render_block("only one")]
    best, second = trace.hypotheses[:2]
    two, gap = dict(best=best, second=second), best.score - second.score
    winner = [render_block("winner", gap=gap, **two), *[render_block("tie")] * (gap == 0)]
    # The sums, and the effect of dividing them by the length
    divided = not best.norm == second.norm == 1.0
    sums = [render_block("sums by length" if divided else "sums", **two)]
    if divided and best.log_prob < second.log_prob:
        sums.append(render_block("length decides"))
    if any(abs(ending.penalty) > 1e-4 for ending in (best, second)):
        sums.append(render_block("penalties", **two))
    pairs = zip(best.tokens, second.tokens)
    same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])  # tokens
    rest = dict(best=sum(best.log_probs[same:]), second=sum(second.log_probs[same:]))
    parting = [render_block("parting", same=same, number=same + 1, **rest)]
    return [Html("".join(told)) for told in (winner, sums, parting)]
