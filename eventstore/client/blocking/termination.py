"""SIGTERM stops the blocking consumers of a program that has not said what it does: they leave their groups in order, whose
other members then need not wait until they expire.

It is only taken over if it would end the process, and in the main thread, where alone Python calls handlers. A second one ends
the process. In a child that is forked it is as before.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eventstore.client.blocking.member import BlockingMember

_entered: Final[dict[BlockingMember, None]] = {}
_received: Final[list[int]] = []  # a program that goes on nevertheless ends by the next


def stop_at_sigterm(member: BlockingMember) -> None:
    """Stops the member when this process is told to end."""
    _entered[member] = None
    if _received or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop_all)


def no_longer_at_sigterm(member: BlockingMember) -> None:
    """Ends `stop_at_sigterm`."""
    _entered.pop(member, None)
    if not _entered:
        _give_back()


def _stop_all(number: int, frame: object) -> None:
    _received.append(number)
    _give_back()
    for each in list(_entered):
        each.stop()


def _give_back() -> None:
    if signal.getsignal(signal.SIGTERM) is _stop_all and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
