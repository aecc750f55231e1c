"""Audits of many verifiers, by processes that share the parts of their evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import torch

from experiments.auditing.evidence import PARTS, Candidate, JudgedVerifier, Part, judged, measure
from experiments.auditing.material import Material, gather
from experiments.devices import gpus_of
from experiments.processes import results
from resispec.audit.verdict import Evidence
from resispec.data import Prompt
from resispec.progress import progress_bar
from resispec.verifiers import DrawsKind


def audit_all(
    chosen: Sequence[Candidate], config: Mapping[str, Any], documents: Sequence[Prompt]
) -> list[JudgedVerifier]:
    """Audit every verifier with all its kinds of draws, in processes of their own.

    On a CPU there are two processes, else one on each GPU. A process takes a part of a row's
    evidence at a time, so that one row is shared, too.

    Raises InvalidInput, naming the verifier, for one that breaks the contract or ends its process.
    Whatever is raised here, an interrupt included, ends these processes at once.
    """
    gpus = gpus_of(config) if config["device"] != "cpu" else [None, None]
    with progress_bar(desc="draws", unit="verifier", total=len(chosen), leave=False) as bar:
        names = [_name(candidate) for candidate in chosen]
        asked = [(candidate,) for candidate in chosen]
        kinds = results(methodcaller("supported"), asked, names, bar, gpus)
    rows = [
        (candidate, draws)
        for candidate, group in zip(chosen, kinds, strict=True)
        for draws in group
    ]
    work = [(*row, part) for row in rows for part in PARTS]
    with progress_bar(desc="audit", unit="part", total=len(work)) as bar:
        names = [_name(candidate) for candidate, *_ in work]
        found = results(_Measured(config, documents), work, names, bar, gpus)
    parts = zip(*[iter(found)] * len(PARTS), strict=True)
    return [judged(*row, evidence) for row, evidence in zip(rows, parts, strict=True)]


def _name(candidate: Candidate) -> str:
    return f"verifier {candidate.name!r}"


@dataclass
class _Measured:
    """Parts of evidence, with the material of an audit, which a process gathers once."""

    config: Mapping[str, Any]
    documents: Sequence[Prompt]

    @cached_property
    def material(self) -> Material:
        """The material; its models are loaded when it is first asked for."""
        return gather(self.config, self.documents)

    def __call__(self, candidate: Candidate, draws: DrawsKind, part: Part) -> Evidence:
        torch.set_num_threads(1)
        with torch.inference_mode():
            return measure(part, candidate, draws, self.material)
