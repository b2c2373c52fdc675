"""The program of a node: `eventstore node` becomes this process once it has read its settings.

It is another program because it lives long and must stay small: what reads settings takes more memory than all it does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from eventstore.errors import Corrupt, DomainRefused, EventStoreError, InvalidArgument
from eventstore.server.bootstrap import run_to_end
from eventstore.server.logs import configure_logs, get_logger
from eventstore.settings.server import ServerSettings, server_settings
from eventstore_cluster.local_shards import NodeOptions, supervise

_WRONG_USAGE: Final = 2
_INTERRUPTED: Final = 130


def main(text: str) -> int:
    """Runs a node with the options in a JSON text; returns the exit code, as every command does."""
    try:
        given = json.loads(text)
        settings = server_settings(given["settings"])
        configure_logs(settings.log_format, settings.log_level)
        for name, meant in given["misspelled"].items():
            get_logger("eventstore.cluster").warning(
                "an environment variable is not a setting", variable=name, did_you_mean=meant
            )
        run_to_end(_node(settings, given))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except EventStoreError as error:
        hint = "; `eventstore verify` lists all damage, docs/OPERATIONS.md says what to do about it"
        _print_error(error.message + (hint if isinstance(error, Corrupt) else ""))
        return _WRONG_USAGE if isinstance(error, InvalidArgument | DomainRefused) else 1
    except OSError as error:
        _print_error(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return 1
    return 0


def _node(settings: ServerSettings, given: Mapping[str, Any]) -> Callable[[], Awaitable[None]]:
    """Returns what runs the node: of one machine, or one of several, whose libraries are loaded only then."""
    if given.get("replicated") is None:
        options = NodeOptions(settings, given["settings"], given["shards"])
        return lambda: supervise(options)
    from eventstore_cluster.nodes.options import read_options

    replicated = read_options(settings, given["settings"], given["replicated"])
    from eventstore_cluster.nodes.replicated_shards import supervise_replicas

    return lambda: supervise_replicas(replicated)


def _print_error(message: str) -> None:
    line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in " ".join(message.split()))
    print("error:", line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
