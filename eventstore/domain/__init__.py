"""What a domain service is written with: aggregates, handlers, reactions, projections. See docs/DOMAIN.md.

    import eventstore.domain as d

Nothing here opens a file or a socket. What runs projections and reactions, and the targets of projections, are imported on
first use, so that a worker of Spark or a test of a domain loads no event loop and no database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from eventstore.commands import RawCommand
from eventstore.domain.aggregate import Aggregate, applies
from eventstore.domain.command_type import command, encode_command
from eventstore.domain.domain import Domain
from eventstore.domain.event_type import event, event_type
from eventstore.domain.handling import Handled, Handler, reject
from eventstore.domain.loading import load, load_projection
from eventstore.domain.projection import Projection, fold, folds
from eventstore.domain.reaction import Reaction, Send
from eventstore.domain.restoring import replay, restore, restore_from
from eventstore.domain.upcasting import upcast
from eventstore.errors import Rejected

if TYPE_CHECKING:
    from eventstore.domain import testing as testing
    from eventstore.domain.checkpoint import FileCheckpoint as FileCheckpoint
    from eventstore.domain.postgres_target import PostgresTarget as PostgresTarget
    from eventstore.domain.projecting import Progress as Progress
    from eventstore.domain.projecting import project as project
    from eventstore.domain.reacting import react as react
    from eventstore.domain.sqlite_target import SQLiteTarget as SQLiteTarget
    from eventstore.domain.target import Target as Target
    from eventstore.domain.target import target_at as target_at

__all__ = [
    "Aggregate", "Domain", "FileCheckpoint", "Handled", "Handler", "PostgresTarget", "Progress", "Projection", "RawCommand",
    "Reaction", "Rejected", "SQLiteTarget", "Send", "Target", "applies", "command", "encode_command", "event",
    "event_type", "fold", "folds", "load", "load_projection", "project", "react", "reject", "replay", "restore",
    "restore_from", "target_at", "testing", "upcast",
]  # fmt: skip

_LAZY: dict[str, tuple[str, str | None]] = {
    "FileCheckpoint": ("eventstore.domain.checkpoint", "FileCheckpoint"),
    "PostgresTarget": ("eventstore.domain.postgres_target", "PostgresTarget"),
    "Progress": ("eventstore.domain.projecting", "Progress"),
    "SQLiteTarget": ("eventstore.domain.sqlite_target", "SQLiteTarget"),
    "Target": ("eventstore.domain.target", "Target"),
    "project": ("eventstore.domain.projecting", "project"),
    "react": ("eventstore.domain.reacting", "react"),
    "target_at": ("eventstore.domain.target", "target_at"),
    "testing": ("eventstore.domain.testing", None),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    value: object = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value
