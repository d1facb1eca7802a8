"""Bulk creation of cards: `BulkRun`, its results and its report (interface 4.3).

A name is imported when it is first used: what reads a journal does not import aiohttp.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boardclient.bulk._map import MapFailure as MapFailure, MapResult as MapResult, MapSuccess as MapSuccess
    from boardclient.bulk._results import BulkAudit as BulkAudit, BulkReport as BulkReport, CardResult as CardResult
    from boardclient.bulk._run import BulkRun as BulkRun
    from boardclient.bulk.journal import resolve as resolve
else:
    from boardclient._base._lazy import public_names

    __all__, __getattr__, __dir__ = public_names(
        __name__,
        {
            "_map": ("MapFailure", "MapResult", "MapSuccess"),
            "_results": ("BulkAudit", "BulkReport", "CardResult"),
            "_run": ("BulkRun",),
            "journal": ("resolve",),
        },
    )
