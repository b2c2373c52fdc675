"""What the service answers, and where."""

from __future__ import annotations

import json
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

import eventstore as es
import eventstore.domain as d
from order_service.clients import commands, store
from order_service.models import OrderRow
from order_service.orders import CancelOrder, Order, PlaceOrder

VERSION = 1


def answer_errors(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Turns errors of the store into answers that say whether to send the request again: after a 503, with the same key."""

    def middleware(request: HttpRequest) -> HttpResponse:
        return get_response(request)

    def process_exception(request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, es.ConnectionLost | es.TimedOut):
            return JsonResponse({"error": str(error)}, status=503, headers={"Retry-After": "1"})
        if isinstance(error, es.CommandIdReused):
            return JsonResponse({"error": "this Idempotency-Key belongs to another request"}, status=409)
        if isinstance(error, es.Rejected):
            return JsonResponse({"error": str(error), "reason": error.reason}, status=422)
        return None

    middleware.process_exception = process_exception  # type: ignore[attr-defined] # Django looks for it there
    return middleware


def send(request: HttpRequest, command: object) -> HttpResponse:
    """Sends a command under the request's key: a request that is repeated takes effect once, and has the same answer."""
    key = request.headers.get("Idempotency-Key")
    done = commands.send(command, key, metadata={"user": request.headers.get("X-User", "unknown")})
    version = done.version if isinstance(done, es.Committed) else None
    return JsonResponse({"version": version}, status=201)


@require_POST
def place(request: HttpRequest, order: str) -> HttpResponse:
    asked = json.loads(request.body)
    return send(request, PlaceOrder(order, asked["customer"], asked["cents"]))


@require_POST
def cancel(request: HttpRequest, order: str) -> HttpResponse:
    return send(request, CancelOrder(order, json.loads(request.body)["why"]))


@require_GET
def show(request: HttpRequest, order: str) -> HttpResponse:
    """The order as it is now: from its events, so a command that was answered is in it."""
    found = d.restore(Order, order, store.read(order))
    if not found.version:
        return JsonResponse({"error": f"no order {order}"}, status=404)
    return JsonResponse(
        {"customer": found.customer, "cents": found.cents, "cancelled": found.cancelled, "version": found.version},
        headers={"X-Version": str(VERSION)},
    )


@require_GET
def audit(request: HttpRequest, order: str) -> HttpResponse:
    """A page of all that happened to an order, when, and by whom."""
    events = [
        {"version": each.version, "time": each.time, "type": each.type, "data": each.json(),
         "user": (each.metadata_json() or {}).get("user"), "command": each.command_id}
        for each in store.read(order)
    ]  # fmt: skip
    return render(request, "order_service/audit.html", {"order": order, "events": events})


@require_GET
def of_customer(request: HttpRequest, customer: str) -> HttpResponse:
    """The orders of a customer, from the table that `eventstore project` keeps: a moment later than the answers above."""
    rows = OrderRow.objects.filter(customer=customer).order_by("key")[:100]
    return JsonResponse([{"order": each.key, "cents": each.cents, "cancelled": each.cancelled} for each in rows], safe=False)


def one(request: HttpRequest, order: str) -> HttpResponse:
    return place(request, order) if request.method == "POST" else show(request, order)


urlpatterns = [
    path("orders/<str:order>", one),
    path("orders/<str:order>/cancel", cancel),
    path("orders/<str:order>/audit", audit),
    path("customers/<str:customer>/orders", of_customer),
]
