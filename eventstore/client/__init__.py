"""The clients: `store.connect` for trio and asyncio, `blocking.connect` for code without an event loop.

    store, streams, blocking       what a user calls
    *_topic, *_broker, *consumer   the same of the broker
    connection, link               the async client's tasks and socket
    exchange                       the blocking client's socket
    session                        what both share, sans-io: request ids, resending, the hello
    calls, batches, subscription   the kinds of requests that wait for answers
    appends, sends, messages       what travels in batches
    consumption, window, turns     what a member of a consumer group holds and commits, sans-io
    reading                        cursors as requests
    facts                          small answers
    address, options, backoff

Import the module that is needed: the blocking client does without anyio.
"""
