"""Runs the command line, and turns errors into messages and exit codes.

An error that a user can cause is one line on standard error and exit code 1; only our own bugs show a traceback. Exit code 2:
the command line or a setting is wrong by itself (every `InvalidArgument`, and everything typer refuses), so it would fail
again. Ctrl-C ends silently with 130, a closed pipe silently with 1.

Help is plain text, not rich's panels: importing those alone would take longer than everything else together.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from eventstore.cli.terminal.output import print_error
from eventstore.cli.terminal.program import program
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

app = program("eventstore", "An event store: append events over TCP, replay them by aggregate id.")


def _print_version(wanted: bool) -> None:
    if wanted:
        from eventstore import __version__

        print(f"eventstore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """An event store: append events over TCP, replay them by aggregate id."""


def run(arguments: list[str]) -> int:
    """Runs a command line and returns the exit code. An empty one prints the help, and is an error."""
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
    """Returns the exit code for errors of several tasks: that of the first one."""
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
    """Prints an error and returns its exit code. Raises it again if it is our own bug."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at the end would fail as well
        return 1
    if isinstance(error, EventStoreError):
        print_error(error.message + _next_step(error))
        return _WRONG_USAGE if isinstance(error, InvalidArgument | DomainRefused) else 1
    if isinstance(error, OSError):
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        print_error(message + _next_step(error))
        return 1
    usage = getattr(error, "format_message", None)  # typer's errors of usage; their class has moved between versions of typer
    if usage is None:
        raise error
    said = usage().rstrip(".")
    print_error(f"{said} See --help" if said.endswith("?") else f"{said}; see --help")
    return int(getattr(error, "exit_code", _WRONG_USAGE))


def _next_step(error: Exception) -> str:
    """Returns the next step for an error whose message does not name one."""
    if isinstance(error, Corrupt):
        return f"; {_DAMAGED}"
    step = _NEXT_STEPS.get(error.errno or 0) if isinstance(error, OSError) else None
    return "" if step is None else f"; {step}"


def main() -> None:
    """Runs the console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
