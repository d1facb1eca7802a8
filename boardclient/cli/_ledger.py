"""The commands on the ledger of an import by several workers: `ledger status` and `ledger drain`."""

from __future__ import annotations

import click

from boardclient.cli._app import Group, json_option
from boardclient.cli._output import out, out_columns, out_json

commands = Group("ledger")

_ledger_option = click.option(
    "--ledger", required=True, metavar="PATH_OR_URL", help="The ledger: a file, or postgresql://… without a password."
)
_job_option = click.option("--job", metavar="NAME", help="The job, if the ledger has several.")


@commands.group("ledger")
def ledger() -> None:
    """Show how far an import by several workers is, or let its workers end."""


@ledger.command("status")
@_ledger_option
@_job_option
@json_option("rows", "done", "failed", "in_doubt", "parts")
def ledger_status(ledger: str, job: str | None, fields: tuple[str, ...] | None) -> None:
    """Show the progress of the whole and of each part: who holds it, its rate, and how many rows are in doubt.

    Part -1 is run last, and settles the rows in doubt of all others.

    Example:  boardclient ledger status --ledger cards.csv.ledger
    """
    from boardclient.cli._running import reported, run_until_signal
    from boardclient.distributed import status

    async def work() -> None:
        found = await status(ledger, name=job)
        names = ("rows", "done", "failed", "in_doubt")
        sums = {name: sum(getattr(part, name) for part in found) for name in names}
        values = [
            {
                "part": part.part,
                "state": part.state,
                "owner": part.owner,
                **{name: getattr(part, name) for name in names},
                "rate": round(part.rate, 1),
            }
            for part in found
        ]
        if fields is not None:
            record = {**sums, "parts": values}
            out_json({name: record[name] for name in fields} if fields else record)
            return
        out(f"{sums['done']:,} of {sums['rows']:,} done, {sums['failed']:,} failed, {sums['in_doubt']:,} in doubt")
        for value in values:
            out_columns(*("" if one is None else str(one) for one in value.values()))

    with reported():
        run_until_signal(work)


@ledger.command("drain")
@_ledger_option
@_job_option
@json_option()
def ledger_drain(ledger: str, job: str | None, fields: tuple[str, ...] | None) -> None:
    """Let the workers of an import end. Requests in flight are completed, and the same import resumes it.

    Example:  boardclient ledger drain --ledger cards.csv.ledger
    """
    from boardclient.cli._running import reported, run_until_signal
    from boardclient.distributed import drain

    async def work() -> None:
        await drain(ledger, name=job)
        if fields is None:
            out("the workers end once their requests are completed")
        else:
            out_json({"draining": True})

    with reported():
        run_until_signal(work)
