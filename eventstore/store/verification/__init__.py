"""Checks a data folder that no server has open, from end to end, without changing it."""

from eventstore.store.verification.findings import Finding, VerificationProgress
from eventstore.store.verification.verify import VerifyReport, verify

__all__ = ["Finding", "VerificationProgress", "VerifyReport", "verify"]
