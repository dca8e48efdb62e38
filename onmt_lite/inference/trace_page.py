"""The file of -dump_beam: traces as JSON, or as a page that needs no network and no script.

Foldable parts of the page are `details`, and links lead from a row to its parent, so that a
keyboard is enough.  Colours follow the reader's choice of light or dark, and no meaning is in a
colour alone: each state has its mark.  The blocks of the page are in trace_page.html.
"""

import html
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import takewhile
from string import Formatter

from onmt_lite.inference.records import Trace, finite

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
        key: [[[finite(getattr(row, name)) for row in rows] for rows in t.steps] for t in traces]
        for key, name in KEYS.items()
    }
    return json.dumps(columns, ensure_ascii=False, allow_nan=False) + "\n"


def to_html(traces: Sequence[Trace]) -> str:
    """A page with a part for each trace, the first of them open."""
    lines = []
    for i, trace in enumerate(traces):
        result, body = Html(" (not translated)"), Html()
        if trace.endings:
            result, body = fill("result", best=trace.endings[0]), body_of(trace)
        parts = dict(trace=trace, number=trace.id + 1, result=result, body=body)
        lines.append(fill("line", open=" open" * (i == 0), **parts))
    return fill("page", style=Html(BLOCKS["style"]), lines=lines) + "\n"


# -- blocks ---------------------------------------------------------------------------------------


class Html(str):
    """Text that is markup already."""


class Markup(Formatter):
    """Fills in values as markup, unless the block formats them itself."""

    def format_field(self, value: object, spec: str) -> str:
        return format(value, spec) if spec else shown(value)


def fill(block: str, **values: object) -> Html:
    """A block of the page with these values."""
    return Html(Markup().vformat(BLOCKS[block], (), values))


def shown(value: object) -> str:
    """A value as markup: numbers with a true minus sign, lists as their items one by one."""
    if isinstance(value, Html):
        return value
    if isinstance(value, list):
        return "".join(map(shown, value))
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.4f}".replace("-", "\N{MINUS SIGN}")
    text = "" if value is None else str(value)
    return html.escape(UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text))


# The blocks by their names, which are comments before them
_, *PARTS = re.split(
    r"<!-- (.*) -->\n",
    files("onmt_lite.inference").joinpath("trace_page.html").read_text(encoding="utf-8"),
)
BLOCKS = {name: body[:-1] for name, body in zip(PARTS[::2], PARTS[1::2])}


# -- one line -------------------------------------------------------------------------------------


def body_of(trace: Trace) -> Html:
    """Result, reasons, steps and attention of one line."""
    endings = [
        fill(
            "ending",
            ending=ending,
            mark=Html(' class="best"' * (rank == 1)),
            rank=rank,
            row=name_of(trace, ending.step - 1, ending.row),
            cut_off="" if ending.ended else " (cut off)",
        )
        for rank, ending in enumerate(trace.endings, 1)
    ]
    width = max(map(len, trace.steps))
    heads = [f"row {k + 1}" for k in range(trace.beam_size)]
    heads += ["finished beside them"] * (width - trace.beam_size)
    return fill(
        "body",
        trace=trace,
        tokens=Html(" ".join(fill("token", text=token) for token in trace.src_tokens)),
        n_steps=len(trace.steps),
        endings=endings,
        why=[fill("paragraph", text=sentence) for sentence in why_second_lost(trace)],
        heads=[fill("head", name=name) for name in ("step", *heads, "dropped and blocked")],
        steps=[step_of(trace, t, width) for t in range(len(trace.steps))],
        attention=attention_of(trace) if trace.attention else fill("no attention"),
    )


def attention_of(trace: Trace) -> Html:
    """A heat map of the winner: a row for each of its tokens, a column for each of the source."""
    rows = []
    for token, weights in zip(trace.endings[0].tokens, trace.attention):
        percent = [f"{100 * weight:.0f}" if weight >= 0.005 else "" for weight in weights]
        depth = [min(1.0, max(0.0, weight)) * 0.6 for weight in weights]
        cells = [fill("weight", depth=d, percent=p) for d, p in zip(depth, percent)]
        rows.append(fill("attended", token=token, cells=cells))
    return fill("attention", heads=[fill("head", name=x) for x in trace.src_tokens], rows=rows)


# -- step by step ---------------------------------------------------------------------------------


def step_of(trace: Trace, t: int, width: int) -> Html:
    """A step: its rows, the hypotheses that finished beside them, the dropped continuations."""
    others = trace.others[t]
    n_blocked = sum(other.state == "blocked" for other in others)
    n_shown = f"{len(others) - n_blocked} dropped" + f", {n_blocked} blocked" * (n_blocked > 0)
    items = [fill("item", mark=MARKS[o.state], number=o.parent + 1, other=o) for o in others]
    return fill(
        "step",
        number=t + 1,
        rows=[row_of(trace, t, k) for k in range(width)],
        dropped=fill("dropped", shown=n_shown, items=items) if others else "",
    )


def row_of(trace: Trace, t: int, k: int) -> Html:
    """Token, score, log-probability, the row that it continues and what became of it."""
    if k >= len(trace.steps[t]):
        return fill("nothing")
    row, origin, name = trace.steps[t][k], Html(), name_of(trace, t, k)
    if row.state == "none":
        return fill("no row")
    if t:
        origin = fill("origin", name=name_of(trace, t - 1, row.parent), number=row.parent + 1)
    why = ", ".join(filter(None, ("" if row.state == "open" else row.state, row.why)))
    on_path = trace.path[t : t + 1] == [k]
    state, star = row.state + " best" * on_path, "\N{BLACK STAR} " * on_path
    more = dict(state=state, star=star, mark=MARKS[row.state], origin=origin, why=why)
    return fill("row", row=row, name=name, **more)


def name_of(trace: Trace, t: int, k: int) -> str:
    return f"line{trace.id}step{t + 1}row{k + 1}"


# -- who won, and why -----------------------------------------------------------------------------


def why_second_lost(trace: Trace) -> list[Html]:
    """In sentences for somebody who has never seen a beam search."""
    if len(trace.endings) < 2:
        return [fill("only one")]
    best, second = trace.endings[:2]
    two, gap = dict(best=best, second=second), best.score - second.score
    winner = [fill("winner", gap=gap, **two), *[fill("tie")] * (gap == 0)]
    # The sums, and the effect of dividing them by the length
    divided = not best.norm == second.norm == 1.0
    sums = [fill("sums by length" if divided else "sums", **two)]
    if divided and best.log_prob < second.log_prob:
        sums.append(fill("length decides"))
    if any(abs(ending.penalty) > 1e-4 for ending in (best, second)):
        sums.append(fill("penalties", **two))
    pairs = zip(best.tokens, second.tokens)
    same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])  # tokens
    rest = dict(best=sum(best.log_probs[same:]), second=sum(second.log_probs[same:]))
    parting = [fill("parting", same=same, number=same + 1, **rest)]
    return [Html("".join(told)) for told in (winner, sums, parting)]
