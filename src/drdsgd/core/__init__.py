"""The algorithm: one round, and the values that it is made of.

`round` is the place to begin. `objectives` turn losses into weights, `optimizers` turn weighted gradients into models,
`engine` has the protocols that engines implement.
"""

__all__: list[str] = []
