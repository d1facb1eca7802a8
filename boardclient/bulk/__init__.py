"""Bulk creation of cards: `BulkRun`, its results and its report (interface 4.3)."""

from boardclient.bulk._map import MapFailure, MapResult, MapSuccess
from boardclient.bulk._results import BulkAudit, BulkReport, CardResult
from boardclient.bulk._run import BulkRun
from boardclient.bulk.journal import resolve

__all__ = [
    "BulkAudit",
    "BulkReport",
    "BulkRun",
    "CardResult",
    "MapFailure",
    "MapResult",
    "MapSuccess",
    "resolve",
]
