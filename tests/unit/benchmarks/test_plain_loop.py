"""The plain loop of the benchmark, an independent implementation, gives the package's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drdsgd.experiments.config import Experiment
from drdsgd_benchmarks.plain_loop import Agreement, main, package, plain_loop


def experiment(algorithm: str, dtype: str) -> Experiment:
    return Experiment(
        algorithm=algorithm, dataset="digits", devices=5, rounds=12, eval_every=5, p=0.5, dtype=dtype, seed=3, eta=0.1,
        threads=1, mu=2.0 if algorithm == "dr-dsgd" else None,
        # without a ReLU in float32: at its kink the last bit decides between two gradients
        model="mlp" if dtype == "float64" else "logistic",
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("algorithm", ["dsgd", "dr-dsgd"])
def test_same_batches_give_the_same_run(algorithm: str, dtype: str, tolerance: float) -> None:
    e = experiment(algorithm, dtype)
    plain, ours = plain_loop(e), package(e)
    assert [s.round for s in plain.scores] == [s.round for s in ours.scores] == [0, 5, 10, 12]
    assert plain.theta.dtype == ours.theta.dtype and plain.theta.shape == ours.theta.shape
    apart = Agreement.of(plain, ours)
    assert apart.models < tolerance
    assert apart.ever == pytest.approx(0)


def test_the_comparison_would_notice_another_run() -> None:
    e = experiment("dr-dsgd", "float64")
    ours = package(e)
    for other in (plain_loop(e.replace(mu=2.1)), plain_loop(e, "shuffled"), plain_loop(e.replace(p=0.9))):
        assert Agreement.of(other, ours).models > 1e-3


def test_the_script_writes_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    main(rounds=3, devices=4, dataset="digits", threads=[1], repeats=1, out=out)
    report = json.loads(out.read_text())
    (result,) = report["results"]
    assert result["ratio"] == pytest.approx(result["plain"]["seconds"][0] / result["drdsgd"]["seconds"][0])
    assert report["agreement"]["models"] < 1e-5
    assert "relative distance of the models" in capsys.readouterr().out
