"""Limiters: their protocols, and `Pace`, which finds a service's limit."""

from boardclient._pace._limiter import Limiter, ReportingLimiter
from boardclient._pace._pace import Pace

__all__ = ["Limiter", "Pace", "ReportingLimiter"]
