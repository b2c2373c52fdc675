"""The command `eventstore-spark`: its sub-commands, and how errors end them.

An error that a user can cause is one line on standard error and exit code 1, as with `eventstore`; exit code 2 means that the
command line itself is wrong (`InvalidArgument`, `DomainRefused`, typer's usage errors). For an error in a worker the line is
the message of the reader, without the two stack traces around it.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer
import typer.core

from eventstore import __version__
from eventstore.errors import DomainRefused, EventStoreError, InvalidArgument
from pyspark_eventstore.jobs import compact as compacting
from pyspark_eventstore.jobs import diff as comparing
from pyspark_eventstore.jobs import export as exporting
from pyspark_eventstore.jobs import rebuild as rebuilding
from pyspark_eventstore.jobs import ship as shipping
from pyspark_eventstore.jobs import verify as verifying

_BRACES = re.compile(r"^\{(.*)\}(\.\.\.)?$")
_WRONG_USAGE = 2
_INTERRUPTED = 130
_OUR_ERROR = re.compile(r"eventstore\.errors\.(\w+): (.+)")
_WRONG_BY_ITSELF = frozenset({InvalidArgument.__name__, DomainRefused.__name__})


class SparkCommand(typer.core.TyperCommand):
    """A command whose help shows an argument as it was named: `DATA` instead of `{DATA} <list[str]>`.

    `eventstore` has the same. Its command line is not imported here, because this package goes to workers, which need nothing
    of it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = _no_type  # type: ignore[attr-defined] # typer has no setting for this

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]


def _no_type(ctx: object) -> None:
    return None


app = typer.Typer(
    name="eventstore-spark",
    help="Spark jobs over the event files of one or more stores.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"eventstore-spark {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Spark jobs over the event files of one or more stores."""


app.command("export", cls=SparkCommand)(exporting.export)
app.command("compact", cls=SparkCommand)(compacting.compact)
app.command("verify", cls=SparkCommand)(verifying.verify)
app.command("rebuild", cls=SparkCommand)(rebuilding.rebuild)
app.command("diff", cls=SparkCommand)(comparing.diff)
app.command("ship", cls=SparkCommand)(shipping.ship)


def run(arguments: list[str]) -> int:
    """Runs a command line and returns the exit code. An empty one prints the help, and is an error."""
    try:
        code = app(args=arguments or ["--help"], prog_name="eventstore-spark", standalone_mode=False)
        sys.stdout.flush()
        if not arguments:
            return _WRONG_USAGE
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
    return _WRONG_USAGE if error in _WRONG_BY_ITSELF else 1


def _told(message: str, code: int) -> int:
    over_the_bar = "\r\x1b[K" if sys.stderr.isatty() else ""  # the progress bar of the failed job is still there
    print(f"{over_the_bar}error:", " ".join(message.split()), file=sys.stderr)
    return code


def main() -> None:
    """The entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
