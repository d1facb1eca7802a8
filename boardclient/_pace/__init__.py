"""The limiter that finds a service's limit, for sessions, calls and bulk runs. It imports nothing of the package."""

from boardclient._pace._limiter import Limiter, ReportingLimiter
from boardclient._pace._pace import Pace

__all__ = ["Limiter", "Pace", "ReportingLimiter"]
