"""What a person sees in a browser: the report, several reports, slides, and JupyterLab on the notebooks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from nbformat import NotebookNode
from notebook_files import code, text, write

from helpers.atlas import record, records
from helpers.report import __main__ as command
from helpers.report.jobs import ROOT

if TYPE_CHECKING:
    from browser import Tab
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

PROVOKED = "mamba_scatter.state.device/src"
PLAYGROUND = "from helpers.playground import playground\nplayground()"
START_SECONDS = 60


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    from browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Tab]:
    """A page. Whatever a test does with it, it must have asked for nothing outside, and met no error."""
    from browser import tab

    with tab(chromium) as opened:
        yield opened
        assert opened.outside == []
        assert opened.complaints == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two notebooks, the same beside another one, and slides."""
    base = tmp_path_factory.mktemp("pages")
    provoke = code(f"from helpers.reproduce import reproduce\nprint(reproduce({PROVOKED!r}).raised)")
    lesson = [
        text("# Lesson\n\n$x_i$"),
        text("## The error in the wild"),
        provoke,
        text("## What it refuses"),
        text("[board](board.ipynb#The-end)"),
    ]
    write(base / "notebooks", "mamba_scatter", *lesson)
    write(base / "notebooks", "board", text("# Board"), code(PLAYGROUND), text("## The end"))
    made = ["--notebooks", str(base / "notebooks"), "--out"]
    assert command.main([*made, str(base / "reports" / "here"), "--jobs", "2"]) == 0
    shutil.copytree(base / "reports" / "here", base / "reports" / "there")
    both = [str(base / "reports" / name) for name in ("here", "there")]
    assert command.main(["merge", *both, "--out", str(base / "reports")]) == 0
    assert command.main(["slides", *made, str(base / "slides")]) == 0
    return base


def show(tab: Tab, path: Path, fragment: str = "") -> None:
    tab.page.goto(f"{path.as_uri()}{fragment}")


def visible_records(tab: Tab) -> list[str]:
    rows = tab.page.locator("#record-table tr.record:visible")
    return list(rows.evaluate_all("rows => rows.map(row => row.id)"))


@pytest.mark.parametrize("report", ["reports/here", "reports"])
def test_search_finds_a_record(folder: Path, tab: Tab, report: str) -> None:
    show(tab, folder / report / "index.html")
    assert len(visible_records(tab)) == len(records())
    tab.page.fill("#search", "DST and src same device")
    found = visible_records(tab)
    assert PROVOKED in found
    assert len(found) < len(records()) / 4
    assert tab.page.locator("#found").text_content() == f"{len(found)} of {len(records())} records"
    tab.page.fill("#search", "no record says this")
    assert visible_records(tab) == []
    assert tab.page.locator("tr.kernel:visible").count() == 0


def test_a_notebook_opens_from_the_index_and_leads_back(folder: Path, tab: Tab) -> None:
    show(tab, folder / "reports" / "here" / "index.html")
    tab.page.click("table a:text-is('mamba_scatter')")
    assert tab.page.title() == "mamba_scatter"
    assert record(PROVOKED).example in tab.page.inner_text("body")
    assert tab.page.locator("math").first.bounding_box()["width"] > 0
    tab.page.click("text=board")
    assert tab.page.url.endswith("board.html#The-end")
    tab.page.click("text=← report")
    assert tab.page.title().startswith("device-guards report")


def test_a_record_leads_to_the_section_that_explains_it(folder: Path, tab: Tab) -> None:
    show(tab, folder / "reports" / "index.html", f"#{PROVOKED}")
    row = tab.page.locator(f"[id='{PROVOKED}']")
    assert row.locator("td").count() == 3
    row.locator("a").nth(1).click()
    assert "/there/mamba_scatter.html#" in tab.page.url
    anchor = tab.page.url.partition("#")[2]
    assert tab.page.locator(f"[id='{anchor}']").count() == 1


