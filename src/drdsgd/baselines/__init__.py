"""Learning with a server: the systems that the paper sets itself against, each by its own rule.

In a round the server hands a model theta to some devices, these take tau steps of SGD from it on their own batches,
and the server makes the next theta of what comes back. With theta_i device i's model after its steps, f_i its loss at
theta (on its first batch), p_i = n_i / n (or 1 / K), and sums over the devices that take part:

    fed_avg      theta <- sum p_i theta_i / sum p_i                                              d down, d up
    afl          theta <- sum lambda_i theta_i,  lambda <- P(lambda + eta' f)                    d, d + 1
    drfa         theta <- mean theta_i over i drawn by lambda,  lambda <- P(lambda + tau eta' (K/m) f(snapshot))
                                               d + 1, 2 d (d where tau = 1); and d, 1 with those that are asked
    q_fed_avg    theta <- theta - sum a_i (theta - theta_i) / sum a_i (1 + q |theta - theta_i|^2 / (eta f_i)),
                 a_i = p_i f_i^q                                                                 d, d + 1
    fed_term     theta <- sum a_i theta_i / sum a_i,  a_i = p_i exp(t f_i)                       d, d + 1
    fed_robust   as fed_avg, while each device bends its inputs, x -> Lambda_i x + delta_i, to raise its loss    d, d
    ditto        as fed_avg, and personal models  v_i <- v_i - eta (g_i(v_i) + lam (v_i - theta))       d, d
    rfa          theta <- the geometric median of theta_i, by R more averages                    d + R d, d + R (d + 1)

What they share is in `server`.
"""

from drdsgd.baselines.afl import afl
from drdsgd.baselines.ditto import ditto
from drdsgd.baselines.drfa import drfa
from drdsgd.baselines.fed_avg import fed_avg
from drdsgd.baselines.fed_robust import fed_robust
from drdsgd.baselines.fed_term import fed_term
from drdsgd.baselines.q_fed_avg import q_fed_avg
from drdsgd.baselines.rfa import rfa
from drdsgd.baselines.server import Clients, ServerAlgorithm, make_server_round

__all__ = [
    "Clients",
    "ServerAlgorithm",
    "afl",
    "ditto",
    "drfa",
    "fed_avg",
    "fed_robust",
    "fed_term",
    "make_server_round",
    "q_fed_avg",
    "rfa",
]
