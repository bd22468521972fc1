"""The paper, reproduced: every experiment of it, and what came of every claim.

Which experiments there are is in `plan`, `fig1` to `fig5` and `table1`, each with its claims; `fair` has what the paper
leaves out, `theory` its lemmas and rates. `claims` are the rules of verdicts, `store` keeps finished runs, `job` does
what is not done yet, `draw`, `results`, `reports` and `pages` say what came out, `spoilt` what is wrong with a file,
and `reproduce` is the command.
"""

__all__: list[str] = []