@pytest.mark.parametrize("report", ["reports/here", "reports", "slides"])
def test_every_link_of_an_index_leads_somewhere(folder: Path, tab: Tab, report: str) -> None:
    show(tab, folder / report / "index.html")
    links = tab.page.locator("a").evaluate_all("links => links.map(link => link.href)")
    assert len(links) >= 2
    for link in links:
        path, _, anchor = link.removeprefix("file://").partition("#")
        assert Path(path).exists(), link
        assert not anchor or f'id="{anchor}"' in Path(path).read_text(encoding="utf-8"), link


def test_a_page_shows_the_playground_as_a_table(folder: Path, tab: Tab) -> None:
    show(tab, folder / "reports" / "here" / "board.html")
    shown = tab.page.inner_text("pre:has-text('the guards say')")
    assert "step_indices_raw" in shown
    assert "must be on" in shown


def test_slides_are_turned_by_keys(folder: Path, tab: Tab) -> None:
    show(tab, folder / "slides" / "mamba_scatter.html")
    present = "section.present:not(.stack)"
    tab.page.wait_for_selector(f".reveal.ready {present}")
    assert "Lesson" in tab.page.inner_text(present)
    tab.page.keyboard.press("ArrowRight")
    assert "The error in the wild" in tab.page.inner_text(present)
    tab.page.keyboard.press("ArrowRight")
    assert "What it refuses" in tab.page.inner_text(present)
    tab.page.keyboard.press("ArrowDown")
    tab.page.locator(present).locator("text=board").click()
    assert "The end" in tab.page.inner_text(present)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address of a JupyterLab on a copy of the notebooks, with settings of its own, and the folder it serves."""
    base = tmp_path_factory.mktemp("lab")
    first = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    # Without what is stored: whatever is shown then, was made there.
    write(base / "notebooks", "00_start_here", *[without_outputs(cell) for cell in first.cells])
    write(base / "notebooks", "board", text("# Board"), code(PLAYGROUND))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command_line = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
    ]
    command_line += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password="]
    # JupyterLab looks for newer releases of itself unless it is told not to.
    command_line += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    own = {name: str(base / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(base / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(base / "workspaces")}
    with (base / "log").open("w") as log:
        server = subprocess.Popen(
            command_line, cwd=base / "notebooks", env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api/status", server, base / "log")
        yield f"http://127.0.0.1:{port}", base / "notebooks"
    finally:
        server.terminate()
        server.wait(timeout=30)


def without_outputs(cell: NotebookNode) -> NotebookNode:
    return code(cell.source) if cell.cell_type == "code" else text(cell.source)


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')}")


def run_all(tab: Tab, address: str, name: str, cells: int) -> None:
    """Open a notebook in JupyterLab, run all cells by its menu, and wait until the last one has run."""
    tab.page.set_default_timeout(START_SECONDS * 1000)
    tab.page.goto(f"{address}/lab/tree/{name}.ipynb?reset")
    # A cell that is run before the kernel is known is not run at all.
    tab.page.wait_for_selector("#jp-main-statusbar >> text=/Python 3 .* Idle/")
    tab.page.click("#jp-MainMenu >> text=Run")
    tab.page.click("li[data-command='runmenu:run-all']")
    tab.page.wait_for_selector(f".jp-InputPrompt:text-is('[{cells}]:')")


def test_jupyterlab_runs_the_first_notebook(lab: tuple[str, Path], tab: Tab) -> None:
    address, folder = lab
    notebook = nbformat.read(folder / "00_start_here.ipynb", as_version=4)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    run_all(tab, address, "00_start_here", cells)
    last = tab.page.locator(f".jp-CodeCell:has(.jp-InputPrompt:text-is('[{cells}]:'))")
    last.scroll_into_view_if_needed()
    assert "exercises solved" in last.locator(".jp-OutputArea-output").inner_text()


def test_the_playground_answers_in_jupyterlab(lab: tuple[str, Path], tab: Tab) -> None:
    run_all(tab, lab[0], "board", 1)
    answer = tab.page.locator(".widget-html pre")
    answer.wait_for()
    assert "accepted" in answer.inner_text()
    row = tab.page.locator(".widget-hbox", has=tab.page.locator(".widget-label:text-is('src')"))
    row.locator("select").first.select_option("cuda:1")
    tab.page.wait_for_selector(".widget-html pre:has-text('dst and src must be on the same device')")
    assert tab.page.locator(".widget-html img[alt]").count() == 1
