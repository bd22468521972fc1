"""Finished runs as small records, one JSON file each: what was run, with which versions, and what came out.

A record is a run's folder without what is only of use on its way: per evaluation the four measures of both models,
and at the end the accuracy of every device. `drdsgd train RECORD.json` runs its experiment again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from drdsgd.errors import InputError
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Record, Status
from drdsgd.files import write_text
from drdsgd.report.statistics import KINDS, MEASURES, Kind, Measure
from drdsgd.versions import versions
from drdsgd_studies.shared import spoilt

__all__ = ["Done", "RunRecord", "Store", "diverged", "ends", "name_of", "other_versions", "read_records", "run_record"]

# decimals that are kept of a percentage: a device has at most some thousand test samples
DECIMALS = 4


@dataclass(frozen=True)
class RunRecord:
    """A finished or diverged run. `curves[kind][measure]` has one value per evaluated round of `rounds`."""

    name: str
    config: dict[str, Any]
    status: Status
    message: str
    versions: dict[str, str]
    data_sha256: str
    rho: float
    rounds: list[int]
    curves: dict[Kind, dict[Measure, list[float]]]
    consensus_distance: list[float]
    train_loss: list[float]
    weight: list[float]  # mean over devices of the weight that their gradients had
    per_device: dict[Kind, list[float]]  # at the last evaluation
    floats_sent: int
    seconds: float  # in rounds

    @functools.cached_property
    def experiment(self) -> Experiment:
        """What was run; a config that was written before an option was there has its default."""
        return Experiment(**self.config)

    def final(self, kind: Kind, measure: Measure) -> float:
        """A measure at the end."""
        return self.curves[kind][measure][-1]


Done = Mapping[Experiment, RunRecord]


def name_of(e: Experiment, config: Mapping[str, Any] | None = None) -> str:
    """A name for an experiment's files: what a person looks for, and a checksum of all its fields.

    `config` are the fields as they were written down, if that was before an option was there.

    >>> name_of(Experiment(algorithm="dr-dsgd", dataset="fashion-mnist", devices=25, mu=5.0, seed=3, threads=1))[:-9]
    'fashion-mnist-K25-T300-dr-dsgd-mu5-seed3'
    """
    written = json.dumps(e.model_dump(exclude_none=True) if config is None else config, sort_keys=True)
    algorithm = e.algorithm if e.mu is None else f"{e.algorithm}-mu{e.mu:g}"
    checksum = hashlib.sha256(written.encode()).hexdigest()[:8]
    return f"{Path(e.dataset).name}-K{e.devices}-T{e.rounds}-{algorithm}-seed{e.seed}-{checksum}"


def run_record(record: Record) -> RunRecord:
    """The small record of a run that is over."""
    evaluations = record.metrics
    return RunRecord(
        name=name_of(record.experiment),
        config=record.experiment.model_dump(exclude_none=True),
        status=record.status,
        message=record.message,
        versions=record.versions,
        data_sha256=record.network.data_sha256,
        rho=record.network.rho,
        rounds=[m.round for m in evaluations],
        curves={
            kind: {name: [round(getattr(getattr(m, kind), name), DECIMALS) for m in evaluations] for name in MEASURES}
            for kind in KINDS
        },
        consensus_distance=[_short(m.consensus_distance) for m in evaluations],
        train_loss=[_short(m.train_loss) for m in evaluations],
        weight=[_short(sum(m.weights) / len(m.weights)) for m in evaluations],
        per_device={kind: [round(a, DECIMALS) for a in getattr(record.final, kind).per_device] for kind in KINDS},
        floats_sent=record.final.floats_sent,
        seconds=round(record.final.seconds, 1),
    )


def _short(value: float) -> float:
    return float(f"{value:.6g}")


class Store:
    """Records in folders: those of the first are added to, the others are only read.

    Those of other versions than are installed here are counted in `outdated`, and not taken; `differing` says which.
    """

    def __init__(self, *folders: Path) -> None:
        self.folder, self.outdated, self.differing = folders[0], 0, list[str]()
        self.runs: dict[Experiment, RunRecord] = {}
        for run in read_records(folders):
            if others := other_versions(run.versions):
                self.outdated += 1
                self.differing += [words for words in others if words not in self.differing]
            else:
                self.runs.setdefault(run.experiment, run)

    def path(self, run: RunRecord) -> Path:
        """Where a run's record is."""
        return self.folder / f"{run.name}.json"

    def keep(self, run: RunRecord) -> None:
        """Write a run's record."""
        write_text(self.path(run), _text(run))
        self.runs[run.experiment] = run

    def gather(self, experiments: Iterable[Experiment]) -> list[RunRecord]:
        """Those runs that are done, each once, with their records in the first folder wherever they came from."""
        found = [self.runs[e] for e in dict.fromkeys(experiments) if e in self.runs]
        for run in found:
            path = self.path(run)
            if not path.exists() or path.read_text(encoding="utf-8") != _text(run):
                self.keep(run)
        return found


