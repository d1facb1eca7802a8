"""Why no token could be had: a value, from which every caller that waited gets an error object of its own."""

from __future__ import annotations

import attrs

from boardclient.errors import CredentialError


@attrs.frozen
class RenewalFailure:
    """A reason in words, and what the application raised, where it did.

    `is_in_doubt` tells that the service may have done what it was asked for.
    """

    why: str
    cause: BaseException | None = None
    is_in_doubt: bool = False

    def error(self, rest_seconds: float = 0.0) -> CredentialError:
        """Make a new error; `rest_seconds` tells how long renewals rest before the next one."""
        rest = f"; the next renewal is possible in {rest_seconds:.1f} s" if rest_seconds > 0 else ""
        error = CredentialError(self.why + rest)
        error.__cause__ = self.cause
        return error


def without_frames(error: BaseException) -> BaseException:
    """Take the frames from an error and from all that led to it: their locals hold what must not be kept."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one.with_traceback(None))
            waiting += [one.__cause__, one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return error
