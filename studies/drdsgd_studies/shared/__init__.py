"""What studies share: settings, records of finished runs, verdicts, and pages."""

__all__: list[str] = []
