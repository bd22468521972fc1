"""The league: every method on the same devices, tuned alike, and how far each is from what is possible."""

from drdsgd.league.plan import groups
from drdsgd.league.results import write

__all__ = ["groups", "write"]
