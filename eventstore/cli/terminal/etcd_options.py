"""Gives a command the options that say where etcd is, who asks it, and which cluster in it is meant; all as one object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

if TYPE_CHECKING:
    from eventstore_cluster.registry.etcd.options import EtcdOptions

Result = TypeVar("Result")

_SECTION: Final = "Etcd"
_CLUSTER: Final = "eventstore"
_PARAMETER: Final = "etcd"
_PART_MAX: Final = 32
"""Characters of a name, so that all of them are kept in what is written."""


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=_SECTION)


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """What the options say. Each field is one, so `endpoints` may be None: then the command is not about etcd, or refuses."""

    endpoints: Annotated[str | None, _option("--etcd", "URL,…", "Where etcd is: one or several URLs, with commas.")] = None
    cluster: Annotated[str, _option("--cluster", "NAME", "The name of the cluster in etcd.")] = _CLUSTER
    user: Annotated[
        str | None, _option("--etcd-user", "NAME", "A user of etcd; its password is in EVENTSTORE_ETCD_PASSWORD.")
    ] = None
    ca: Annotated[str | None, _option("--etcd-ca", "FILE", "Who signed the certificate of etcd.")] = None
    cert: Annotated[str | None, _option("--etcd-cert", "FILE", "A certificate for etcd.")] = None
    key: Annotated[str | None, _option("--etcd-key", "FILE", "The key of it.")] = None

    def plain(self) -> dict[str, Any]:
        """Returns how etcd is asked, as JSON can hold it; without the password, which other users would see."""
        urls = [each.strip().rstrip("/") for each in (self.endpoints or "").split(",") if each.strip()]
        return {"endpoints": urls, "user": self.user, "ca": self.ca, "cert": self.cert, "key": self.key}

    def options(self) -> EtcdOptions:
        """Returns how etcd is asked, with the password from the environment, and who asks.

        Raises:
            InvalidArgument: an option is wrong, or the library for it is not installed.
        """
        from eventstore_cluster.nodes.options import etcd_options

        return replace(etcd_options(self.plain()), by=claimed(self.user))


def claimed(etcd_user: str | None) -> str:
    """Returns who runs this command, for the audit trail. Only claimed: what writes to etcd can write any name there."""
    import os
    import pwd
    import socket

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user without a name
        user = str(os.getuid())
    own = f"{user[:_PART_MAX]}@{socket.gethostname()[:_PART_MAX]} (claimed)"
    return own if etcd_user is None else f"etcd user {etcd_user[:_PART_MAX]}, {own}"


def required_etcd(etcd: EtcdAccess) -> EtcdOptions:
    """Returns how etcd is asked. Raises InvalidArgument: also if it was not said where it is."""
    from eventstore.errors import InvalidArgument

    if etcd.endpoints is None:
        raise InvalidArgument(
            "--etcd is missing: give the address of the nodes' etcd, such as http://127.0.0.1:2379", field="etcd"
        )
    return etcd.options()


def offers_etcd(function: Callable[..., Result]) -> Callable[..., Result]:
    """Makes a command of a function that takes an `EtcdAccess` as `etcd`: it has the options of etcd in the place of it.

    It ends with InvalidArgument where the library that asks etcd is not installed, wherever it is imported.
    """
    offered = {
        f"{_PARAMETER}_{name}": inspect.Parameter(
            f"{_PARAMETER}_{name}", inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.annotation
        )
        for name, each in inspect.signature(EtcdAccess, eval_str=True).parameters.items()
    }

    @functools.wraps(function)
    def command(*arguments: Any, **given: Any) -> Result:
        values = {name.removeprefix(f"{_PARAMETER}_"): given.pop(name) for name in offered if name in given}
        try:
            return function(*arguments, **given, etcd=EtcdAccess(**values))
        except ModuleNotFoundError as error:
            from eventstore_cluster.nodes.options import LIBRARY, not_installed

            raise not_installed() if error.name == LIBRARY else error from None

    signature = inspect.signature(function, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        parameters += offered.values() if each.name == _PARAMETER else [each]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # as inspect says
    return command
