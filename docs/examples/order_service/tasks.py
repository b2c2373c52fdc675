"""`celery -A order_service.tasks worker`: the same commands, from a queue."""

from __future__ import annotations

import os

from celery import Celery

import eventstore as es
from order_service.clients import commands
from order_service.orders import PlaceOrder

app = Celery("order_service", broker=os.environ.get("CELERY_BROKER", "redis://localhost"))
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)


@app.task(bind=True, autoretry_for=(es.ConnectionLost, es.TimedOut), retry_backoff=True, max_retries=None)
def place_order(self, order: str, customer: str, cents: int) -> int | None:
    """Places an order. The id of the task is the command id: a task that runs again, in whatever process, places it once."""
    done = commands.send(PlaceOrder(order, customer, cents), self.request.id, metadata={"user": "queue"})
    return done.version if isinstance(done, es.Committed) else None
