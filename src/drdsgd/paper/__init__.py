"""The paper, reproduced: every experiment of it, and what came of every claim.

    plan      which experiments there are           fig1 ... fig5, table1, theory   the paper's, with their claims
    store     finished runs as small records        fair                            what the paper leaves out
    claims    verdicts by rule                      job                             does what is not done yet
    draw      figures                               pages                           tables, Markdown, HTML
"""
