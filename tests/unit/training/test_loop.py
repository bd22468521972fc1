"""Training composes the values, evaluates at the right rounds, and notices divergence."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import drdsgd
from drdsgd import data, models
from drdsgd.baselines import ServerAlgorithm, fedavg
from drdsgd.core import gradients, objectives, optimizers
from drdsgd.core.algorithms import Algorithm
from drdsgd.core.engine import Mix, Ranks
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import loss_name
from drdsgd.core.method import Method, Play, Site
from drdsgd.core.objectives import ad_gda, kl_dro
from drdsgd.core.optimizers import GossipOptimizer, OptimizerState
from drdsgd.core.parallel import Each
from drdsgd.core.round import Info, State
from drdsgd.errors import Diverged, InputError
from drdsgd.experiments import registry
from drdsgd.options import all_cores
from drdsgd.topology import graphs
from drdsgd.topology.mixing import Mixing, metropolis
from drdsgd.training import evaluation
from drdsgd.training.metrics import Metric, Metrics
from drdsgd.training.preparation import Settings
from tests.laws.objectives import BASE
from tests.laws.optimizers import OPTIMIZERS, changing, directed

K = 5
DEVICES = data.synthetic(K, features=6, classes=3, samples=20, test_samples=9)


def options(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    defaults = {
        "model": models.logistic((6,), 3),
        "devices": DEVICES,
        "graph": graphs.ring(K),
        "algorithm": drdsgd.dr_dsgd(eta=0.2, mu=3.0),
        "rounds": 7,
        "batch_size": 4,
        "eval_every": 3,
    }
    return {**defaults, **changes}


def test_what_is_no_algorithm_and_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match=r"^algorithm='dr-dsg': unknown, did you mean dr-dsgd\?"):
        drdsgd.train(**options(algorithm="dr-dsg"))
    for value in (Algorithm, drdsgd.dsgd, 3):
        with pytest.raises(InputError, match=r"^algorithm is .*: give a value such as drdsgd\.dr_dsgd\(mu=1\.0\), or"):
            drdsgd.train(**options(algorithm=value))
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'epochs'"):
        drdsgd.train(**options(epochs=3))


def test_all_options_are_in_the_signatures_with_the_same_defaults() -> None:
    shown, more = (inspect.signature(function).parameters for function in (drdsgd.train, drdsgd.trajectory))
    assert shown["rounds"].default == 300 and repr(shown["batch_size"].default) == "sqrt(K T)"
    keywords = {name: one.default for name, one in shown.items() if one.kind is one.KEYWORD_ONLY}
    assert keywords == {field.name: field.default for field in dataclasses.fields(Settings)}
    assert [*more] == [*[*shown][:4], "start", "ranks", "agree_every", "options"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        drdsgd.trajectory(**options(epochs=3))


def test_threads_have_the_default_that_the_signature_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as torch uses, which a Python program may have set; on the command line all cores."""
    assert repr(inspect.signature(drdsgd.train).parameters["threads"].default) == "torch.get_num_threads()"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert Settings().completed(K, "mlp").threads == 3 and Settings(threads=2).completed(K, "mlp").threads == 2
    assert registry.TRAINING["threads"] is all_cores


class Alone:
    """Every device trains alone, without gossip and without a server: a `Method` that is none of the package's."""

    name, eta, has_server, cures, keeps, resolve = "each alone", "0.5", False, "try to talk", "", None

    def over(self, mixing: Mixing) -> Mixing:
        return mixing

    def check(self, mixing: Mixing, processes: int = 1) -> None:
        assert processes == 1

    def start(self, site: Site) -> Play:
        def round(state: State) -> tuple[State, Info]:
            loss, backward = site.forward(state.theta, *site.batches(state.t, slice(None)))
            backward(torch.full_like(loss, -0.5), state.theta)
            return state._replace(t=state.t + 1), Info(loss, torch.ones_like(loss), 0)

        return Play(lambda theta: State(0, theta, {}, {}), round, lambda state, loss: torch.ones_like(loss))

    def consensus(self, state: State, ranks: Ranks, each: Each = map) -> Tensor:
        return state.theta[2]


def test_a_method_of_your_own_needs_only_the_protocol() -> None:
    alone: Method = Alone()
    result = drdsgd.train(**options(algorithm=alone, rounds=30))
    first, last = result.metrics[0].local, result.final.local
    assert first is not None and last is not None and last.average > first.average
    assert result.final.floats_sent == 0
    assert torch.equal(Flat(result.model).row(), result.theta[2])
    assert result.training.algorithm == "each alone" and result.training.eta == "0.5" and result.training.mixing
    with pytest.raises(Diverged, match=r"each alone\); try to talk"):
        drdsgd.train(**options(algorithm=alone, loss=lambda outputs, y: outputs.square().mean() * 1e30))


