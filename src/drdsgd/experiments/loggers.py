"""Copies of a run's metrics for tools that show many runs: TensorBoard and MLflow.

A log gets every evaluation in metrics.jsonl, in order: first those that a continued run already has, then each new one.
So a log that failed, was lost, or was not asked for at first is complete again after `drdsgd train --resume --log
NAME`, even if the run has finished.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from drdsgd.errors import InputError, named, one_line, unknown
from drdsgd.files import write_text

if TYPE_CHECKING:
    from drdsgd.experiments.config import Experiment
    from drdsgd.experiments.records import Status
    from drdsgd.training.metrics import Metrics

__all__ = ["KINDS", "Kind", "Logger", "MLflow", "Make", "TensorBoard", "complain", "no_log", "of", "scalars"]


class Logger(Protocol):
    """A copy of a run's metrics outside its folder."""

    def log(self, metrics: Metrics) -> None:
        """Add an evaluation; rounds come in order."""

    def close(self, status: Status) -> None:
        """End the log: the run has ended or was stopped."""


# seconds after which a log counts as slow to start
SLOW_START = 2.0

# opens the log of an experiment with this folder, which exists
Make = Callable[["Experiment", Path], Logger]


class Nothing:
    """A log that keeps nothing."""

    def log(self, metrics: Metrics) -> None:
        """Do nothing."""

    def close(self, status: Status) -> None:
        """Do nothing."""


def no_log(e: Experiment, path: Path) -> Logger:
    """No log."""
    return Nothing()


def complain(line: str) -> None:
    """Print a line to the standard error."""
    print(f"drdsgd: {line}", file=sys.stderr, flush=True)


def of(names: Sequence[str], say: Callable[[str], None] = complain) -> Make:
    """The logs of these names; refuses unknown names and missing packages.

    An error in one of them ends that log, with a line to `say`; the run and the other logs continue.
    """
    for name in names:
        if name not in KINDS:
            raise InputError(f"{named('log', name)}: {unknown(name, tuple(KINDS))}")
        for package in KINDS[name].packages:
            if importlib.util.find_spec(package) is None:
                raise InputError(f"{named('log', name)}: {package} is not installed: pip install 'drdsgd[{name}]'")
    if not names:
        return no_log
    makes = {name: KINDS[name].make for name in names}  # each once
    return lambda e, path: Several([Forgiving(name, make, e, path, say) for name, make in makes.items()])


class Several:
    """Several logs as one."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = loggers

    def log(self, metrics: Metrics) -> None:
        """Add it to each log."""
        for logger in self._loggers:
            logger.log(metrics)

    def close(self, status: Status) -> None:
        """End each log."""
        for logger in self._loggers:
            logger.close(status)


class Forgiving:
    """A log whose errors do not stop the run: after the first error it is closed, and a line says so."""

    def __init__(self, name: str, make: Make, e: Experiment, path: Path, say: Callable[[str], None]) -> None:
        self._name, self._path, self._say = name, path, say
        self._logger: Logger = Nothing()
        with self._tried(), _patient(lambda: say(f"the {name} log: starting it takes a while")):
            self._logger = make(e, path)

    def log(self, metrics: Metrics) -> None:
        """Add an evaluation, unless the log has failed."""
        with self._tried():
            self._logger.log(metrics)

    def close(self, status: Status) -> None:
        """End the log, unless it has failed."""
        with self._tried():
            self._logger.close(status)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # their libraries may raise anything
            self._logger = Nothing()
            self._say(
                f"the {self._name} log: {shorten(one_line(error), 200)}; the run in {self._path} continues without it; "
                "resume the run with this log to copy all metrics"
            )


@contextmanager
def _patient(say: Callable[[], None]) -> Iterator[None]:
    """Say so if the block takes long: MLflow may take ten seconds, during which nothing else happens."""
    waiting = threading.Timer(SLOW_START, say)
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
        waiting.join()  # two must not speak at the same time


def scalars(metrics: Metrics) -> dict[str, float]:
    """All scalars of an evaluation except its round, under names such as `consensus/worst` and `train_loss`.

    >>> from drdsgd.training.metrics import Spread, Metrics
    >>> half = Spread.over([40.0, 60.0])
    >>> list(scalars(Metrics(10, half, half, [], 0.1, 0.5, [1.0, 1.0], 80, 0.2)))[:5]
    ['consensus/average', 'consensus/worst', 'consensus/worst10', 'consensus/stdev', 'local/average']
    """
    found = dict[str, float]()
    for name, value in metrics.to_json().items():
        below = {f"{name}/{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        found |= {key: float(one) for key, one in below.items() if isinstance(one, int | float) and key != "round"}
    return found


# ----------------------------------------------------------------- TensorBoard


class TensorBoard:
    """Scalars in OUT/tensorboard, and the experiment as text. A continued run writes the log again from the start.

    Old event files are removed, because they may have evaluations that will come again.
    """

    def __init__(self, e: Experiment, path: Path) -> None:
        from torch.utils.tensorboard.summary import text

        folder = path / "tensorboard"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._path = folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._write(file_version="brain.Event:2")
        self._write(summary=text("experiment", f"```toml\n{e.to_toml()}```"), step=0)

    def log(self, metrics: Metrics) -> None:
        """Add one scalar per number."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(metrics).items()]
        self._write(summary=Summary(value=values), step=metrics.round)

    def close(self, status: Status) -> None:
        """Nothing to do."""

    def _write(self, **fields: Any) -> None:
        # not with tensorboard's EventFileWriter: it writes in a thread, where an error ends in a traceback
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with self._path.open("ab") as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **fields).SerializeToString())


