"""Limiters: their protocols, and `Pace`, which finds a service's limit."""

from boardclient._pace._limiter import LONGEST_WAIT_SECONDS, Limiter, ReportingLimiter
from boardclient._pace._pace import Pace

__all__ = ["LONGEST_WAIT_SECONDS", "Limiter", "Pace", "ReportingLimiter"]
