"""Building blocks of a domain: aggregates, handlers, reactions, projections. See docs/DOMAIN.md.

    import eventstore.domain as d

Nothing here opens a file or a socket. The projector, the reactor and the targets of projections are imported on first use,
so that a Spark worker or a test of a domain loads no event loop and no database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from eventstore.commands import RawCommand
from eventstore.domain.aggregate import Aggregate, applies
from eventstore.domain.decision import Decision
from eventstore.domain.domain import Domain
from eventstore.domain.encoding.command_type import command, encode_command
from eventstore.domain.encoding.event_type import event, event_type
from eventstore.domain.encoding.upcasting import upcast
from eventstore.domain.handler import DecisionHandler, Handled, HandledJointly, Handler, JointHandler, reject
from eventstore.domain.import_path import load, load_projection
from eventstore.domain.processes.picture import mermaid
from eventstore.domain.processes.process import Process, deadline, on, refused
from eventstore.domain.projections.decimal_column import DecimalColumn
from eventstore.domain.projections.projection import Projection, fold, folds
from eventstore.domain.reactions.reaction import CommandSender as Send
from eventstore.domain.reactions.reaction import Reaction
from eventstore.domain.restore import replay, restore, restore_from
from eventstore.domain.timers.setting import cancel_later, move_later, send_later
from eventstore.errors import Rejected

if TYPE_CHECKING:
    from eventstore.domain import testing as testing
    from eventstore.domain.event_columns import EventColumns as EventColumns
    from eventstore.domain.projections.exchange import Exchange as Exchange
    from eventstore.domain.projections.project_all import project_all as project_all
    from eventstore.domain.projections.projector import Progress as Progress
    from eventstore.domain.projections.projector import project as project
    from eventstore.domain.projections.targets.base import Target as Target
    from eventstore.domain.projections.targets.open import target_at as target_at
    from eventstore.domain.projections.targets.open import targets_at as targets_at
    from eventstore.domain.projections.targets.postgres import PostgresTarget as PostgresTarget
    from eventstore.domain.projections.targets.sqlite import SQLiteTarget as SQLiteTarget
    from eventstore.domain.reactions.checkpoint import FileCheckpoint as FileCheckpoint
    from eventstore.domain.reactions.reactor import react as react

__all__ = [
    "Aggregate",
    "DecimalColumn",
    "Decision",
    "DecisionHandler",
    "Domain",
    "EventColumns",
    "Exchange",
    "FileCheckpoint",
    "Handled",
    "HandledJointly",
    "Handler",
    "JointHandler",
    "PostgresTarget",
    "Process",
    "Progress",
    "Projection",
    "RawCommand",
    "Reaction",
    "Rejected",
    "SQLiteTarget",
    "Send",
    "Target",
    "applies",
    "cancel_later",
    "command",
    "deadline",
    "encode_command",
    "event",
    "event_type",
    "fold",
    "folds",
    "load",
    "load_projection",
    "mermaid",
    "move_later",
    "on",
    "project",
    "project_all",
    "react",
    "refused",
    "reject",
    "replay",
    "restore",
    "restore_from",
    "send_later",
    "target_at",
    "targets_at",
    "testing",
    "upcast",
]

_LAZY: dict[str, tuple[str, str | None]] = {
    "Exchange": ("eventstore.domain.projections.exchange", "Exchange"),
    "EventColumns": ("eventstore.domain.event_columns", "EventColumns"),
    "FileCheckpoint": ("eventstore.domain.reactions.checkpoint", "FileCheckpoint"),
    "PostgresTarget": ("eventstore.domain.projections.targets.postgres", "PostgresTarget"),
    "Progress": ("eventstore.domain.projections.projector", "Progress"),
    "SQLiteTarget": ("eventstore.domain.projections.targets.sqlite", "SQLiteTarget"),
    "Target": ("eventstore.domain.projections.targets.base", "Target"),
    "project": ("eventstore.domain.projections.projector", "project"),
    "project_all": ("eventstore.domain.projections.project_all", "project_all"),
    "react": ("eventstore.domain.reactions.reactor", "react"),
    "target_at": ("eventstore.domain.projections.targets.open", "target_at"),
    "targets_at": ("eventstore.domain.projections.targets.open", "targets_at"),
    "testing": ("eventstore.domain.testing", None),
}


def _import_lazily(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    value: object = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # a type checker would believe in every name that is asked for
    __getattr__ = _import_lazily


def __dir__() -> list[str]:
    return sorted(__all__)
