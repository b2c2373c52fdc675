"""Certificates, as the tests of security make them."""

from tests.security.conftest import certificates as certificates