def test_it_learns() -> None:
    result = drdsgd.train(**options(rounds=150, eval_every=50, algorithm=drdsgd.dsgd(0.5)))
    first, last = result.metrics[0], result.final
    assert last.consensus.average > first.consensus.average + 20
    assert last.train_loss < first.train_loss
    # the returned model is the consensus model
    x = DEVICES.test.x * DEVICES.scale + DEVICES.shift
    right = 100 * (result.model(x).argmax(dim=1) == DEVICES.test.y).double().mean()
    assert float(right) == pytest.approx(last.consensus.average)  # all devices have equally many test samples


def test_metrics_at_the_start_every_so_often_and_at_the_end() -> None:
    seen = list(drdsgd.trajectory(**options()))
    assert [p.state.t for p in seen] == list(range(8))
    assert [p.metrics.round for p in seen if p.metrics] == [0, 3, 6, 7]
    assert seen[0].metrics is not None and seen[0].metrics.consensus_distance < 1e-12  # all start at one point
    links = 2 * K
    assert [p.floats_sent for p in seen] == [t * links * 21 for t in range(8)]
    assert all(before.seconds < after.seconds for before, after in itertools.pairwise(seen))


@pytest.mark.parametrize(
    "algorithm",
    [drdsgd.dsgd(eta=0.2), drdsgd.dr_dsgd(eta=0.2, mu=3.0), drdsgd.dr_dsgd(eta=0.2, mu=0.5, weights="normalized")]
    + [Algorithm(row.objective, optimizers.dsgd(0.2), name) for name, row in BASE.items()]
    + [
        Algorithm(kl_dro(0.5, weights="normalized"), row.make(0.2), name, weight_decay=0.01)
        for name, row in OPTIMIZERS.items()
        if row.any_graph
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_a_run_can_go_on_from_anywhere(algorithm: Algorithm) -> None:
    # the next round works in the state's tensors, so what is kept must be a copy
    whole = [copy.deepcopy(p) for p in drdsgd.trajectory(**options(algorithm=algorithm))]
    for t in (0, 2, 3):
        rest = list(drdsgd.trajectory(**options(algorithm=algorithm, start=whole[t])))
        assert [p.state.t for p in rest] == list(range(t + 1, 8))
        assert torch.equal(rest[-1].state.theta, whole[-1].state.theta)
        assert rest[-1].floats_sent == whole[-1].floats_sent


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.any_graph])
def test_models_stay_where_they_are(name: str) -> None:
    """In aligned rows, as in a resumed run: otherwise products round differently, and the runs differ."""
    torch.manual_seed(0)
    change = {
        "model": models.mlp((37,), 3, [50, 31]),
        "devices": data.synthetic(K, features=37, classes=3, samples=40, test_samples=9),
        "algorithm": Algorithm(kl_dro(2.0), OPTIMIZERS[name].make(0.05)),
        "batch_size": 16,
        "threads": 1,
    }
    whole = [copy.deepcopy(p) for p in drdsgd.trajectory(**options(**change))]
    assert len({p.state.theta.stride() for p in whole}) == 1 and not whole[0].state.theta.is_contiguous()
    rest = list(drdsgd.trajectory(**options(**change, start=whole[3])))
    assert torch.equal(rest[-1].state.theta, whole[-1].state.theta)


def test_train_loss_is_this_rounds_batch() -> None:
    from drdsgd.data.batches import Batches

    model = models.logistic((6,), 3)
    first = next(iter(drdsgd.trajectory(**options(model=model, seed=4))))
    x, y = Batches(DEVICES, 4, seed=4)(0)
    expected = [
        float(nn.functional.cross_entropy(model(one), labels).detach()) for one, labels in zip(x, y, strict=True)
    ]
    assert first.metrics is not None and first.metrics.losses == pytest.approx(expected, rel=1e-6)
    assert first.metrics.train_loss == pytest.approx(sum(expected) / len(expected), rel=1e-6)


def test_the_loop_gives_the_same_metrics() -> None:
    runs = [drdsgd.train(**options(execution=execution)) for execution in ("batched", "loop")]
    assert torch.allclose(runs[0].theta, runs[1].theta, atol=1e-6)
    assert runs[0].final.consensus == runs[1].final.consensus


