"""A server in a forked process is looked at by several threads of a test at once."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.forked_process import ForkedProcess
from tests.waiting import DEADLINE_SECONDS

THREADS = 8


def test_threads_may_look_and_wait_at_once() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        process = ForkedProcess(["serve", folder, "--port", "0"], {}, output)
        together = threading.Barrier(THREADS + 1)

        def look(number: int) -> int | None:
            together.wait(DEADLINE_SECONDS)
            return process.wait(DEADLINE_SECONDS) if number else process.kill()

        with ThreadPoolExecutor(THREADS) as pool:
            ended = [pool.submit(look, number) for number in range(THREADS)]
            together.wait(DEADLINE_SECONDS)
            assert [each.result() for each in ended] == [None, *[-9] * (THREADS - 1)]
