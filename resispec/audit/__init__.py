"""The referee: is a verifier exact, and how far is it from the best that an exact one can reach?

enumerate, battery: the emitted law at a small vocabulary, summed over all drafts.
estimate, control_variates: the emitted law at any vocabulary, by sampling with reduced noise.
simulate, simulation_cases, chi_square: what `verify` draws, counted against the right laws.
z_score: statistics of the tokens of real decoding.
ceiling, path_bound: limits that no exact verifier exceeds, at a node and on a tree.
paper_kl: the paper's own check, and why it cannot fail.
row_checks: a rule whose results are checked. as_sibling_rule: a tree verifier as a rule.
verdict: the rules for measuring again, and the judgement of all evidence.
"""
