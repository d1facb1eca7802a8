"""The light recipes of docs/engines/, with the real engines: each row has one card, and the naive twins make more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from recipe_helpers import MakeRecipe, Recipe, blocks

if TYPE_CHECKING:
    from ledger_places import Server


_BROKER = """
import time
from pathlib import Path
from uuid import uuid4

from kombu.transport.filesystem import Channel
from kombu.utils.json import dumps


def put(self, queue, payload, **options):  # kombu's own lets others read the file before it is written
    message = Path(self.control_folder, f"{time.monotonic_ns()}_{uuid4()}")
    message.write_text(dumps(payload))
    message.rename(Path(self.data_folder_out, f"{message.name}.{queue}.msg"))


Channel._put = put
app.conf.update(broker_url="filesystem://", broker_transport_options=OPTIONS)
"""


def _celery(recipe: Recipe) -> list[str]:
    """Write the recipe with a broker in its folder, and return the line of a worker."""
    queue, control = recipe.folder / "queue", recipe.folder / "control"
    queue.mkdir()
    control.mkdir()
    control.joinpath("celery.exchange").write_text('[["celery", "", "celery"]]')  # two that make it at once read half of it
    options = {"data_folder_in": str(queue), "data_folder_out": str(queue), "control_folder": str(control)}
    recipe.write(_BROKER.replace("OPTIONS", str(options)))
    return [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency=2", "--without-gossip", "--without-mingle"]


async def _procrastinate(recipe: Recipe, ledger: str) -> list[str]:
    """Write the recipe, prepare its database as the page says, and return the line of a worker."""
    place = urlsplit(ledger)
    names = {"PGHOST": "127.0.0.1", "PGPORT": str(place.port), "PGUSER": "postgres", "PGDATABASE": place.path[1:]}
    recipe.environment.update(names)
    recipe.write()
    schema, worker = (line.split() for line in blocks("Procrastinate", "sh")[0].splitlines())
    await recipe.complete(*schema)
    return worker


async def test_celery_creates_each_card_once(make_recipe: MakeRecipe) -> None:
    """It delivers the batch of a process that was killed again."""
    recipe = make_recipe("Celery")
    await recipe.deliver(str(recipe.folder / "cards.ledger"), *_celery(recipe))
    await recipe.check()


async def test_procrastinate_creates_each_card_once(make_recipe: MakeRecipe, postgresql: Server) -> None:
    """Its jobs and the ledger are in one database, and the lines of the page prepare it."""
    recipe, ledger = make_recipe("Procrastinate"), postgresql.new_database()
    await recipe.deliver(ledger, *await _procrastinate(recipe, ledger), deliveries=3)
    await recipe.check()


async def test_dask_creates_each_card_once(make_recipe: MakeRecipe) -> None:
    """Its nanny starts a worker that was killed again."""
    recipe = make_recipe("Dask")
    recipe.write()
    await recipe.deliver(str(recipe.folder / "cards.ledger"))
    await recipe.check()


# --- tasks that come back later


@pytest.mark.parametrize("make_recipe", ["recipe"], indirect=True)
async def test_celery_comes_back_at_the_time_that_the_error_names(make_recipe: MakeRecipe) -> None:
    """No task waits while the service asks for a pause, and none comes back earlier."""
    recipe = make_recipe("Celery")
    await recipe.come_back(str(recipe.folder / "cards.ledger"), *_celery(recipe))


@pytest.mark.parametrize("make_recipe", ["recipe"], indirect=True)
async def test_procrastinate_comes_back_at_the_time_that_the_error_names(make_recipe: MakeRecipe, postgresql: Server) -> None:
    """No job waits while the service asks for a pause, and none comes back earlier."""
    recipe, ledger = make_recipe("Procrastinate"), postgresql.new_database()
    await recipe.come_back(ledger, *await _procrastinate(recipe, ledger))


@pytest.mark.parametrize("make_recipe", ["recipe"], indirect=True)
async def test_dask_comes_back_at_the_time_that_the_error_names(make_recipe: MakeRecipe) -> None:
    """The driver waits, and no worker."""
    recipe = make_recipe("Dask")
    recipe.write()
    await recipe.come_back(str(recipe.folder / "cards.ledger"))
