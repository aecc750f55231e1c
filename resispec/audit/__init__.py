"""The referee: is a verifier exact, how far is it from the best that any exact one can reach, and how would one know?

enumerate, battery: the emitted law at a small vocabulary, summed over all drafts. estimate: by sampling, at any vocabulary.
z_score: from the tokens of real decoding. ceiling, path_bound: what no exact verifier exceeds. paper_kl: the paper's own check,
and why it cannot fail. checked: a rule whose inputs and outputs are checked. first_token: a tree verifier as a rule. verdict:
what all of it says.
"""
