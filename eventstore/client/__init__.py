"""The clients: `store.connect` for trio and asyncio, `blocking.connect` for code without an event loop.

    store, streams, blocking       what a user calls
    connection, link               the async client's tasks and socket
    exchange                       the blocking client's socket
    session                        what both share, sans-io: request ids, resending, the hello
    calls, appends, subscription   the kinds of requests that wait for answers
    reading                        cursors as requests
    facts                          small answers
    address, options, backoff

Import the module that is needed: the blocking client does without anyio.
"""
