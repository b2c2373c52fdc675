"""Between replicas both sides show a certificate, and with identities only nodes may: over TCP, without the rest of a node."""

from __future__ import annotations

import re
import shlex
import socket
import ssl
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from eventstore.errors import ProtocolError
from eventstore.security.certificates import make_certificate
from eventstore.server.access.security import Security
from eventstore.settings.security import SecuritySettings
from eventstore.settings.server import ServerSettings
from eventstore_cluster.nodes.options import node_security
from eventstore_cluster.replication.peer import Peer, Peers
from eventstore_cluster.replication.peer_frames import PeerHello
from tests.cli.processes import output
from tests.security.access_file import give
from tests.security.conftest import Certificates


def peers_of(folder: Path, node: str, certificates: Certificates, name: str = "localhost", guarded: bool = False) -> Peers:
    certificate, key = certificates.files(name)
    given = SecuritySettings(tls_certificate=certificate, tls_key=key, tls_ca=certificates.ca)
    data = folder / node
    if guarded:
        give(data, "nodes", "cluster", certificates=["CN=localhost"])
        give(data, "billing", "writer", certificates=["CN=billing"])
    return Peers(
        PeerHello(uuid.UUID(int=1).bytes, 0, node, f"run of {node}"), Security(ServerSettings(data=data, security=given))
    )


async def met(accepting: Peers, connect: Callable[[int], Awaitable[Peer]]) -> Peer | Exception:
    """Has another connect to a replica; returns whom that one sees, or why it does not."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    seen: list[Peer | Exception] = []

    async def accept() -> None:
        stream = await listener.accept()
        try:
            seen.append(await accepting.accept(stream.socket))
        except (OSError, ProtocolError) as error:
            seen.append(error)

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        try:
            (await connect(listener.socket.getsockname()[1])).close()
        except (OSError, ProtocolError):
            assert not isinstance((await _first(seen)), Peer)
    return await _first(seen)


async def _first(seen: list[Peer | Exception]) -> Peer | Exception:
    while not seen:
        await trio.lowlevel.checkpoint()
    return seen[0]


@pytest.mark.parametrize("guarded", [False, True])
async def test_nodes_that_show_each_other_certificates_meet(guarded: bool, tmp_path: Path, certificates: Certificates) -> None:
    one, two = (peers_of(tmp_path, node, certificates, guarded=guarded) for node in ("n1", "n2"))
    seen = await met(one, lambda port: two.connect("127.0.0.1", port))
    assert isinstance(seen, Peer), seen
    assert seen.hello.node == "n2"
    seen.close()


async def test_a_certificate_that_is_no_nodes_is_refused_where_there_are_identities(
    tmp_path: Path, certificates: Certificates
) -> None:
    one = peers_of(tmp_path, "n1", certificates, guarded=True)
    client = peers_of(tmp_path, "n2", certificates, "billing", guarded=True)
    seen = await met(one, lambda port: client.connect("127.0.0.1", port))
    assert "CN=billing" in str(seen)
    assert (
        "is not a node: no identity of it has the permission 'cluster'; if it is to be one: `eventstore access add billing "
        f"--grant cluster --data {tmp_path / 'n1'}`, and copy the list to all nodes"
    ) in str(seen)


async def test_the_refusal_of_a_certificate_that_no_identity_has_names_the_command_that_makes_it_a_nodes(
    tmp_path: Path, certificates: Certificates
) -> None:
    one = peers_of(tmp_path, "n1", certificates, guarded=True)
    other = peers_of(tmp_path, "n2", certificates, "shipping", guarded=True)
    seen = await met(one, lambda port: other.connect("127.0.0.1", port))
    assert typed("CN=shipping", tmp_path / "n1") in str(seen)


def typed(subject: str, data: Path) -> str:
    return (
        f"`eventstore access add nodes --grant cluster --certificate {subject} --data {data}`, and copy the list to all nodes"
    )


def test_a_node_that_others_will_refuse_says_so_at_its_start_with_what_to_type(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = certificates.files("localhost")
    given = SecuritySettings(tls_certificate=certificate, tls_key=key, tls_ca=certificates.ca)
    settings = ServerSettings(data=tmp_path / "n1", security=given)
    node_security(settings)
    assert not caplog.messages, "without identities every certificate of the CA is a node's"
    give(settings.data, "boss", "admin")
    node_security(settings)
    (said,) = caplog.messages
    assert said.startswith("other nodes will refuse this one: no identity in ")
    assert said.endswith(typed("CN=localhost", settings.data))
    caplog.clear()
    command = re.search("`eventstore (.*?)`", said)
    assert command is not None
    output(*shlex.split(command[1]), store=None)
    node_security(settings)
    assert not caplog.messages, "that is what it takes"


async def test_a_node_of_another_ca_is_refused(tmp_path: Path, certificates: Certificates) -> None:
    make_certificate(tmp_path / "others", ["localhost", "127.0.0.1"], 1)
    one, other = peers_of(tmp_path, "n1", certificates), peers_of(tmp_path, "n2", Certificates(tmp_path / "others"))
    seen = await met(one, lambda port: other.connect("127.0.0.1", port))
    assert isinstance(seen, OSError), seen


async def test_one_without_a_certificate_is_refused(tmp_path: Path, certificates: Certificates) -> None:
    def nothing_shown(port: int) -> Awaitable[Peer]:
        return trio.to_thread.run_sync(_knock, port, certificates.context())

    seen = await met(peers_of(tmp_path, "n1", certificates), nothing_shown)
    assert isinstance(seen, OSError), seen


def _knock(port: int, context: ssl.SSLContext) -> Peer:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as shown,
    ):
        while shown.recv(1):
            pass
    raise ConnectionResetError("nobody was met")
