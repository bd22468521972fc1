"""Engines: which devices live in this process, and how models cross between devices.

`local` hosts all devices in one process. `distributed` shares them between the ranks of torchrun. The third engine, for
real devices, is `drdsgd.network.engine`. `core.engine` has the protocols that all of them implement.
"""

__all__ = ["ENVIRONMENT"]

# what torchrun, and launchers like it, put into the environment of every rank
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
