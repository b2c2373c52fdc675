"""Keeps the tables of projections up to date."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import typer

from eventstore.cli.dashboard.projection_progress import ProjectionProgress
from eventstore.cli.terminal.durations import seconds_of
from eventstore.cli.terminal.output import print_note
from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, parse_assignments
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, WAIT_SECONDS, ShowProgress, StoreAddress, Wait

if TYPE_CHECKING:
    from eventstore.client.aio.store import NetworkStore
    from eventstore.domain.projections.difference import TableDifference
    from eventstore.domain.projections.exchange import Exchange
    from eventstore.domain.projections.projection import Projection
    from eventstore.domain.projections.projector import Progress
    from eventstore.domain.projections.targets.versions import TakenOver
    from eventstore.errors import EventStoreError
    from eventstore.server.alarms.projector_alarms import ProjectorAlarms
    from eventstore.server.projection_watch import ProjectionWatches

    Watched: TypeAlias = tuple[ProjectionWatches, ProjectorAlarms]


def project(
    to: Annotated[str, typer.Option(metavar="TARGET", help="sqlite:FILE or postgresql://USER@HOST/DATABASE.")],
    projection: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="The projection, such as bank:Balances; several times for several."),
    ] = None,
    all_of: Annotated[
        list[str] | None,
        typer.Option("--all", metavar="MODULE[:NAME]", help="All projections of a module, or those of the list NAME in it."),
    ] = None,
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
    exchange: Annotated[
        bool,
        typer.Option(
            "--exchange",
            help="If a table is of another version, build a new one beside it, which takes over once it is as far.",
        ),
    ] = False,
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="How long a table stays that another took over from: 90s, 30m, 12h, 7d.")
    ] = "1d",
    beside: Annotated[
        bool, typer.Option("--beside", help="As --exchange, but without taking over: build the new table, and follow.")
    ] = False,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /health of this projector here.")
    ] = None,
    wait: Wait = WAIT_SECONDS,
    progress: ShowProgress = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Bring the tables of projections up to date and keep them so.

    The command continues from each table's checkpoint, or begins with the first event. Every event counts once, even if the
    command is interrupted: SIGTERM and Ctrl-C end it after the batches that are being written. Run it once for each table.
    While it follows, it sends its alarms as the settings of alarms say.

    Several projections share one subscription. One that fails is begun again after a while, and the others continue; one that
    is behind catches up alone. The exit code is 1 or 2 if one has ended, such as one that runs elsewhere as well.

    With --exchange, a table of another version is read and kept up to date, by its own projector, until the new one takes over
    in one transaction. Then that projector ends; the table of before is kept as NAME:VERSION, and the earlier code with
    --exchange brings it back. `eventstore diff` compares both.

    \b
    Example:
      eventstore project --projection bank:Balances --to sqlite:balances.db
      eventstore project --all shop.tables --to postgresql://reports@10.0.0.9/reports
    """
    import trio

    from eventstore.domain.projections.project_all import project_all
    from eventstore.domain.projections.projector import project as project_events
    from eventstore.domain.projections.targets.open import target_at, targets_at

    wanted_exchange = _exchange(keep, takes_over=not beside) if exchange or beside else None
    loaded, alone = _loaded(projection or [], all_of or [])
    watched = None if until_caught_up and http is None else _watched(loaded, config, assignments)
    ended = list[Exception]()
    with _Shown(loaded, progress if alone else False, follows=not until_caught_up) as shown, _served(watched, http):

        def on_progress(name: str, written: Progress) -> None:
            if watched is not None and not written.beside:
                watched[0].by_name[name].take(written)
            shown.by_name[name].advance(written)

        def on_failure(name: str, error: Exception, again: bool) -> None:
            if watched is not None:
                watched[0].by_name[name].failure = str(error)
            if not again:
                ended.append(error)

        options: dict[str, Any] = {
            "until_caught_up": until_caught_up,
            "begins": not from_checkpoint,
            "retry_parked": retry_parked,
            "exchange": wanted_exchange,
        }
        run: Callable[[NetworkStore], Awaitable[object]]
        if alone:
            options["on_progress"] = partial(on_progress, loaded[0].name)
            run = partial(project_events, projection=loaded[0], target=target_at(to), **options)
        else:
            tables = list(zip(loaded, targets_at(to, len(loaded)), strict=True))
            run = partial(project_all, tables=tables, on_progress=on_progress, on_failure=on_failure, **options)
        try:
            stopped_by = trio.run(_project, store, wait, run, shown, watched)
        except Exception:
            if not alone:
                shown.conclude()
            raise
    shown.conclude()
    if stopped_by == signal.SIGINT or (until_caught_up and stopped_by is not None):
        raise KeyboardInterrupt
    if ended:
        raise ended[0]