@pytest.mark.parametrize("execution", ["batched", "loop"])
def test_threads_do_not_change_the_numbers(execution: str) -> None:
    """Also if every thread runs the module itself, with parameters put into it."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    runs = [drdsgd.train(**options(model=model, threads=threads, execution=execution)) for threads in (1, 2, 3)]
    for run in runs[1:]:
        assert torch.allclose(run.theta, runs[0].theta, atol=1e-6)
        assert run.final.consensus == runs[0].final.consensus and run.final.local == runs[0].final.local


def test_reference_weights() -> None:
    """With "samples", a device with three times as many counts three times; with "uniform", all count equally."""
    x, y = torch.ones(8, 6), torch.zeros(8, dtype=torch.int64)
    uneven = data.from_pairs([(x[:2], y[:2]), (x[2:], y[2:])], [(x[:1], y[:1])] * 2, classes=3)
    for reference, share in (("samples", [0.5, 1.5]), ("uniform", [1.0, 1.0])):
        start = next(iter(drdsgd.trajectory(**options(devices=uneven, graph=graphs.ring(2), reference=reference))))
        assert start.state.objective["share"].tolist() == share


def test_a_reference_is_a_word_or_the_mean_number_of_samples() -> None:
    numpys: Any = np.float32(2)
    assert Settings(reference=2.5).reference == 2.5
    assert Settings(reference=numpys).reference == 2
    for value in (-2.0, 0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"^reference=.*: the mean number of samples per device must be above 0"):
            drdsgd.train(**options(reference=value))
    for other in ("sample", True, None):
        with pytest.raises(InputError, match=r"^reference.*: input should be 'samples' or 'uniform'"):
            drdsgd.train(**options(reference=other))


def test_a_mixing_of_your_own() -> None:
    plain = drdsgd.train(**options())
    assert torch.equal(drdsgd.train(**options(graph=metropolis(graphs.ring(K)))).theta, plain.theta)


def test_normalized_weights_do_not_diverge_where_those_as_written_do() -> None:
    """A rising loss no longer raises its own step: with mu = 0.001 a run continues and learns."""
    normalized = drdsgd.dr_dsgd(eta=0.2, mu=0.001, weights="normalized")
    result = drdsgd.train(**options(algorithm=normalized, rounds=100, eval_every=10))
    assert result.final.train_loss < result.metrics[0].train_loss
    assert all(math.isfinite(weight) for metrics in result.metrics for weight in metrics.weights)


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        (
            drdsgd.dr_dsgd(eta=0.2, mu=0.001),
            r"round 1: the weight of device 0 .*mu = 0.001.*smaller eta.*loss_clip or weights=.norm",
        ),
        (drdsgd.dsgd(eta=lambda t: 1e38), r"round \d: the (loss|model) of device \d .*smaller eta"),
        (
            Algorithm(ad_gda(), optimizers.dsgd(lambda t: 1e38)),
            r"round \d: the (loss|model) of device \d .*smaller eta",
        ),
    ],
)
def test_divergence_is_noticed(algorithm: Algorithm, says: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Diverged, match=says) as caught:
        drdsgd.train(**options(algorithm=algorithm, model=models.mlp((6,), 3, [8])))
    assert "\n" not in str(caught.value)
    assert 0 <= caught.value.round <= 7 and 0 <= caught.value.device < K


def test_a_loss_that_is_not_finite_at_the_start_is_noticed() -> None:
    model = models.logistic((6,), 3)
    nn.init.constant_(next(model.parameters()), math.inf)
    with pytest.raises(InputError, match="initial model's loss on device 0 is not finite"):
        drdsgd.train(**options(model=model))


@pytest.mark.parametrize(
    ("algorithm", "cures"),
    [
        (
            drdsgd.dr_dsgd(lambda t: 1e30, mu=2.0),
            "try a smaller eta, or for DR-DSGD a larger mu, loss_clip or weights='normali",
        ),
        (
            drdsgd.dr_dsgd(lambda t: 1e30, mu=2.0, weights="normalized"),
            "try a smaller eta, or weight_cap=2, or a lower cap",
        ),
        (fedavg(lambda t: 1e30), "try a smaller eta"),
    ],
)
def test_the_cures_of_divergence_are_none_that_a_run_has(algorithm: Algorithm | ServerAlgorithm, cures: str) -> None:
    with pytest.raises(Diverged, match=re.escape(f"; {cures}")) as error:
        drdsgd.train(models.mlp((20,), 10, [8]), data.synthetic(4), graphs.ring(4), algorithm, rounds=30)
    assert ("weights=" in str(error.value)) == ("weights=" in cures)
    assert ("weight_cap" in str(error.value)) == ("weight_cap" in cures)


def test_a_parameter_that_is_not_finite_at_the_end_is_noticed() -> None:
    def combine(theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        return (theta * math.inf if mix.t == 6 else theta), state

    optimizer = GossipOptimizer(lambda theta: {}, lambda theta, gradient, state, t: None, combine)
    last_step_overflows = Algorithm(drdsgd.erm(), optimizer)  # no later loss shows it
    with pytest.raises(Diverged, match="round 7: the model of device 0"):
        drdsgd.train(**options(algorithm=last_step_overflows))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 0}, "rounds=0: input should be greater than or equal to 1"),
        ({"batch_size": -1}, "batch_size=-1: input should be greater than or equal to 1"),
        ({"eval_every": 2.5}, "eval_every=2.5: input should be a valid integer"),
        ({"threads": 0}, "threads=0: input should be greater than or equal to 1"),
        ({"graph": graphs.ring(4)}, "graph has 4 nodes but there are data for 5"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, "GroupNorm"),
        (
            {
                "graph": graphs.ring(4),
                "devices": data.synthetic(4),
                "algorithm": Algorithm(kl_dro(2.0), optimizers.d2(0.1)),
            },
            "d2 needs a W whose smallest eigenvalue is above -1/3",
        ),
        (
            {"graph": changing(K), "algorithm": Algorithm(kl_dro(2.0), optimizers.exact_diffusion(0.1))},
            "exact-diffusion needs the same W in every round",
        ),
        ({"graph": directed(K)}, "not doubly stochastic.*optimizer='push'"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        drdsgd.train(**options(**change))


# ------------------------------------------------------------------------------------------ your own task


class Words(nn.Module):
    """Takes integers; vmap is slow with `bag`."""

    def __init__(self, bag: bool = False) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(9, 4) if bag else nn.Embedding(9, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.words(x)
        scores: Tensor = self.out(vectors if vectors.dim() == 2 else vectors.mean(dim=1))
        return scores


def numbers(shape: tuple[int, ...] = (1,)) -> list[tuple[Tensor, Tensor]]:
    """A linear task with floats to predict."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(K, 30, 6, generator=generator)
    return [(one, one[:, : math.prod(shape)].sum(dim=1).view(-1, *[1] * len(shape)).expand(-1, *shape)) for one in x]


