"""The referee: is a verifier exact, how far is it from the best that any exact one can reach?

enumerate, battery: the emitted law at a small vocabulary, summed over all drafts.
shown_bias: a bias that three tokens show, for whoever samples without an audit.
estimate, controls: the emitted law at any vocabulary, by sampling, and what makes it less noisy.
simulate, scenes, chi_square: what `verify` draws, counted against the laws that it should have.
z_score: statistics of the tokens of real decoding.
ceiling, path_bound: what no exact verifier exceeds.
paper_kl: the paper's own check, and why it cannot fail.
checked: a rule whose inputs and outputs are checked. first_token: a tree verifier as a rule.
settled, verdict: what is measured again, and what all of it says.
transcripts: an engine judged by the token ids that it wrote.
"""
