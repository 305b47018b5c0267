"""Pictures carry a description everywhere, stay legible, and show what the data say."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import nbformat
import pytest
import torch
from bs4 import BeautifulSoup
from legibility import legible
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from nbconvert import HTMLExporter
from PIL import Image

from helpers import plots, topology
from helpers.atlas import spec
from helpers.calls import Call

STATE = "fused_mamba_state_scatter_with_mask"


def scatter_call(slots: list[int], steps: list[int]) -> dict[str, torch.Tensor]:
    call = Call.valid(spec(STATE), on=topology.CPU)
    return {**call.args, "dst_indices_raw": torch.tensor(slots), "step_indices_raw": torch.tensor(steps)}


@dataclass(frozen=True)
class Rate:
    name: str
    gbps: float


@pytest.fixture
def figure() -> Figure:
    drawn, axes = plots.new_figure(2)
    axes.plot([1, 2])
    return drawn


# The description.


def test_a_figure_without_a_description_is_refused(figure: Figure) -> None:
    for alt in ("", "  \n"):
        with pytest.raises(ValueError, match="needs a description"):
            plots.show(figure, alt)


def test_the_description_reaches_the_page_that_nbconvert_makes(figure: Figure) -> None:
    output = nbformat.v4.new_output("display_data", plots.mime_bundle(figure, 'a line\nfrom 1 to 2 & "up"'))
    cell = nbformat.v4.new_code_cell("show()", outputs=[output], execution_count=1)
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    (image,) = BeautifulSoup(page, "html.parser").find_all("img")
    assert image["alt"] == 'a line from 1 to 2 & "up"'


def test_the_text_form_is_the_description_alone(figure: Figure) -> None:
    bundle = plots.mime_bundle(figure, "a line")
    assert bundle["text/plain"] == "Figure: a line"
    # The image travels inside the HTML, so that JupyterLab and nbconvert keep its description.
    assert set(bundle) == {"text/html", "text/plain"}


def test_a_picture_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    picture = plots.draw_scatter(scatter_call([2, 1, 3, 5], [0, -1, 1, 1]))
    assert picture._repr_mimebundle_()["text/plain"] == f"Figure: {picture.alt}"
    plots.show(picture)
    assert picture.alt in capsys.readouterr().out


def test_the_same_picture_is_the_same_file() -> None:
    call = scatter_call([2, 1, 3, 5], [0, -1, 1, 1])
    first, second = (plots.png(plots.draw_scatter(call).figure, "x") for _ in range(2))
    assert first == second


def test_the_paper_is_opaque_in_every_theme(figure: Figure) -> None:
    image = Image.open(BytesIO(plots.png(figure))).convert("RGBA")
    assert image.getpixel((0, 0)) == (255, 255, 255, 255)
    assert image.getchannel("A").getextrema() == (255, 255)


# The scatter.


def test_the_scatter_shows_what_the_indices_say() -> None:
    picture = plots.draw_scatter(scatter_call([2, 1, 9, 5], [0, -1, 1, 1]))
    (axes,) = picture.figure.axes
    assert len([patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]) == 2
    hatched = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert len(hatched) == 2
    texts = [text.get_text() for text in axes.texts]
    assert "step -1: none accepted" in texts
    assert "slot 9 does not exist" in texts
    assert {"slot 2  ← request 0", "slot 5  ← request 3", "slot 1"} <= set(texts)
    assert "request 0 at step 0 to slot 2, request 3 at step 1 to slot 5" in picture.alt
    legible(picture.figure)


def test_a_scatter_of_nothing_is_drawn() -> None:
    picture = plots.draw_scatter(scatter_call([0, 1, 2, 3], [-1, -1, -1, -1]))
    assert "No arrows" in picture.alt


def test_a_scatter_of_fewer_requests_than_scratch_rows() -> None:
    texts = [text.get_text() for text in plots.draw_scatter(scatter_call([0], [2])).figure.axes[0].texts]
    assert texts.count("not in this call") == 3


def test_stand_ins_cannot_be_drawn() -> None:
    call = Call.valid(spec(STATE), on=torch.device("cuda", 7))
    with pytest.raises(ValueError, match="stand-ins hold no indices"):
        plots.draw_scatter(call.args)


def test_too_much_for_a_picture_is_refused() -> None:
    arguments = {**scatter_call([0], [0]), "dst": torch.zeros(2, 100, 3)}
    with pytest.raises(ValueError, match="too much for one picture"):
        plots.draw_scatter(arguments)


# Rates.


def test_the_bars_are_as_long_as_the_rates() -> None:
    rates = [Rate("large", 3900.0), Rate("a much longer name, 1 request", 310.0), Rate("above", 4300.0)]
    picture = plots.draw_bandwidth(rates, ceiling=4200.0, device="a GPU")
    (axes,) = picture.figure.axes
    assert [bar.get_width() for bar in axes.patches] == [3900.0, 310.0, 4300.0]
    assert "large 3,900 GB/s (93%)" in picture.alt
    legible(picture.figure)
