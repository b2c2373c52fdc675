"""Values and errors that leave their process (pools of processes, queues of jobs) or are copied arrive as they were."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
import eventstore_mailbox.errors as mailbox_errors
from eventstore import errors
from eventstore.client.consumer.commit_window import DeliveryTracker, Window
from eventstore.client.consumer.delivery import Delivery
from eventstore.commands import RawCommand
from eventstore.domain.projections.projector import Progress
from eventstore.event_identity import LogPosition
from eventstore.model import Expected, Unchanged
from eventstore.position import END, End
from eventstore.protocol import broker_info, reaction_info, server_info
from eventstore.records.consumer_groups import AssignedQueue


def pickled(protocol: int, value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


JOURNEYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle protocol {each}": partial(pickled, each) for each in range(2, pickle.HIGHEST_PROTOCOL + 1)},
}
AS_JSON = es.NewEvent("Paid", {"total": 12}, {"by": "ada"})
STORED = es.Event(("order-1", 1, "Paid", b'{"total":12}', b'{"by":"ada"}', "c-1", 1_700_000_000_000_000, 7, 3))
VALUES: list[object] = [
    d.DecimalColumn(30, 20),
    AS_JSON, es.NewEvent("Paid", {"total": 12}), es.NewEvent("Paid", b"raw", {"by": "ada"}), es.NewEvent("Paid", b"raw", b"a"),
    es.NewEvent("Paid", b"raw", {"by": "ada"}, ["order:1"]), es.Query(["Paid"], ["order:1"]) | es.Query(tags=["a", "b"]),
    STORED,
    es.Commit("order-1", [AS_JSON], 0, "c-1", datetime(2026, 1, 1, tzinfo=UTC)), es.Commit("order-1", (AS_JSON,), es.ANY),
    es.Write("order-1", [AS_JSON], es.ANY), es.At("order-2", 3),
    es.Committed("order-1", 1, 7, duplicate=True), Unchanged("order-1"), es.AggregateInfo("order-1", 1),
    es.ANY, es.EXISTS, es.END, es.CaughtUp(3), es.Position("0" * 32, 1, {0: LogPosition(7, "0123abcd"), 1: LogPosition(9)}),
    LogPosition(7, ""),
    es.NewMessage(b"body", "key", "tag", {"a": "b"}, 1), es.SendResult("0" * 20, 1, 2, 3),
    es.Message(("topic", 1, 2, "key", "tag", 3, b"body", None, 4, 5, 6)), es.Retries((1.0, 5.0), 3, "dead"),
    AssignedQueue("topic", 1, 2, None), es.StoreSettings(flush_interval_s=0.5),
    RawCommand("Pay", "order-1", b"{}"), d.Handled(b"events", 1), d.HandledJointly((d.Handled(b"events", 1),)),
    Progress(1, 2, 3, caught_up=True),
]  # fmt: skip
HANDLES: set[object] = {  # they hold connections, files or functions: what they do belongs to one process
    es.Consumer, es.Delivery, es.EmbeddedStore, es.NetworkBroker, es.NetworkStore, es.NetworkTopic,
    d.Aggregate, d.Domain, d.FileCheckpoint, d.Handler, d.PostgresTarget, d.Projection, d.Reaction, d.SQLiteTarget, d.Send,
    d.Target, d.JointHandler, d.Decision, d.DecisionHandler, d.EventColumns, d.Exchange, d.Process,
}  # fmt: skip


class Uncovered(d.Rejected):
    """As a domain may write one: its arguments are not those of its base."""

    def __init__(self, missing: int, *, account: str) -> None:
        super().__init__(f"{account}: {missing} are missing", missing=missing)
        self.account = account


def public_names() -> Iterator[object]:
    yield from (getattr(es, name) for name in es.__all__)
    yield from (getattr(d, name) for name in d.__all__)


def reported_values() -> list[object]:
    """Returns an example of every value by which a server reports about itself."""
    found: list[object] = []
    for module in (broker_info, reaction_info, server_info):
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                found.append(cls(*(f"its {name}" for name in inspect.signature(cls).parameters)))
    return found


def subclasses(cls: type[Exception]) -> Iterator[type[Exception]]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def made_errors() -> list[Exception]:
    """Returns an instance of every class of errors, built as its own arguments say."""
    arguments: dict[type[Exception], tuple[Any, ...]] = {
        errors.VersionConflict: ("order-1", "exists", 0),
        errors.CommandIdReused: ("order-1", "c-1", 2, 7),
        errors.ConditionFailed: ("order-1", "Paid", 7),
        errors.Corrupt: ("file", 12, "its checksum is wrong"),
        errors.FolderRefused: ("folder", "it is in use"),
        errors.Elsewhere: (5, 2, 1),
        errors.CrossShard: ("order-1", "order-2", 0, 1),
        errors.SubjectErased: ("customer:c-17",),
        errors.MessagesFailed: (3, errors.TimedOut("no answer came")),
        mailbox_errors.MailboxFull: ("mailbox", 5, 5, "bytes"),
        mailbox_errors.ChangesFirst: (),
        mailbox_errors.Stopping: (),
        mailbox_errors.Stopped: ("order-1", "c-1"),
        mailbox_errors.Unrestorable: (errors.VersionConflict("order-1", 1, 2),),
        mailbox_errors.OutcomesMissing: (1, 2),
    }
    ours = [errors.EventStoreError, *vars(errors).values(), *vars(mailbox_errors).values()]
    classes = {each for each in ours if isinstance(each, type) and issubclass(each, Exception)}
    made: list[Exception] = [Uncovered(5, account="acc-1")]
    for cls in sorted(classes, key=lambda cls: (cls.__module__, cls.__name__)):
        fields = {"field": "total", "limit": 5} if cls not in arguments and issubclass(cls, errors.EventStoreError) else {}
        made.append(cls(*arguments.get(cls, ("what is wrong",)), **fields))
    return made + [errors.from_wire(errors.to_wire(each)) for each in made if isinstance(each, errors.EventStoreError)]


def spelled(value: object) -> object:
    """Returns what makes the value, or the error: its class, its text, all it holds."""
    if isinstance(value, Exception):
        return type(value), str(value), value.args, {name: spelled(each) for name, each in vars(value).items()}
    return type(value), repr(value)


@pytest.mark.parametrize("journey", JOURNEYS)
def test_every_public_value_and_every_error_is_unchanged_by(journey: str) -> None:
    for value in [*VALUES, *reported_values()]:
        assert (JOURNEYS[journey](value), spelled(JOURNEYS[journey](value))) == (value, spelled(value))
    for error in made_errors():
        error.add_note("a note")
        assert spelled(JOURNEYS[journey](error)) == spelled(error)


def test_an_error_that_several_tasks_get_is_whole_for_each() -> None:
    for error in made_errors():
        if isinstance(error, errors.EventStoreError):
            error.add_note("a note")
            copied = errors.copy_error(error)
            assert copied is not error
            assert spelled(copied) == spelled(error)


def test_the_values_above_are_all_public_ones() -> None:
    classes = {each for each in public_names() if isinstance(each, type) and not issubclass(each, Exception)}
    assert classes - HANDLES == classes & {type(value) for value in VALUES}
    assert {type(END), type(es.ANY)} == {End, Expected}


def test_a_note_on_a_copied_error_is_not_on_the_other() -> None:
    error = errors.VersionConflict("order-1", 1, 2)
    error.add_note("first")
    copied = copy.copy(error)
    copied.add_note("second")
    copied.fields["more"] = 1
    assert (error.__notes__, "more" in error.fields) == (["first"], False)


def test_a_delivery_reaches_another_process_as_its_message_and_a_copy_of_it_still_finishes_it() -> None:
    message = es.Message(("topic", 1, 2, "key", "tag", 3, b"body", None, 4, 5, 6))
    window = Window(DeliveryTracker(lambda: None), "topic", 1, None, 2)  # a consumer's: it cannot be pickled
    delivery = tuple.__new__(Delivery, (*message, window, 2))
    arrived = pickle.loads(pickle.dumps(delivery))
    assert (type(arrived), arrived) == (es.Message, message)
    assert copy.copy(delivery) is delivery
    assert copy.deepcopy(delivery) is delivery
