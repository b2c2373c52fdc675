"""The command `eventstore-spark`: its sub-commands, and what becomes of errors.

As with `eventstore`: what a user can cause ends in one line on standard error and exit code 1, or 2 where what was typed is
wrong by itself (`InvalidArgument`, `DomainRefused`, and what typer refuses). Of an error in a worker, that line is what the
reader said and not the two stack traces around it.
"""

from __future__ import annotations

import re
import sys

import typer

from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from pyspark_eventstore import exporting, rebuilding, shipping, verifying

_INTERRUPTED = 130
_OUR_ERROR = re.compile(r"eventstore\.errors\.(\w+): (.+)")
_WRONG_BY_ITSELF = frozenset({InvalidArgument.__name__, DomainRefused.__name__})

app = typer.Typer(
    name="eventstore-spark",
    help="Jobs over the event files of one or several shards, with Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("export")(exporting.export)
app.command("verify")(verifying.verify)
app.command("rebuild")(rebuilding.rebuild)
app.command("ship")(shipping.ship)


def run(arguments: list[str]) -> int:
    """Runs a command line; returns the exit code."""
    try:
        code = app(args=arguments, prog_name="eventstore-spark", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except EventStoreError as error:
        return _told(error.message, _code_of(type(error).__name__))
    except Exception as error:
        usage = getattr(error, "format_message", None)  # typer's errors of usage
        if usage is not None:
            return _told(f"{usage()}; see --help", int(getattr(error, "exit_code", 2)))
        found = _OUR_ERROR.search(str(error))
        if found is None:
            raise
        return _told(found[2], _code_of(found[1]))
    return code if isinstance(code, int) else 0


def _code_of(error: str) -> int:
    return 2 if error in _WRONG_BY_ITSELF else 1


def _told(message: str, code: int) -> int:
    over_the_bar = "\r\x1b[K" if sys.stderr.isatty() else ""  # that of the job that failed is still there
    print(f"{over_the_bar}error:", " ".join(message.split()), file=sys.stderr)
    return code


def main() -> None:
    """The entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
