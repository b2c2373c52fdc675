"""Tables: that of the projection, which Django only reads, and one of what was shipped."""

from __future__ import annotations

from django.db import models


class OrderRow(models.Model):
    key = models.TextField(primary_key=True)
    customer = models.TextField()
    cents = models.BigIntegerField()
    cancelled = models.BooleanField()

    class Meta:
        db_table = "orders"
        managed = False


class Shipment(models.Model):
    order = models.TextField(primary_key=True)
    customer = models.TextField()
