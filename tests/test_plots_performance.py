"""The roofline places what does floating-point work, and tells it in words."""

from __future__ import annotations

import pytest

from helpers.plots import png
from helpers.plots_performance import Point, attained, draw_roofline

MEMORY = Point("kda_replayssm", "batch 16", 2.0, 20.0, 80_000_000, 160_000_000)
MATRIX = Point("sparse_mla", "128 tokens", 900.0, 50.0, 40_000_000, 36_000_000_000)
COPY = Point("mamba_scatter", "8 requests", 0.0, 220.0, 906_000_000, 0)


def test_the_larger_floor_counts() -> None:
    assert attained(MEMORY, 4000, 1500) == pytest.approx(1.0)
    assert attained(MATRIX, 4000, 1500) == pytest.approx(0.48)
    assert attained(COPY, 4000, 1500) == pytest.approx(226.5 / 220)


def test_the_picture_tells_every_point() -> None:
    picture = draw_roofline([MEMORY, MATRIX, COPY], 4000, 1500)
    assert png(picture.figure).startswith(b"\x89PNG")
    assert "batch 16" in picture.alt
    assert "48%" in picture.alt
    assert "mamba_scatter" not in picture.alt


def test_copies_alone_have_no_roofline() -> None:
    with pytest.raises(ValueError, match="nothing to place"):
        draw_roofline([COPY], 4000, 1500)
