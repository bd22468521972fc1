"""A page in a real browser, with its requests and its errors."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP = {"width": 390, "height": 800}, {"width": 1280, "height": 900}
COLOURS = "[...document.querySelectorAll('.node')].map(node => node.getAttribute('fill'))"
SIZES = "[...document.querySelectorAll('.node')].map(node => Number(node.getAttribute('r')))"


@dataclasses.dataclass
class Opened:
    """A page, its requests and its errors."""

    page: Page
    requests: list[str]
    errors: list[str]

    def text(self, selector: str) -> str:
        """The words of an element, with plain spaces."""
        return " ".join(self.page.inner_text(selector).split())

    def settle(self) -> None:
        """Wait for the next frame, which draws the effect of a change."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def slide(self, k: int) -> None:
        """Move the slider to its k-th stop."""
        self.page.locator("#round").fill(str(k))
        self.settle()

    def hover(self, selector: str, **how: Any) -> None:
        """Point at an element. The scroll event hides the tooltip, so wait for it first."""
        self.page.mouse.move(0, 0)
        self.page.eval_on_selector(
            selector,
            """it => new Promise(done => {
                const before = scrollY;
                it.scrollIntoView({block: "center"});
                if (scrollY === before) done(); else addEventListener("scroll", done, {once: true});
            })""",
        )
        self.page.hover(selector, **how)

    def lines(self, figure: str, kind: str = "") -> dict[str, str]:
        """The lines of a plot by name, as paths."""
        found: list[tuple[str, str]] = self.page.eval_on_selector_all(
            f"#{figure} .line{kind}", "lines => lines.map(line => [line.dataset.name, line.getAttribute('d')])"
        )
        return dict(found)


def opened(browser: Browser, file: Path, **options: Any) -> Opened:
    page = browser.new_page(**{"viewport": DESKTOP, **options})
    found = Opened(page, [], [])
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("console", lambda message: found.errors.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    return found
