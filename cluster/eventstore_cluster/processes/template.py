"""Forks the processes of shards: it loads what they need once, and forks when its node asks for a process.

A copy is made in milliseconds, and shares the memory of what is loaded. A process that loads it itself takes a core for a
second, which writers wait for when a leader has fallen.

Standard input is a pair of sockets with the node. Each message of the node carries the channel of a process to be made, which
becomes its standard input. The answers are JSON objects: `{"started": PID}`, `{"failed": ERRNO}`, and at its end `{"ended":
PID, "code": EXIT CODE}`. The program ends with its node; its copies see to that themselves.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

_MESSAGE_BYTES = 1


def main() -> int:
    """Arguments: the module whose `main` a process runs, and others to load."""
    program, *more = sys.argv[1:]
    for each in more:
        importlib.import_module(each)
    run: Callable[[], int] = importlib.import_module(program).main
    gc.collect()
    gc.freeze()  # a collector that looks at objects copies their pages
    return run() if _is_copy() else 0


def _is_copy() -> bool:
    """Makes processes until the node is gone. Returns True in each of them."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it is of use until its node ends
        signal.signal(each, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for ready in select.select([control, woken], [], [])[0]:
            if ready is woken:
                woken.recv(4096)
                _tell_ended(control)
                continue
            message, channels, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
            if not message:
                return False
            if _forks(control, channels[0]):
                for end in (control, woken, wakes):
                    end.close()
                return True


def _forks(control: socket.socket, channel: int) -> bool:
    """Makes a process and tells the node. Returns True in the new process, whose channel is standard input then."""
    try:
        pid = os.fork()
    except OSError as error:  # no memory, or too many processes
        os.close(channel)
        control.send(json.dumps({"failed": error.errno}).encode())
        return False
    if pid:
        os.close(channel)
        control.send(json.dumps({"started": pid}).encode())
        return False
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(each, signal.SIG_DFL)
    os.setpgid(0, 0)  # Ctrl-C is for the node
    os.dup2(channel, 0)
    os.close(channel)
    return True


def _tell_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        control.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


if __name__ == "__main__":
    sys.exit(main())
