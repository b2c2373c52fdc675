"""Copies the events of another store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import meter, print_error, print_json, print_line
from eventstore.cli.terminal.shared_options import AsJson, ShowProgress
from eventstore.errors import InvalidArgument
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.cli.transfer.migration.run import MigrationRules, MigrationSummary
    from eventstore.cli.transfer.migration.source import Source
    from eventstore.cli.transfer.migration.verify import Comparison
    from eventstore.errors import EventStoreError


def migrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="KIND:ADDRESS; kinds: table, message-db, eventsourcing, debezium, axon, marten, umadb, kurrentdb.",
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The store, such as tcp://127.0.0.1:7701.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the checkpoint in the target. [of the source]")] = None,
    table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The table, with its schema if it is not the usual.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="MEANING=COLUMN", help="Which column is position, aggregate_id, version, type, … Repeatable."),
    ] = None,
    first_version: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=1, help="The version of an aggregate's first event there: 0 or 1.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="json|bytes", help="What columns of text or bytes hold.")] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Before the ids of aggregates; a column is written as <COLUMN>.")
    ] = None,
    id_type: Annotated[
        str | None, typer.Option(metavar="uuid|text", help="Of eventsourcing in SQLite: what the application's ids are. [uuid]")
    ] = None,
    aggregate_tag: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of UmaDB: tags that begin with NAME: name the aggregates.")
    ] = None,
    version_gaps: Annotated[
        str, typer.Option(metavar="refuse|close|keep", help="What is done where versions of an aggregate are missing.")
    ] = "refuse",
    position_gaps: Annotated[
        str, typer.Option(metavar="refuse|close|keep", help="What is done where positions are missing.")
    ] = "refuse",
    paused: Annotated[bool, typer.Option("--paused", help="Nobody writes to the source: the last run.")] = False,
    accept_schema: Annotated[
        bool, typer.Option("--accept-schema", help="Go on although columns have other types than in the last run.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Copy nothing: compare what was copied with the source, to the first difference.")
    ] = False,
    reactions: Annotated[
        bool, typer.Option("--reactions/--no-reactions", help="Mark the events, so that reactions never handle them.")
    ] = True,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Mark the events, so that they are never published to topics.")
    ] = True,
    domain: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="End at an event that does not fit the classes of this domain.")
    ] = None,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Copy the events of another store.

    They keep their order, ids, versions and times. A further run copies what is new. Let it follow while the old store is used;
    then pause that, run once more with --paused, and once with --verify. docs/MIGRATING.md says for each source what becomes
    of what.

    Missing versions and positions end the run (refuse), are closed, or are closed and noted in the metadata (keep).

    \b
    Examples:
      eventstore migrate message-db:postgresql://app@db/message_store tcp://127.0.0.1:7701 --position-gaps close
      eventstore migrate eventsourcing:sqlite:bank.db tcp://127.0.0.1:7701 --prefix '{bank}-events-'
      eventstore migrate table:sqlite:old.db tcp://127.0.0.1:7701 --column position=id --column aggregate_id=order_no …
    """
    import trio

    from eventstore.cli.transfer.line_rules import line_rules
    from eventstore.cli.transfer.migration.open import checkpoint_name, open_source
    from eventstore.cli.transfer.migration.run import MigrationRules, MigrationSummary
    from eventstore.cli.transfer.migration.verify import Comparison

    rules = MigrationRules(version_gaps, position_gaps, line_rules(reactions, publish, domain)).checked()
    opened = open_source(
        source,
        table=table,
        columns=_columns(column or []),
        first_version=first_version,
        data=data,
        prefix=prefix,
        id_type=id_type,
        aggregate_tag=aggregate_tag,
    )
    named = name or checkpoint_name(opened)
    summary, verified = MigrationSummary(), Comparison()
    try:
        if verify:
            trio.run(_verify, target, opened, named, rules, verified, progress)
            _print_verified(verified, as_json)
            return
        failed = _run(target, opened, named, rules, summary, paused, accept_schema, progress)
    finally:
        opened.close()
    _print_summary(summary, as_json)
    if failed is not None:
        print_error(f"{failed.message}; {counted(summary.new, 'event')} copied by this run, which a further one finds again")
        raise typer.Exit(1)


def _columns(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        meaning, equals, column = each.partition("=")
        if not equals or meaning in found:
            raise InvalidArgument(f"--column {each}: give each as MEANING=COLUMN, once", field="column", value=each)
        found[meaning] = column
    return found


def _run(
    target: str,
    source: Source,
    name: str,
    rules: MigrationRules,
    summary: MigrationSummary,
    paused: bool,
    accept_form: bool,
    progress: bool | None,
) -> EventStoreError | None:
    """Runs under a progress bar. Returns the error that ended it early, if any."""
    import time

    import trio

    import eventstore as es
    from eventstore.cli.transfer.migration.run import Migration
    from eventstore.errors import EventStoreError

    started = time.perf_counter()

    async def main() -> None:
        with meter("migrate", progress) as bar:

            def on_progress() -> None:
                rate = summary.events / (time.perf_counter() - started)
                bar.update(summary.place or 0, max(summary.head, 1), f"{counted(summary.events, 'event')}, {rate:,.0f}/s")

            async with es.connect(target, reconnect_timeout=30.0, name="eventstore migrate") as store:
                await Migration(
                    store, source, name, rules, summary, paused=paused, accept_form=accept_form, on_progress=on_progress
                ).run()

    try:
        try:
            trio.run(main)
        except* KeyboardInterrupt:
            raise KeyboardInterrupt from None
    except EventStoreError as error:
        if not summary.events:
            raise
        return error
    return None


async def _verify(
    target: str, source: Source, name: str, rules: MigrationRules, verified: Comparison, progress: bool | None
) -> None:
    import eventstore as es
    from eventstore.cli.transfer.migration.verify import verify

    with meter("verify", progress) as bar:
        async with es.connect(target, reconnect_timeout=30.0, name="eventstore migrate --verify") as store:
            await verify(
                store,
                source,
                name,
                rules,
                verified,
                lambda: bar.update(verified.source, None, counted(verified.source, "event")),
            )


def _print_verified(verified: Comparison, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        print_json(asdict(verified))
    else:
        print_line(f"source  {counted(verified.source, 'event')}, checksum {verified.source_checksum}")
        print_line(f"target  {counted(verified.target, 'event')}, checksum {verified.target_checksum}")
        if verified.others:
            print_line(f"        {counted(verified.others, 'event')} of others")
    if verified.difference is not None:
        print_error(f"the first difference: {verified.difference}")
        raise typer.Exit(1)


def _print_summary(summary: MigrationSummary, as_json: bool) -> None:
    if as_json:
        print_json({"new": summary.new, "repeated": summary.repeated, "position": summary.place, "head": summary.head})
        return
    print_line(
        f"{counted(summary.new, 'event')} copied ({summary.repeated:,} were there), up to position {summary.place or 0:,}"
    )
