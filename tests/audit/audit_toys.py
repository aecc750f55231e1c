"""The audit command on material that is known exactly, and rules of one's own in a file."""

import torch

from experiments import audit
from experiments.auditing import audits, evidence
from experiments.auditing.material import Material, Nodes
from resispec.audit.battery import pair_of_laws
from resispec.decode import Sampling
from tests.toys import table_pair

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64, max_length=256, ignore_eos=True)


def toy_material(num_prompts=18, num_tuples=600):
    """A bigram pair of 12 tokens, and laws as small in place of recorded ones and V = 32,000."""
    generator = torch.Generator().manual_seed(0)
    nodes = {
        kind: Nodes([pair_of_laws("random", 12, generator)], [3], num_tuples)
        for kind in ("V = 32,000", "8 siblings", "recorded")
    }
    prompts = [[0, 1, index % 12] for index in range(num_prompts)]
    walked_laws = {
        "T = 1": tuple(torch.stack(laws) for laws in zip(*nodes["recorded"].laws, strict=True))
    }
    return Material(table_pair(vocab=12, gap=1.5), SAMPLING, prompts, nodes, walked_laws)


def audited(candidate, draws, material):
    """An audit in this process."""
    parts = [evidence.measure(part, candidate, draws, material) for part in evidence.PARTS]
    return evidence.judged(candidate, draws, parts)


def use(monkeypatch, material, draws_of):
    """Let the command audit on this material, in this process, each candidate with these draws."""

    def audit_all(chosen, *_):
        return [audited(one, kind, material) for one in chosen for kind in draws_of(one)]

    monkeypatch.setattr(audits, "audit_all", audit_all)
    monkeypatch.setattr(audit, "documents_of", lambda _: [])
    monkeypatch.setattr(evidence, "NUM_TURNS", 5)  # simulation has tests of its own


def run_command(capsys, *arguments):
    return audit.main(arguments), capsys.readouterr()
