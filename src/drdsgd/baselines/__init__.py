"""Learning with a server: the methods that the paper compares itself with, one file each.

In a round the server sends a model theta to some devices. These take tau steps of SGD from it on their own batches, and
the server computes the next theta from their models. Here theta_i is device i's model after its steps, f_i its loss at
theta (on its first batch), and p_i = n_i / n (or 1 / K). Sums are over the devices that take part. On the right are the
numbers sent per device, down and up.

    fedavg       theta <- sum p_i theta_i / sum p_i                                              d down, d up
    afl          theta <- sum lambda_i theta_i,  lambda <- P(lambda + eta' f)                    d, d + 1
    drfa         theta <- mean theta_i over i drawn by lambda,  lambda <- P(lambda + tau eta' (K/m) f(snapshot))
                                               d + 1, 2 d (d if tau = 1); and d, 1 for the devices that report f
    q_fedavg     theta <- theta - sum a_i (theta - theta_i) / sum a_i (1 + q |theta - theta_i|^2 / (eta f_i)),
                 a_i = p_i f_i^q                                                                 d, d + 1
    fed_term     theta <- sum a_i theta_i / sum a_i,  a_i = p_i exp(t f_i)                       d, d + 1
    fedrobust    like fedavg; each device shifts its inputs, x -> Lambda_i x + delta_i, to raise its loss       d, d
    ditto        like fedavg, with personal models  v_i <- v_i - eta (g_i(v_i) + pull (v_i - theta))    d, d
    rfa          theta <- the geometric median of theta_i, by R more averages                    d + R d, d + R (d + 1)

`server` holds what they share.
"""

import warnings
from typing import Any

from drdsgd.baselines.afl import afl
from drdsgd.baselines.ditto import ditto
from drdsgd.baselines.drfa import drfa
from drdsgd.baselines.fed_term import fed_term
from drdsgd.baselines.fedavg import fedavg
from drdsgd.baselines.fedrobust import fedrobust
from drdsgd.baselines.q_fedavg import q_fedavg
from drdsgd.baselines.rfa import rfa
from drdsgd.baselines.server import SERVERS, Clients, ServerAlgorithm, make_server_round

__all__ = [
    "SERVERS", "Clients", "ServerAlgorithm", "afl", "ditto", "drfa", "fed_term", "fedavg", "fedrobust",
    "make_server_round", "q_fedavg", "rfa",
]  # fmt: skip

_OLD = {"fed_avg": "fedavg", "fed_robust": "fedrobust", "q_fed_avg": "q_fedavg"}


def __getattr__(name: str) -> Any:
    if name not in _OLD:
        raise AttributeError(f"module 'drdsgd.baselines' has no attribute '{name}'")
    warnings.warn(
        f"servers.{name} is now servers.{_OLD[name]}; the old name will be removed in the next release",
        DeprecationWarning,
        stacklevel=2,
    )
    return globals()[_OLD[name]]