# ---------------------------------------------------------------------- MLflow

# set before MLflow is imported: no telemetry, no lines about its tables, and no wait of minutes for a server that is
# gone
MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
# a metric that every evaluation has; it is written last, so that its presence means that all are there
MARK = "train_loss"


class MLflow:
    """A run in MLflow's experiment `drdsgd` (or `$MLFLOW_EXPERIMENT_NAME`): parameters, metrics, tags, artefacts.

    It is stored at `$MLFLOW_TRACKING_URI`, else in mlflow.db beside the run or in the comparison's folder. Its id is in
    OUT/mlflow.json. MLflow never overwrites a value: a round that it already has is skipped.
    """

    def __init__(self, e: Experiment, path: Path) -> None:
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._folder, above = path, path.resolve().parents
        home = above[1] if (above[1] / "study.toml").exists() else above[0]
        asked = os.environ.get("MLFLOW_TRACKING_URI")
        uri = asked or f"sqlite:///{home / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        found = self._found(uri)
        # its own default for artefacts is the working directory
        self._run = found or self._begun(e, path.resolve(), home, None if asked else (home / "mlartifacts").as_uri())
        if not found:
            write_text(path / "mlflow.json", json.dumps({"tracking_uri": uri, "run_id": self._run}, indent=1) + "\n")
        history = self._client.get_metric_history(self._run, MARK)
        self._known = {metric.step for metric in history}

    def _found(self, uri: str) -> str | None:
        """The id of the run that was used before, if it still exists."""
        from mlflow.exceptions import MlflowException

        file = self._folder / "mlflow.json"
        about = json.loads(file.read_text()) if file.exists() else {}
        if about.get("tracking_uri") != uri:
            return None
        try:
            run: str = self._client.get_run(about["run_id"]).info.run_id
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        self._client.update_run(run, status="RUNNING")
        return run

    def _begun(self, e: Experiment, path: Path, home: Path, artefacts: str | None) -> str:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        from drdsgd.versions import versions

        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME", "drdsgd")
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                client.create_experiment(name, artifact_location=artefacts)
            except MlflowException:  # another run has just created it
                if client.get_experiment_by_name(name) is None:
                    raise
            experiment = client.get_experiment_by_name(name)
        tags = {f"version.{name}": number for name, number in versions().items()}
        made = client.create_run(experiment.experiment_id, run_name=str(path.relative_to(home)), tags=tags)
        run: str = made.info.run_id
        params = [Param(name, str(value)) for name, value in e.model_dump(exclude_none=True).items()]
        client.log_batch(run, params=params)
        return run

    def log(self, metrics: Metrics) -> None:
        """Add all numbers of an evaluation in one batch, with the round as the step."""
        from mlflow.entities import Metric

        if metrics.round not in self._known:
            values, now = scalars(metrics), int(time.time() * 1000)
            values[MARK] = values.pop(MARK)
            batch = [Metric(name, value, now, metrics.round) for name, value in values.items()]
            self._client.log_batch(self._run, metrics=batch)

    def close(self, status: Status) -> None:
        """Add config and summary, and set the status."""
        for name in ("config.toml", "summary.json"):
            if (self._folder / name).exists():
                self._client.log_artifact(self._run, str(self._folder / name))
        ended = {"finished": "FINISHED", "diverged": "FAILED", "unfinished": "KILLED"}[status]
        self._client.set_terminated(self._run, ended)


class Kind(NamedTuple):
    """How to open a log, and the packages that it needs."""

    make: Make
    packages: tuple[str, ...]


KINDS = {
    "tensorboard": Kind(TensorBoard, ("tensorboard",)),
    "mlflow": Kind(MLflow, ("mlflow", "sqlalchemy", "alembic")),
}
