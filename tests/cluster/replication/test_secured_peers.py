"""Between replicas both sides show a certificate, and with identities only nodes may: over TCP, without the rest of a node."""

from __future__ import annotations

import re
import shlex
import socket
import ssl
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from eventstore.chunks.header import EVENTS
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.protocol.frames import FrameReader
from eventstore.security.certificates import make_certificate
from eventstore.server.access.security import Security
from eventstore.settings.security import SecuritySettings
from eventstore.settings.server import ServerSettings
from eventstore_cluster.nodes.options import node_security
from eventstore_cluster.replication.peer import Peer, Peers
from eventstore_cluster.replication.peer_frames import (
    VERSION,
    FileBytes,
    FileWanted,
    PeerDecoder,
    PeerFrame,
    PeerHello,
    encode_peer_frame,
)
from tests.cli.processes import output, run
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


def test_a_node_with_identities_and_without_a_certificate_does_not_start_and_says_what_it_takes(tmp_path: Path) -> None:
    give(tmp_path / "n1", "boss", "admin")
    with pytest.raises(InvalidArgument) as refused:
        node_security(ServerSettings(data=tmp_path / "n1", security=SecuritySettings(insecure=True)))
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / 'n1' / 'access.json'} has identities, but this node has no certificate")
    assert "with --tls-certificate, --tls-key and --tls-ca, and" in said
    assert "eventstore access add nodes --grant cluster --certificate SUBJECT" in said
    assert refused.value.fields["field"] == "tls_certificate"
    started = run("node", "--name", "n1", "--data", tmp_path / "n1", "--listen", "127.0.0.1:0", "--etcd", "http://127.0.0.1:1")
    assert (started.returncode, said in started.stderr) == (2, True), started.stderr


@pytest.mark.parametrize(
    "said",
    [
        PeerHello(uuid.UUID(int=2).bytes, 0, "n2", "run of n2"),
        PeerHello(uuid.UUID(int=1).bytes, 1, "n2", "run of n2"),
        FileWanted(0, EVENTS, 1, 0, 128),
        None,
    ],
    ids=["of another cluster", "of another shard", "no hello", "nothing"],
)
async def test_one_that_does_not_name_the_cluster_and_the_shard_is_told_nothing(
    said: PeerHello | FileWanted | None, tmp_path: Path
) -> None:
    assert await heard(tmp_path, said) == []


async def test_one_that_names_the_cluster_and_the_shard_is_greeted_also_if_its_program_is_another_one(tmp_path: Path) -> None:
    for version, answered in ((VERSION, VERSION), (VERSION + 1, VERSION), (2, 2), (1, VERSION)):
        (answer,) = await heard(tmp_path, PeerHello(uuid.UUID(int=1).bytes, 0, "n2", "run of n2", version))
        assert answer == PeerHello(uuid.UUID(int=1).bytes, 0, "n1", "run of n1", answered)


@pytest.mark.parametrize("known", [2, VERSION])
async def test_a_replica_speaks_the_version_of_an_older_one_that_it_connects_to(known: int, tmp_path: Path) -> None:
    said: list[int] = []

    async def answer(stream: trio.SocketStream) -> None:
        (hello,) = [PeerDecoder().decode(each) for each in FrameReader(1024).feed(bytes(await stream.receive_some()))]
        assert isinstance(hello, PeerHello)
        said.append(hello.version)
        await stream.send_all(encode_peer_frame(PeerHello(hello.cluster, 0, "n1", "run of n1", known)))
        if hello.version != known:
            await stream.aclose()

    one = Peers(PeerHello(uuid.UUID(int=1).bytes, 0, "n2", "run of n2"), Security(ServerSettings(data=tmp_path)))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        peer = await one.connect("127.0.0.1", listeners[0].socket.getsockname()[1])
        peer.close()
        nursery.cancel_scope.cancel()
    assert peer.hello.version == known
    assert said == ([VERSION] if known == VERSION else [VERSION, known])


@pytest.mark.parametrize("known", [1, VERSION + 1])
async def test_a_replica_leaves_one_that_speaks_a_version_that_it_does_not_know(known: int, tmp_path: Path) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(encode_peer_frame(PeerHello(uuid.UUID(int=1).bytes, 0, "n1", "run of n1", known)))

    one = Peers(PeerHello(uuid.UUID(int=1).bytes, 0, "n2", "run of n2"), Security(ServerSettings(data=tmp_path)))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        with pytest.raises(ProtocolError, match=f"n1 speaks version {known}, this one 2 to {VERSION}; install the same"):
            await one.connect("127.0.0.1", listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_a_frame_that_the_kernel_does_not_take_at_once_is_sent_whole_and_later_frames_after_it(tmp_path: Path) -> None:
    one, other = (
        Peers(PeerHello(uuid.UUID(int=1).bytes, 0, node, f"run of {node}"), Security(ServerSettings(data=tmp_path)))
        for node in ("n1", "n2")
    )
    data = bytes(range(256)) * 100_000
    sent = [FileBytes(1, data), FileBytes(2, b"after"), FileBytes(3, data), FileBytes(4, None)]
    seen: list[PeerFrame] = []

    async def accept(stream: trio.SocketStream) -> None:
        peer = await one.accept(stream.socket)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.flush_later)
            for frame in sent:
                peer.send(frame)
            assert peer._unsent, "the kernel took all of it"
            await ended.wait()
            peer.close()

    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, accept, 0)
        peer = await other.connect("127.0.0.1", listeners[0].socket.getsockname()[1])
        async for frame in peer.frames():
            seen.append(frame)
            if len(seen) == len(sent):
                ended.set()
        peer.close()
        nursery.cancel_scope.cancel()
    assert seen == sent


async def heard(folder: Path, said: PeerHello | FileWanted | None) -> list[PeerFrame]:
    """Returns what a replica without certificates says to one that connects, says this, and then only listens."""
    one = Peers(PeerHello(uuid.UUID(int=1).bytes, 0, "n1", "run of n1"), Security(ServerSettings(data=folder)))
    received = b""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]) as stream:
        if said is not None:
            await stream.send_all(encode_peer_frame(said))
        await stream.send_eof()
        with suppress(OSError, ProtocolError):
            (await one.accept((await listener.accept()).socket)).close()
        while more := await stream.receive_some():
            received += more
    decoder = PeerDecoder()
    return [decoder.decode(payload) for payload in FrameReader(1024).feed(received)]


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
