"""The options of the node of a replicated cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from eventstore.errors import InvalidArgument
from eventstore.extras import advice
from eventstore.fields import check_int
from eventstore.server.access.security import Security
from eventstore.settings.server import ServerSettings
from eventstore_cluster.nodes.addresses import reached_by
from eventstore_cluster.registry.etcd.options import EtcdOptions

LIBRARY: Final = "httpx"
PASSWORD: Final = "EVENTSTORE_ETCD_PASSWORD"
LEASE_S_MAX: Final = 60
_NAME_LENGTH_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ReplicatedOptions:
    """The options of a node with replicas.

    Attributes:
        values: the settings in `settings` as an operator writes them.
        name: of the node.
        cluster: its name in etcd.
        host: by which others reach this machine.
        lease_s: how long the node, or a leader, may be silent.
        left_s: how long the folder of a replica is kept after the replica moved to another node.
        zone: what fails together with this node.
    """

    settings: ServerSettings
    values: Mapping[str, object]
    name: str
    cluster: str
    etcd: EtcdOptions
    lease_s: int
    host: str
    left_s: float = 86_400.0
    zone: str = ""


def read_options(settings: ServerSettings, values: Mapping[str, object], given: Mapping[str, Any]) -> ReplicatedOptions:
    """Returns the options of the command line, as JSON holds them, and the password from the environment.

    Raises:
        InvalidArgument: one of them is wrong, or not possible with replicas.
    """
    name = check_name(str(given["name"] or ""))
    if not settings.broker:
        raise InvalidArgument(
            "every shard of a cluster with replicas has a broker, whose messages have replicas as well; leave out --no-broker, "
            "or broker = false in the settings",
            field="broker",
        )
    check_int("lease", given["lease_s"], 1, LEASE_S_MAX)
    etcd = etcd_options(given["etcd"])
    host = reached_by(settings.listen, given["advertise"])
    left_s, zone = float(given.get("left_s", 86_400.0)), str(given.get("zone") or "")
    if len(zone) > _NAME_LENGTH_MAX or not zone.isprintable():
        raise InvalidArgument(
            f"{zone!r} is not the name of a zone: at most {_NAME_LENGTH_MAX} printable characters", field="zone", value=zone
        )
    return ReplicatedOptions(settings, values, name, str(given["cluster"]), etcd, given["lease_s"], host, left_s, zone)


def check_name(name: str) -> str:
    """Returns the name of a node. Raises InvalidArgument."""
    if not name or len(name) > _NAME_LENGTH_MAX or "/" in name or not name.isprintable():
        raise InvalidArgument(
            f"the name of the node is {name!r}, expected are 1 to {_NAME_LENGTH_MAX} printable characters without /; give each "
            "node of the cluster one of its own, such as --name n1",
            field="name",
            value=name,
        )
    return name


def etcd_options(given: Mapping[str, Any]) -> EtcdOptions:
    """Returns how etcd is asked, with the password from the environment.

    Raises:
        InvalidArgument: an option is wrong, or the library for it is not installed.
    """
    if find_spec(LIBRARY) is None:
        raise not_installed()
    options = EtcdOptions(**{**given, "endpoints": tuple(given["endpoints"])})
    for option, file in (("--etcd-ca", options.ca), ("--etcd-cert", options.cert), ("--etcd-key", options.key)):
        if file is not None and not os.path.isfile(file):
            raise InvalidArgument(f"there is no file {file} for {option}", field=option, value=file)
    if options.key is not None and options.cert is None:
        raise InvalidArgument("--etcd-key is of no use without --etcd-cert", field="--etcd-key", value=options.key)
    return replace(options, password=os.environ.get(PASSWORD))


def not_installed() -> InvalidArgument:
    """Returns why etcd cannot be asked: the library for it is an extra."""
    return InvalidArgument(f"etcd is asked by {LIBRARY}, which is not installed; {advice('cluster')}", field="etcd")


def node_security(settings: ServerSettings) -> Security:
    """Returns what protects a node, and logs if other nodes will refuse it.

    Raises:
        InvalidArgument: a file cannot be used, or other nodes could not recognise this node: with identities a node needs a
            certificate, because replicas know each other by nothing else.
    """
    if settings.security.tls_certificate is not None and settings.security.tls_ca is None:
        raise InvalidArgument(
            "nodes with replicas recognise each other by certificates: name the CA that signs them with --tls-ca",
            field="tls_ca",
        )
    security = Security(settings)
    if security.access is not None and security.tls is None:
        raise InvalidArgument(
            f"{security.path} has identities, but this node has no certificate: without one its ports for replicas hand out "
            "and take everything, from anyone who reaches them. Start all nodes of the cluster with --tls-certificate, "
            "--tls-key and --tls-ca, and name their certificates with `eventstore access add nodes --grant cluster "
            "--certificate SUBJECT` (SECURITY.md shows three nodes); or start them without identities",
            field="tls_certificate",
        )
    security.warn_if_no_node()
    return security


def check_durability(settings: ServerSettings, replicas: int) -> None:
    """Raises InvalidArgument if a replica would count as durable what it has not synced."""
    for name, durability in (
        ("durability", settings.store_settings.durability),
        ("broker_durability", settings.broker_settings.durability),
    ):
        if replicas > 1 and durability == "async":
            raise InvalidArgument(
                f"{name} is async, but the cluster has {replicas} replicas of each shard, which acknowledge what is on their "
                f"disks; start the node with {name} sync",
                field=name,
                value=durability,
            )
