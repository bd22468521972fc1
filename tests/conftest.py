"""What all tests share: one core (the suite runs in several processes), and a quick hypothesis."""

from __future__ import annotations

import os

# before torch is imported, and for the processes that tests start: two processes of two threads each would fight
os.environ["OMP_NUM_THREADS"] = "1"
# likewise the cores that the program takes where nobody says how many: a comparison would start another process, which
# is busy with loading torch for longer than these small runs take
if hasattr(os, "sched_getaffinity"):
    os.sched_getaffinity = lambda process: {0}

import torch
from hypothesis import HealthCheck, settings

from drdsgd.cli import progress

torch.set_num_threads(1)
# tests say what stands on the standard error: no line of progress just because the machine is busy
progress.FIRST_AFTER = 30.0
settings.register_profile("drdsgd", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("drdsgd")
