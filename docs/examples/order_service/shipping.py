"""`python -m order_service.shipping`: ships what was ordered. SIGTERM ends it in order."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "order_service.settings")
django.setup()

from django.db import close_old_connections  # noqa: E402 # after the setup, as the models

import eventstore as es  # noqa: E402
from order_service.clients import store  # noqa: E402
from order_service.models import Shipment  # noqa: E402


def ship(message: es.Delivery) -> None:
    """Ships one order. A message may come again, after a crash; an order is shipped once."""
    close_old_connections()  # as Django does before each request
    asked = message.json()
    _, is_new = Shipment.objects.get_or_create(order=asked["order"], defaults={"customer": asked["customer"]})
    if is_new:
        print(f"shipped {asked['order']} to {asked['customer']}\n", end="", flush=True)  # one write: two threads ship


def main() -> None:
    store.broker.create_topic("orders-to-ship", if_missing=True)
    with store.consumer("shipping", "orders-to-ship", order="key") as consumer:
        consumer.run(ship, concurrency=2)
    print("left the group", flush=True)


if __name__ == "__main__":
    main()
