"""Is a verifier exact? `python -m experiments.audit [KEY=VALUE ...]`; see `--help`.

For every registered verifier (or `verifier=NAME`) and each kind of draws that it is defined for: the worst
error of its enumerated law, its estimated total variation at V = 32,000 and on laws recorded from a pair, two
z-scores of real decoding, its acceptance against the ceiling of exact rules, and the verdict that follows
from these numbers. The pair and the data sets are the profile's. The exit code is not 0 when a baseline is
not found exact.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.configuration.messages import explained
from experiments.configuration.schema import check_values
from experiments.configuration.single import axes_of, run_single
from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from experiments.auditing.evidence import Candidate


def run_audit(_config: DictConfig) -> None:
    """Audit, print, and write results/PROFILE/audit.{csv,md} when every verifier was audited.

    Raises InvalidInput, after all of that, when a baseline is not found exact.
    """
    choices = HydraConfig.get().runtime.choices
    configs = settings(HydraConfig.get().overrides.task, choices)
    # What follows imports torch, which takes seconds; wrong input was refused before.
    from analysis.report import markdown, write
    from experiments.auditing.processes import audit_all
    from experiments.auditing.table import table_of
    from resispec.audit.verdict import Finding
    from resispec.verifiers import BASELINES

    config = configs[0]
    audits = audit_all(candidates(config, choices.get("verifier")), config, texts_of(configs))
    table = table_of(audits, config, choices["pair"])
    sys.stdout.write(markdown(table) + "\n")
    for found in audits:
        reasons = "; ".join(found.judgement.reasons)
        sys.stdout.write(f"{found.name}, {found.draws}: {found.judgement.finding}: {reasons}\n")
    if not config["verifier"]:
        write(table, Path(config["results"]) / config["profile"], ("csv", "md"))
    failed = [
        f"{found.name} with {found.draws} draws is {found.judgement.finding}"
        for found in audits
        if found.name in BASELINES and found.judgement.finding is not Finding.EXACT
    ]
    if failed:
        raise InvalidInput(f"not every baseline was found exact: {'; '.join(failed)}")


def settings(overrides: Sequence[str], choices: Mapping[str, str]) -> list[dict[str, Any]]:
    """The resolved configurations, one for each data set: the chosen one, or all of the profile's."""
    chosen = choices.get("dataset")
    names = [chosen] if chosen else axes_of(choices["profile"])["datasets"]
    kept = [override for override in overrides if not override.startswith("dataset=")]
    found = []
    for name in names:
        with explained():
            config: Any = OmegaConf.to_container(compose("audit", [*kept, f"dataset={name}"]), resolve=True)
        if not config["pair"]:
            raise InvalidInput("pair must be given, like pair=embedded")
        check_values(config)
        found.append(config)
    return found


def candidates(config: Mapping[str, Any], choice: str | None) -> list[Candidate]:
    """The verifier that was chosen, or every registered one."""
    from experiments.auditing.evidence import Candidate
    from resispec.verifiers import available

    if choice:
        return [Candidate(config["verifier"].get("name", choice), config["verifier"])]
    target = "resispec.verifiers.get_verifier"
    return [Candidate(name, {"_target_": target, "name": name}) for name in available()]


def texts_of(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The documents on which verifiers decode; the embedded pair is trained first if it is absent."""
    from experiments.configuration.build import build

    found = []
    for config in configs:
        first = config["first_prompt"]
        prompts = build(config["dataset"]).prompts(first + config["num_prompts"])[first:]
        found += [prompt.text for prompt in prompts]
    return found


if __name__ == "__main__":
    sys.exit(run_single(run_audit, "audit", {"pair": "pairs"}))
