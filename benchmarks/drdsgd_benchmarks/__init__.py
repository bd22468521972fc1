"""How fast drdsgd is. `speed` is behind `drdsgd bench`; the other modules are programs of their own."""

__all__: list[str] = []
