"""The status of HTTP for each class of error, for the pages of the console and for the HTTP API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from eventstore import errors
from eventstore.errors import EventStoreError

STATUSES: Final[dict[type[EventStoreError], HTTPStatus]] = {
    errors.InvalidArgument: HTTPStatus.BAD_REQUEST,
    errors.CrossShard: HTTPStatus.BAD_REQUEST,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.PermissionDenied: HTTPStatus.FORBIDDEN,
    errors.UnknownCommand: HTTPStatus.NOT_FOUND,
    errors.UnknownTopic: HTTPStatus.NOT_FOUND,
    errors.UnknownQueue: HTTPStatus.NOT_FOUND,
    errors.UnknownGroup: HTTPStatus.NOT_FOUND,
    errors.SubjectErased: HTTPStatus.GONE,
    errors.VersionConflict: HTTPStatus.CONFLICT,
    errors.ConditionFailed: HTTPStatus.CONFLICT,
    errors.Diverged: HTTPStatus.CONFLICT,
    errors.Fenced: HTTPStatus.CONFLICT,
    errors.Rebalanced: HTTPStatus.CONFLICT,
    errors.Unconsumed: HTTPStatus.CONFLICT,
    errors.CommandIdReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.PayloadInvalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.Rejected: HTTPStatus.UNPROCESSABLE_ENTITY,
    EventStoreError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.Poisoned: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.Corrupt: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ReadFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.FolderRefused: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.UnknownEvent: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.HandlerFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.DomainRefused: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ProjectionFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.MessagesFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.UnknownOperation: HTTPStatus.NOT_IMPLEMENTED,
    errors.UnsupportedVersion: HTTPStatus.NOT_IMPLEMENTED,
    errors.ProtocolError: HTTPStatus.BAD_GATEWAY,
    errors.Overloaded: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ConnectionLost: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Closed: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Elsewhere: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.OutdatedCode: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotEnoughReplicas: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    errors.StorageFull: HTTPStatus.INSUFFICIENT_STORAGE,
}


def kind_of(error: EventStoreError) -> type[EventStoreError]:
    """Returns the class of an error that clients know: a subclass, as a domain has them of Rejected, counts as its base."""
    return next(each for each in type(error).__mro__ if each in STATUSES)


def status_of(error: EventStoreError) -> HTTPStatus:
    """Returns the status of HTTP for an error."""
    return STATUSES[kind_of(error)]
