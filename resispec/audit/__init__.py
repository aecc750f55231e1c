"""The referee: is a verifier exact, how far is it from the best that any exact one can reach?

enumerate, battery: the emitted law at a small vocabulary, summed over all drafts.
estimate: the emitted law at any vocabulary, by sampling.
z_score: statistics of the tokens of real decoding.
ceiling, path_bound: what no exact verifier exceeds.
paper_kl: the paper's own check, and why it cannot fail.
checked: a rule whose inputs and outputs are checked. first_token: a tree verifier as a rule.
verdict: what all of it says.
"""
