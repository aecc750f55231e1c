"""Make what comes with the package, or SmolLM2 with its drafters: `python -m recipes FAMILY`.

FAMILY is embedded or smollm2. Names of parts may follow, each after those that it is made of;
without a name all are made, in the cache. What the cache has is not made again; what was stopped
goes on with the same command. `embedded --publish` then writes all parts into the package, and
`smollm2 NAME --publish` makes what comes with the repository and writes it there.
Drafters and pairs for models of one's own: `python -m recipes.train_eagle --help` and
`python -m recipes.inflate --help`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

from recipes.embedded import publish
from recipes.embedded.recipe import PARTS
from recipes.smollm2.questions import QUESTIONS_RECIPE
from recipes.smollm2.recipe import ANSWERS, ANSWERS_6144, DRAFTERS, PUBLISHED, TARGET
from resispec.errors import GOES_ON, CommandParser, InvalidInput, in_one_line
from resispec.files import read_sealed
from resispec.kept import MANIFEST, Kept, entry

SMOLLM2: Mapping[str, Kept] = {
    "target": TARGET,
    "questions": QUESTIONS_RECIPE,
    "answers": ANSWERS,
    ANSWERS_6144.name: ANSWERS_6144,
    **DRAFTERS,
}
FAMILIES: Mapping[str, Mapping[str, Kept]] = {"embedded": PARTS, "smollm2": SMOLLM2}


@in_one_line(GOES_ON)
def main(arguments: Sequence[str] | None = None) -> None:
    """The command: a line for every part, with its folder and what its making gave."""
    parser = CommandParser(
        prog="python -m recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("family", choices=[*FAMILIES])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="; ".join(map(", ".join, FAMILIES.values()))
    )
    parser.add_argument("--publish", action="store_true", help="write what comes with us")
    options = parser.parse_args(arguments)
    recipes = FAMILIES[options.family]
    kind = f"part of {options.family}"
    chosen = {name: entry(kind, name, recipes) for name in options.names or recipes}
    if options.publish and options.family != "embedded":
        _publish_parts(options.names)
    elif options.publish and options.names:
        raise InvalidInput("--publish is for all of embedded: python -m recipes embedded --publish")
    for name, recipe in chosen.items():
        folder = recipe.folder()
        facts = read_sealed(folder / MANIFEST)
        told = ", ".join(f"{key} {value}" for key, value in facts.items() if key not in HIDDEN)
        sys.stdout.write(f"{name}: {folder} ({told})\n")
        if options.publish and options.family == "embedded":
            publish.write(name, recipe)


def _publish_parts(names: Sequence[str]) -> None:
    """Make parts of SmolLM2 that come with the repository, and replace them there.

    Raises InvalidInput unless all names are of such parts.
    """
    allowed = (ANSWERS_6144.name, *PUBLISHED)
    if not names or set(names) - set(allowed):
        found = ", ".join(names) or "no name"
        raise InvalidInput(f"smollm2 --publish has {found}; allowed: {', '.join(allowed)}")
    from recipes.smollm2 import answers, rows  # imports torch

    for name in names:
        if name in PUBLISHED:
            rows.publish(name)
        else:
            answers.publish_answers(ANSWERS_6144)


HIDDEN = ("key", "files", "sha256")
"""Facts of a manifest that no line tells."""

if __name__ == "__main__":
    sys.exit(main())
