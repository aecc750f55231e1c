"""Commands that are gone: for one release, each says in one line what took its place."""

import sys

from resispec.errors import fail

GONE = {
    "analysis.submissions": "`make report` writes what to send, see the issue form `A result`",
    "experiments.bench.costs": (
        "searches for trees time forwards, and tree=fastest races its leaders, by themselves"
    ),
    "experiments.bench.gpu_check": (
        "`make test-gpu` runs the tests that need a CUDA device and times a step"
    ),
    "experiments.inflate": "`python -m recipes.inflate` does the same",
    "experiments.publish": (
        "a sweep sends its cells itself, and again with wandb.mode=offline or online: `resispec "
        "run experiment=table1 wandb.mode=offline`"
    ),
    "experiments.train_eagle": "`python -m recipes.train_eagle` does the same",
    "resispec.smollm2": "`python -m recipes smollm2` does the same",
}
"""Module -> what to use in its place."""


def refuse_gone() -> None:
    """End the process if `python -m` looks for a module that is gone.

    `resispec`, which every command imports, calls this.
    """
    if sys.argv[:1] != ["-m"]:  # this first word stands until the module is found
        return
    for word in sys.orig_argv:
        if (name := word.removeprefix("-m")) in GONE:
            sys.exit(fail(f"{name} is gone; {GONE[name]}"))
