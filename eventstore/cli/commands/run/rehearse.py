"""Restores all aggregates of a store with the code of now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import meter, print_error, print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, ShowProgress, StoreAddress
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.domain.rehearsal import Fault, Rehearsed


def rehearse(
    domain: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The domain, such as bank:app.")],
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only aggregates whose ids begin with this text.", show_default=False)
    ] = "",
    progress: ShowProgress = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Restore all aggregates with code before it is deployed.

    Each event that does not fit is printed: one that no method applies, whose data do not match its class, or whose method
    raises. Of an aggregate whose method raised, later events are only decoded. Nothing is changed. The exit code is 1 if
    anything does not fit.

    \b
    Example:
      eventstore rehearse --domain bank:app
    """
    import trio

    from eventstore.client.aio.store import connect
    from eventstore.domain.import_path import load
    from eventstore.domain.rehearsal import rehearse as rehearse_all

    loaded = load(domain)

    def found(fault: Fault) -> None:
        if as_json:
            print_json(fault._asdict())
        else:
            print_line(f"{fault.aggregate_id}  v{fault.version}  {fault.type}: {fault.error}")

    async def run() -> Rehearsed:
        async with connect(store, name="eventstore rehearse") as connected:
            return await rehearse_all(connected, loaded, prefix, found, on_progress)

    with meter("rehearse", progress) as bar:

        def on_progress(done: Rehearsed) -> None:
            bar.update(done.aggregates, None, f"{counted(done.aggregates, 'aggregate')}, {done.faults:,} faults")

        done = trio.run(run)
    others = f"; {counted(done.others, 'aggregate')} of other domains" if done.others else ""
    text = f"{counted(done.aggregates, 'aggregate')} restored, {counted(done.events, 'event')}{others}"
    if done.faults:
        print_error(f"{counted(done.faults, 'event does', 'events do')} not fit; {text}")
        raise typer.Exit(1)
    if as_json:
        print_json(done._asdict())
    else:
        print_line(f"all fit: {text}")
