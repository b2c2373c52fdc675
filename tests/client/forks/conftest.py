"""Certificates for the tests of forks."""

from tests.security.conftest import certificates as certificates
