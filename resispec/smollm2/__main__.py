"""Make SmolLM2 and its drafters: `python -m resispec.smollm2 [NAME...]`,
all of them without a name.

Names are target, questions, answers, distilled and eagle3, each after those that it is made of.
What the cache has is not made again; what was stopped goes on with the same command.
"""

import argparse
import sys
from collections.abc import Sequence

from resispec.errors import GOES_ON, in_one_line
from resispec.files import read_sealed
from resispec.kept import MANIFEST
from resispec.smollm2.questions import QUESTIONS_RECIPE
from resispec.smollm2.recipe import ANSWERS, DRAFTERS, TARGET

RECIPES = {"target": TARGET, "questions": QUESTIONS_RECIPE, "answers": ANSWERS, **DRAFTERS}


@in_one_line(GOES_ON)
def main(arguments: Sequence[str] | None = None) -> None:
    """The command: a line for everything that was asked for,
    with its folder and what its making gave.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *RECIPES], help=", ".join(RECIPES)
    )
    names = parser.parse_args(arguments).names or list(RECIPES)
    for name in names:
        folder = RECIPES[name].folder()
        facts = read_sealed(folder / MANIFEST)
        pairs = ", ".join(
            f"{key} {value}" for key, value in facts.items() if key not in ("key", "files")
        )
        sys.stdout.write(f"{name}: {folder} ({pairs})\n")


if __name__ == "__main__":
    sys.exit(main())
