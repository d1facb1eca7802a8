"""The command that serves tools for agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from boardclient.cli._app import Group, Number, runs

if TYPE_CHECKING:
    from boardclient.cli._running import Client

commands = Group("mcp")


@commands.command("mcp")
@click.option(
    "--ledger",
    metavar="PLACE",
    help="Where the references of created cards are kept: a path, or postgresql://…",
    show_default="mcp.ledger in the folder of the profiles",
)
@click.option("--allow-delete", is_flag=True, help="Offer a tool that deletes cards for good.")
@click.option(
    "--settle",
    type=Number(min=0),
    metavar="SECONDS",
    help="How long the service may take to list a card whose response was lost.",
    show_default="twice the timeout",
)
@runs()
async def mcp(client: Client, ledger: str | None, allow_delete: bool, settle: float | None) -> None:
    """Serve the operations as tools for agents, by the Model Context Protocol over standard input and output.

    Each creation has a reference: a call that is tried again, also after a restart, makes no second card. A host, such as an
    editor, starts the command by itself: docs/agents.md shows its configuration.
    """
    from boardclient._profiles import folder
    from boardclient.integrations.mcp import make_server

    if ledger is None:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    place = ledger or folder() / "mcp.ledger"
    await make_server(client.session, place, allow_delete=allow_delete, settle=settle).run_stdio_async()
