"""Traces as a page: one HTML file that needs nothing else, no network and no script.

What opens and closes are `details`, what leads from a row to its parent are links, so that a
keyboard is enough.  Colours follow the reader's choice of light or dark, and no meaning is in a
colour alone: each state has its mark.
"""

import html
from collections.abc import Sequence

from onmt_lite.inference.chart import UNWRITABLE
from onmt_lite.inference.trace import Cell, Ending, Trace

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--page:#fff;--box:#f3f5f7;
--line:#c9d1d9;--best:#0550ae;--best-box:#dbeaff;--done:#116329;--bad:#a40e26;--heat:5,80,174}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa5b1;--page:#0d1117;--box:#161b22;
--line:#3d444d;--best:#79c0ff;--best-box:#10294a;--done:#7ee787;--bad:#ff9b94;--heat:88,166,255}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:78rem;padding:1rem;background:var(--page);color:var(--ink);
font:1rem/1.45 system-ui,sans-serif}
a{color:var(--best)}
:focus-visible{outline:3px solid var(--best);outline-offset:2px}
summary{cursor:pointer;padding:.2rem 0}
details.line{border-top:1px solid var(--line);padding:.5rem 0}
details.line>summary{font-size:1.1rem}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;margin:.5rem 0}
th,td{border:1px solid var(--line);padding:.25rem .5rem;text-align:left;vertical-align:top}
thead th{background:var(--box)}
.number{text-align:right;font-variant-numeric:tabular-nums}
.token{font-weight:600;white-space:pre-wrap;overflow-wrap:anywhere}
small{color:var(--soft);display:block}
.steps td{min-width:6.5rem}
.steps tbody th{position:sticky;left:0;background:var(--box)}
.best{background:var(--best-box);box-shadow:inset 4px 0 var(--best)}
.finished .mark{color:var(--done)}
.ended .mark,.blocked .mark{color:var(--bad)}
.none{color:var(--soft)}
td:target{outline:3px solid var(--best);outline-offset:-3px}
.heat td{min-width:2.2rem;text-align:center;font-size:.8rem;color:var(--ink);padding:.15rem .3rem}
.heat thead th{writing-mode:vertical-rl;font-weight:400;vertical-align:bottom}
.heat tbody th{font-weight:400;white-space:nowrap;position:sticky;left:0;background:var(--box)}
.why{max-width:48rem}
"""

INTRODUCTION = """
<p>A beam search writes a translation token by token. It keeps several beginnings at a time, the
<b>rows</b>. At each <b>step</b> every row could go on with any token of the vocabulary; only the
best of all these continuations become the rows of the next step, the others are dropped. A row that
takes the end token is a finished hypothesis. When the search stops, the finished hypothesis with
the best score wins.</p>
<p>A <b>log-probability</b> is never above 0, and closer to 0 is better: \N{MINUS SIGN}0.1 is a
probability of 90&nbsp;%, \N{MINUS SIGN}0.7 of 50&nbsp;%, \N{MINUS SIGN}2.3 of 10&nbsp;%,
\N{MINUS SIGN}4.6 of 1&nbsp;%. Those of a row's tokens are added up.</p>
<p>Marks: <b>\N{BLACK STAR}</b> on the winning path; <b>\N{BLACK SQUARE}</b> finished;
<b>\N{MULTIPLICATION SIGN}</b> ended and not counted; <b>!</b> blocked by a rule;
<b>\N{EN DASH}</b> dropped. Tab and Enter open and close what is folded and follow a row to the one
that it continues.</p>
"""

MARKS = {
    "open": "",
    "finished": "\N{BLACK SQUARE}",
    "ended": "\N{MULTIPLICATION SIGN}",
    "blocked": "!",
    "lost": "\N{EN DASH}",
}


def to_html(traces: Sequence[Trace]) -> str:
    """A page with a part for each trace, the first of them open."""
    lines = [_line(trace, is_open=i == 0) for i, trace in enumerate(traces)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Beam search, step by step</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Beam search, step by step</h1><details open><summary>How to read this page</summary>"
        f"{INTRODUCTION}</details>{''.join(lines)}</main></body></html>\n"
    )


def _line(trace: Trace, is_open: bool) -> str:
    """The part of one line: result, reasons, steps, attention."""
    best = trace.endings[0] if trace.endings else None
    result = f" \N{RIGHTWARDS ARROW} <b>{_text(best.text)}</b>" if best else " (not translated)"
    parts = [
        f'<details class="line" id="line{trace.id}"{" open" * is_open}>',
        f"<summary>Line {trace.id + 1}: {_text(trace.src)}{result}</summary>",
    ]
    if best is not None:
        parts += [
            f"<p>Source tokens: {_tokens(trace.src_tokens)}</p>",
            f"<p>After step {len(trace.steps)} the search stopped: {_text(trace.stop)}.</p>",
            _endings(trace),
            '<h3>Why the second best lost</h3><div class="why">',
            "".join(f"<p>{_text(sentence)}</p>" for sentence in why_second_lost(trace)),
            "</div>",
            _comparison(trace.endings),
            _steps(trace),
            _attention(trace),
        ]
    return "".join(parts) + "</details>\n"


# -- who won, and why -----------------------------------------------------------------------------


def why_second_lost(trace: Trace) -> list[str]:
    """In sentences for somebody who has never seen a beam search."""
    best, *others = trace.endings
    if not others:
        return [
            "No other hypothesis has finished. The rows that were still open are those of the last "
            "step below; what was dropped on the way stands beside its step, with the reason."
        ]
    second = others[0]
    sentences = [
        f"The winner is \N{LEFT DOUBLE QUOTATION MARK}{best.text}\N{RIGHT DOUBLE QUOTATION MARK} "
        f"with the score {number(best.score)}; the second best is "
        f"\N{LEFT DOUBLE QUOTATION MARK}{second.text}\N{RIGHT DOUBLE QUOTATION MARK} with "
        f"{number(second.score)}, which is lower by {best.score - second.score:.4f}."
    ]
    if best.score == second.score:
        sentences[0] += " Equal scores are ordered by which finished first."
    return [*sentences, _length_decides(best, second), _parting(best, second)]


def _length_decides(best: Ending, second: Ending) -> str:
    """What the sums say, and what dividing by the length makes of them."""
    sums = f"{number(best.log_prob)} for the winner and {number(second.log_prob)} for the other"
    higher = best.log_prob >= second.log_prob
    if best.norm == second.norm == 1.0:
        told = f"The score starts from the sum of the tokens' log-probabilities: {sums}."
    else:
        told = (
            f"The sums of the tokens' log-probabilities are {sums}. Each is divided by a number "
            f"for its length, {best.norm:.4g} ({_n_tokens(best)}) and {second.norm:.4g} "
            f"({_n_tokens(second)}), so that long translations are not at a disadvantage: "
            f"{number(best.log_prob / best.norm)} and {number(second.log_prob / second.norm)}."
        )
        if not higher:
            told += " By the sums alone the other would have won; its length decided against it."
    penalties = [ending.score - ending.log_prob / ending.norm for ending in (best, second)]
    if any(abs(penalty) > 1e-4 for penalty in penalties):
        told += (
            " Penalties and rules of the search (coverage, repetition, diversity) change that by "
            f"{number(penalties[0])} and {number(penalties[1])}."
        )
    return told


def _n_tokens(ending: Ending) -> str:
    n = len(ending.tokens)
    return "1 token" if n == 1 else f"{n} tokens"


def _parting(best: Ending, second: Ending) -> str:
    """Where the two part, and what each paid from there on."""
    same = 0
    for one, other in zip(best.tokens, second.tokens):
        if one != other:
            break
        same += 1
    begin = "They differ from the first token on" if not same else f"Their first {same} are equal"
    rests = [sum(ending.log_probs[same:]) for ending in (best, second)]
    worst = [
        min(zip(ending.log_probs[same:], ending.tokens[same:]), default=None)
        for ending in (best, second)
    ]
    told = (
        f"{begin}; from token {same + 1} on the winner's tokens add up to {number(rests[0])}, the "
        f"other's to {number(rests[1])}."
    )
    if worst[1] is not None:
        told += (
            f" The dearest token of the second best there is \N{LEFT DOUBLE QUOTATION MARK}"
            f"{worst[1][1]}\N{RIGHT DOUBLE QUOTATION MARK} ({number(worst[1][0])})"
        )
        told += (
            f", that of the winner \N{LEFT DOUBLE QUOTATION MARK}{worst[0][1]}"
            f"\N{RIGHT DOUBLE QUOTATION MARK} ({number(worst[0][0])})."
            if worst[0] is not None
            else "."
        )
    return told


def _endings(trace: Trace) -> str:
    """The finished hypotheses, best first."""
    rows = [
        [
            str(i),
            _text(e.text),
            _number(e.score),
            _number(e.log_prob),
            f"{e.norm:.4g}",
            str(len(e.tokens)),
            f'<a href="#{_name(trace, e.step - 1, e.row)}">step {e.step}</a>'
            + ("" if e.ended else " (cut off)"),
        ]
        for i, e in enumerate(trace.endings, 1)
    ]
    heads = "rank,translation,score,sum of log-probabilities,divided by,tokens,finished at"
    best = ' class="best"'
    body = "".join(
        f"<tr{best if i == 0 else ''}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
        for i, row in enumerate(rows)
    )
    return (
        "<h3>Finished hypotheses</h3>"
        + _scrolling("Finished hypotheses", f"<table>{_heads(heads.split(','))}{body}</table>")
        + "<p>score = sum of log-probabilities \N{DIVISION SIGN} a number for the length, less "
        "penalties where the options ask for them.</p>"
    )


def _comparison(endings: list[Ending]) -> str:
    """The tokens of the two best, side by side."""
    if len(endings) < 2:
        return ""
    best, second = endings[:2]
    rows, totals = [], [0.0, 0.0]
    for i in range(max(len(best.tokens), len(second.tokens))):
        cells = [str(i + 1)]
        for j, ending in enumerate((best, second)):
            if i >= len(ending.tokens):
                cells += ["", "", ""]
                continue
            totals[j] += ending.log_probs[i]
            token = f'<span class="token">{_text(ending.tokens[i])}</span>'
            cells += [token, _number(ending.log_probs[i]), _number(totals[j])]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ["token", "winner", "its log-probability", "sum so far"]
    heads += ["second best", "its log-probability", "sum so far"]
    table = f"<table>{_heads(heads)}{''.join(rows)}</table>"
    return (
        "<details><summary>The two, token by token</summary>"
        f"{_scrolling('The two best, token by token', table)}</details>"
    )


# -- step by step ---------------------------------------------------------------------------------


def _steps(trace: Trace) -> str:
    """A row of the table for each step: its rows, what finished beside them, what was dropped."""
    heads = ["step", *(f"row {k + 1}" for k in range(trace.beam_size))]
    any_beside = any(len(cells) > trace.beam_size for cells in trace.steps)
    heads += ["finished beside them"] * any_beside + ["dropped and blocked"]
    body = []
    for t, (cells, others) in enumerate(zip(trace.steps, trace.others)):
        rows = [_cell(trace, t, k) for k in range(min(trace.beam_size, len(cells)))]
        beside = [_inside(trace, t, k) for k in range(trace.beam_size, len(cells))]
        is_best = any(_on_path(trace, t, k) for k in range(trace.beam_size, len(cells)))
        mark = ' class="best finished"' if is_best else ' class="finished"'
        body.append(
            f'<tr><th scope="row">{t + 1}</th>{"".join(rows)}'
            + f"<td{mark}>{'<hr>'.join(beside)}</td>" * any_beside
            + f"<td>{_dropped(others)}</td></tr>"
        )
    table = f'<table class="steps">{_heads(heads)}<tbody>{"".join(body)}</tbody></table>'
    return "<h3>Step by step</h3>" + _scrolling("Step by step", table)


def _cell(trace: Trace, t: int, k: int) -> str:
    """A row of the beam."""
    cell = trace.steps[t][k]
    if cell.state == "none":
        return '<td class="none">no row</td>'
    best = " best" * _on_path(trace, t, k)
    name = _name(trace, t, k)
    return f'<td class="{cell.state}{best}" id="{name}">{_contents(trace, t, k)}</td>'


def _inside(trace: Trace, t: int, k: int) -> str:
    """A hypothesis that finished beside the rows."""
    return f'<div id="{_name(trace, t, k)}">{_contents(trace, t, k)}</div>'


def _contents(trace: Trace, t: int, k: int) -> str:
    """Token, score, log-probability, where it comes from and what became of it."""
    cell = trace.steps[t][k]
    star = "\N{BLACK STAR} " if _on_path(trace, t, k) else ""
    mark = f'<span class="mark">{MARKS[cell.state]}</span> ' if MARKS[cell.state] else ""
    origin = ""
    if t:
        target = _name(trace, t - 1, cell.parent)
        origin = f'<small><a href="#{target}">from row {cell.parent + 1}</a></small>'
    what = cell.state if cell.state != "open" else ""
    why = f"<small>{_text(', '.join(filter(None, (what, cell.why))))}</small>" if what else ""
    return (
        f'{star}{mark}<span class="token">{_text(cell.token)}</span>'
        f"<small>score {_number(cell.score)}</small>"
        f"<small>token {_number(cell.log_prob)}</small>{origin}{why}"
    )


def _dropped(others: list[Cell]) -> str:
    """What did not become a row, folded."""
    if not others:
        return ""
    n_blocked = sum(cell.state == "blocked" for cell in others)
    shown = f"{len(others) - n_blocked} dropped" + (f", {n_blocked} blocked" if n_blocked else "")
    items = [
        f'<li class="{cell.state}"><span class="mark">{MARKS[cell.state]}</span> row '
        f'{cell.parent + 1} + <span class="token">{_text(cell.token)}</span>: score '
        f"{_number(cell.score)}, token {_number(cell.log_prob)}"
        f"<small>{_text(cell.why)}</small></li>"
        for cell in others
    ]
    return f"<details><summary>{shown}</summary><ul>{''.join(items)}</ul></details>"


def _on_path(trace: Trace, t: int, k: int) -> bool:
    return t < len(trace.path) and trace.path[t] == k


def _name(trace: Trace, t: int, k: int) -> str:
    return f"line{trace.id}step{t + 1}row{k + 1}"


# -- attention ------------------------------------------------------------------------------------


def _attention(trace: Trace) -> str:
    """A heat map of the winner: a row for each of its tokens, a column for each of the source."""
    if not trace.attention:
        return "<h3>Attention</h3><p>The model has no attention.</p>"
    head = "".join(f'<th scope="col">{_text(token)}</th>' for token in trace.src_tokens)
    body = []
    for token, weights in zip(trace.endings[0].tokens, trace.attention):
        cells = "".join(
            f'<td style="background:rgba(var(--heat),{min(1.0, max(0.0, weight)) * 0.6:.2f})">'
            f"{f'{100 * weight:.0f}' if weight >= 0.005 else ''}</td>"
            for weight in weights
        )
        body.append(f'<tr><th scope="row">{_text(token)}</th>{cells}</tr>')
    table = (
        f'<table class="heat"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )
    return (
        "<h3>Attention</h3><p>For each token of the winner (rows), how much of the decoder's "
        "attention each source token has (columns), in percent; what is missing to 100 goes to "
        f"tokens that the model adds.</p>{_scrolling('Attention', table)}"
    )


# -- small things ---------------------------------------------------------------------------------


def number(value: float) -> str:
    """-0.3584 with a true minus sign."""
    return f"{value:.4f}".replace("-", "\N{MINUS SIGN}")


def _number(value: float | None) -> str:
    shown = "" if value is None else number(value)
    return f'<span class="number">{shown}</span>'


def _heads(names: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    return f"<thead><tr>{cells}</tr></thead>"


def _scrolling(label: str, table: str) -> str:
    """A table that may be wider than the page: it scrolls by keyboard, too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{table}</div>'


def _tokens(tokens: Sequence[str]) -> str:
    return " ".join(f'<span class="token">{_text(token)}</span>' for token in tokens)


def _text(text: str) -> str:
    return html.escape(UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text))
