"""SVG charts drawn with matplotlib, an optional dependency (extra `plots`)."""

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from onmt_lite.train.run_directory import Row

HAS_MATPLOTLIB = find_spec("matplotlib") is not None

# Keep text searchable, and write identical files for identical data
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "onmt_lite"}


def draw_svg(width: float, height: float, draw: Callable[[Any], None]) -> bytes:
    """Draw an SVG chart.

    Args:
        width: width in inches
        height: height in inches
        draw: draws on a matplotlib figure

    Returns:
        The content of the file.
    """
    import matplotlib  # optional
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure((width, height), layout="constrained")
        draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def draw_training_chart(rows: Sequence[Row]) -> bytes:
    """Plot the losses over time, and BLEU below if there are scores."""
    lines = (("training", "train_loss", 0), ("held out", "valid_loss", 0), ("BLEU", "bleu", 1))
    has_bleu = any(row.bleu is not None for row in rows)

    def draw(figure: Any) -> None:
        panels = figure.subplots(1 + has_bleu, sharex=True, squeeze=False)[:, 0]  # loss, BLEU
        for name, field, panel in lines:
            known = [(row.minutes, getattr(row, field)) for row in rows]
            known = [(x, y) for x, y in known if y is not None]
            if known:  # markers make a single point visible
                panels[panel].plot(*zip(*known), marker=".", label=name, gid=name)
        panels[0].set_ylabel("loss, nats per token")
        panels[0].legend()
        if has_bleu:
            panels[1].set_ylabel("BLEU")
            panels[1].set_ylim(bottom=0)
        panels[-1].set_xlabel("wall-clock minutes")
        panels[-1].set_xlim(left=0)

    return draw_svg(7.2, 5.8 if has_bleu else 3.4, draw)
