"""An experiment is complete, explains its mistakes, and becomes the values that it names."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drdsgd import data
from drdsgd.core.algorithms import Algorithm
from drdsgd.core.objectives import LocalDevices, Weights
from drdsgd.data import sources
from drdsgd.data.files import from_folder
from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.experiments import build
from drdsgd.experiments.build import make_algorithm, make_data, make_graph, make_model, reusing_data
from drdsgd.experiments.config import Experiment, applicable, load, recorded
from drdsgd.experiments.fields import FIELDS
from drdsgd.experiments.registry import GRAPHS, OPTIONS
from drdsgd.experiments.run import run
from drdsgd.topology import graphs
from drdsgd.topology.mixing import metropolis
from tests.support.program import assert_same_run, drdsgd, refused, small
from tests.support.refusing import message


def npz_folder(path: Path, K: int) -> Path:
    path.mkdir(exist_ok=True)
    for k in range(K):
        np.savez(path / f"{k}.npz", x=np.random.default_rng(k).random((10 + k, 3)), y=np.arange(10 + k) % 4)
    return path


# -------------------------------------------------------------------- complete


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "algorithm": st.sampled_from(["dsgd", "dr-dsgd"]),
            "dataset": st.sampled_from(["digits", "synthetic", "some/folder", "cifar10"]),
            "model": st.text(),
            "devices": st.integers(2, 50),
            "rounds": st.integers(1, 10**6),
            "eta": st.floats(1e-300, 1e6),
            "graph": st.sampled_from([*GRAPHS, "a file.csv"]),
            "seed": st.integers(0, 2**63 - 1),
        },
    )
)
def test_an_experiment_is_what_its_toml_says(fields: dict[str, Any]) -> None:
    e = Experiment(**fields)
    assert Experiment(**tomllib.loads(e.to_toml())) == e


def test_its_toml_leaves_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field that has an effect is written down, whatever the defaults of the machine are."""
    e = Experiment()
    written = tomllib.loads(e.to_toml())
    off = {
        "dropouts", "gossip_steps", "link_failures", "local_steps", "loss_clip", "loss_smoothing", "mixing",
        "mu_schedule", "objective", "optimizer", "random_labels", "validation", "weight_cap", "weight_decay",
    }  # fmt: skip
    assert written.keys() == (FIELDS.keys() | applicable(e.model_dump()).keys()) - off
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(1000))
    assert Experiment(**written) == e
    assert Experiment().threads == 1000


def test_running_a_runs_config_gives_the_same_run(tmp_path: Path) -> None:
    e = small(dataset="digits", model="mlp:8", devices=5, graph="erdos-renyi", p=0.5, seed=3, eta_schedule="cosine:0.1")
    run(e, tmp_path / "first")
    assert drdsgd("train", tmp_path / "first" / "config.toml", "--out", tmp_path / "second").status == 0
    assert_same_run(tmp_path / "first", tmp_path / "second")


