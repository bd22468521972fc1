"""The numerics of every part of a run: a number to raise when a change alters the part's results.

A record of a run names the numerics of the parts that it used. It counts as a result of today's code only if these are
today's numerics; the package's version does not matter. `tests/laws/golden.json` holds a tiny run of every part, and a
test fails if its numbers change while the numerics stay the same.
"""

from __future__ import annotations

__all__ = ["NUMERICS"]

# To change the results of a part on purpose: raise its number, then run `python -m tests.laws.golden`.
NUMERICS: dict[str, int] = {
    # what all runs share: graphs, data, batches, schedules, the initial model, the round, the evaluation
    "training": 1,
    "objective erm": 1,
    "objective kl-dro": 1,
    "objective kl-ball": 1,
    "objective chi2-dro": 1,
    "objective term": 1,
    "objective q-ffl": 1,
    "objective ad-gda": 1,
    "loss-clip": 1,
    "loss-smoothing": 1,
    "weight-cap": 1,
    "optimizer dsgd": 1,
    "optimizer momentum": 1,
    "optimizer quasi-global-momentum": 1,
    "optimizer gradient-tracking": 1,
    "optimizer gt-adam": 1,
    "optimizer d2": 1,
    "optimizer exact-diffusion": 1,
    "optimizer choco": 1,
    "optimizer push": 1,
    "compressor top": 1,
    "compressor random": 1,
    "compressor quantize": 1,
    "baseline fedavg": 1,
    "baseline afl": 1,
    "baseline drfa": 1,
    "baseline q-fedavg": 1,
    "baseline fed-term": 1,
    "baseline fedrobust": 1,
    "baseline ditto": 1,
    "baseline rfa": 1,
    # forward and backward passes: fully connected networks by hand, torch.func.vmap, one device after the other
    "kernel mlp": 1,
    "kernel batched": 1,
    "kernel loop": 1,
    "kernel mixing": 1,  # the product W theta
}
