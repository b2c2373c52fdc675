"""Describes any file of a store: its kind, its contents, and its damage. Changes nothing and takes no lock."""

from eventstore.cli.inspection.file_report import FileReport, ReportTable
from eventstore.cli.inspection.kinds import describe

__all__ = ["FileReport", "ReportTable", "describe"]