def _text(run: RunRecord) -> str:
    """JSON with a line for each field: a person can read it, and a change of one can be seen."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in asdict(run).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_records(folders: Sequence[Path]) -> Iterator[RunRecord]:
    """All records in folders, of whatever versions; one that can't be read, or contradicts itself, is refused."""
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            try:
                run = spoilt.validated(_adapter(), spoilt.parsed(path.read_bytes()))
                _check(run, path.stem)
            except InputError as error:
                raise InputError(
                    f"{path} is not the record of a run: {error}; remove it, and the run is done again"
                ) from None
            yield run


@functools.cache  # slow to make
def _adapter() -> TypeAdapter[RunRecord]:
    return TypeAdapter(RunRecord)


def _check(run: RunRecord, stem: str) -> None:
    """Refuse a record that contradicts itself: what was edited or mixed up must not pass for a result."""
    try:
        e = run.experiment
    except InputError as error:
        raise InputError(f"its config has {error}") from None
    if run.name != stem:
        raise InputError(f"its name is {run.name}")
    if run.name != (named := name_of(e, run.config)):
        raise InputError(f"its config is that of {named}")
    if run.status == "unfinished" or not run.rounds:
        raise InputError("it is of no run that is over")
    if run.status == "finished" and run.rounds[-1] != e.rounds:
        raise InputError(f"its last round is {run.rounds[-1]} of {e.rounds}, but it says finished")
    for name, (values, number) in _lengths(run).items():
        if len(values) != number:
            raise InputError(f"its {name} has {len(values)} values, not {number}")
    for kind in KINDS:
        worst, lowest = run.final(kind, "worst"), min(run.per_device[kind])
        if abs(worst - lowest) > 10**-DECIMALS:
            raise InputError(f"its curves.{kind}.worst ends at {worst:g}, its lowest per_device.{kind} is {lowest:g}")


def _lengths(run: RunRecord) -> dict[str, tuple[Sequence[float], int]]:
    """What a record holds for every evaluation or device, and how many values that should be."""
    n = len(run.rounds)
    found: dict[str, tuple[Sequence[float], int]] = {
        name: (getattr(run, name), n) for name in ("consensus_distance", "train_loss", "weight")
    }
    for kind in KINDS:
        for measure in MEASURES:
            found[f"curves.{kind}.{measure}"] = run.curves.get(kind, {}).get(measure, []), n
        found[f"per_device.{kind}"] = run.per_device.get(kind, []), run.experiment.devices
    return found


def other_versions(versions: Mapping[str, str]) -> list[str]:
    """In which versions numbers were made that are not those installed here; a patch of Python changes none.

    >>> other_versions({**versions(), "torch": "1.0"})
    ['torch 1.0 there, ... here']
    """
    here = _installed()

    def that_matters(name: str, version: str) -> str:
        return version.rpartition(".")[0] if name == "python" else version

    pairs = {name: (versions.get(name, "none"), here.get(name, "none")) for name in {**here, **versions}}
    return [
        f"{name} {there} there, {now} here"
        for name, (there, now) in pairs.items()
        if that_matters(name, there) != that_matters(name, now)
    ]


@functools.cache  # else asked for every record
def _installed() -> dict[str, str]:
    return versions()


def ends(runs: Sequence[RunRecord], kind: Kind, measure: Measure) -> dict[int, float]:
    """A measure at the end of every run that finished, by seed."""
    return {run.experiment.seed: run.final(kind, measure) for run in runs if run.status == "finished"}


def diverged(runs: Sequence[RunRecord]) -> int:
    """How many runs diverged."""
    return sum(run.status == "diverged" for run in runs)
