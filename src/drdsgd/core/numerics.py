"""The numerics of every part of a run: a number to raise when a change alters the part's results.

A record of a run names the numerics of the parts that it used. It counts as a result of today's code only if these are
today's numerics; the package's version does not matter. `tests/laws/golden.json` holds a tiny run of every part, and a
test fails if its numbers change while the numerics stay the same.
"""

from __future__ import annotations

__all__ = ["NUMERICS"]

# Parts whose results have changed, with the number of the newest; all others have number 1. To change the results of a
# part on purpose: write or raise its number here, then run `python -m tests.laws.golden`. The parts are
#   training                     what all runs share: graphs, data, batches, schedules, initial model, round, evaluation
#   objective NAME, optimizer NAME, baseline NAME, compressor NAME
#   loss-clip, loss-smoothing, weight-cap
#   kernel mlp|batched|loop      forward and backward passes: by hand, by torch.func.vmap, one device after the other
#   kernel mixing                the product W theta
NUMERICS: dict[str, int] = {}
