"""Commands that are gone: for one release, each says in one line what to use instead."""

STUDY = "commit cb8ac4b3 has it, and docs/studies/README.md says where its answer is"
INSTEAD = {
    "analysis.submissions": "`make report` writes what to send, see the issue form `A result`",
    "docs/studies/compiled_forwards.py": STUDY,
    "docs/studies/draft_vocabulary.py": STUDY,
    "docs/studies/few_rows.py": STUDY,
    "docs/studies/second_run.py": "`python -m analysis.second_run` takes its place",
    "docs/studies/transcripts_power.py": "`python -m referee.transcripts_power` takes its place",
    "experiments.bench.costs": "searches for trees time forwards, and tree=fastest races its "
    "leaders, by themselves",
    "experiments.bench.gpu_check": "`make test-gpu` runs the tests that need a CUDA device and "
    "times a step",
    "experiments.inflate": "`python -m recipes.inflate` does the same",
    "experiments.train_eagle": "`python -m recipes.train_eagle` does the same",
    "resispec.smollm2": "`python -m recipes smollm2` does the same",
}
"""Module, or file of a study -> what took its place."""


def line_of(command: str) -> str:
    """The line for a command of INSTEAD."""
    return f"{command} is gone; {INSTEAD[command]}"
