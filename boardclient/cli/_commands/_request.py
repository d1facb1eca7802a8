"""The command that sends any request, for what the interface does not show."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import click

from boardclient.cli._app import Group, argument, json_option, option, yes_option
from boardclient.cli._output import CommandError, UsageError, out, out_json, quoted

if TYPE_CHECKING:
    from boardclient import Response
    from boardclient.cli._running import Client

commands = Group("request")

_CREDENTIALS = ("authorization", "cookie", "proxy-authorization", "x-api-key", "key", "token")
"""What is never an option, by the name of a field or a header: process lists show options."""

_WITHOUT_BODY = ("GET", "HEAD", "DELETE")
"""Methods whose fields go into the query: a body of theirs has no defined meaning (RFC 9110, sections 9.3.1, 9.3.2 and 9.3.5)."""


def _method(value: str) -> str:
    if "/" in value:
        raise click.BadParameter(f"it comes before the path, such as GET {value}")
    return value


def _pair(value: str, separator: str = "=") -> tuple[str, str]:
    name, found, text = value.partition(separator)
    if not found or not name.strip():
        raise click.BadParameter(f"it must be a name and a value, such as name{separator}value")
    # Process lists and shell histories show options to others.
    if name.strip().lower() in _CREDENTIALS:
        raise click.BadParameter(f"{name.strip()} is a credential, which is never an option: the session adds its own")
    return name.strip(), text


def _header(value: str) -> tuple[str, str]:
    name, text = _pair(value, ":")
    return name, text.strip()


def _field(value: str) -> tuple[str, Any]:
    """Return a field with a value of JSON: a number, true, false or null, `@FILE` for a file's text, otherwise a text."""
    name, text = _pair(value)
    if text.startswith("@"):
        return name, _text_of(text[1:])
    try:
        found = json.loads(text)
    except ValueError:
        return name, text
    # A JSON string stays as it was typed, with its quotes: texts need none here.
    return name, text if isinstance(found, str) else found


def _text_of(file: str) -> str:
    from boardclient._base._environment import reason_of

    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except OSError as error:
        raise click.BadParameter(f"can't read {file}: {reason_of(error)}") from None
    except ValueError:
        raise click.BadParameter(f"{file} is not UTF-8 text") from None


def _query_of(path: str, base_url: str) -> tuple[str, dict[str, list[str]]]:
    """Return a path without the service's address and its query, and the parameters of the query.

    Raises:
        UsageError: it is an address elsewhere.
    """
    path = path.removeprefix(base_url.rstrip("/"))
    target = urlsplit(path)
    if target.scheme and target.netloc:
        raise UsageError(f"{target.hostname} is not the service's address, {base_url}: --base-url names another one")
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(target.query, keep_blank_values=True):
        # By `_pair`, which refuses credentials in the query of an address as it does in options.
        query.setdefault(_pair(f"{name}=")[0], []).append(value)
    return path.partition("#")[0].partition("?")[0], query


def _check_options(client: Client, options: Sequence[tuple[str, object]]) -> None:
    """Check that no option holds a credential of this machine.

    Raises:
        UsageError: one does.
    """
    # By their values: a credential may be given under any name, or within a longer text.
    kept = [secret for name in ("token", "key") if (secret := client.settings.values.get(name))]
    texts = [text for _, text in options if isinstance(text, str)]
    if any(secret in text for secret in kept for text in texts):
        raise UsageError("an option holds the token or the key: process lists show options, so change it at the service")


def _with_fields(body: Any, given: dict[str, Any]) -> Any:
    """Return a JSON body with the fields that were given beside it, which win.

    Raises:
        UsageError: it can't have fields.
    """
    if not given:
        return body
    if not isinstance(body, dict):
        raise UsageError("--field and --raw-field go into a JSON object, and --input is none")
    return {**body, **given}


