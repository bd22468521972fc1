"""Logs for TensorBoard and MLflow equal metrics.jsonl, also after a stop, and never end a run."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drdsgd.errors import InputError
from drdsgd.experiments import compare, loggers, workers
from drdsgd.experiments.compare import Study
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder, Status, read_metrics
from drdsgd.experiments.run import run
from drdsgd.training.metrics import Metrics
from drdsgd.versions import versions
from tests.support.made import metrics
from tests.support.program import FIELDS, SMALL, Crash, crashing_at, drdsgd, one_line, refused, small

pytestmark = pytest.mark.slow

Series = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow may be slow to start on a busy machine, which would add a line."""
    monkeypatch.setattr(loggers, "SLOW_START", 600.0)


def recorded(path: Path) -> Series:
    """The values in metrics.jsonl as (round, value), by name."""
    found: Series = {}
    for line in read_metrics(Folder(path).metrics):
        for name, value in loggers.scalars(line).items():
            found.setdefault(name, []).append((line.round, value))
    return found


def stopped(path: Path, *, at: int, log: loggers.Make, **fields: Any) -> Path:
    """A run that crashed after an evaluation and before its checkpoint."""
    with suppress(Crash):
        run(small(**fields), path, watch=crashing_at(at), log=log)
    assert Folder(path).status == "unfinished"
    return path


def test_all_numbers_of_an_evaluation_have_a_name() -> None:
    found = loggers.scalars(metrics(10, [40.0, 70.0]))
    of_each = [f"{kind}/{name}" for kind in ("consensus", "local") for name in ("average", "worst", "worst10", "stdev")]
    assert {*of_each, "consensus_distance", "train_loss", "floats_sent", "seconds"} == found.keys()
    assert (found["consensus/worst"], found["local/worst"], found["floats_sent"]) == (40.0, 41.0, 100.0)


def test_an_evaluation_without_local_models_has_no_numbers_of_them() -> None:
    both = metrics(10, [40.0, 70.0])
    found = loggers.scalars(dataclasses.replace(both, local=None))
    assert found == {name: value for name, value in loggers.scalars(both).items() if not name.startswith("local")}


# ----------------------------------------------------------------- a log that fails


class Failing:
    """A log that fails when it is opened, in a round, or at the end."""

    def __init__(self, when: str) -> None:
        self.when, self.seen = when, list[int]()

    def __call__(self, e: Experiment, path: Path) -> Failing:
        self.fail("open")
        return self

    def log(self, metrics: Metrics) -> None:
        self.fail(str(metrics.round))
        self.seen.append(metrics.round)

    def close(self, status: Status) -> None:
        self.fail("close")

    def fail(self, now: str) -> None:
        if self.when == now:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("when", "seen"), [("open", []), ("0", []), ("4", [0, 2]), ("close", [0, 2, 4, 6])])
def test_a_log_that_fails_costs_one_line_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, seen: list[int]
) -> None:
    failing, other = Failing(when), Failing("never")
    monkeypatch.setitem(loggers.KINDS, "mlflow", loggers.Kind(failing, ()))
    monkeypatch.setitem(loggers.KINDS, "tensorboard", loggers.Kind(other, ()))
    said = drdsgd("train", *SMALL, "--log", "mlflow", "--log", "tensorboard", "--out", tmp_path)
    assert said.status == 0 and Folder(tmp_path).status == "finished"
    (line,) = said.err.splitlines()
    assert line.startswith("drdsgd: the mlflow log: [Errno 28] No space left on device; the run in ")
    assert failing.seen == seen and other.seen == [0, 2, 4, 6]


def test_a_log_that_is_slow_to_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "SLOW_START", 0.01)
    said: list[str] = []

    def slow(e: Experiment, path: Path) -> loggers.Logger:
        while not said:
            time.sleep(0.01)
        return Failing("never")

    monkeypatch.setitem(loggers.KINDS, "mlflow", loggers.Kind(slow, ()))
    loggers.of(["mlflow"], said.append)(small(), tmp_path)
    assert said == ["the mlflow log: starting it takes a while"]