def test_options_override_a_file(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('dataset = "synthetic"\nrounds = 4\ndevices = 5\ngraph = "ring"\nthreads = 1\nmu = 3.0\n')
    assert drdsgd("train", file, "--rounds", "2", "--mu", "4", "--out", tmp_path / "run").status == 0
    e = Experiment(**load(tmp_path / "run" / "config.toml"))
    assert (e.rounds, e.mu, e.devices, e.graph) == (2, 4.0, 5, "ring")
    assert e.eta == math.sqrt(5 / 2)  # the default follows what was set


# -------------------------------------------------------------------- defaults


@given(K=st.integers(2, 10**6), T=st.integers(1, 10**6))
def test_step_and_batch_size_are_the_papers(K: int, T: int) -> None:
    e = Experiment(devices=K, rounds=T)
    assert e.eta == pytest.approx(math.sqrt(K / T))
    assert e.batch_size == round(math.sqrt(K * T))


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """A folder with the data of three devices."""
    return npz_folder(tmp_path / "sites", 3)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data sets that were loaded."""
    found: list[str] = []

    def counting(name: str, load: Any) -> Any:
        def loading(*positional: Any, **keywords: Any) -> Any:
            found.append(name)
            return load(*positional, **keywords)

        return loading

    monkeypatch.setitem(sources.SOURCES, "digits", counting("digits", sources.digits))
    monkeypatch.setattr(build, "from_folder", counting("folder", from_folder))
    return found


def test_runs_that_follow_each_other_load_their_data_once(loaded: list[str]) -> None:
    e = Experiment()
    several = e, e.replace(seed=1), e.replace(scaling="standard"), e.replace(random_labels=2)
    alone = [make_data(one) for one in several]
    assert loaded == ["digits"] * 4
    with reusing_data():
        with reusing_data():  # a part of it
            again = [make_data(one) for one in several[:3]]
        again.append(make_data(several[3]))
    assert loaded == ["digits"] * 5
    assert all(map(same, alone, again))
    make_data(e)
    assert loaded == ["digits"] * 6


def test_of_the_data_of_several_runs_only_the_newest_are_kept(loaded: list[str], sites: Path) -> None:
    e, own = Experiment(), Experiment(dataset=str(sites))
    with reusing_data():
        for one in (e, e, own, own, e):
            make_data(one)
        assert loaded == ["digits", "folder", "digits"]


def test_files_that_change_are_loaded_again(loaded: list[str], sites: Path) -> None:
    own = Experiment(dataset=str(sites))
    with reusing_data():
        first = make_data(own)
        np.savez(sites / "0.npz", x=np.zeros((10, 3)), y=np.arange(10) % 4)
        second = make_data(own)
    assert loaded == ["folder"] * 2 and not same(first, second)


def test_local_models_are_evaluated_always_unless_that_takes_long() -> None:
    each = {model: Experiment(dataset="cifar10", model=model).local_every for model in ("mlp:8", "logistic", "cnn")}
    assert each == {"mlp:8": 1, "logistic": 1, "cnn": 5} and Experiment(dataset="cifar10").local_every == 5
    assert Experiment(model="cnn", local_every=1).local_every == 1


def test_a_record_of_before_evaluated_all_models_always(tmp_path: Path) -> None:
    e = Experiment(dataset="cifar10")
    old = {name: value for name, value in e.model_dump(exclude_none=True).items() if name != "local_every"}
    assert recorded(old) == e.replace(local_every=1) and recorded({**old, "local_every": 5}) == e
    assert recorded({**old, "objective": "nowhere:mine"}).local_every == 1
    (tmp_path / "record.json").write_text(json.dumps({"name": "one", "config": old}))
    assert Experiment(**load(tmp_path / "record.json")).local_every == 1


def test_checkpoints_have_a_rhythm_of_their_own() -> None:
    assert Experiment(eval_every=7).checkpoint_every == 50
    assert Experiment(eval_every=7, checkpoint_every=3).checkpoint_every == 3


@pytest.mark.parametrize(
    ("dataset", "model"), [("digits", "mlp"), ("fashion-mnist", "mlp"), ("cifar10", "cnn"), ("synthetic", "logistic")]
)
def test_the_model_suits_the_data(dataset: str, model: str) -> None:
    assert Experiment(dataset=dataset).model == model


def test_devices_are_as_many_as_the_files_say(tmp_path: Path) -> None:
    (tmp_path / "graph.csv").write_text("0,1\n1,2\n")
    folder = npz_folder(tmp_path / "sites", 4)
    assert Experiment(graph=str(tmp_path / "graph.csv")).devices == 3
    assert Experiment(dataset=str(folder)).devices == 4
    assert Experiment(dataset=str(folder), devices=6).devices == 6  # refused only where the data are read
    assert Experiment().devices == 10


def test_names_of_files_that_count_as_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph file needs no suffix, and a folder called digits is not the data set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges").write_text("".join(f"{i},{i + 1}\n" for i in range(19)))
    assert Experiment(graph="edges").devices == 20
    assert make_graph(Experiment(graph="edges")).number_of_edges() == 19
    npz_folder(tmp_path / "digits", 3)
    (tmp_path / "ring").write_text("0,1\n1,2\n")
    assert Experiment().devices == Experiment(graph="ring").devices == 10
    assert Experiment(dataset="./digits").devices == 3


def test_a_whole_number_beyond_all_floats_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f"mu = {10**400}\n")
    with pytest.raises(InputError, match=r"^mu=10+: input should be a finite number \("):
        Experiment(**load(tmp_path / "run.toml"))


def test_replace_changes_a_field_and_keeps_the_others() -> None:
    e = Experiment(devices=20)
    assert e.replace(rounds=5).rounds == 5
    assert e.replace(rounds=5).eta == e.eta
    with pytest.raises(InputError, match=r"^rounds=0: "):
        e.replace(rounds=0)


# --------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"algorithm": "dsgd", "mu": 3.0}, "--mu 3.0 does nothing here: it needs --objective kl-dro or chi2-dro;"),
        ({"algorithm": "dsgd", "loss_clip": 3.0}, "--loss-clip 3.0 does nothing here: it needs --objective kl-dro, "),
        ({"algorithm": "dsgd", "weights": "normalized"}, "--weights normalized does nothing here: it needs --obj"),
        ({"algorithm": "dsgd", "q": 1.0}, "--q 1.0 does nothing here: it needs --objective q-ffl or --algorithm"),
        (
            {"algorithm": "afl", "mu": 3.0},
            "--mu 3.0 does nothing here: it needs a method without a server, with --objective",
        ),
        ({"algorithm": "afl", "q": 1.0}, "--q 1.0 does nothing here: it needs --algorithm q-fedavg; leave it out"),
        ({"algorithm": "fedavg", "optimizer": "d2"}, "--optimizer d2 does nothing here: it needs an algorithm without"),
        ({"algorithm": "afl", "local_steps": 2}, "--local-steps 2 does nothing here: it needs an algorithm without a"),
        ({"algorithm": "dsgd", "clients": 5}, "--clients 5 does nothing here: it needs --algorithm ditto, drfa, "),
        (
            {"momentum": 0.5},
            "--momentum 0.5 does nothing here: it needs --optimizer momentum, quasi-global-momentum or ",
        ),
        ({"graph": "ring", "p": 0.5}, "--p 0.5 does nothing here: it needs --graph erdos-renyi"),
        ({"heterogeneity": 0.5}, "--heterogeneity 0.5 does nothing here: it needs --dataset synthetic"),
        ({"dataset": "synthetic", "shards": 2}, "--shards 2 does nothing here: it needs --partition shards"),
        (
            {"dataset": "synthetic", "partition": "iid"},
            "--partition iid does nothing here: it needs --dataset digits, ",
        ),
        ({"dataset": "synthetic", "scaling": "unit"}, "--scaling unit does nothing here: it needs --dataset digits, "),
        (
            {"dataset": "synthetic", "validation": 0.2},
            "--validation 0.2 does nothing here: it needs --dataset digits, fashion-mnist or ",
        ),
        ({"partition": "iid", "shards": 2}, "--shards 2 does nothing here: it needs --partition shards"),
        ({"alpha": 0.5}, "--alpha 0.5 does nothing here: it needs --partition dirichlet"),
        ({"dataset": "digit", "shards": 2}, "--dataset digit: no such folder, and unknown, did you mean digits?"),
    ],
)
def test_a_field_that_does_nothing_is_refused(fields: dict[str, Any], says: str) -> None:
    assert refusal(fields).startswith(says)


def refusal(fields: dict[str, Any]) -> str:
    """Why an experiment is refused: the one line that the command line prints. In Python it names no options."""
    with pytest.raises(InputError) as caught:
        Experiment(**fields)
    assert "--" not in str(caught.value) and "\n" not in str(caught.value)
    return caught.value.on_command_line


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rounds": "many"}, "--rounds many: input should be a valid integer (communication rounds T; default 300)"),
        ({"rounds": 3.0}, "--rounds 3.0: input should be a valid integer"),
        ({"rounds": True}, "--rounds True: input should be a valid integer"),
        ({"rounds": 2**32}, "--rounds 4294967296: input should be less than 4294967296"),
        ({"rounds": 10**400}, f"--rounds {10**400}: input should be less than"),
        ({"devices": 1}, "--devices 1: input should be greater than or equal to 2"),
        ({"devices": "ten"}, "--devices ten: input should be a valid integer"),
        ({"eta": math.nan}, "--eta nan: input should be a finite number"),
        ({"loss_clip": 1e39}, "--loss-clip 1e+39: input should be less than or equal to 1000000"),
        ({"algorithm": "ditto", "pull": 1e300}, "--pull 1e+300: input should be less than or equal to 1000000"),
        ({"algorithm": "q-fedavg", "q": 1e39}, "--q 1e+39: input should be less than or equal to 1000000"),
        ({"algorithm": "fed-term", "tilt": 1e39}, "--tilt 1e+39: input should be less than or equal to 1000000"),
        ({"eta": math.inf}, "--eta inf: input should be "),
        ({"mu": "6"}, "--mu 6: input should be a valid number"),
        ({"seed": 2**63}, "--seed 9223372036854775808: input should be less than"),
        ({"algorithm": "dsg"}, "--algorithm dsg: unknown, did you mean dsgd?"),
        ({"objective": "klball"}, "--objective klball: unknown, did you mean kl-ball?"),
        ({"optimizer": 5}, "--optimizer 5: unknown; known are dsgd, momentum, "),
        ({"partition": "idd"}, "--partition idd: input should be 'shards', 'dirichlet' or 'iid'"),
        (
            {"weights": "foo"},
            "--weights foo: input should be 'as-written', 'without-mu' or 'normalized' (kl-dro: weights",
        ),
        (
            {"validation": 1.5},
            "--validation 1.5: input should be less than 1 (fraction of each device's training samples",
        ),
        ({"dataset": ["digits"]}, "--dataset ['digits']: input should be a valid string"),
        ({"graph": 5}, "--graph 5: input should be a valid string"),
        ({"eval_every": "x"}, "--eval-every x: input should be a valid integer"),
        ({"batchsize": 3}, "the key 'batchsize' is unknown, did you mean batch_size?"),
        ({"self": 3}, "the key 'self' is unknown"),
        ({"xyz": {"rounds": 3}}, "the key 'xyz' is unknown; known are algorithm, "),
    ],
)
def test_what_is_wrong_is_told_in_one_line(fields: dict[str, Any], says: str) -> None:
    assert refusal(fields).startswith(says)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mu": -1}, "mu=-1: input should be greater than 0 (kl-dro, chi2-dro: robustness, "),
        ({"batch_size": 2.5}, "batch_size=2.5: input should be a valid integer"),
        ({"partition": "idd"}, "partition='idd': input should be 'shards', "),
        ({"algorithm": "dsg"}, "algorithm='dsg': unknown, did you mean dsgd?"),
        ({"algorithm": "afl", "loss_clip": 3.0}, "loss_clip=3.0 does nothing here: it needs a method without a server"),
        ({"algorithm": "dsgd", "mu": 3.0}, "mu=3.0 does nothing here: it needs objective kl-dro or chi2-dro; leave it"),
    ],
)
def test_in_python_a_mistake_names_the_argument_and_its_value(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(says)}"):
        Experiment(**fields)


def test_an_experiment_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(Experiment(), "rounds", 3)  # noqa: B010 (mypy knows that it is wrong)


def test_files_that_are_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    with pytest.raises(InputError, match="there is no file"):
        load(file)
    for content in (b"rounds = \n", b"rounds 3", b"\xff\xfe", b'a = "\n'):
        file.write_bytes(content)
        with pytest.raises(InputError, match=f"^{re.escape(str(file))} is not TOML: ") as caught:
            load(file)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- graphs


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_graph_is_made_from_seed_and_size(kind: str) -> None:
    K = 12
    e = Experiment(graph=kind, devices=K)
    made = make_graph(e)
    assert made.number_of_nodes() == K
    assert made.edges == make_graph(e).edges
    if kind in ("erdos-renyi", "geometric"):
        assert made.edges != make_graph(e.replace(seed=1)).edges


def test_a_graph_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "graph.csv"
    file.write_text("0,1\n1,2\n")
    assert make_graph(Experiment(graph=str(file))).number_of_edges() == 2
    with pytest.raises(InputError, match="3 nodes"):
        make_graph(Experiment(graph=str(file), devices=4))
    with pytest.raises(InputError, match=r"graph='rign': no such file, and unknown, did you mean ring\?"):
        make_graph(Experiment(graph="rign"))


# ------------------------------------------------------------------------ data


@pytest.mark.parametrize(
    "fields", [{"partition": "shards", "shards": 3}, {"partition": "dirichlet", "alpha": 0.3}, {"partition": "iid"}]
)
def test_a_data_set_is_dealt_as_the_partition_says(fields: dict[str, Any]) -> None:
    e = Experiment(dataset="digits", devices=6, **fields)
    made, again, other = make_data(e), make_data(e), make_data(e.replace(seed=1))
    assert (made.K, int(made.train.sizes.sum()), int(made.test.sizes.sum())) == (6, 1352, 445)
    assert torch.equal(made.train.x, again.train.x)
    assert not torch.equal(made.train.y, other.train.y)
    if fields["partition"] == "shards":
        assert max(len(y.unique()) for y in made.train.y.split(made.train.sizes.tolist())) <= 6


def test_scaling(tmp_path: Path) -> None:
    unit = make_data(Experiment(scaling="unit"))
    standard = make_data(Experiment(scaling="standard"))
    assert float(unit.scale) == 1 / 16
    features = standard.train.x * standard.scale + standard.shift
    assert float(features.mean()) == pytest.approx(0, abs=1e-5) and float(features.std()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("scaling", ["unit", "standard"])
def test_validation_samples_come_from_the_training_set_and_are_not_trained_on(
    scaling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = Experiment(devices=6, scaling=scaling)
    whole, split = make_data(e), make_data(e.replace(validation=0.3))
    for i in range(6):
        rows = [
            samples.x[int(samples.starts[i]) :][: int(samples.sizes[i])].flatten(1).tolist()
            for samples in (whole.train, split.train, split.test)
        ]
        assert sorted(rows[0]) == sorted(rows[1] + rows[2])  # digits are all different, so a row is known by its pixels
        assert len(rows[2]) == round(0.3 * len(rows[0]))
    assert torch.equal(whole.scale, split.scale) and torch.equal(whole.shift, split.shift)
    for other in ({"algorithm": "dsgd"}, {"eta": 0.7}, {"graph": "ring"}):
        assert same(make_data(Experiment(devices=6, scaling=scaling, validation=0.3, **other)), split)
    assert not same(make_data(e.replace(validation=0.3, seed=1)), split)
    # the test set is not used: without it the data are the same
    digits = sources.digits()
    untested = dataclasses.replace(digits, x_test=digits.x_test[:0], y_test=digits.y_test[:0])
    monkeypatch.setattr(sources, "digits", lambda: untested)
    assert same(make_data(e.replace(validation=0.3)), split)


def same(one: data.Devices, other: data.Devices) -> bool:
    return torch.equal(one.checksums(), other.checksums())


def test_a_run_on_validation_samples_says_so(tmp_path: Path) -> None:
    tiny = ["--rounds", "2", "--model", "logistic", "--devices", "4", "--graph", "ring", "--threads", "1"]
    said = drdsgd("train", *tiny, "--validation", "0.25", "--out", tmp_path / "run")
    assert said.status == 0 and "on validation samples, not on the test set" in " ".join(said.out.split())
    assert "on validation samples, not on the test set" in (tmp_path / "run" / "report.html").read_text()
    assert load(tmp_path / "run" / "config.toml")["validation"] == 0.25
    assert refused("train", "--devices", "1000", "--partition", "iid", "--validation", "0.5").startswith(
        "--devices 1000: digits is enough for 676 devices (1352 training samples, two per device with --validation)"
    )


def test_synthetic_data_are_as_different_as_it_says() -> None:
    even, uneven = (make_data(Experiment(dataset="synthetic", heterogeneity=h)) for h in (0.0, 2.0))
    spread = [d.train.x.view(d.K, -1, 20).mean(dim=1).std(dim=0).mean() for d in (even, uneven)]
    assert spread[0] < 0.2 < 1 < spread[1]


def test_your_own_folder(tmp_path: Path) -> None:
    folder = npz_folder(tmp_path / "sites", 3)
    assert make_data(Experiment(dataset=str(folder))).train.sizes.tolist() == [8, 9, 10]
    with pytest.raises(InputError, match=r"devices=5: the folder .* holds data for 3 devices"):
        make_data(Experiment(dataset=str(folder), devices=5))
    with pytest.raises(InputError, match=r"^dataset='digit': no such folder, and unknown, did you mean digits"):
        make_data(Experiment(dataset="digit"))


def test_devices_are_at_most_as_many_as_the_digits_samples() -> None:
    """The limit is exactly what can be dealt."""
    for fields in ({"partition": "iid"}, {"shards": 1, "validation": 0.5}):
        most = 445 if "validation" not in fields else 676
        e = Experiment(devices=most, graph="ring", **fields)
        assert make_graph(e).number_of_nodes() == make_data(e).K == most
        with pytest.raises(InputError, match=f"^devices={most + 1}: digits is enough for {most} devices"):
            make_graph(e.replace(devices=most + 1))


@pytest.mark.parametrize("dataset", ["fashion-mnist", "cifar10"])
def test_a_data_set_is_looked_for_in_the_folder_that_is_named(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(InputError, match=f"in {re.escape(str(tmp_path))}.*drdsgd data get {dataset}"):
        make_data(Experiment(dataset=dataset, data_dir=str(tmp_path)))


# ---------------------------------------------------------------------- models

DEVICES = data.synthetic(3)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("spelling", "numbers"),
    [
        ("logistic", 20 * 10 + 10),
        ("mlp", 20 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10),
        ("mlp:7", 20 * 7 + 7 + 7 * 10 + 10),
        ("mlp:7,5", 20 * 7 + 7 + 7 * 5 + 5 + 5 * 10 + 10),
    ],
)
def test_models_by_name(spelling: str, numbers: int) -> None:
    assert parameters(make_model(Experiment(model=spelling), DEVICES)) == numbers


def test_a_cnn_for_images() -> None:
    model = make_model(Experiment(model="cnn"), make_data(Experiment()))
    assert any(isinstance(layer, nn.Conv2d) for layer in model.modules())


def test_the_seed_alone_says_where_a_model_starts() -> None:
    def start(seed: int) -> torch.Tensor:
        torch.rand(seed)  # whatever was drawn before
        return nn.utils.parameters_to_vector(make_model(Experiment(seed=seed), DEVICES).parameters())

    state = torch.get_rng_state()
    make_model(Experiment(), DEVICES)
    assert torch.equal(torch.get_rng_state(), state)  # and what is drawn afterwards is not touched
    assert torch.equal(start(5), start(5)) and not torch.equal(start(5), start(6))


def test_dtype() -> None:
    assert next(make_model(Experiment(dtype="float64"), DEVICES).parameters()).dtype == torch.float64


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def good(shape, classes): return nn.Linear(shape[0], classes)\n"
        "def no_module(shape, classes): return 3\n"
        "def one_argument(shape): return nn.Linear(shape[0], 2)\n"
        "def raises(shape, classes): raise KeyError('two\\nlines')\n"
    )
    (tmp_path / "own_broken.py").write_text("1 / 0\n")


@pytest.mark.usefixtures("own_models")
def test_a_model_of_your_own() -> None:
    assert parameters(make_model(Experiment(model="own_models:good"), DEVICES)) == 210


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("own_models:good2", "AttributeError: module 'own_models' has no attribute 'good2'"),
        ("own_models:no_module", "no_module(shape, classes) gave a int, not an nn.Module"),
        ("own_models:one_argument", "TypeError: one_argument() takes 1 positional argument but 2 were given; it is ca"),
        ("own_models:raises", "KeyError: "),
        ("own_nowhere:net", "No module named 'own_nowhere'; the folder that holds it must be the cur"),
        ("own_broken:net", "ZeroDivisionError: division by zero"),
        (":net", "ValueError: "),
        ("mlp:a,b", "write the hidden layers as mlp:64,32"),
        ("mlp:", None),
        ("mpl", "unknown, did you mean mlp?; your own is package.module:factory"),
        ("mlp:0", "the hidden layers of an mlp must have at least 1 neuron"),
        ("cnn", "a cnn needs images"),
    ],
)
def test_a_model_that_cant_be_made_is_told_in_one_line(spelling: str, says: str | None) -> None:
    if says is None:  # as mlp
        assert parameters(make_model(Experiment(model=spelling), DEVICES)) > 1000
        return
    with pytest.raises(InputError) as caught:
        make_model(Experiment(model=spelling), DEVICES)
    assert says in str(caught.value)


# ------------------------------------------------------------------ algorithms


def test_algorithms_by_name() -> None:
    loss = torch.tensor([0.0, 3.0])

    def weights(**fields: Any) -> list[float]:
        algorithm = make_algorithm(Experiment(**fields))
        assert isinstance(algorithm, Algorithm)
        objective, mix = algorithm.objective, LocalEngine(metropolis(graphs.complete(2)), loss.dtype).mix(0)
        state = objective.init(LocalDevices.all_of(torch.ones(2)))
        objective.weigh(loss, state, 0)
        return objective.weigh(loss, objective.combine(state, mix), 1).tolist()

    assert weights(algorithm="dsgd") == [1, 1]
    assert weights(mu=2.0) == pytest.approx([0.5, math.exp(1.5) / 2])
    assert weights(mu=2.0, weights="without-mu") == pytest.approx([1.0, math.exp(1.5)])
    assert weights(mu=2.0, weights="normalized") == pytest.approx([2 / (1 + math.exp(1.5)), 2 / (1 + math.exp(-1.5))])
    assert weights(mu=2.0, loss_clip=1.0) == pytest.approx([0.5, math.exp(0.5) / 2])


def test_the_weights_are_the_objectives() -> None:
    assert OPTIONS["weights"].kind == get_args(get_args(Weights)[0])
    assert (Experiment().weights, Experiment(algorithm="dsgd").weights) == ("as-written", None)


def test_an_experiment_is_made_of_the_values_it_names() -> None:
    """`run` gives the same as the library's functions."""
    e = Experiment(dataset="synthetic", devices=5, graph="ring", seed=2)
    assert make_graph(e).edges == graphs.ring(5).edges
    assert torch.equal(make_data(e).train.x, data.synthetic(5, seed=2).train.x)


def test_a_weight_decay_that_leaves_nothing_is_refused() -> None:
    message(lambda: make_algorithm(Experiment(eta=0.1, weight_decay=10.0)), "weight_decay=10.0", "eta 0.1")
    assert make_algorithm(Experiment(eta=0.1, weight_decay=9.9)).name