@commands.runs("request", writes=True)
async def request(
    client: Client,
    method: str = argument("METHOD", type=_method),
    path: str = argument("PATH"),
    field: tuple[tuple[str, Any], ...] = option("-F", "--field", type=_field, multiple=True, metavar="NAME=VALUE"),
    raw_field: tuple[tuple[str, str], ...] = option("-f", "--raw-field", type=_pair, multiple=True, metavar="NAME=TEXT"),
    query: tuple[tuple[str, str], ...] = option("-q", "--query", type=_pair, multiple=True, metavar="NAME=TEXT"),
    header: tuple[tuple[str, str], ...] = option("-H", "--header", type=_header, multiple=True, metavar="NAME:TEXT"),
    body: str | None = option("--input", metavar="FILE"),
    yes: bool = yes_option,
    fields: tuple[str, ...] | None = json_option(takes_any=True),
) -> None:
    """Send any request: it is signed, retried and renewed like all others. What is printed is the body of the response.

    Fields are sent as a JSON object, or in the query of GET, HEAD and DELETE. DELETE, and a list that is closed, ask first, since
    the service documents no way back. A body that is not JSON is printed as it is.

    \b
    Examples:
      boardclient request GET /1/boards/BOARD_ID/cards --json id,name
      boardclient request PUT /1/cards/CARD_ID -f name="Book the hall" -F dueComplete=true
      boardclient request GET "/1/boards/BOARD_ID/cards?filter=open" -H "X-Trace: 7"
      echo '{"name": "A", "idList": "LIST_ID"}' | boardclient request POST /1/cards --input -

    Args:
        method: An HTTP method, such as GET or PUT.
        path: The path, which starts with /1/. It may have a query, or be a whole address of the service.
        field: A field. Its value is JSON if it can be: a number, true, false, null, an object; @FILE has the text of a file.
        raw_field: A field whose value is a text.
        query: A parameter of the query.
        header: A header of the request.
        body: A file with the JSON body, - for standard input.
    """
    where, params = _query_of(path, client.settings.base_url)
    _check_options(client, [*field, *raw_field, *query, *header])
    for name, text in query:
        params.setdefault(name, []).append(text)
    given: dict[str, Any] = dict([*field, *raw_field])
    sent: Any = given or None
    if body is not None:
        sent = _with_fields(_json_of(body), given)
    elif method.upper() in _WITHOUT_BODY:
        sent = None
        for name, value in given.items():
            params.setdefault(name, []).append(value if isinstance(value, str) else json.dumps(value))
    # The interface shows no way to bring back what was deleted, or to open a list that was closed (interface 3).
    if method.upper() == "DELETE" or (isinstance(sent, dict) and sent.get("closed") is True):
        client.confirm(f"Send {method.upper()} {where}? The service documents no way to undo this.", yes=yes)
    response = await client.session.request(method, where, params=params, json=sent, headers=dict(header) or None)
    _print(response, fields)


def _json_of(file: str) -> Any:
    try:
        return json.loads(_text_of(file))
    except click.BadParameter as error:
        raise UsageError(error.message) from None
    except ValueError as error:
        raise UsageError(f"--input is not JSON: {error}") from None


def _print(response: Response, fields: Sequence[str] | None) -> None:
    """Print the body of a response: JSON on one line into a pipe and with indents on a terminal, and anything else as it is."""
    import boardclient

    try:
        value = response.json()
    except boardclient.DecodeError as error:
        # The user has asked for JSON, and a script would read anything else as an empty result.
        if fields is not None and response.body:
            raise CommandError(f"status {response.status}, and {error}") from None
        if fields is not None:
            out_json(None)
        elif sys.stdout.isatty():  # which the body could steer
            for line in response.body.decode("utf-8", "replace").splitlines():
                out(line)
        else:
            click.echo(response.body, nl=False)
        return
    if fields:
        value = _chosen(value, fields)
    if fields is None and sys.stdout.isatty():
        for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n"):
            out(line)
    else:
        out_json(value)


def _chosen(value: Any, fields: Sequence[str]) -> Any:
    """Return these fields of an object, or of each object of an array. What one of several lacks is null.

    Raises:
        CommandError: there are other values than objects, or none has a field.
    """
    objects = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in objects):
        raise CommandError(f"the response is not an object, so it has no field {quoted(fields[0])}")
    known = dict.fromkeys(name for one in objects for name in one)
    missing = [name for name in fields if objects and name not in known]
    if missing:
        raise CommandError(f"the response has no field {quoted(missing[0])}; there are {', '.join(known)}")
    # One object may lack what others have, but a name that none has is a mistake.
    chosen = [{name: one.get(name) for name in fields} for one in objects]
    return chosen if isinstance(value, list) else chosen[0]
