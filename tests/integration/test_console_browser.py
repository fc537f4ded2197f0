"""Goal: each page of the console works in a real browser, dark and light, and by keyboard.

Method: Chromium without a window reads the console of our broker; every page is waited for by the
mark that it sets when it is complete. What the browser's own log complains about fails the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from console_server import Console, console_of
from processor_processes import wait_for
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from onceflow.broker_lite import Broker
from onceflow.cli.connect import Connection
from onceflow.cli.dlq import replay_letters
from onceflow.console.server import Writing
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
    "processors": "#/processors",
    "letters": "#/topics/bad",
}
PROGRAM = """
from onceflow.processors import App, State

app = App("tills")


@app.processor("sales", to="receipts", dead_letter="bad")
def receive(cents: int, total: State[int] = State(0)) -> int:
    total.set(total.get() + cents)
    return total.get()


@app.processor("receipts", to="mails")
def mail(total: int) -> str:
    return f"you paid {total}"
"""
TOKEN = "a-token-of-this-test"


@contextlib.contextmanager
def worker_of(bootstrap: str, folder: Path) -> Iterator[str]:
    """A worker process; gives the address of its health port once it has done its work."""
    (folder / "tills.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "onceflow", "run", "tills:app", "--json"]
    process = subprocess.Popen(
        [*command, "--health-port", "0", "--bootstrap", bootstrap, "--slot", "till"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        health: str = json.loads(process.stdout.readline())["health"]
        wait_for(lambda: _committed(health) >= 5, "its records are committed")
        yield health
    finally:
        process.kill()
        process.communicate(timeout=30)


def _committed(health: str) -> int:
    with urllib.request.urlopen(f"{health}/status", timeout=10) as answer:
        return int(json.loads(answer.read())[0]["records_committed"])


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """The console of a broker with a bit of everything."""
    with Broker() as broker:
        where = broker.bootstrap_servers
        with Admin(bootstrap_servers=where) as admin:
            admin.create_topics([NewTopic("payments", 2, 1), NewTopic("clicks", 1, 1)])
            admin.create_topics([NewTopic(name, 1, 1) for name in ("sales", "bad")])
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
            plain.send_many("sales", [b"5", b"7", b"no number"], [b"ann"] * 3)
            plain.flush()
            connection = Connection(where, None, None, {})

            def replay(topic: str, dry_run: bool) -> list[dict[str, object]]:
                return replay_letters(connection, topic, None, f"{topic}-replay", None, dry_run)

            writing = Writing(TOKEN, replay)
            with (
                worker_of(where, tmp_path_factory.mktemp("worker")) as health,
                console_of(where, workers=[health], writing=writing) as running,
            ):
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
        ("processors", ["tills", "receive", "mail", "ready", "RUNNING", "sales-0"]),
        ("letters", ["no number", "replay dead letters", "in receive"]),
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


def test_the_topology_is_drawn(chrome: Chrome, console: Console) -> None:
    show(chrome, console, "processors")
    picture = chrome.find_element(By.CSS_SELECTOR, "svg.graph")
    assert picture.get_attribute("aria-label") == "topology of 6 nodes"
    assert len(picture.find_elements(By.TAG_NAME, "path")) == 4
    assert "function, state total" in picture.text
    rows = [row.text.split() for row in chrome.find_elements(By.CSS_SELECTOR, "tbody tr")]
    # The replay of another test is one more failure, and one more dead letter.
    assert next(row for row in rows if row[:2] == ["receive", "2"])[2:] in (["1", "1"], ["2", "2"])
    assert ["mail", "2", "0", "0"] in rows
    assert complaints(chrome) == []


def test_dead_letters_are_replayed_with_the_token_alone(chrome: Chrome, console: Console) -> None:
    show(chrome, console, "letters")
    chrome.find_element(By.ID, "open-replay").click()
    token = chrome.find_element(By.ID, "token")
    told = chrome.find_element(By.ID, "replay-text")
    token.send_keys("a wrong one")
    chrome.find_element(By.ID, "replay-count").click()
    wait(chrome, "return document.getElementById('replay-text').textContent.includes('token')")
    assert "needs the token" in told.text
    token.clear()
    token.send_keys(TOKEN)
    chrome.find_element(By.ID, "replay-count").click()
    wait(chrome, "return document.getElementById('replay-text').textContent.includes('would')")
    assert told.text == "It would send: 1 to sales."
    chrome.find_element(By.ID, "replay-go").click()
    wait(chrome, "return document.getElementById('replay-text').textContent.startsWith('Sent')")
    assert told.text == "Sent: 1 to sales."
    # It fails again and is a new dead letter, so that this one alone is left.
    wait_for(lambda: console.get("/api/topics/bad")["partitions"][0]["stable"] > 2, "it came back")
    press(chrome, Keys.ESCAPE)
    refused = [each for each in complaints(chrome) if "403" not in each]
    assert refused == []


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
    press(chrome, "g", "p")
    assert "tills" in shown(chrome, "#/processors")
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
