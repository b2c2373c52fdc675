"""SIGHUP: a real server reads its certificate again, and nobody loses a connection."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import eventstore as es
from eventstore.security.certificates import make_certificate
from tests.security.conftest import Certificates
from tests.security.test_tls import serial_of
from tests.server_process import ServerProcess
from tests.waiting import wait_until

SIZE = 4_096  # of a certificate or key with what fills it up: text around a PEM block is no part of it


def test_on_sighup_a_certificate_is_read_again_and_open_connections_stay(tmp_path: Path, certificates: Certificates) -> None:
    copied = Certificates(tmp_path / "certificates")
    shutil.copytree(certificates.folder, copied.folder)
    files = [Path(each) for each in copied.files("localhost")]
    for each in files:
        each.write_bytes(each.read_bytes().ljust(SIZE, b"\n"))
    (tmp_path / "next").mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(copied.folder / name, tmp_path / "next" / name)
    made = dict(zip(files, make_certificate(tmp_path / "next", ["localhost", "127.0.0.1"], 30), strict=True))
    with ServerProcess(tmp_path / "data", **copied.settings()) as server:
        before = serial_of(server.port)
        with es.blocking.connect(server.address, ssl_context=copied.context()) as store:
            store.append("a", [es.NewEvent("Happened", b"{}")], expected_version=0, command_id="c-1")
            connected = store._connection._link.socket
            os.kill(server.pid, signal.SIGSTOP)  # it may not see the files while they change
            for file, new in made.items():
                was = file.stat()
                file.write_bytes(new.read_bytes().ljust(SIZE, b"\n"))
                os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # nor afterwards: only the signal says so
            os.kill(server.pid, signal.SIGCONT)
            assert serial_of(server.port) == before
            os.kill(server.pid, signal.SIGHUP)
            wait_until(lambda: serial_of(server.port) != before, "the new certificate is shown")
            store.append("a", [es.NewEvent("Happened", b"{}")], expected_version=1, command_id="c-2")
            assert store._connection._link.socket is connected
        assert server.terminate() == 0
