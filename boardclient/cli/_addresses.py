"""Takes a pasted address of a board or a card for its identifier.

The form of these addresses is not documented, so the service is asked which part it knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from boardclient.cli._output import UsageError, quoted

_MOST_PARTS = 8
"""How many parts of an address are tried."""


def is_address(value: str) -> bool:
    """Return True if a value is the address of a page, as browsers show it."""
    return value.startswith(("http://", "https://"))


async def identifier_in(address: str, kind: str, read: Callable[[str], Awaitable[object]]) -> str:
    """Return the part of an address that is the identifier of a board or a card. `read` asks the service about one.

    Raises:
        UsageError: the service knows none of its parts, or several.
        BoardClientError: the service could not be asked.
    """
    parts = _parts_of(address)
    # One after another: most addresses have one identifier, and a service counts each request that it refuses.
    known = [part for part in parts if await _is_readable(part, read)]
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError(
            f"{quoted(address)} has {len(known)} identifiers of {kind}s: give one of {', '.join(map(quoted, known))}"
        )
    tried = f" (tried: {', '.join(map(quoted, parts))})" if parts else ""
    raise UsageError(
        f"{quoted(address)} is an address, and the service knows no part of it as the identifier of a {kind}{tried}: "
        "give the identifier alone, which ends at the next slash"
    )


def _parts_of(address: str) -> list[str]:
    """Return what stands between the slashes of an address, and in its query and fragment, each once."""
    split = urlsplit(address)
    # Fragments as well: applications of one page put the card that is shown behind the #.
    texts = [*map(unquote, split.path.split("/")), *map(unquote, split.fragment.split("/"))]
    texts += [value for _, value in parse_qsl(split.query)]
    return [*dict.fromkeys(filter(None, texts))][:_MOST_PARTS]


async def _is_readable(part: str, read: Callable[[str], Awaitable[object]]) -> bool:
    from boardclient import BadRequestError, InvalidIdentifierError, NotFoundError

    try:
        await read(part)
    except (NotFoundError, BadRequestError, InvalidIdentifierError):
        return False
    return True
