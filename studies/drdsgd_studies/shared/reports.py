"""The interactive report of a part, made from its records; the page names what these do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drdsgd import report
from drdsgd.experiments.config import PACKED
from drdsgd.experiments.records import Network, Record
from drdsgd.files import write_text
from drdsgd.report.statistics import Kind
from drdsgd.training.metrics import Metrics, Spread
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import LOOSE, Done, RunRecord

__all__ = ["NAME", "Compared", "record", "write"]

NAME = "report.html"
# groups by their label, by the setting within which they are compared
Compared = Mapping[str, Mapping[str, Group]]


def write(compared: Compared, title: str, s: Settings, done: Done, folder: Path, study: str) -> None:
    """Write the report into a part's folder; none where no run is done. `study` names the file of packed records."""
    several = len(compared) > 1

    def place(run: RunRecord) -> Path:
        """Where the record is, as seen from the folder."""
        loose = Path(LOOSE, f"{run.name}.json")
        return Path("..", loose if (folder.parent / loose).exists() else f"{study}{PACKED}:{run.name}")

    found = [
        {
            f"{label}, {setting}" if several else label: [record(run, place(run)) for run in runs]
            for label, group in groups.items()
            if (runs := group.runs(done))
        }
        for setting, groups in compared.items()
    ]
    if not any(found):
        (folder / NAME).unlink(missing_ok=True)  # an older report would not fit the runs
        return
    quick = " (a quick check: digits in place of all data)" if s.quick else ""
    write_text(folder / NAME, report.page(*filter(None, found), title=title + quick))


def record(run: RunRecord, path: Path) -> Record:
    """A run as reports take it; fields that its record does not hold are empty, and floats are sent evenly."""
    last = run.rounds[-1]

    def accuracy(kind: Kind, i: int) -> Spread:
        measures = {measure: values[i] for measure, values in run.curves[kind].items()}
        return Spread(**measures, per_device=run.per_device[kind] if run.rounds[i] == last else [])

    metrics = [
        Metrics(
            round=t,
            consensus=accuracy("consensus", i),
            local=accuracy("local", i),
            per_class=[],
            consensus_distance=run.consensus_distance[i],
            train_loss=run.train_loss[i],
            weights=[],
            floats_sent=round(run.floats_sent * t / max(1, last)),
            seconds=0.0 if t < last else run.seconds,
        )
        for i, t in enumerate(run.rounds)
    ]
    network = Network([], [], [], run.rho, run.data_sha256)
    return Record(path, run.experiment, network, metrics, run.status, run.message, run.versions)
