"""Makes the pictures of docs/CONSOLE.md: `python -m tests.console.screenshots`. An hour is a minute in them."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import eventstore as es
from eventstore.console import charts, history
from tests.server_thread import ServerThread

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "console"
PICTURES = {
    "overview": "/console", "aggregate": "/console/aggregates/one?id=acc-7", "log": "/console/log",
    "broker": "/console/broker/group?name=billing",
}  # fmt: skip
SECONDS = 40
SIZE = {"width": 1000, "height": 620}


def main() -> None:
    """Runs a bank for a minute, and looks at it."""
    history.INTERVAL_S, charts._SPAN_S = 0.25, float(SECONDS)  # type: ignore[misc]
    sys.path.insert(0, str(ROOT / "docs" / "examples"))
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"http": "127.0.0.1:0", "domain": "bank:app", "listen": "127.0.0.1:7701", "publish": "events"}
        with ServerThread(Path(folder) / "data", **settings) as server:
            fill(server.address)
            look(server.http)


def fill(address: str) -> None:
    """Has clients open accounts, deposit and transfer; a group of the published events falls behind."""
    chosen = random.Random(7)
    ends = time.monotonic() + SECONDS
    with es.blocking.connect(address) as store:
        accounts = [f"acc-{number}" for number in range(20)]
        store.send_many([command("Open", each, owner="Ada") for each in accounts])
        with store.consumer("billing", "events", member="billing on db1", retries=es.Retries((), attempts=1)) as consumer:
            for message in consumer:
                busy = 20 + 15 * (time.monotonic() % 20 < 8)
                store.send_many(
                    [command("Deposit", chosen.choice(accounts), cents=chosen.randrange(1, 9_999)) for _ in range(busy)]
                )
                store.send_many([
                    command("Transfer", *chosen.sample(accounts, 1), to=chosen.choice(accounts), cents=chosen.randrange(1, 999))
                    for _ in range(3)
                ])  # fmt: skip
                if message.queue_offset == 3:
                    message.retry("CustomerMissing")
                else:
                    message.done()
                time.sleep(chosen.random() / 50)
                if time.monotonic() > ends:
                    return


def command(type: str, account: str, **fields: object) -> es.RawCommand:
    return es.RawCommand(type, account, json.dumps({"account": account, **fields}).encode())


def look(http: str) -> None:
    """Takes the pictures."""
    program = shutil.which("chromium")
    assert program is not None, "chromium is not installed"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for name, path in PICTURES.items():
            page = browser.new_page(viewport=SIZE, color_scheme="dark" if name == "log" else "light")
            page.goto(http + path, wait_until="domcontentloaded")
            page.screenshot(path=FOLDER / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
