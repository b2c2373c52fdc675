"""Certificates, as for a server."""

from __future__ import annotations

from tests.security.conftest import certificates as certificates
