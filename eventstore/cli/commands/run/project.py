"""Keeps the table of a projection up to date."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from eventstore.cli.dashboard.projection_progress import ProjectionProgress
from eventstore.cli.terminal.output import print_note
from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, parse_assignments
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, WAIT_SECONDS, ShowProgress, StoreAddress, Wait

if TYPE_CHECKING:
    from eventstore.client.aio.store import NetworkStore
    from eventstore.domain.projections.projection import Projection
    from eventstore.domain.projections.projector import Progress
    from eventstore.errors import EventStoreError
    from eventstore.server.alarms.projector_alarms import ProjectorAlarms
    from eventstore.server.projection_watch import ProjectionWatch

    Watched: TypeAlias = tuple[ProjectionWatch, ProjectorAlarms]


def project(
    projection: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The projection, such as bank:Balances.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="sqlite:FILE or postgresql://USER@HOST/DATABASE.")],
    store: StoreAddress = DEFAULT_STORE,
    from_checkpoint: Annotated[
        bool,
        typer.Option(
            "--from-checkpoint",
            help="Only continue from a checkpoint, such as a rebuild's; never start at the first event.",
        ),
    ] = False,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End after the last event, instead of following.")
    ] = False,
    retry_parked: Annotated[
        bool,
        typer.Option(
            "--retry-parked", help="First fold the skipped events of parked keys; a key that fails again stays parked."
        ),
    ] = False,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /health of this projector here.")
    ] = None,
    wait: Wait = WAIT_SECONDS,
    progress: ShowProgress = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Bring a projection's table up to date and keep it so.

    The command continues from the table's checkpoint, or begins with the first event. Every event counts once, even if the
    command is interrupted: SIGTERM and Ctrl-C end it after the batch that is being written. Run it once for each table. While
    it follows, it sends its alarms as the settings of alarms say.

    \b
    Example:
      eventstore project --projection bank:Balances --to sqlite:balances.db
    """
    import trio

    from eventstore.domain.import_path import load_projection
    from eventstore.domain.projections.projector import project as project_events
    from eventstore.domain.projections.targets.open import target_at

    loaded, target = load_projection(projection), target_at(to)
    watched = None if until_caught_up and http is None else _watched(loaded, config, assignments)
    with ProjectionProgress(loaded.name, progress, follows=not until_caught_up) as shown, _served(watched, http):

        def on_progress(written: Progress) -> None:
            if watched is not None:
                watched[0].take(written)
            shown.advance(written)

        run = partial(
            project_events,
            projection=loaded,
            target=target,
            until_caught_up=until_caught_up,
            begins=not from_checkpoint,
            retry_parked=retry_parked,
            on_progress=on_progress,
        )
        stopped_by = trio.run(_project, store, wait, run, shown, watched)
    shown.conclude()
    if stopped_by == signal.SIGINT or (until_caught_up and stopped_by is not None):
        raise KeyboardInterrupt


def _watched(projection: Projection[Any], config: Path | None, assignments: list[str] | None) -> Watched:
    """Returns what counts how far the projector is, and its alarms. Raises InvalidArgument: a setting is wrong."""
    from eventstore.server.alarms.projector_alarms import ProjectorAlarms
    from eventstore.server.projection_watch import ProjectionWatch
    from eventstore.settings.sources import load_settings

    watch = ProjectionWatch(projection)
    return watch, ProjectorAlarms(load_settings(config, **parse_assignments(assignments)).alarms, watch)


@contextmanager
def _served(watched: Watched | None, http: str | None) -> Iterator[None]:
    """Serves /metrics and /health of the projector, if wanted."""
    if http is None or watched is None:
        yield
        return
    from eventstore.server.alarms.reported_alarms import alarm_feature
    from eventstore.server.http import http_server
    from eventstore.server.reports import Reports

    watch, alarms = watched
    reports = Reports(lambda: True)
    reports.add(watch.feature, alarm_feature(alarms.alarms))
    with http_server(http, reports.application(), reports.health) as address:
        print_note(f"{watch.projection.name}: /metrics and /health at http://{address}")
        yield


async def _project(
    address: str,
    wait_s: float,
    run: Callable[[NetworkStore], Awaitable[int]],
    shown: ProjectionProgress,
    watched: Watched | None,
) -> int | None:
    """Runs the projection. Returns the signal that ended it, if one did."""
    import trio

    from eventstore.client.aio.wait_for_server import wait_for_server
    from eventstore.following.log import last_sequence

    stopped_by: int | None = None

    async def stop_on_signals(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal stopped_by
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                stopped_by = number
                nursery.cancel_scope.cancel()
                return  # a second signal has the operating system's default effect

    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signals)
        nursery.start_soon(shown.redraw)
        connecting = wait_for_server(address, name=f"eventstore project {shown.name}", wait_s=wait_s, on_waiting=_say_waiting)
        async with connecting as store:
            shown.begin(await last_sequence(store))
            if watched is not None:
                watch, alarms = watched
                nursery.start_soon(watch.look_regularly, store)
                nursery.start_soon(alarms.run)
            await run(store)
            if watched is not None:
                await watched[0].leave(store)
        nursery.cancel_scope.cancel()
    return stopped_by


def _say_waiting(error: EventStoreError) -> None:
    print_note(f"waiting for the store: {error.message}")
