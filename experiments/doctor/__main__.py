"""Check whether a profile can run on this machine: `make doctor`.

The command prints one line for each thing that a run needs: whether it is well, and if not, what to
do. Only small descriptions are downloaded. The exit code is 0 only when nothing keeps the profile
from running.
"""

import sys
from collections.abc import Sequence

from analysis.cli import check_profile, profile_parser
from experiments.doctor.checks import CHECKS, PROBLEM, Patient
from experiments.grid import parts_of
from resispec.errors import fail, in_one_line


@in_one_line("stopped; nothing was changed")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints the lines of every check."""
    options = profile_parser("experiments.doctor", __doc__.splitlines()[0]).parse_args(arguments)
    profile, results = options.profile, options.results
    check_profile(profile)
    parts = parts_of(["experiment=glob(*)", f"profile={profile}", f"results={results}"])
    patient = Patient(results, [cell for part in parts for cell in part.cells])
    problems = list[str]()
    for line in (line for look in CHECKS for line in look(patient)):
        if line.state == PROBLEM:
            problems.append(line.name)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    if problems:
        names = ", ".join(dict.fromkeys(problems))
        return fail(f"profile {profile} cannot run as it is; {len(problems)} problems: {names}")
    sys.stdout.write(f"profile {profile} can run: make reproduce PROFILE={profile}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
