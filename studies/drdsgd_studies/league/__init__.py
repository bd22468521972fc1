"""The league: every method on the same devices, tuned alike, compared with what pooled data allow."""

from drdsgd_studies.league.plan import groups
from drdsgd_studies.league.results import write

__all__ = ["groups", "write"]
