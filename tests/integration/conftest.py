"""One browser for all tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.browser import CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("DRDSGD_BROWSER") == "required":
            pytest.fail("DRDSGD_BROWSER is required, but there is no chromium; install Debian's package")
        pytest.skip("there is no chromium to open the page in; install Debian's package to run these tests")
    with sync_playwright() as playwright:
        # its sandbox refuses to work for root
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()