def test_a_log_that_fails_in_a_worker_is_told_too(tmp_path: Path) -> None:
    """And the worker continues."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("no folder")
    worker = workers.Worker(threads=1)
    worker.give(small(), tmp_path / "run", ["tensorboard"])
    heard: list[tuple[str, Any]] = []
    while ("over", None) not in heard:
        heard += worker.hear()
        assert not worker.silent, heard
    worker.ready = True
    worker.stop()
    assert worker.end() == 0
    (said,) = [value for kind, value in heard if kind == "say"]
    assert said.startswith("the tensorboard log: ") and str(tmp_path / "run") in said
    assert Folder(tmp_path / "run").status == "finished"


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("mlflow", "sqlalchemy")]
)
def test_a_missing_package_is_one_line_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str, package: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda p, *rest: None if p == package else real(p, *rest))
    if package == "sqlalchemy" and real("mlflow") is None:
        pytest.skip("its absence is told first")
    line = refused(command, *SMALL, "--log", name, "--out", tmp_path / "run")
    assert line == f"--log {name}: {package} is not installed: pip install 'drdsgd[{name}]'"
    assert not (tmp_path / "run").exists()


def test_an_unknown_log_is_told() -> None:
    assert refused("train", "--log", "tensorbord") == "--log tensorbord: unknown, did you mean tensorboard?"
    with pytest.raises(InputError, match="log='wandb': unknown; known are tensorboard, mlflow"):
        loggers.of(["wandb"])


def test_how_to_go_on_names_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    stopped(tmp_path, at=3, log=loggers.no_log)
    monkeypatch.setitem(loggers.KINDS, "mlflow", loggers.Kind(Failing("never"), ()))
    monkeypatch.setattr("drdsgd.experiments.run.make_graph", interrupted)
    said = one_line(drdsgd("train", "--resume", "--log", "mlflow", "--out", tmp_path), status=130)
    assert said.endswith(f"continue with: drdsgd train --resume --log mlflow --out {tmp_path}")


# ----------------------------------------------------------------- TensorBoard


def events(path: Path) -> tuple[Series, dict[str, str]]:
    """The scalars and the texts in a folder, as TensorBoard reads them."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # without TensorBoard's own repairs after a restart
    found = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
    found.Reload()
    scalars = {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}
    return scalars, texts


def assert_in_tensorboard(path: Path) -> None:
    scalars, texts = events(path / "tensorboard")
    assert scalars == {
        name: [(t, float(np.float32(value))) for t, value in series] for name, series in recorded(path).items()
    }
    assert texts == {"experiment/text_summary": f"```toml\n{Folder(path).config.read_text()}```"}


def test_tensorboard_has_what_the_record_has(tmp_path: Path) -> None:
    assert drdsgd("train", *SMALL, "--log", "tensorboard", "--out", tmp_path).status == 0
    assert_in_tensorboard(tmp_path)
    assert [t for t, _ in events(tmp_path / "tensorboard")[0]["consensus/worst"]] == [0, 2, 4, 6]


@pytest.mark.parametrize("first", [(), ("tensorboard",)])
def test_tensorboard_has_each_round_once_after_a_stop_and_resume(tmp_path: Path, first: tuple[str, ...]) -> None:
    """Including those that are computed again, and those from before a log was asked for."""
    stopped(tmp_path, at=4, log=loggers.of(first), checkpoint_every=3)
    assert drdsgd("train", "--resume", "--log", "tensorboard", "--out", tmp_path).status == 0
    assert_in_tensorboard(tmp_path)


def test_a_log_of_a_finished_run_can_be_made_later(tmp_path: Path) -> None:
    run(small(), tmp_path)
    assert drdsgd("train", "--resume", "--log", "tensorboard", "--out", tmp_path).status == 0
    assert_in_tensorboard(tmp_path)