def _loaded(projection: list[str], all_of: list[str]) -> tuple[list[Projection[Any]], bool]:
    """Returns the projections, and whether it is one that is run alone."""
    from eventstore.domain.import_path import load_projection, load_projections
    from eventstore.errors import InvalidArgument

    loaded = [load_projection(each) for each in projection]
    for each in all_of:
        loaded += load_projections(each)
    if not loaded:
        raise InvalidArgument("no projection is named: give --projection MODULE:NAME, or --all MODULE", field="projection")
    return loaded, not all_of and len(loaded) == 1


def _exchange(keep: str, *, takes_over: bool) -> Exchange:
    """Returns an exchange that says what it does."""
    from eventstore.domain.projections.exchange import Exchange

    def on_beside(name: str, table: str, served: int) -> None:
        print_note(f"{name}: version {served} is served; {table} is built beside it")

    def on_compared(name: str, found: TableDifference) -> None:
        for line in found.told():
            print_note(f"{name}: {line}")

    def on_taken_over(name: str, taken: TakenOver) -> None:
        print_note(
            f"{name}: version {taken.version} has taken over at sequence {taken.sequence:,}; version {taken.before} is kept as "
            f"{taken.aside} for {keep}"
        )

    return Exchange(seconds_of("keep", keep), takes_over, on_beside, on_compared, on_taken_over)


class _Shown:
    """The progress of each projection: one with a bar, if it is alone; of several, a line each."""

    def __init__(self, projections: list[Projection[Any]], bar: bool | None, *, follows: bool) -> None:
        self.by_name = {each.name: ProjectionProgress(each.name, bar, follows=follows) for each in projections}
        self._open = ExitStack()

    @property
    def name(self) -> str:
        return next(iter(self.by_name)) if len(self.by_name) == 1 else f"of {len(self.by_name)} tables"

    def __enter__(self) -> Self:
        for each in self.by_name.values():
            self._open.enter_context(each)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def conclude(self) -> None:
        for each in self.by_name.values():
            each.conclude()


def _watched(projections: list[Projection[Any]], config: Path | None, assignments: list[str] | None) -> Watched:
    """Returns what counts how far the projectors are, and their alarms. Raises InvalidArgument: a setting is wrong."""
    from eventstore.server.alarms.projector_alarms import ProjectorAlarms
    from eventstore.server.projection_watch import ProjectionWatches
    from eventstore.settings.sources import load_settings

    watches = ProjectionWatches(projections)
    return watches, ProjectorAlarms(load_settings(config, **parse_assignments(assignments)).alarms, watches)


@contextmanager
def _served(watched: Watched | None, http: str | None) -> Iterator[None]:
    """Serves /metrics and /health of the projector, if wanted."""
    if http is None or watched is None:
        yield
        return
    from eventstore.server.alarms.reported_alarms import alarm_feature
    from eventstore.server.http import http_server
    from eventstore.server.reports import Reports

    watches, alarms = watched
    reports = Reports(lambda: True)
    reports.add(watches.feature, alarm_feature(alarms.alarms))
    with http_server(http, reports.application(), reports.health) as address:
        print_note(f"{', '.join(watches.by_name)}: /metrics and /health at http://{address}")
        yield


async def _project(
    address: str,
    wait_s: float,
    run: Callable[[NetworkStore], Awaitable[object]],
    shown: _Shown,
    watched: Watched | None,
) -> int | None:
    """Runs the projections. Returns the signal that ended it, if one did."""
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
        for each in shown.by_name.values():
            nursery.start_soon(each.redraw)
        connecting = wait_for_server(address, name=f"eventstore project {shown.name}", wait_s=wait_s, on_waiting=_say_waiting)
        async with connecting as store:
            end = await last_sequence(store)
            for each in shown.by_name.values():
                each.begin(end)
            if watched is not None:
                watches, alarms = watched
                nursery.start_soon(watches.look_regularly, store)
                nursery.start_soon(alarms.run)
            await run(store)
            if watched is not None:
                await watched[0].leave(store)
        nursery.cancel_scope.cancel()
    return stopped_by


def _say_waiting(error: EventStoreError) -> None:
    print_note(f"waiting for the store: {error.message}")
