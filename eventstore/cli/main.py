"""The command `eventstore`: its sub-commands, and what becomes of errors.

Errors a user can cause end in one line on standard error and exit code 1; only our own bugs show a traceback. Exit code 2:
what was typed, or set, is wrong by itself (every `InvalidArgument`, and what typer refuses), so that the same would fail
again. Ctrl-C ends quietly with 130, a closed pipe quietly with 1.

Help is plain text and not rich's panels: importing those alone would take longer than everything else together.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from eventstore.cli import (
    appending,
    exporting,
    importing,
    inspecting,
    projecting,
    publishing,
    reading,
    rebuilding,
    sending,
    serving,
    statistics,
    tailing,
    verifying,
    watching,
    working,
)
from eventstore.cli.output import print_error
from eventstore.cli.usage import Command, Program, plain_usage
from eventstore.errors import Corrupt, DomainRefused, EventStoreError, InvalidArgument

_WRONG_USAGE = 2
_INTERRUPTED = 130
_DAMAGED = "`eventstore verify` lists all damage, docs/OPERATIONS.md says what to do about it"
_OWNER = "check owner and mode"
_NEXT_STEPS = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "have it mounted writable, or choose another folder",
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
}

app = typer.Typer(
    name="eventstore",
    cls=Program,
    help="An event store: append events over TCP, replay them by aggregate id.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", cls=Command)(serving.serve)
app.command("work", cls=Command)(working.work)
app.command("send", cls=Command)(sending.send)
app.command("project", cls=Command)(projecting.project)
app.command("publish", cls=Command)(publishing.publish)
app.command("import", cls=Command)(importing.import_)
app.command("export", cls=Command)(exporting.export)
app.command("read", cls=Command)(reading.read)
app.command("tail", cls=Command)(tailing.tail)
app.command("append", cls=Command)(appending.append)
app.command("stats", cls=Command)(statistics.stats)
app.command("inspect", cls=Command)(inspecting.inspect)
app.command("verify", cls=Command)(verifying.verify)
app.command("rebuild", cls=Command)(rebuilding.rebuild)
app.command("top", cls=Command)(watching.top)


def _print_version(wanted: bool) -> None:
    if wanted:
        from eventstore import __version__

        print(f"eventstore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """An event store: append events over TCP, replay them by aggregate id."""


def run(arguments: list[str]) -> int:
    """Runs a command line; returns the exit code. An empty one is answered with the help, and is wrong all the same."""
    try:
        code = app(args=arguments or ["--help"], prog_name="eventstore", standalone_mode=False)
        sys.stdout.flush()
        if not arguments:
            return _WRONG_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BaseExceptionGroup as group:
        return _end_of_group(group)
    except Exception as error:
        return _end_of(error)
    return code if isinstance(code, int) else 0


def _end_of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """What ended several tasks at once: if it was one thing, that."""
    leaves = list(_leaves(group))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return _INTERRUPTED
    first = leaves[0]
    if not isinstance(first, Exception):
        raise group
    return _end_of(first)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    parts = (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error] for error in group.exceptions)
    return [leaf for part in parts for leaf in part]


def _end_of(error: Exception) -> int:
    """The exit code for an error, which is printed. Raises it again where it is our own bug."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at the end would fail as well
        return 1
    if isinstance(error, EventStoreError):
        print_error(error.message + _next_step(error))
        return _WRONG_USAGE if isinstance(error, InvalidArgument | DomainRefused) else 1
    if isinstance(error, OSError):
        said = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        print_error(said + _next_step(error))
        return 1
    usage = getattr(error, "format_message", None)  # typer's errors of usage; their class has moved between its versions
    if usage is None:
        raise error
    print_error(f"{plain_usage(usage())}; see --help")
    return int(getattr(error, "exit_code", _WRONG_USAGE))


def _next_step(error: Exception) -> str:
    """What to do about it, where the message does not say so by itself."""
    if isinstance(error, Corrupt):
        return f"; {_DAMAGED}"
    step = _NEXT_STEPS.get(error.errno or 0) if isinstance(error, OSError) else None
    return "" if step is None else f"; {step}"


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
