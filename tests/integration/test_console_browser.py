"""Goal: each page of the console works in a real browser, dark and light, and by keyboard.

Method: Chromium without a window reads the console of our broker; every page is waited for by the
mark that it sets when it is complete. What the browser's own log complains about fails the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from console_server import Console, console_of
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Consumer, NewTopic, Producer

DEADLINE_S = 60
HOSTILE = "<img src=x onerror=document.title='broken'>"
PAGES = {
    "overview": "#/",
    "topics": "#/topics",
    "messages": "#/topics/payments",
    "groups": "#/groups",
    "group": "#/groups/reports",
    "transactions": "#/transactions",
}


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    """The console of a broker with a bit of everything."""
    with Broker() as broker:
        where = broker.bootstrap_servers
        with Admin(bootstrap_servers=where) as admin:
            admin.create_topics([NewTopic("payments", 2, 1), NewTopic("clicks", 1, 1)])
        with (
            Producer(bootstrap_servers=where, transactional_id="till-1") as ends,
            Producer(bootstrap_servers=where, transactional_id="till-2") as stays,
            Producer(bootstrap_servers=where) as plain,
            Consumer(
                "clicks",
                bootstrap_servers=where,
                group_id="reports",
                auto_offset_reset="earliest",
                max_poll_records=100,
                enable_auto_commit=False,
            ) as consumer,
        ):
            ends.begin_transaction()
            ends.send("payments", b'{"cents":1250}', key=b"alice", partition=0)
            ends.commit_transaction()
            ends.begin_transaction()
            ends.send("payments", b"9999.99", key=b"mallory", partition=0).result()
            ends.abort_transaction()
            stays.begin_transaction()
            stays.send("payments", HOSTILE.encode(), key=b"bob", partition=0).result()
            plain.send_many("clicks", [b"click %d" % number for number in range(250)])
            plain.flush()
            while not consumer.poll(timeout_ms=500):
                pass
            consumer.commit()
            with console_of(where) as running:
                yield running
            stays.abort_transaction()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    if reason := browser.unavailable_reason():
        if os.environ.get("ONCEFLOW_REQUIRE_BROWSER"):
            pytest.fail(f"a browser is required here: {reason}")
        pytest.skip(f"no browser can run here: {reason}")
    with browser.open_browser() as running:
        running.set_page_load_timeout(DEADLINE_S)
        yield running


@pytest.fixture(autouse=True)
def log_of_its_own(chrome: Chrome) -> None:
    """What an earlier test's page still complains of is not this test's."""
    chrome.get("about:blank")
    complaints(chrome)


def show(chrome: Chrome, console: Console, name: str) -> str:
    """Go to a page; returns its text when it is complete."""
    chrome.get(f"{console.address}/{PAGES[name]}")
    return shown(chrome, PAGES[name])


def shown(chrome: Chrome, route: str) -> str:
    """Wait until a page is complete; returns its text."""
    wait(chrome, f"return document.body.dataset.shown === {route!r}")
    return chrome.find_element(By.ID, "page").text


def wait(chrome: Chrome, script: str) -> None:
    WebDriverWait(chrome, DEADLINE_S, poll_frequency=0.05).until(
        lambda running: running.execute_script(script)
    )


def press(chrome: Chrome, *keys: str) -> None:
    ActionChains(chrome).send_keys(*keys).perform()


def complaints(chrome: Chrome) -> list[str]:
    """What the browser's log holds since the last look."""
    return [each["message"] for each in chrome.get_log("browser")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("overview", ["Brokers", "till-2", "Ongoing"]),
        ("topics", ["payments", "clicks"]),
        ("messages", ["committed", "aborted", "open", "mallory", HOSTILE, "wait at 4"]),
        ("groups", ["reports", "Stable", "150"]),
        ("group", ["clicks", "100", "250", "150"]),
        ("transactions", ["till-1", "till-2", "payments:0"]),
    ],
)
def test_pages(chrome: Chrome, console: Console, name: str, words: list[str], theme: str) -> None:
    show(chrome, console, name)
    chrome.execute_script(f"localStorage.setItem('theme', {theme!r})")
    chrome.refresh()
    text = shown(chrome, PAGES[name])
    for word in words:
        assert word in text, text
    assert chrome.find_element(By.ID, "problem").is_displayed() is False
    assert chrome.title == "onceflow console", "what a record holds is text, never a program"
    back = chrome.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
    assert ("255, 255, 255" in back) == (theme == "light")
    assert complaints(chrome) == []
    if folder := os.environ.get("ONCEFLOW_PICTURES"):
        wait(chrome, "return !document.querySelector('.empty')?.textContent.includes('samples')")
        assert chrome.save_screenshot(str(Path(folder) / f"console-{name}-{theme}.png"))


def test_the_lag_is_drawn(chrome: Chrome, console: Console) -> None:
    show(chrome, console, "group")
    wait(chrome, "return document.querySelector('svg.chart polyline') !== null")
    label = chrome.find_element(By.CSS_SELECTOR, "svg.chart").get_attribute("aria-label")
    assert label == "lag, at most 150, now 150"


def test_keys_lead_through_the_pages(chrome: Chrome, console: Console) -> None:
    show(chrome, console, "overview")
    press(chrome, "g", "t")
    shown(chrome, "#/topics")
    press(chrome, "/", "cli", Keys.ESCAPE)
    rows = chrome.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert [row.text.split()[0] for row in rows if row.is_displayed()] == ["clicks"]
    press(chrome, "j", Keys.ENTER)
    text = shown(chrome, "#/topics/clicks")
    assert "click 249" in text
    assert "click 149" not in text
    press(chrome, "[")
    wait(chrome, "return document.querySelector('tbody td').textContent === '50'")
    assert "click 149" in chrome.find_element(By.ID, "page").text
    press(chrome, "]")
    wait(chrome, "return document.querySelector('tbody td').textContent === '150'")
    press(chrome, "g", "x")
    assert "till-2" in shown(chrome, "#/transactions")
    press(chrome, "?")
    assert chrome.find_element(By.ID, "help").is_displayed()
    press(chrome, Keys.ESCAPE)
    before = chrome.execute_script("return document.documentElement.dataset.theme")
    press(chrome, "d")
    after = chrome.execute_script("return document.documentElement.dataset.theme")
    assert {before, after} == {"dark", "light"}
    assert complaints(chrome) == []


def test_a_page_that_is_not_there_says_so(chrome: Chrome, console: Console) -> None:
    chrome.get(f"{console.address}/#/topics/none-of-this-name")
    wait(chrome, "return !document.getElementById('problem').hidden")
    assert "none-of-this-name" in chrome.find_element(By.ID, "problem").text
    press(chrome, "g", "g")
    shown(chrome, "#/groups")
    assert not chrome.find_element(By.ID, "problem").is_displayed()
