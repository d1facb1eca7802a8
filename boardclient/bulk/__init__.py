"""Bulk creation: lazy drafts, a fixed set of workers, a stream of results."""

from boardclient.bulk._results import BulkReport, CardResult
from boardclient.bulk._run import BulkRun

__all__ = ["BulkReport", "BulkRun", "CardResult"]
