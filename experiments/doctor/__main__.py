"""Can a profile run on this machine, and how long will it take? `make doctor`, in under 30 seconds.

    python -m experiments.doctor --profile paper [--results FOLDER]

One line for each thing that a run needs: is it well, and what to do where it is not. Nothing is downloaded
but small descriptions. The exit code is 0 only when nothing keeps the profile from running.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.cells import Cell
from experiments.commands import check_profile, fail, in_one_line, profile_parser
from experiments.configuration.messages import hydra_here
from experiments.configuration.single import axes_of
from experiments.doctor import checks, device, hours, machine
from experiments.doctor.finding import Finding, ok, problems
from experiments.doctor.needs import data_of, pairs_of, repositories_of
from experiments.doctor.repositories import look_at
from experiments.doctor.work import skipped, work_of
from experiments.plan import cells_of


def findings(profile: str, results: Path) -> Iterator[Finding]:
    """Everything that is looked at, in the order of print, each as soon as it is known."""
    yield machine.versions()
    yield machine.compiler()
    yield machine.dashboards()
    pairs, data = _axes(profile, results)
    needs, sets = pairs_of(pairs), data_of(data)
    with ThreadPoolExecutor(2) as beside:  # both mostly wait, while what will run is counted here
        asked_device = beside.submit(device.ask, pairs[0].config["device"])
        asked_hub = beside.submit(look_at, repositories_of(needs, sets))
        work = work_of(profile, results)
        own, found = asked_device.result(), asked_hub.result()
    yield device.finding(own, pairs[0].config["dtype"])
    yield checks.hub(found)
    lost = []
    for repository in found.values():
        if repository.wanted.kind == "model":
            yield checks.model(repository)
    for need in needs:
        yield (fits := checks.pair(need, found, own))
        if problems([fits]) or not all(found[one].is_usable for one in need.models):
            lost.append(("pair", need.name))
    for one in sets:
        yield (readable := checks.data(one, found))
        lost += [("dataset", one.name)] * len(problems([readable]))
    yield from checks.space(sets, found, results)
    yield ok("runs", str(work))
    yield from skipped(work, lost)
    yield hours.finding(work, own, profile, results)


def _axes(profile: str, results: Path) -> tuple[list[Cell], list[Cell]]:
    """A cell for each pair and one for each data set that the profile's sweeps go over.

    d5b3 is as large as any tree that is searched for.
    """
    axes, fixed = axes_of(profile), [f"profile={profile}", f"results={results}"]

    def options(end: str) -> str:
        return ",".join(dict.fromkeys(one for axis, own in axes.items() if axis.endswith(end) for one in own))

    with hydra_here():
        return cells_of([*fixed, f"pair={options('pairs')}"]), cells_of(
            [*fixed, f"dataset={options('datasets')}"]
        )


def check(profile: str, results: Path) -> int:
    """Print every finding; returns the exit code. Raises InvalidInput for an unknown profile."""
    check_profile(profile)
    found = []
    for one in findings(profile, results):
        found.append(one)
        sys.stdout.write(f"{one}\n")
        sys.stdout.flush()
    wrong = problems(found)
    if not wrong:
        sys.stdout.write(f"profile {profile} can run: make reproduce PROFILE={profile}\n")
        return 0
    names = ", ".join(dict.fromkeys(one.name for one in wrong))
    return fail(f"profile {profile} cannot run as it is; {len(wrong)} problems: {names}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    chosen = profile_parser("experiments.doctor", __doc__.splitlines()[0]).parse_args(arguments)
    return in_one_line(lambda: check(chosen.profile, chosen.results), "stopped; nothing was changed")


if __name__ == "__main__":
    sys.exit(main())
