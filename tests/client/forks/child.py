"""A child process of a test, by `os.fork`: what a function does there, while the parent goes on."""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from tests.waiting import DEADLINE_SECONDS


class Child:
    """Calls `work` in a child. It ends without unwinding what the parent was in, as those of `multiprocessing` do."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(work, told)
        os.close(told)

    def result(self) -> Any:
        """Waits for its end. Returns what `work` returned, or raised."""
        told = b""
        try:
            while select.select([self._result], [], [], DEADLINE_SECONDS)[0]:
                more = os.read(self._result, 65536)
                if not more:
                    break
                told += more
            else:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("the child waits without end")
        finally:
            os.close(self._result)
            os.waitpid(self.pid, 0)
        return pickle.loads(told)


def in_child(work: Callable[[], Any]) -> Any:
    """Returns what `work` returns, or raises, in a child."""
    return Child(work).result()


def error_of(call: Callable[[], Any]) -> str:
    """Returns the name and text of the error of a call, or what it returns."""
    try:
        returned = call()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {returned!r}"


def _become(work: Callable[[], Any], told: int) -> NoReturn:
    code = 1
    try:
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(told, pickle.dumps(result))
        code = 0
    finally:
        os._exit(code)
