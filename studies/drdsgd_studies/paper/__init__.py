"""The paper reproduced: all its experiments, and a verdict on every claim.

`fig1` to `fig5` and `table1` have the experiments and the claims. In print, fig1 to fig5 are the Figures 2 to 6. `fair`
adds the comparisons that the paper leaves out, `draw` and `results` write the results.
"""

__all__: list[str] = []
