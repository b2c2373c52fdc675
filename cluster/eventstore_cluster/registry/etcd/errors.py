"""Errors of a registry in etcd."""

from __future__ import annotations

from typing import ClassVar

from eventstore.errors import EventStoreError


class RegistryUnavailable(EventStoreError):
    """No endpoint of etcd answers, or it has no quorum. Nothing was changed; try again later."""

    retriable: ClassVar[bool] = True


class OutcomeUnknown(EventStoreError):
    """The answer to a transaction was lost: it was applied, was not, or still may be. Only a later revision settles it."""


class RegistryRefused(EventStoreError):
    """etcd refused a request: no permission, a lease that ran out, a limit.

    Attributes:
        status: its gRPC code.
    """
