"""The recipes of docs/engines/ whose engines are heavy: each row has one card, and the naive twins make more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recipe_helpers import MakeRecipe, Recipe, lines_to_come_back
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from boardclient import JournalError

_RUN_DAG = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path

if __name__ == "__main__":
    import tasks

    Path("rows.json").write_text(json.dumps([{"name": f"card {n}", "list_id": sys.argv[2]} for n in range(160)]))
    conf = {"file": str(Path("rows.json").resolve()), "board_id": sys.argv[1], "ledger": sys.argv[3]}
    moment = datetime(2026, 1, 1, tzinfo=UTC)  # the same run each time
    run = tasks.import_cards().test(run_after=moment, logical_date=moment, run_conf=conf)
    sys.exit(run.state != "success")
"""


async def test_spark_creates_each_card_once(make_recipe: MakeRecipe) -> None:
    """It repeats the task whose Python process was killed."""
    if shutil.which("java") is None:
        assert os.environ.get("CI") != "true", "Spark needs Java: apt-get install default-jre-headless"
        pytest.skip("Spark needs Java (apt-get install default-jre-headless)")
    recipe = make_recipe("Spark")
    recipe.environment["PYSPARK_SUBMIT_ARGS"] = "--master local[2,8] --conf spark.ui.enabled=false pyspark-shell"
    recipe.environment["PYSPARK_PYTHON"] = sys.executable
    recipe.write()
    await recipe.deliver(str(recipe.folder / "cards.ledger"))
    await recipe.check()


async def test_ray_creates_each_card_once(make_recipe: MakeRecipe) -> None:
    """It repeats the task whose worker was killed."""
    recipe = make_recipe("Ray")
    recipe.environment["RAY_USAGE_STATS_ENABLED"] = "0"
    recipe.write()
    await recipe.deliver(str(recipe.folder / "cards.ledger"))
    await recipe.check()


async def test_dlt_creates_each_card_once(make_recipe: MakeRecipe) -> None:
    """It loads the files of a pipeline that was killed, and once more when the state of the pipeline is an older one."""
    recipe = make_recipe("dlt")
    state = recipe.folder / "dlt"
    recipe.environment |= {"DLT_DATA_DIR": str(state), "RUNTIME__DLTHUB_TELEMETRY": "false"}
    recipe.write()
    await recipe.deliver(str(recipe.folder / "cards.ledger"), state=state)
    await recipe.check(once=1)


@pytest.fixture(scope="module")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the database of a scheduler, which the tests copy."""
    folder = tmp_path_factory.mktemp("airflow")
    line = [str(Path(sys.executable).with_name("airflow")), "db", "migrate"]
    subprocess.run(line, check=True, env={**os.environ, **_airflow(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder / "airflow.db"


def _airflow(home: Path) -> dict[str, str]:
    names = {"DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}", "CORE__DAGS_FOLDER": str(home)}
    names |= {"CORE__LOAD_EXAMPLES": "False", "USAGE_DATA_COLLECTION__ENABLED": "False"}
    return {"AIRFLOW_HOME": str(home)} | {f"AIRFLOW__{name}": value for name, value in names.items()}


def _write_dag(recipe: Recipe, database: Path) -> None:
    shutil.copy(database, recipe.folder)
    recipe.environment |= _airflow(recipe.folder)
    recipe.write(start=_RUN_DAG)


@pytest.mark.xdist_group("airflow")
async def test_airflow_creates_each_card_once(make_recipe: MakeRecipe, airflow_database: Path) -> None:
    """Its mapped tasks are delivered again when the run is cleared."""
    recipe = make_recipe("Airflow")
    _write_dag(recipe, airflow_database)
    await recipe.deliver(str(recipe.folder / "cards.ledger"))
    await recipe.check()


@pytest.mark.xdist_group("airflow")
@pytest.mark.parametrize("make_recipe", ["recipe"], indirect=True)
async def test_airflow_comes_back_at_the_time_that_the_error_names(make_recipe: MakeRecipe, airflow_database: Path) -> None:
    """The task is rescheduled, and holds no worker until then."""
    recipe = make_recipe("Airflow")
    _write_dag(recipe, airflow_database)
    await recipe.come_back(str(recipe.folder / "cards.ledger"))


def test_temporal_receives_the_time_from_the_line_of_the_page() -> None:
    """It is raised as an activity raises it, without a server."""
    (line,) = [found for found in lines_to_come_back() if "ApplicationError" in found]
    error = JournalError("another worker has part 1")
    error.retry_at = datetime.now(UTC) + timedelta(seconds=90)
    names = {"ApplicationError": ApplicationError, "datetime": datetime, "UTC": UTC, "error": error}
    with pytest.raises(ApplicationError, match="another worker") as raised:
        ActivityEnvironment().run(activity.defn(name="create")(lambda: exec(line, names)))
    assert raised.value.next_retry_delay is not None
    assert timedelta(seconds=80) < raised.value.next_retry_delay <= timedelta(seconds=90)