def halved(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().mean() / 2


@pytest.mark.parametrize("loss", [None, nn.HuberLoss(), halved])
def test_numbers_are_predicted_in_every_way_alike(loss: Any) -> None:
    own: dict[str, Any] = {
        "devices": numbers(),
        "model": nn.Linear(6, 1),
        "loss": loss,
        "rounds": 60,
        "algorithm": drdsgd.dsgd(0.1),
    }
    ways: list[dict[str, Any]] = [
        {"threads": 1},
        {"threads": 3},
        {"execution": "loop", "threads": 1},
        {"execution": "loop", "threads": 3},
    ]
    runs = [drdsgd.train(**options(**own, **way)) for way in ways]
    for run in runs:
        assert torch.allclose(run.theta, runs[0].theta, atol=1e-5)
        assert run.final.consensus.per_device == pytest.approx(runs[0].final.consensus.per_device, abs=1e-5)
    first, last = runs[0].metrics[0].consensus, runs[0].final.consensus
    assert last.average < first.average / 5 and last.worst == max(last.per_device) and runs[0].final.per_class == []
    x, y = numbers()[2]
    assert float((runs[0].model(x[4::5]) - y[4::5]).detach().abs().mean()) == pytest.approx(
        last.per_device[2], rel=1e-5
    )
    assert runs[0].training.loss == ("mse loss" if loss is None else loss_name(loss))


def test_a_loss_that_vmap_can_not_take_goes_device_by_device() -> None:
    def branching(outputs: Tensor, y: Tensor) -> Tensor:
        return halved(outputs, y) if float(outputs.detach().sum()) > -1e9 else outputs.sum()

    own = {"devices": numbers((2, 3)), "model": nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))}
    a, b = (drdsgd.train(**options(**own, loss=loss)) for loss in (halved, branching))
    assert torch.allclose(a.theta, b.theta, atol=1e-6)


