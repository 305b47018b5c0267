"""Whether the words of a figure can be read."""

from __future__ import annotations

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text


def legible(figure: Figure) -> None:
    """No text leaves the figure, and none lies over another."""
    figure.draw_without_rendering()
    texts: list[Text] = []
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes.title]
        texts += axes.get_yticklabels() if axes.axison else []
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text().strip()]
    for text, box in boxes:
        assert min(box.x0, box.y0) >= 0, f"{text!r} leaves the figure"
        assert box.x1 <= figure.bbox.x1, f"{text!r} leaves the figure"
        assert box.y1 <= figure.bbox.y1, f"{text!r} leaves the figure"
    for (text, box), (other, other_box) in combinations(boxes, 2):
        assert not box.padded(-1).overlaps(other_box.padded(-1)), f"{text!r} lies over {other!r}"
