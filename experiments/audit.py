"""Audit whether verifiers are exact: `resispec audit [VERIFIER] [KEY=VALUE ...]`; see `--help`.

For every registered verifier (or the one that is given) and each kind of draws that it is defined
for, the command prints the worst error of the enumerated law, the estimated total variation at V =
32,000 and on laws recorded from a pair, z-scores of real decoding, the acceptance beside the
ceiling of exact rules, and the verdict that follows from these numbers. The pair and the data sets
are the profile's. An audit of all verifiers at the profile's own settings is written to
results/PROFILE/audit.{csv,md}; another one is printed alone. The exit code is 1 unless the verdict
about every baseline is that no bias was seen. A verifier that was chosen gets a summary in two
lines, and the exit code 3 if it is biased with some draws, else 4 if it is inconsistent or
undecided with some.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from experiments.cell import Cell, prompts_of
from experiments.cli import Point, axis_of, of_profile, run_single
from experiments.composition import composed_by_hydra
from experiments.devices import check_devices
from experiments.overrides import unread
from experiments.schema import check_values, leaves, unlabelled
from resispec.data import Prompt
from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from experiments.auditing.evidence import JudgedVerifier


# Keys that a command line may have beside the profile's own settings: where and on what the audit
# is made.
FREE = ("profile", "results", "device", "devices", "num_threads")
MOST_REASONS = (
    4  # the most reasons for a verdict that are printed; the CSV of an audit of all has each
)


def run_audit(point: Point) -> int:
    """Audit, print, and write results/PROFILE/audit.{csv,md} when every verifier was audited.

    They are written at the profile's own settings alone; of others a line says that nothing is
    written. Returns the exit code, see the module. Raises InvalidInput, after all of that, when the
    finding about a baseline is not NO_BIAS_SEEN.
    """
    for key in unread(point.overrides):
        sys.stderr.write(f"note: {key}=... changes nothing: nothing refers to {key}\n")
    choices, configs = point.choices, settings(point.overrides)
    others = _not_of_the_profile(configs, point.overrides)
    # What follows imports torch, which takes seconds; wrong input was refused before.
    from analysis.table import write
    from analysis.terminal import printed
    from experiments.auditing.audits import audit_all
    from experiments.auditing.evidence import candidates
    from experiments.auditing.table import table_of
    from resispec.audit.verdict import Finding
    from resispec.verifiers import BASELINES

    config = configs[0]
    check_devices(config)
    audits = audit_all(candidates(config, choices.get("verifier")), config, documents_of(configs))
    table = table_of(audits, config, choices["pair"])
    lines = [line for audit in audits for line in reasons_of(audit)]
    sys.stdout.write("\n".join([printed(table), *lines, ""]))
    if config["verifier"]:
        sys.stdout.write("\n".join([*summary(audits), ""]))
    elif others:
        reason = (
            f"they have the settings of profile {config['profile']}; here others: "
            f"{', '.join(others)}"
        )
        sys.stdout.write(f"audit.csv and audit.md are not written: {reason}\n")
    else:
        write(table, Path(config["results"]) / config["profile"], ("csv", "md"))
    failures = [
        f"{audit.name} with {audit.draws} draws is {audit.judgement.finding}"
        for audit in audits
        if audit.name in BASELINES and audit.judgement.finding is not Finding.NO_BIAS_SEEN
    ]
    if failures:
        raise InvalidInput(f"a baseline failed its audit: {'; '.join(failures)}")
    if not config["verifier"]:
        return 0
    findings = {audit.judgement.finding for audit in audits}
    if Finding.BIASED in findings:
        return 3
    return 0 if findings == {Finding.NO_BIAS_SEEN} else 4


def reasons_of(audit: "JudgedVerifier") -> list[str]:
    """Lines for a terminal: the finding with its first reason, then a line for each other one."""
    first, *others = audit.judgement.reasons
    lines = [f"{audit.name}, {audit.draws}: {audit.judgement.finding}: {first}"]
    lines += [f"  {reason}" for reason in others[: MOST_REASONS - 1]]
    left = len(others) - (MOST_REASONS - 1)
    return [*lines, f"  and {left} more"] if left > 0 else lines


def summary(audits: "Sequence[JudgedVerifier]") -> list[str]:
    """Two lines about one verifier: the draws without a bias, and those with one.

    Lines about other findings, if any, come before them. A bias is told with its worst statistic.
    """
    from resispec.audit.verdict import Finding, worst_statistic

    named: dict[Finding, list[str]] = {finding: [] for finding in Finding}
    for audit in audits:
        finding, evidence = audit.judgement.finding, audit.evidence
        worst = f" ({worst_statistic(evidence)})" if finding is Finding.BIASED else ""
        named[finding].append(f"{audit.draws}{worst}")
    always = [Finding.NO_BIAS_SEEN, Finding.BIASED]
    others = [finding for finding in Finding if finding not in always and named[finding]]
    return [
        f"{finding} with draws: {', '.join(named[finding]) or 'none'}"
        for finding in [*others, *always]
    ]


def settings(words: Sequence[str]) -> list[dict[str, Any]]:
    """The resolved configurations of a command line, for its data set or each of the profile's."""
    chosen, choices = composed_by_hydra("audit", words)
    dataset = choices.get("dataset")
    overrides = [word for word in words if not word.startswith("dataset=")]
    configs = []
    for name in [dataset] if dataset else axis_of(chosen, "datasets"):
        composed, _ = composed_by_hydra("audit", [*overrides, f"dataset={name}"])
        unlabelled(composed)
        config: Any = OmegaConf.to_container(composed, resolve=True)
        check_values(config)
        if not config["temperature"]:
            reason = (
                "greedy tokens are no samples, and those of decoder=autoregressive whatever "
                "the verifier"
            )
            raise InvalidInput(f"temperature is 0; allowed in an audit: above 0, since {reason}")
        configs.append(config)
    return configs


def _not_of_the_profile(configs: Sequence[Mapping[str, Any]], words: Sequence[str]) -> list[str]:
    """Keys whose values in these configurations are not those that the profile gives an audit."""
    free = [word for word in words if word.partition("=")[0].lstrip("+") in FREE]
    own = settings([*free, *of_profile(free, "audit", ["pair"])])
    if len(own) != len(configs):
        return ["dataset"]
    differing = set()
    for config, expected in zip(configs, own, strict=True):
        values, wanted = (leaves(Cell({}, dict(one)).determining) for one in (config, expected))
        differing |= {key for key in values | wanted if values.get(key) != wanted.get(key)}
    return sorted(differing - {*FREE})


def documents_of(configs: Sequence[Mapping[str, Any]]) -> list[Prompt]:
    """The documents on which verifiers decode, those of all configurations."""
    documents: list[Prompt] = []
    for config in configs:
        documents += prompts_of(config)
    return documents


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return run_single(run_audit, "audit", ["pair"], arguments)


if __name__ == "__main__":
    sys.exit(main())
