"""Makes the blocking client's facades from the async ones, by unasync: the same text without `async` and `await`.

Of `client/aio/…`, those in FACADES make `client/blocking/…`.
Both sides have modules of the same names and interfaces that these rest on (connection, streams, member, routing), written by
hand: docs/adr/0005.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import tokenize_rt
import unasync

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "eventstore" / "client" / "aio"
TARGET: Final = ROOT / "eventstore" / "client" / "blocking"
FACADES: Final = (
    "broker",
    "consumer",
    "operated",
    "reactions",
    "store",
    "subject_keys",
    "topic",
)
NAMES: Final = {
    "aio": "blocking",
    "aclose": "close",
    "NetworkStore": "BlockingStore",
    "NetworkBroker": "BlockingBroker",
    "NetworkTopic": "BlockingTopic",
    "NetworkReactions": "BlockingReactions",
    "NetworkAlarms": "BlockingAlarms",
    "NetworkConnection": "BlockingConnection",
    "NetworkConsumers": "BlockingConsumers",
    "NetworkEventStream": "BlockingEventStream",
    "NetworkKeys": "BlockingKeys",
    "NetworkLogStream": "BlockingLogStream",
    "NetworkMember": "BlockingMember",
    "NetworkOneWay": "BlockingOneWay",
    "NetworkOpened": "BlockingOpened",
    "NetworkOperated": "BlockingOperated",
    "NetworkRecordBatches": "BlockingRecordBatches",
    "NetworkSubscriptionStream": "BlockingSubscriptionStream",
    "MergedEvents": "BlockingMergedEvents",
    "MergedSubscription": "BlockingMergedSubscription",
    "Router": "BlockingRouter",
    "ShardsBroker": "shards_broker",
    "ShardsMember": "shards_member",
    "ShardsReactions": "shards_reactions",
    "Consumer": "BlockingConsumer",
}
# Of the names, only those that are not words of a sentence.
IN_TEXT: Final = re.compile(r"\basync (?=with|for)|\bawait |\baclose\b|\bNetwork[A-Z]\w+")


def blocking_modules() -> dict[Path, str]:
    """Returns path and text of each generated module."""
    return {TARGET / f"{name}.py": _blocking(SOURCE / f"{name}.py") for name in FACADES}


def _blocking(source: Path) -> str:
    with TemporaryDirectory() as folder:
        rule = unasync.Rule(str(source.parent), folder, additional_replacements=NAMES)
        unasync.unasync_files([str(source)], [rule])
        tokens = tokenize_rt.src_to_tokens((Path(folder) / source.name).read_text(encoding="utf-8"))
    body = tokenize_rt.tokens_to_src(map(_translated, tokens))
    head = f"# Generated from {source.relative_to(ROOT)} by `make generate`: do not edit.\n"
    return _formatted(head + body, TARGET / source.name)


def _translated(token: tokenize_rt.Token) -> tokenize_rt.Token:
    """Returns a docstring or comment with the words of the blocking client; unasync itself leaves them as they are."""
    if token.name not in ("STRING", "COMMENT"):
        return token
    return token._replace(src=IN_TEXT.sub(lambda found: NAMES.get(found.group(), ""), token.src))


def _formatted(text: str, path: Path) -> str:
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text
