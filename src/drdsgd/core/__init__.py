"""The algorithm: one round, and the values that it is made of.

Start with `round`. `objectives` turn losses into weights, `optimizers` turn weighted gradients into models, and
`engine` and `method` have the protocols that engines and algorithms implement.
"""

__all__: list[str] = []
