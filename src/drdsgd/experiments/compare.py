"""A comparison: several algorithms over the same seeds, every run in its own folder.

Seeds are paired: the same seed gives every algorithm the same graph, partition, initial model and batches. So the
difference between two algorithms has less noise than either of them.

    DIR/study.toml              the comparison
    DIR/<algorithm>/seed-<k>/   one run
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drdsgd.errors import InputError, flag, named, unknown
from drdsgd.experiments import config, loggers, registry, workers
from drdsgd.experiments.build import reusing_data
from drdsgd.experiments.config import Experiment, default_threads, has
from drdsgd.experiments.records import Folder, Record, read
from drdsgd.experiments.registry import METHODS, parse
from drdsgd.experiments.run import check, check_unchanged, run
from drdsgd.files import write_text

__all__ = ["Cell", "Study", "compare", "extended", "load", "resumed"]

# options that no algorithm of a comparison may set for itself: seeds are paired, and all runs share the threads
_SHARED = ("algorithm", "seed", "threads", "matmul")


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    label: str
    experiment: Experiment
    path: Path


@dataclass(frozen=True)
class Study:
    """Algorithms such as `dr-dsgd` or `dr-dsgd:mu=3,eta=0.1`, seeds, and the options that all runs share.

    >>> study = Study(("dsgd", "dr-dsgd:mu=3"), (0, 1), {"dataset": "synthetic"})
    >>> [(cell.label, cell.experiment.seed) for cell in study.cells(Path("out"))]
    [('dsgd', 0), ('dr-dsgd-mu=3', 0), ('dsgd', 1), ('dr-dsgd-mu=3', 1)]
    """

    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    options: dict[str, Any]

    def cells(self, out: Path) -> list[Cell]:
        """The runs, seed by seed, so that a study has pairs when it is stopped early."""
        variants = {_label(spec): _fields(spec, self.options) for spec in self.algorithms}
        if len(variants) < len(self.algorithms):
            all_ = ", ".join(self.algorithms)
            raise InputError(f"{named('algorithm')}: two of {all_} have the same folder; write them differently")
        for name, value in self.options.items():
            if not any(has(name, fields) for fields in variants.values()):
                raise InputError(f"{named(name, value)}: none of the compared algorithms has this option; leave it out")
        first: dict[Experiment, str] = {}
        for label, fields in variants.items():
            other = first.setdefault(Experiment(**fields), label)
            if other != label:
                raise InputError(f"{named('algorithm')}: {other} and {label} are the same experiment; leave one out")
        return [
            Cell(label, Experiment(**{**fields, "seed": seed}), out / label / f"seed-{seed}")
            for seed in self.seeds
            for label, fields in variants.items()
        ]

    def to_toml(self) -> str:
        """The study as TOML, which `load` reads."""
        import tomli_w

        return tomli_w.dumps({"algorithms": self.algorithms, "seeds": self.seeds, "options": self.options})


def load(path: Path) -> Study:
    """The study in a study.toml file."""
    fields = config.load(path)
    try:
        return Study(tuple(fields["algorithms"]), tuple(fields["seeds"]), dict(fields["options"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is corrupt ({type(error).__name__} {error}); remove it and repeat the command without "
            f"{named('resume')}"
        ) from error


def compare(
    study: Study,
    out: Path,
    *,
    resume: bool = False,
    threads: int | None = None,
    watch: Callable[[Cell, int], None] = lambda cell, t: None,
    log: Sequence[str] = (),
) -> list[Record]:
    """Do all runs of a study; a run that diverges is recorded, and the others continue.

    All runs together use `threads`, by default the number of cores. If these are enough for several runs at the same
    time, each run has its own process. `watch` sees a run and the round that it reached; a run that has ended counts as
    at its last round. With `resume`, existing runs are continued, or read if they have finished. `log` names the logs
    that get a copy of all metrics.
    """
    budget = default_threads() if threads is None else threads
    registry.OPTIONS["threads"].check("threads", budget)
    if not resume:
        if (out / "study.toml").exists():
            raise InputError(
                f"{out} already holds a comparison; continue it with {flag('resume')}, or use another {named('out')}"
            )
        # study.toml has the threads of one run, because its last bits may depend on them: another machine can
        # continue with more or fewer runs at the same time
        plan = study.cells(out)
        runs = len(plan) if all(map(_in_a_process, plan)) else 1
        study = replace(study, options={"threads": max(1, budget // max(1, runs)), **study.options})
    study = _settled(study, out)
    cells = study.cells(out)
    unfinished = [cell for cell in cells if Folder(cell.path).status == "unfinished"]
    jobs = [(cell.experiment, cell.path) for cell in unfinished]
    copy = loggers.of(log)
    at_once = _at_once(unfinished, budget)
    with reusing_data(), workers.team(jobs, at_once, lambda k, t: watch(unfinished[k], t), log) as team:
        for cell in cells:
            if cell.experiment.seed == study.seeds[0]:
                check(cell.experiment)  # one run of each algorithm, before anything runs
            if (folder := Folder(cell.path)).config.exists():
                check_unchanged(folder, cell.experiment.model_dump())
        write_text(out / "study.toml", study.to_toml())
        team.run()
    for cell in cells if log else ():
        if cell not in unfinished:
            run(cell.experiment, cell.path, resume=True, log=copy)
    return [read(cell.path) for cell in cells]


def _settled(study: Study, out: Path) -> Study:
    """The study with options that follow from the machine or from a model, equal for all runs: those it began with."""
    if (out / "study.toml").exists():
        began = config.BEFORE | load(out / "study.toml").options
    else:
        cells = study.cells(out)
        began = {name: min(getattr(cell.experiment, name) for cell in cells) for name in config.BEFORE if cells}
    missing = {name: began[name] for name in config.BEFORE if name in began and name not in study.options}
    return replace(study, options={**study.options, **missing})


def resumed(
    out: Path,
    algorithms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
) -> Study:
    """The study in a folder, with more algorithms, seeds or options; `compare` with `resume` continues it.

    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "two"
    >>> small = {"dataset": "synthetic", "devices": 4, "rounds": 5, "graph": "ring"}
    >>> _ = compare(Study(("dsgd",), (0,), small), out)
    >>> [record.experiment.seed for record in compare(resumed(out, seeds=(1,)), out, resume=True)]
    [0, 1]
    """
    return extended(load(out / "study.toml"), algorithms, seeds, dict(options or {}))


def extended(stored: Study, algorithms: Sequence[str], seeds: Sequence[int], options: dict[str, Any]) -> Study:
    """A stored study with more algorithms, seeds or options.

    >>> extended(Study(("dsgd",), (0, 1), {}), ["dr-dsgd"], [2], {})
    Study(algorithms=('dsgd', 'dr-dsgd'), seeds=(0, 1, 2), options={})
    """
    union = dict.fromkeys([*stored.algorithms, *algorithms])
    return Study(tuple(union), tuple(sorted({*stored.seeds, *seeds})), {**stored.options, **options})


def _at_once(cells: Sequence[Cell], threads: int) -> int:
    """The number of these runs that go at the same time on this number of threads.

    >>> cells = Study(("dsgd", "dr-dsgd"), (0, 1), {"threads": 2}).cells(Path("out"))
    >>> [_at_once(cells, threads) for threads in (1, 4, 64)]
    [1, 2, 4]
    """
    if not cells or not all(map(_in_a_process, cells)):
        return 1
    return max(1, min(len(cells), threads // int(cells[0].experiment.threads)))


def _in_a_process(cell: Cell) -> bool:
    """Whether a run may have its own process beside others."""
    # a GPU does not speed up two runs at the same time, and its memory may not suffice for one run per core; and a
    # function in the script that was started (__main__) is known only in this process
    e = cell.experiment
    own = (e.model, e.objective or "", e.optimizer or "")
    return e.device.startswith("cpu") and not any(name.startswith("__main__:") for name in own)


def _label(spec: str) -> str:
    """The name of the folder for an algorithm and its settings.

    >>> _label("dr-dsgd:mu=3,eta=0.1")
    'dr-dsgd-mu=3-eta=0.1'
    """
    return re.sub(r"[^A-Za-z0-9.=_+]+", "-", spec)


def _fields(spec: str, shared: dict[str, Any]) -> dict[str, Any]:
    """The fields of one algorithm's runs: the shared fields that it has, and its own from `name:key=value,...`."""
    algorithm, _, own = spec.partition(":")
    if algorithm not in METHODS:
        raise InputError(f"{named('algorithm', spec)}: {unknown(algorithm, METHODS)}")
    texts: dict[str, str] = {}
    for assignment in filter(None, own.split(",")):
        key, given, text = assignment.partition("=")
        if not given:
            raise InputError(f"{named('algorithm', spec)}: '{assignment}' has no value; write {key.strip()}=VALUE")
        texts[key.strip().replace("-", "_")] = text
    for name in ("threads", "matmul"):
        if name in texts:
            text = texts[name].strip()
            value = int(text) if text.isdecimal() else text
            raise InputError(f"{named('algorithm', spec)}: all runs share the {name}; give {named(name, value)}")
    parts = {kind: texts.get(kind, shared.get(kind)) for kind in ("objective", "optimizer")}
    known = {name: one for name, one in registry.known(**parts).items() if name not in _SHARED}
    for name in texts:
        if name not in known:
            raise InputError(f"{named('algorithm', spec)}: the key '{name}' is {unknown(name, tuple(known))}")
    fields: dict[str, Any] = {name: parse(name, text, known) for name, text in texts.items()}
    fields["algorithm"] = algorithm
    parts = {name: value for name, value in shared.items() if name in ("objective", "optimizer") and has(name, fields)}
    fields = {**parts, **fields}
    # an algorithm gets only the shared fields that it has
    return {name: value for name, value in shared.items() if has(name, fields)} | fields
