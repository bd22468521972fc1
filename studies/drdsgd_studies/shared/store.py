"""Records of finished runs: what was run, with which versions and numerics, and the results.

A record is a run's folder without what only a run in progress needs: per evaluation the four measures of both models,
and at the end the accuracy of every device. While a study runs, its records are loose files, OUT/runs/NAME.json. At its
end they are packed into one file, OUT/STUDY.jsonl.xz, with a line for each record. `drdsgd train RECORD` runs a
record's experiment again, where RECORD is OUT/runs/NAME.json or OUT/STUDY.jsonl.xz:NAME.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from drdsgd.errors import InputError
from drdsgd.experiments.config import PACKED, Experiment, recorded
from drdsgd.experiments.records import Record, Status, numerics_of
from drdsgd.files import replacing, write_text
from drdsgd.report.statistics import KINDS, MEASURES, Estimate, Kind, Measure
from drdsgd.versions import versions
from drdsgd_studies.shared.corrupt import validated

__all__ = [
    "LOOSE", "Done", "RunRecord", "Store", "differences", "diverged", "ends", "estimate", "name_of", "read_records",
    "run_record",
]  # fmt: skip

# decimals kept of a percentage: a device has at most a few thousand test samples
DECIMALS = 4
# the folder of loose records, within an output folder
LOOSE = "runs"


@dataclass(frozen=True)
class RunRecord:
    """A finished or diverged run. `curves[kind][measure]` has one value per evaluated round of `rounds`."""

    name: str
    config: dict[str, Any]
    status: Status
    message: str
    versions: dict[str, str]
    data_sha256: str
    rho: float | None  # None with a server
    rounds: list[int]
    curves: dict[Kind, dict[Measure, list[float]]]
    consensus_distance: list[float]
    train_loss: list[float]
    weight: list[float]  # mean over devices of their gradients' weights
    per_device: dict[Kind, list[float]]  # at the last evaluation
    floats_sent: int
    seconds: float  # in rounds
    numerics: dict[str, int] = field(default_factory=dict)  # of the parts used; a record without has numerics 1

    @functools.cached_property
    def experiment(self) -> Experiment:
        """What was run; an option that is newer than the config has the value that it had until then."""
        return recorded(self.config)

    def final(self, kind: Kind, measure: Measure) -> float:
        """A measure at the end."""
        return self.curves[kind][measure][-1]


Done = Mapping[Experiment, RunRecord]


def name_of(e: Experiment, config: Mapping[str, Any] | None = None) -> str:
    """A name for an experiment's files: what a person looks for, and a checksum of all its fields.

    `config` holds the fields as they were recorded, if that was before an option existed.

    >>> name_of(Experiment(algorithm="dr-dsgd", dataset="fashion-mnist", devices=25, mu=5.0, seed=3, threads=1))[:-9]
    'fashion-mnist-K25-T300-dr-dsgd-mu5-seed3'
    """
    written = json.dumps(e.model_dump(exclude_none=True) if config is None else config, sort_keys=True)
    algorithm = e.algorithm if e.mu is None else f"{e.algorithm}-mu{e.mu:g}"
    checksum = hashlib.sha256(written.encode()).hexdigest()[:8]
    return f"{Path(e.dataset).name}-K{e.devices}-T{e.rounds}-{algorithm}-seed{e.seed}-{checksum}"


def run_record(record: Record) -> RunRecord:
    """The record of a finished or diverged run."""
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
        numerics=record.numerics,
    )


def _short(value: float) -> float:
    return float(f"{value:.6g}")


class Store:
    """Records in output folders: new records go to the first folder, the others are only read.

    If a folder holds a run both loose and packed, the loose record counts: it is the newer one. Records made with other
    versions or numerics than today's are not taken: `outdated` counts them, and `differing` lists the differences.
    """

    def __init__(self, out: Path, *others: Path) -> None:
        self.out, self.outdated, self.differing = out, 0, list[str]()
        self.runs: dict[Experiment, RunRecord] = {}
        self._there: dict[str, RunRecord] = {}  # the records in `out`, whatever they were made with
        self.sources: list[Path] = []  # the folders that hold records
        for folder in dict.fromkeys((out, *others)):
            for run in read_records(folder, bare=folder != out):
                if folder not in self.sources:
                    self.sources.append(folder)
                if folder == out:
                    self._there.setdefault(run.name, run)
                if differing := differences(run.versions, run.numerics, numerics_of(run.experiment)):
                    self.outdated += 1
                    self.differing += [words for words in differing if words not in self.differing]
                else:
                    self.runs.setdefault(run.experiment, run)

    def path(self, run: RunRecord) -> Path:
        """The path of a run's loose record."""
        return self.out / LOOSE / f"{run.name}.json"

    def keep(self, run: RunRecord) -> None:
        """Write a run's loose record."""
        write_text(self.path(run), _text(run))
        self.runs[run.experiment] = self._there[run.name] = run

    def gather(self, runs: Iterable[RunRecord]) -> None:
        """Copy those of these records that come from other folders into the first, as loose ones."""
        for run in runs:
            if self._there.get(run.name) != run:
                self.keep(run)

    def pack(self, study: str, runs: Iterable[RunRecord]) -> None:
        """Add these records to the study's file, unless it has them, and remove the loose ones."""
        packed = self.out / f"{study}{PACKED}"
        before = {run.name: run for run in _packed(packed)}
        new = {run.name: run for run in runs}
        both = {**before, **new}
        if both != before:
            with replacing(packed) as temporary, lzma.open(temporary, "wt", encoding="utf-8", newline="\n") as file:
                file.writelines(json.dumps(_values(both[name]), allow_nan=False) + "\n" for name in sorted(both))
        for name, run in new.items():
            self._there[name] = run
            self.path(run).unlink(missing_ok=True)
        with suppress(OSError):  # it does not exist, or holds records of another study
            (self.out / LOOSE).rmdir()


