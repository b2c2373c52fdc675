"""Runs a consumer as a process, to be killed: it writes a line for each message that it has handled.

    python -m tests.consumers.consumer_process ADDRESS GROUP MEMBER TOPIC COMMIT_INTERVAL [QUEUE/OFFSET ...]

A line is `queue offset body`. At each QUEUE/OFFSET it writes `here`, and waits for a line on its input.
"""

from __future__ import annotations

import sys

import eventstore as es


def main(address: str, group: str, member: str, topic: str, commit_interval: str, *stops: str) -> None:
    with (
        es.blocking.connect(address) as store,
        store.consumer(group, topic, member=member, commit_interval=float(commit_interval)) as consumer,
    ):
        print("joined", flush=True)
        for message in consumer:
            if f"{message.queue}/{message.queue_offset}" in stops:
                print("here", flush=True)
                sys.stdin.readline()
            print(message.queue, message.queue_offset, message.body.decode(), flush=True)
            message.done()


if __name__ == "__main__":
    main(*sys.argv[1:])
