"""Tests of the service: what it decides without a server, what it answers with one."""

from __future__ import annotations

import uuid

import eventstore.domain as d
from eventstore.domain.testing import given
from order_service.orders import CancelOrder, OrderCancelled, OrderPlaced, Orders, PlaceOrder


def test_an_order_is_placed_and_cancelled_once() -> None:
    given().when(PlaceOrder("o-1", "ada", 350)).then(OrderPlaced("ada", 350))
    given(OrderPlaced("ada", 350)).when(PlaceOrder("o-1", "bob", 1)).then_rejected("placed")
    given(OrderPlaced("ada", 350)).when(CancelOrder("o-1", "late")).then(OrderCancelled("late"))
    given(OrderPlaced("ada", 350), OrderCancelled("late")).when(CancelOrder("o-1", "late")).then_rejected("none")


def new_order(client, customer="ada", cents=350):
    order, key = f"o-{uuid.uuid4().hex}", uuid.uuid4().hex
    body = {"customer": customer, "cents": cents}
    return order, lambda: client.post(
        f"/orders/{order}", body, content_type="application/json", headers={"Idempotency-Key": key, "X-User": "eve"}
    )


def test_a_request_that_is_repeated_places_one_order(client, eventstore_client) -> None:
    order, post = new_order(client)
    assert [(answer.status_code, answer.json()) for answer in (post(), post())] == [(201, {"version": 1})] * 2
    assert eventstore_client.version(order) == 1
    assert client.get(f"/orders/{order}").json() == {"customer": "ada", "cents": 350, "cancelled": False, "version": 1}
    assert client.get("/orders/nothing").status_code == 404


def test_a_refused_request_says_why(client) -> None:
    _, post = new_order(client, cents=0)
    assert (post().status_code, post().json()["reason"]) == (422, "cents")
    order, post = new_order(client)
    post()
    other = client.post(f"/orders/{order}/cancel", {"why": "late"}, "application/json", headers={"Idempotency-Key": "k-1"})
    assert other.status_code == 201
    again = client.post(f"/orders/{order}/cancel", {"why": "other"}, "application/json", headers={"Idempotency-Key": "k-1"})
    assert again.status_code == 409


def test_the_audit_page_shows_who_did_what(client) -> None:
    order, post = new_order(client)
    post()
    page = client.get(f"/orders/{order}/audit").content.decode()
    assert "OrderPlaced" in page
    assert "<td>eve</td>" in page


def test_the_table_has_the_orders_of_a_customer(client, database, eventstore_projector) -> None:
    customer = f"c-{uuid.uuid4().hex}"
    order, post = new_order(client, customer)
    post()
    eventstore_projector(Orders(), d.target_at(f"sqlite:{database}")).catch_up()
    assert client.get(f"/customers/{customer}/orders").json() == [{"order": order, "cents": 350, "cancelled": False}]


def test_each_order_is_published_to_be_shipped(client, eventstore_client) -> None:
    order, post = new_order(client)
    post()
    eventstore_client.broker.create_topic("orders-to-ship", if_missing=True)
    with eventstore_client.consumer("tests", "orders-to-ship", from_end=False, timeout=10) as consumer:
        assert order in (message.json()["order"] for message in consumer)
