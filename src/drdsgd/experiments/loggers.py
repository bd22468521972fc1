"""Copies of a run's metrics for programs that show many runs: TensorBoard and MLflow.

A log gets every evaluation that stands in metrics.jsonl, in order: first those that a run which is continued has
already, then each as it is made. So a log that failed, was lost, or was not asked for at first is whole again after
`drdsgd train --resume --log NAME`, also where the run is over.
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

from drdsgd.errors import InputError, one_line, unknown
from drdsgd.files import write_text

if TYPE_CHECKING:
    from drdsgd.experiments.config import Experiment
    from drdsgd.experiments.records import Status
    from drdsgd.training.metrics import Metrics

__all__ = ["KINDS", "Kind", "Logger", "MLflow", "Make", "TensorBoard", "complain", "no_log", "of", "scalars"]


class Logger(Protocol):
    """Where a run's metrics go beside its folder."""

    def log(self, metrics: Metrics) -> None:
        """An evaluation; rounds come in order."""

    def close(self, status: Status) -> None:
        """No more will come: the run is over, or was stopped."""


# seconds after which a log is slow to start
SLOW_START = 2.0

# opens the log of an experiment that has this folder, which is there
Make = Callable[["Experiment", Path], Logger]


class Nothing:
    """No log."""

    def log(self, metrics: Metrics) -> None:
        """Nothing."""

    def close(self, status: Status) -> None:
        """Nothing."""


def no_log(e: Experiment, path: Path) -> Logger:
    """The log of whoever wants none."""
    return Nothing()


def complain(line: str) -> None:
    """A line on the standard error."""
    print(f"drdsgd: {line}", file=sys.stderr, flush=True)


def of(names: Sequence[str], say: Callable[[str], None] = complain) -> Make:
    """The logs of these names; refuses those that are unknown or need a package that is not installed.

    What goes wrong with one of them ends that one, with a line to `say`; the run and the others go on.
    """
    for name in names:
        if name not in KINDS:
            raise InputError(f"--log {name}: {unknown(name, tuple(KINDS))}")
        for package in KINDS[name].packages:
            if importlib.util.find_spec(package) is None:
                raise InputError(f"--log {name}: {package} is not installed: pip install 'drdsgd[{name}]'")
    if not names:
        return no_log
    makes = {name: KINDS[name].make for name in names}  # each once
    return lambda e, path: Several([Forgiving(name, make, e, path, say) for name, make in makes.items()])


class Several:
    """Logs side by side."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = loggers

    def log(self, metrics: Metrics) -> None:
        """To each."""
        for logger in self._loggers:
            logger.log(metrics)

    def close(self, status: Status) -> None:
        """Each."""
        for logger in self._loggers:
            logger.close(status)


class Forgiving:
    """A log whose troubles are no trouble for the run: after the first it is given up, and a line says so."""

    def __init__(self, name: str, make: Make, e: Experiment, path: Path, say: Callable[[str], None]) -> None:
        self._name, self._path, self._say = name, path, say
        self._logger: Logger = Nothing()
        with self._tried(), _patient(lambda: say(f"--log {name}: it takes a while to start")):
            self._logger = make(e, path)

    def log(self, metrics: Metrics) -> None:
        """An evaluation, if all went well so far."""
        with self._tried():
            self._logger.log(metrics)

    def close(self, status: Status) -> None:
        """Likewise."""
        with self._tried():
            self._logger.close(status)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever their programs raise
            self._logger = Nothing()
            self._say(
                f"--log {self._name}: {shorten(one_line(error), 200)}; the run in {self._path} goes on without it, "
                f"and --resume --log {self._name} copies all of its metrics later"
            )


@contextmanager
def _patient(say: Callable[[], None]) -> Iterator[None]:
    """Say something if the block takes long: MLflow may for ten seconds, and nothing else moves meanwhile."""
    waiting = threading.Timer(SLOW_START, say)
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
        waiting.join()  # two at once must not say something


def scalars(metrics: Metrics) -> dict[str, float]:
    """All single numbers of an evaluation but its round, by names such as `consensus/worst` and `train_loss`.

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
    """Scalars in OUT/tensorboard, and the experiment as text. The log is written anew where a run is continued.

    Event files of before are removed: they may have evaluations that come again.
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
        """One scalar each."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(metrics).items()]
        self._write(summary=Summary(value=values), step=metrics.round)

    def close(self, status: Status) -> None:
        """The log stays as it is."""

    def _write(self, **fields: Any) -> None:
        # not by tensorboard's EventFileWriter, which writes in a thread: what goes wrong there ends in a traceback
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with self._path.open("ab") as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **fields).SerializeToString())


# ---------------------------------------------------------------------- MLflow

# before it is imported: else it tells its makers that it is used, and whoever runs it what it does to its tables; and
# a run would wait for minutes for a server that is gone
MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
# a metric that every evaluation has; it goes last, so that where it is, all are
MARK = "train_loss"


class MLflow:
    """A run of MLflow's experiment `drdsgd` (or `$MLFLOW_EXPERIMENT_NAME`): parameters, metrics, tags, artefacts.

    It is kept where `$MLFLOW_TRACKING_URI` says, else in mlflow.db beside the run, or in a comparison's folder. Which
    run it is stands in OUT/mlflow.json. MLflow forgets no value: a round that it has is skipped when it comes again.
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
        """The run that this one had before, if it is still there."""
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
            except MlflowException:  # another run has made it just now
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
        """All numbers of an evaluation in one batch, with the round as the step."""
        from mlflow.entities import Metric

        if metrics.round not in self._known:
            values, now = scalars(metrics), int(time.time() * 1000)
            values[MARK] = values.pop(MARK)
            batch = [Metric(name, value, now, metrics.round) for name, value in values.items()]
            self._client.log_batch(self._run, metrics=batch)

    def close(self, status: Status) -> None:
        """Config and summary go along, and how it ended."""
        for name in ("config.toml", "summary.json"):
            if (self._folder / name).exists():
                self._client.log_artifact(self._run, str(self._folder / name))
        ended = {"finished": "FINISHED", "diverged": "FAILED", "unfinished": "KILLED"}[status]
        self._client.set_terminated(self._run, ended)


class Kind(NamedTuple):
    """How a log is made, and what it needs."""

    make: Make
    packages: tuple[str, ...]


KINDS = {
    "tensorboard": Kind(TensorBoard, ("tensorboard",)),
    "mlflow": Kind(MLflow, ("mlflow", "sqlalchemy", "alembic")),
}
