"""Hostile clients of the HTTP listener."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

from benchmarks.hostile.connections import Kinds, over_http, say_ready, wait


def _scrapes(_: str) -> None:
    """Figures over HTTP, on sixteen connections at once."""

    def scrape() -> None:
        while True:
            with over_http() as scraper, suppress(ConnectionError):
                scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                while scraper.recv(1 << 20):
                    pass

    say_ready()
    for _thread in range(16):
        threading.Thread(target=scrape, daemon=True).start()
    wait()


def _slow_http(_: str) -> None:
    """As many requests over HTTP as may be under way, each a byte a second; those that are closed begin again."""
    say_ready()
    clients = [over_http() for _number in range(300)]
    while True:
        for place, client in enumerate(clients):
            try:
                client.sendall(b"G")
            except ConnectionError:
                client.close()
                clients[place] = over_http()
        time.sleep(1)


KINDS: Final[Kinds] = {
    "HTTP requests": _scrapes,
    "slow HTTP requests": _slow_http,
}
