"""Gives assistants tools to look at a store, over the Model Context Protocol."""

from __future__ import annotations

from eventstore.cli.terminal.shared_options import DEFAULT_STORE, StoreAddress


def mcp(store: StoreAddress = DEFAULT_STORE) -> None:
    """Serve read-only tools for assistants.

    An assistant starts this program and asks it on standard input, by the Model Context Protocol: it lists aggregates, reads
    one, queries by types and tags, says what is stuck, and shows figures. Nothing can be changed. It asks the store as the
    identity whose token it is given (EVENTSTORE_TOKEN), so give it one that may read only what the assistant may see.

    \b
    Example:
      EVENTSTORE_TOKEN=… eventstore mcp --store tcp://127.0.0.1:7701
    """
    from eventstore.cli.transfer.assistant_tools import serve_tools

    serve_tools(store)
