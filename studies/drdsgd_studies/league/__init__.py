"""The league: every method on the same devices, tuned alike, and how far each is from what is possible."""

from drdsgd_studies.league.plan import groups
from drdsgd_studies.league.results import write

__all__ = ["groups", "write"]