@pytest.mark.parametrize("bag", [False, True])
def test_words_stay_whole_numbers(bag: bool) -> None:
    x, y = torch.arange(160).view(K, 8, 4) % 9, torch.arange(40).view(K, 8) % 3
    devices = list(zip(x, y, strict=True))
    model = Words(bag)
    runs = [drdsgd.train(**options(model=model, devices=devices, execution=way)) for way in ("auto", "loop")]
    assert torch.allclose(runs[0].theta, runs[1].theta, atol=1e-6)
    assert not torch.equal(runs[0].model.state_dict()["words.weight"], model.state_dict()["words.weight"])
    # a model that takes no integers gets them as floats
    floats = [(one.float(), labels) for one, labels in devices]
    linear = nn.Linear(4, 3)
    a, b = (
        drdsgd.train(**options(model=linear, devices=some, algorithm=drdsgd.dsgd(0.01))) for some in (devices, floats)
    )
    assert torch.equal(a.theta, b.theta)


def test_a_word_that_fills_up_is_not_trained() -> None:
    x, y = torch.arange(160).view(K, 8, 4) % 9, torch.arange(40).view(K, 8) % 3
    model = Words()
    model.words = nn.Embedding(9, 4, padding_idx=0)
    result = drdsgd.train(**options(model=model, devices=list(zip(x, y, strict=True))))
    assert not result.model.state_dict()["words.weight"][0].any()


def test_devices_may_be_plain_pairs() -> None:
    pairs = [(DEVICES.train.x.view(K, 20, 6)[i], DEVICES.train.y.view(K, 20)[i]) for i in range(K)]
    tests = [(DEVICES.test.x.view(K, 9, 6)[i], DEVICES.test.y.view(K, 9)[i]) for i in range(K)]
    plain, own = (
        drdsgd.train(**options(devices=devices)) for devices in (DEVICES, list(zip(pairs, tests, strict=True)))
    )
    assert torch.equal(plain.theta, own.theta) and plain.final.consensus == own.final.consensus


