"""Engines: which devices live in this process, and how models travel between devices.

`local` hosts all devices in one process. `distributed` spreads them over the ranks of torchrun. The third engine, for
real devices, is `drdsgd.network.engine`. All implement the protocols in `core.engine`.
"""

__all__ = ["ENVIRONMENT"]

# the environment variables that torchrun and similar launchers set for every rank
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
