"""A real browser for tests: Chromium without a window, driven by Selenium.

Chromium and its driver come from the system (Debian packages ``chromium`` and
``chromium-driver``). It gets a profile of its own and asks nothing of any other host.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REMEDY = "install the Debian packages chromium and chromium-driver"
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to run as root otherwise
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1300,900",
)


def unavailable_reason() -> str | None:
    """Why there is no browser here, with the remedy; None if there is one."""
    if _browser() is None:
        return f"no Chromium: {REMEDY}"
    if shutil.which("chromedriver") is None:
        return f"no chromedriver: {REMEDY}"
    return None


def _browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@contextlib.contextmanager
def open_browser() -> Iterator[Chrome]:
    """Start a browser."""
    browser, driver = _browser(), shutil.which("chromedriver")
    assert browser is not None, "ask unavailable_reason first"
    assert driver is not None, "ask unavailable_reason first"
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        chrome = Chrome(options=options, service=Service(driver))
        try:
            yield chrome
        finally:
            chrome.quit()
