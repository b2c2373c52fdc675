"""Every limit of the wire protocol, with its reason. Limits of ids, events and commits are in `eventstore.model`."""

from __future__ import annotations

from typing import Final

from eventstore.model import EVENT_BYTES_MAX, FILTER_TYPES_MAX, REPLAYED_PER_PAGE_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1

MAGIC: Final = "eventstore"
PROTOCOL_VERSION: Final = 1

# A commit of 16 MiB, its ids, and the envelope of up to 100,000 events around it fit in one frame.
FRAME_BYTES_MAX: Final = 17 * MIB

# A HELLO has under 300 bytes; the rest is for values that later versions append. Larger frames are refused before it: a client
# that has not identified itself must not make a server hold 17 MiB.
HELLO_BYTES_MAX: Final = 4 * KIB

# Bounds the state of one connection in a server; enough for 256 tasks with a few requests in flight each.
REQUESTS_MAX: Final = 1024

# A frame is served without a pause; this many commits take some 30 ms, in which the others wait.
COMMITS_PER_FRAME_MAX: Final = 4_096

# Commands are as small as commits.
COMMANDS_PER_FRAME_MAX: Final = COMMITS_PER_FRAME_MAX

# The fields of a command as JSON; as large as an event may be.
PAYLOAD_BYTES_MAX: Final = EVENT_BYTES_MAX

# Five for each commit, and some to spare. Bounds what a frame can make a decoder allocate: a string of two bytes takes 3 bytes
# on the wire and 60 as an object, so that 17 MiB of them would be over 300 MB.
VALUES_PER_FRAME_MAX: Final = 100_000

# Large enough that the fixed cost of a page (a round trip, a few wake-ups) is small compared to decoding it, small enough that
# a page stays in the processor's cache while it is decoded.
PAGE_BYTES_DEFAULT: Final = 512 * KIB

# Bounds the memory that a server holds for one reader. A page always holds at least one whole commit, so a single commit may
# make it larger, up to the limit of a frame.
PAGE_BYTES_MAX: Final = 8 * MIB

# How far a subscription may run ahead of its consumer: two pages, so that one is under way while the other is consumed.
CREDIT_BYTES_DEFAULT: Final = 2 * PAGE_BYTES_DEFAULT

# A credit that was never used up must not overflow a signed 64-bit counter, however often it is extended.
CREDIT_BYTES_MAX: Final = 1024 * MIB

# Commands that one request looks up: those of an aggregate that a mailbox looks up at once are half of them.
COMMANDS_FOUND_MAX: Final = 64

# Aggregates of one READ_MANY. A client asks for more of them page by page.
AGGREGATES_READ_MAX: Final = REPLAYED_PER_PAGE_MAX

# Event types of one filter.
TYPES_MAX: Final = FILTER_TYPES_MAX

# The name a client or server gives itself; shown in logs.
NAME_BYTES_MAX: Final = 255

# What a client proves with who it is. It has to fit into a HELLO, with what later versions append.
TOKEN_BYTES_MAX: Final = 1024

# Messages and text fields of errors. They may quote input, and must not grow with it.
ERROR_TEXT_BYTES_MAX: Final = 2 * KIB

# Five values each, and the whole frame within `VALUES_PER_FRAME_MAX`.
MESSAGES_PER_FRAME_MAX: Final = COMMITS_PER_FRAME_MAX

# Messages of one pull bound the memory of a client; queues of one pull, the work of a server before it answers.
PULL_MESSAGES_MAX: Final = 10_000
PULL_MESSAGES_DEFAULT: Final = 64
PULL_QUEUES_MAX: Final = 1_000

# How long a pull may wait; shorter than the time after which routers drop an idle connection.
PULL_WAIT_MS_MAX: Final = 60_000

# How long an alarm may be silenced: a quarter. What is to be quiet for longer is a rule to change.
SILENCE_S_MAX: Final = 90 * 86_400

# Topics that a member of a group reads, and queues that one answer can assign to it.
SUBSCRIPTIONS_MAX: Final = 1_000
ASSIGNED_QUEUES_MAX: Final = 16_384

# Offsets of one commit: a member's queues, all of them.
OFFSETS_PER_FRAME_MAX: Final = ASSIGNED_QUEUES_MAX

# Each failed message is read and sent again before the answer.
FAILED_PER_FRAME_MAX: Final = 256

# A group's retry policy: attempts at a message, delays between them, and the longest of these, a day.
ATTEMPTS_MAX: Final = 1_000
DELAYS_MAX: Final = 64
DELAY_MS_MAX: Final = 86_400_000

# Messages that one look-up by key may return.
FOUND_MESSAGES_MAX: Final = 1_000

# Rows of one answer to SHOW_GROUP and LIST_CHUNKS, which is made without a pause. The next request continues after them.
ROWS_PER_ANSWER_MAX: Final = 1_000

# Queues of one topic.
QUEUES_MAX: Final = 256

# The number of a queue takes two bytes of a message's record.
QUEUE_MAX: Final = 65_535

# An expression of tags: a few tags of 255 bytes each. Why a message failed: the first 1,000 characters are kept.
TAGS_BYTES_MAX: Final = 4_096
REASON_BYTES_MAX: Final = 4_096

# Subjects of one request for keys: each of those that have none may need a file of its own to be written.
SUBJECTS_PER_REQUEST_MAX: Final = 256

# For how long a client may use the key of a subject that it was given, before it asks again: what is erased can be read for so
# long. Once a minute for each subject that is read costs a thousandth of reading it.
KEY_LEASE_S: Final = 60
