"""Other tools' sides of `drdsgd_benchmarks.flute`: programs for their own environments, without this package."""

__all__: list[str] = []