def _text(run: RunRecord) -> str:
    """JSON with a line for each field, which a person can read and compare."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in _values(run).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _values(run: RunRecord) -> dict[str, Any]:
    return {name: value for name, value in asdict(run).items() if name != "numerics" or value}


def read_records(folder: Path, bare: bool = False) -> Iterator[RunRecord]:
    """All records in an output folder, loose ones first, whatever they were made with.

    With `bare`, a folder that is not an output folder may hold loose records itself. A record that cannot be read, or
    contradicts itself, is refused.
    """
    packed, loose = sorted(folder.glob(f"*{PACKED}")), folder / LOOSE
    if bare and not packed and not loose.is_dir() and not (folder / "settings.json").exists():
        loose = folder
    for path in sorted(loose.glob("*.json")):
        yield _record(path.read_bytes(), path.stem, str(path))
    for path in packed:
        yield from _packed(path)


def _packed(path: Path) -> Iterator[RunRecord]:
    """The records in a packed file; none where there is no file."""
    if not path.exists():
        return
    before = ""
    try:
        with lzma.open(path) as lines:
            for number, line in enumerate(lines, start=1):
                run = _record(line, None, where := f"{path} line {number}")
                if run.name <= before:
                    raise InputError(f"{where} must not be {run.name}, which comes before or equals the line above")
                before = run.name
                yield run
    except (EOFError, lzma.LZMAError) as error:
        raise InputError(f"{path} is corrupt: {error}; restore it, or remove it to run its study again") from None


def _record(text: bytes, stem: str | None, where: str) -> RunRecord:
    """A valid record, whose name is that of its file if it has one of its own."""
    try:
        run = validated(_adapter(), text)
        _check(run, stem)
    except InputError as error:
        raise InputError(f"{where} is not the record of a run: {error.marked}; remove it to run it again") from None
    return run


@functools.cache  # slow to make
def _adapter() -> TypeAdapter[RunRecord]:
    return TypeAdapter(RunRecord)


def _check(run: RunRecord, stem: str | None) -> None:
    """Refuse a record that contradicts itself: one that was edited or mixed up must not count as a result."""
    try:
        e = run.experiment
    except InputError as error:
        raise InputError(f"its config has {error.marked}") from None
    if stem not in (None, run.name):
        raise InputError(f"its name is {run.name}")
    if run.name != (name := name_of(e, run.config)):
        raise InputError(f"its config is that of {name}")
    if run.status == "unfinished" or not run.rounds:
        raise InputError("the run has not ended")
    if run.status == "finished" and run.rounds[-1] != e.rounds:
        raise InputError(f"its last round is {run.rounds[-1]} of {e.rounds}, but its status is finished")
    for name, (values, number) in _lengths(run).items():
        if len(values) != number:
            raise InputError(f"its {name} has {len(values)} values, not {number}")
    for kind in KINDS:
        worst, lowest = run.final(kind, "worst"), min(run.per_device[kind])
        if abs(worst - lowest) > 10**-DECIMALS:
            raise InputError(f"its curves.{kind}.worst ends at {worst:g}, its lowest per_device.{kind} is {lowest:g}")


def _lengths(run: RunRecord) -> dict[str, tuple[Sequence[float], int]]:
    """The lists with a value per evaluation or device, and how many values each should have."""
    n = len(run.rounds)
    found: dict[str, tuple[Sequence[float], int]] = {
        name: (getattr(run, name), n) for name in ("consensus_distance", "train_loss", "weight")
    }
    for kind in KINDS:
        for measure in MEASURES:
            found[f"curves.{kind}.{measure}"] = run.curves.get(kind, {}).get(measure, []), n
        found[f"per_device.{kind}"] = run.per_device.get(kind, []), run.experiment.devices
    return found


def differences(versions: Mapping[str, str], numerics: Mapping[str, int], here: Mapping[str, int]) -> list[str]:
    """How versions and numerics differ from the installed versions and from the numerics here; empty if they agree.

    A part that numerics do not name is 1.

    >>> differences(versions(), {}, {"optimizer dsgd": 1}), differences(versions(), {}, {"optimizer dsgd": 2})
    ([], ['numerics of optimizer dsgd 1 there, 2 here'])
    """
    return _other_versions(versions) + [
        f"numerics of {part} {numerics.get(part, 1)} there, {now} here"
        for part, now in here.items()
        if numerics.get(part, 1) != now
    ]


def _other_versions(versions: Mapping[str, str]) -> list[str]:
    """Which versions differ from the installed ones, except drdsgd's and patch releases of Python.

    >>> _other_versions({**versions(), "torch": "1.0", "drdsgd": "0.0.1"})
    ['torch 1.0 there, ... here']
    """

    def relevant(name: str, version: object) -> str:
        return str(version).rpartition(".")[0] if name == "python" else str(version)

    return [
        f"{name} {there} there, {now} here"
        for name, (there, now) in _pairs(versions, _installed()).items()
        if name != "drdsgd" and relevant(name, there) != relevant(name, now)
    ]


def _pairs(there: Mapping[str, object], here: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    return {name: (there.get(name, "none"), here.get(name, "none")) for name in {**here, **there}}


@functools.cache  # asked for every record
def _installed() -> dict[str, str]:
    return versions()


def ends(runs: Sequence[RunRecord], kind: Kind, measure: Measure) -> dict[int, float]:
    """A measure at the end of every run that finished, by seed."""
    return {run.experiment.seed: run.final(kind, measure) for run in runs if run.status == "finished"}


def estimate(runs: Sequence[RunRecord], kind: Kind, measure: Measure) -> Estimate:
    """A measure at the end, over the runs that finished."""
    return Estimate.over(list(ends(runs, kind, measure).values()))


def diverged(runs: Sequence[RunRecord]) -> int:
    """How many runs diverged."""
    return sum(run.status == "diverged" for run in runs)
