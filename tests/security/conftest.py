"""Certificates for tests: a CA, a server's and clients', made once a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eventstore.security.certificates import make_certificate
from eventstore.security.tls import client_context
from tests.server_thread import ServerThread


@dataclass(frozen=True)
class Certificates:
    """A folder with a CA and certificates by name."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def files(self, name: str) -> tuple[str, str]:
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def settings(self, **more: Any) -> dict[str, Any]:
        """Returns the settings of a server with TLS."""
        certificate, key = self.files("localhost")
        return {"tls_certificate": certificate, "tls_key": key, "tls_ca": self.ca, **more}

    def context(self, client: str | None = None) -> Any:
        """Returns the context of a client, with a certificate of this name if there is one."""
        return client_context(self.ca, *(self.files(client) if client is not None else ()))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder, ["localhost", "127.0.0.1"], 30)
    for name in ("billing", "shipping"):
        make_certificate(folder, [name], 30)
    return Certificates(folder)


@pytest.fixture
def tls_server(tmp_path: Path, certificates: Certificates) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", **certificates.settings()) as server:
        yield server
