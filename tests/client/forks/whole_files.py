"""Celery's queue in files, each of which has its content before it has its name.

A file of kombu's own transport may be read while it is still empty, which ends the worker.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):  # type: ignore[misc] # kombu has no types
    """A folder of messages."""

    def _put(self, queue: str, payload: Any, **named: Any) -> None:
        name = f"{time.monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg"
        written = Path(self.control_folder, name)
        written.write_text(dumps(payload))
        os.replace(written, Path(self.data_folder_out, name))


class Transport(filesystem.Transport):  # type: ignore[misc] # as above
    """As kombu's."""

    Channel = Channel


TRANSPORT_ALIASES["whole-files"] = f"{__name__}:Transport"


def celery_of(folder: Path) -> Celery:
    """Returns Celery with its queue and its results in files."""
    made = Celery("service")
    keep_in_files(made, folder)
    return made


def keep_in_files(made: Celery, folder: Path) -> None:
    """Has Celery keep its queue and its results in folders of this one, which are there."""
    queue, control = str(folder / "queue"), str(folder / "control")
    made.conf.update(
        broker_url="whole-files://", result_backend=f"file://{folder / 'results'}",
        broker_transport_options={
            "data_folder_in": queue, "data_folder_out": queue, "control_folder": control, "polling_interval": 0.02,
        },
        worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True,
    )  # fmt: skip
