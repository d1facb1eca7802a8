"""Why there is no token, as a value. Each caller that waited gets an error object of its own."""

from __future__ import annotations

import attrs

from boardclient.errors import ConsentRequired, CredentialError


@attrs.frozen
class Consent:
    """Whose consent is needed, and where the application's sign-in begins."""

    account: str
    login_url: str | None = None


@attrs.frozen
class RenewalFailure:
    """Why there is no token.

    Args:
        why: The reason in words.
        cause: What the application raised, None if it did not.
        is_in_doubt: Whether the service may have used up the code.
        consent: Whose consent is missing. None if something failed.
    """

    why: str
    cause: BaseException | None = None
    is_in_doubt: bool = False
    consent: Consent | None = None

    def error(self, rest_seconds: float = 0.0) -> CredentialError:
        """Return a new error. `rest_seconds` is how long no renewal begins, for the message."""
        if self.consent is not None:
            error: CredentialError = ConsentRequired(self.why, self.consent.account, self.consent.login_url)
        else:
            rest = f"; the next renewal is possible in {rest_seconds:.1f} s" if rest_seconds > 0 else ""
            error = CredentialError(self.why + rest)
        error.__cause__ = self.cause
        return error


def consent_needed(account: str, login_url: str | None, cause: BaseException | None = None) -> RenewalFailure:
    """Return the failure of calls for an account whose user has to sign in."""
    return RenewalFailure(f"the user of account {account!r} has to sign in", cause, consent=Consent(account, login_url))


def without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks of an error, its causes and its groups. Their frames may hold secrets."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one.with_traceback(None))
            waiting += [one.__cause__, one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return error
