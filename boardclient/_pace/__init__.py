"""Limiters: their protocols, and `Pace`, which finds a service's limit."""

from boardclient._pace._growth import Growth
from boardclient._pace._limiter import Limiter, ReportingLimiter
from boardclient._pace._pace import Pace

__all__ = ["Growth", "Limiter", "Pace", "ReportingLimiter"]
