"""A real browser for tests: Debian's Chromium, driven by Playwright, which may speak to this machine alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

# What Chromium does by itself when it starts has nothing to do with the page: it must not reach out, nor need a GPU.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Tab:
    """A page in the browser, and what was noticed about it.

    Attributes:
        page: Playwright's.
        fetched: addresses that it asked for, all of them.
        complaints: errors on its console or in its scripts.
    """

    page: Page
    fetched: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def outside(self) -> list[str]:
        """Addresses that are not on this machine."""
        return [url for url in self.fetched if _is_outside(url)]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser) -> Iterator[Tab]:
    """A new page, with nothing remembered of other pages. Whatever it wants from outside is noted and refused."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    opened = Tab(context.new_page())
    opened.page.on("request", lambda request: opened.fetched.append(request.url))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None)
    context.route(_is_outside, lambda route: route.abort())
    yield opened
    context.close()


def _is_outside(url: str) -> bool:
    address = urlsplit(url)
    return address.scheme not in ("file", "data", "blob", "about") and address.hostname not in (
        "127.0.0.1",
        "localhost",
    )
