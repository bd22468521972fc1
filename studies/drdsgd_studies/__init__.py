"""Studies made with drdsgd: the paper reproduced, its theory measured, and a league of methods.

The library never imports this package. `reproduce` is the command `drdsgd reproduce`.
"""

__all__: list[str] = []