class Asked:
    """Counts the samples that local models and their mean answer, evaluation by evaluation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples = 0

        def predict(flat: Flat, theta: torch.Tensor, x: torch.Tensor, *more: Any) -> torch.Tensor:
            self.samples += x.shape[0] * x.shape[1]
            return gradients.predict(flat, theta, x, *more)

        monkeypatch.setattr(evaluation, "predict", predict)


def test_local_models_are_evaluated_every_nth_time_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, always = Asked(monkeypatch), drdsgd.train(**options(rounds=14))
    both = asked.samples
    seldom = drdsgd.train(**options(rounds=14, local_every=2))
    assert [m.round for m in seldom.metrics if m.local is not None] == [0, 6, 12, 14]
    assert [m.round for m in seldom.metrics] == [m.round for m in always.metrics] == [0, 3, 6, 9, 12, 14]
    for a, b in zip(seldom.metrics, always.metrics, strict=True):
        assert dataclasses.replace(a, local=b.local, seconds=b.seconds) == b
        assert a.local in (None, b.local) and b.local is not None
        assert a.to_json()["local"] == (None if a.local is None else b.to_json()["local"])
        assert Metrics.from_json(a.to_json()) == a
    # two passes over all samples, but one in the first evaluation, where all models are equal, and where local is None
    N = len(DEVICES.test.y)
    assert both == (1 + 5 * 2) * N and asked.samples - both == (1 + 1 + 2 + 1 + 2 + 2) * N


def test_at_first_local_models_are_the_common_one() -> None:
    first = drdsgd.train(**options(rounds=1, local_every=5)).metrics[0]
    assert first.local == first.consensus


def test_models_that_are_not_equal_at_first_are_all_evaluated() -> None:
    class Apart(Alone):
        def start(self, site: Site) -> Play:
            play = super().start(site)
            return play._replace(begin=lambda theta: play.begin((1 - torch.arange(K))[:, None] * theta))

    first = drdsgd.train(**options(algorithm=Apart(), rounds=1)).metrics[0]
    assert first.local is not None and first.local.per_device[2] == first.consensus.per_device[2]
    assert first.local != first.consensus


def test_by_default_models_with_convolutions_evaluate_local_models_less_often() -> None:
    x, y = torch.randn(12, 1, 8, 8), torch.arange(12) % 3
    image = [(x, y)] * 3
    for model, kept in ((models.cnn((1, 8, 8), 3), [0, 5, 6]), (models.mlp((1, 8, 8), 3), [0, 1, 2, 3, 4, 5, 6])):
        own: dict[str, Any] = {"model": model, "devices": image, "graph": graphs.ring(3)}
        result = drdsgd.train(**options(**own, rounds=6, eval_every=1))
        assert [m.round for m in result.metrics if m.local is not None] == kept


def test_local_models_are_the_devices() -> None:
    result = drdsgd.train(**options())
    x = DEVICES.test.x.view(K, 9, 6)[3]
    right = (result.local_model(3)(x).argmax(dim=1) == DEVICES.test.y.view(K, 9)[3]).double()
    local = result.final.local
    assert local is not None and 100 * float(right.mean()) == pytest.approx(local.per_device[3])
    assert not result.model.training
    with pytest.raises(InputError, match="device is 5: give a number from 0 to 4"):
        result.local_model(5)


def words(last: int, test: bool = False) -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """Texts of the words 0 to 8; the last word of the last device, in its training or test samples, is `last`."""
    x, y = torch.arange(1600).view(2, K, 40, 4) % 9, torch.arange(40) % 3
    x[int(test), -1, -1, -1] = last
    return [((train, y), (tested, y)) for train, tested in zip(*x, strict=True)]


def positive() -> list[tuple[Tensor, Tensor]]:
    """Positive numbers to predict, except in one test sample of the last device."""
    devices = [(x, y.abs() + 1) for x, y in numbers()]
    devices[-1][1][4] = -1
    return devices


# nan for a negative number
LOGARITHM = Metric("log", lambda outputs, y: (outputs.exp().log() - y.log()).abs()[:, 0], higher_is_better=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"devices": numbers()[:4], "model": nn.Linear(6, 1)}, "graph has 5 nodes but there are data for 4"),
        ({"devices": numbers(()), "model": nn.Linear(6, 1)}, r"outputs \[8, 1\] with targets \[8\].*y\[:, None\]"),
        ({"devices": numbers(()), "model": nn.Linear(6, 3)}, "class numbers as integers"),
        ({"loss": lambda outputs, y: outputs.sum(dim=1) - y}, r"must give one number.*a tensor \[8\]"),
        ({"loss": lambda outputs, y: 1.0}, "must give one number.*a float"),
        ({"loss": lambda outputs, y: outputs @ y}, "the loss <lambda> does not take"),
        ({"metric": drdsgd.metrics.absolute_error()}, "one shape"),
        ({"model": nn.Linear(6, 1), "loss": lambda o, y: o.mean()}, r"scores \[8, 3\]"),
        (
            {"model": Words(), "devices": words(9)},
            "Words does not take all numbers of the data, which are 0 to 9: index",
        ),
        ({"model": Words(), "devices": words(-1)}, "does not take all numbers of the data, which are -1 to 8: "),
        ({"model": Words(), "devices": words(9, test=True)}, "0 to 9: .*; give its embedding more rows"),
        ({"model": Words(), "devices": words(0), "algorithm": drdsgd.servers.fedrobust(0.1)}, "takes integers"),
        ({"model": Words()}, "Words does not take the data"),
        (
            {"devices": positive(), "model": nn.Linear(6, 1), "metric": LOGARITHM},
            "the metric log of device 4 is not finite after round 0, though .*: give a metric that is",
        ),
    ],
)
def test_a_task_that_does_not_fit_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        drdsgd.train(**options(**change))
    assert "\n" not in str(caught.value)


def test_a_metric_of_a_run_that_diverges_is_not_blamed() -> None:
    """The loss is bounded, so only the model's outputs show that it has overflowed."""
    own: dict[str, Any] = {"devices": numbers(), "model": nn.Sequential(nn.Linear(6, 1), Exponential())}
    bounded: dict[str, Any] = {"loss": lambda outputs, y: outputs.clamp(max=1e3).log().mean().neg(), "eval_every": 1}
    with pytest.raises(Diverged, match=r"diverged in round .*: the output of device 0 is not finite"):
        drdsgd.train(**options(**own, **bounded, rounds=3, algorithm=drdsgd.dsgd(1e3)))


class Exponential(nn.Module):
    """Overflows soon."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def test_a_run_of_another_version_is_not_continued() -> None:
    """Its state has other names, so it can't continue exactly."""
    *_, last = drdsgd.trajectory(**options(rounds=2))
    other = drdsgd.Algorithm(objectives.kl_dro(2.0, weights="normalized"), optimizers.momentum(0.1))
    with pytest.raises(InputError, match="the run to continue has share as its objective's state, which is now"):
        drdsgd.trajectory(**options(algorithm=other, start=last))