def test_a_comparison_is_logged_in_all_processes(tmp_path: Path) -> None:
    plan = Study(("dsgd", "dr-dsgd"), (0,), {**FIELDS, "rounds": 4})
    compare.compare(plan, tmp_path, threads=1)
    plan = compare.extended(compare.load(tmp_path / "study.toml"), (), (0, 1), {})
    compare.compare(plan, tmp_path, resume=True, threads=2, log=["tensorboard"])
    for cell in plan.cells(tmp_path):  # also those that were finished before
        assert_in_tensorboard(cell.path)


# ---------------------------------------------------------------------- MLflow

# mlflow 3.17 uses what sqlalchemy 2.1 deprecates
of_mlflow = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with nothing in it: MLflow takes seconds to make one."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path / "mlflow.db"


def runs_of(store: Path) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("drdsgd")
    return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"]))


def assert_in_mlflow(store: Path, path: Path, status: str = "FINISHED", name: str = "run") -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    (found,) = [one for one in runs_of(store) if one.info.run_name == name]
    expected = recorded(path)
    for key, series in expected.items():
        history = [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, key)]
        # seconds differ if a round was computed again
        assert history == series or (key == "seconds" and [t for t, _ in history] == [t for t, _ in series]), key
    assert found.data.metrics.keys() == expected.keys()
    e = Experiment(**FIELDS)
    assert {"mu": f"{e.mu}", "rounds": "6", "graph": "ring"}.items() <= found.data.params.items()
    assert found.data.tags["version.torch"] == versions()["torch"]
    assert found.info.status == status
    artefacts = {"config.toml", "summary.json"} if status != "KILLED" else {"config.toml"}
    assert {one.path for one in client.list_artifacts(found.info.run_id)} == artefacts


@of_mlflow
@pytest.mark.xdist_group("mlflow")  # on one worker, so that mlflow is loaded, and the empty store made, once
class TestMLflow:
    def test_it_has_what_the_record_has(self, store: Path) -> None:
        path = store.with_name("run")
        said = drdsgd("train", *SMALL, "--log", "mlflow", "--out", path)
        assert said.status == 0 and said.err == ""
        assert_in_mlflow(store, path)

    def test_it_has_each_round_once_after_a_stop_and_resume(self, store: Path) -> None:
        path = stopped(store.with_name("run"), at=4, log=loggers.of(["mlflow"]), checkpoint_every=3)
        assert_in_mlflow(store, path, "KILLED")
        assert drdsgd("train", "--resume", "--log", "mlflow", "--out", path).status == 0
        assert_in_mlflow(store, path)
        assert drdsgd("train", "--resume", "--log", "mlflow", "--out", path).status == 0
        assert_in_mlflow(store, path)

    def test_a_run_that_is_no_more_there_is_made_again(self, store: Path) -> None:
        path = store.with_name("run")
        run(small(), path)
        about = {"tracking_uri": f"sqlite:///{store}", "run_id": "0" * 32}
        (path / "mlflow.json").write_text(json.dumps(about))
        assert drdsgd("train", "--resume", "--log", "mlflow", "--out", path).err == ""
        assert_in_mlflow(store, path)

    def test_a_comparison_keeps_all_its_runs_in_one_store(self, store: Path) -> None:
        plan = Study(("dsgd", "dr-dsgd"), (0,), dict(FIELDS))
        compare.compare(plan, store.parent, threads=1, log=["mlflow"])
        assert_in_mlflow(store, store.with_name("dr-dsgd") / "seed-0", name="dr-dsgd/seed-0")
        assert sorted(one.info.run_name for one in runs_of(store)) == ["dr-dsgd/seed-0", "dsgd/seed-0"]

    def test_a_store_that_is_gone_does_not_end_the_run(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store.parent / 'nowhere' / 'mlflow.db'}")
        (store.parent / "nowhere").write_text("no folder")
        said = drdsgd("train", *SMALL, "--log", "mlflow", "--out", store.with_name("run"))
        assert said.status == 0 and Folder(store.with_name("run")).status == "finished"
        assert said.err.startswith("drdsgd: the mlflow log: ") and len(said.err.splitlines()) == 1
