"""The connection to a receiver of notices. It ends after a while whatever comes: the time-out of a socket begins again with
each byte.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ssl import SSLContext

TIMEOUT_S: Final = 10.0
"""For each step."""
WHOLE_S: Final = 60.0


@contextmanager
def connected(host: str, port: int, context: SSLContext | None) -> Iterator[socket.socket]:
    """Opens a connection for a block. `context`: of TLS. Raises OSError: there is none, or the block took too long."""
    late = threading.Event()
    with socket.create_connection((host, port), TIMEOUT_S) as opened, opened.dup() as same:

        def end() -> None:
            late.set()
            with suppress(OSError):  # it has ended at this moment
                same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(WHOLE_S, end)
        timer.daemon = True
        timer.start()
        try:
            with opened if context is None else context.wrap_socket(opened, server_hostname=host) as stream:
                yield stream
        except Exception as error:  # whatever is made of a connection that ends
            if late.is_set():
                raise OSError(f"it took longer than {WHOLE_S:g} s") from error
            raise
        finally:
            timer.cancel()
