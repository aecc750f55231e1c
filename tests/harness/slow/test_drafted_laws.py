"""Expected tokens and acceptance, as tasks measure them by laws, against decoding and an enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_shapes import comparing, workload
from toys import same_everywhere

from experiments.search.tree_search import means
from experiments.tasks.acceptance import Acceptance
from experiments.tasks.base import Workload
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.trees import from_widths
from resispec.verifiers import get_rule, get_verifier


@pytest.mark.parametrize(
    ("verifier", "draws"),
    [
        ("traversal_optimal", "iid"),
        ("resispec", "iid"),
        ("traversal", "without_replacement"),
        ("naive", "point_mass"),
    ],
)
def test_expected_tokens_are_what_decoding_emits(verifier, draws):
    pair, candidates = same_everywhere(), [[2, 3, 3], [2, 4, 2, 1]]
    task = comparing(candidates)
    setting = workload(pair, verifier, prompts=300, new_tokens=1, draws=draws)
    rows = [task(setting, index) for index in range(300)]
    for widths, value in zip(candidates, means(rows, "emitted"), strict=True):
        decoder = Decoder(DraftModel(from_widths(widths), draws), get_verifier(verifier))
        done = decoder.generate(pair, [0], Sampling(1.0, 2000, 4000), torch.Generator().manual_seed(1))
        emitted = torch.tensor(done.num_emitted[:-1], dtype=torch.float64)
        both = (value.error**2 + float(emitted.var()) / len(emitted)) ** 0.5
        assert abs(value.tokens - float(emitted.mean())) < 4 * both < 0.4


def test_the_measured_vector_is_the_enumerated_one():
    """Of the acceptance of each place in draw order, over every tuple that could be drawn."""
    pair, draws = same_everywhere(), Draws.WITHOUT_REPLACEMENT
    p, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    tuples = torch.tensor(list(itertools.permutations(range(len(p)), 3)))
    p, q = p.expand(len(tuples), -1), q.expand(len(tuples), -1)
    expected = draws.weights(q, tuples) @ get_rule("standard").law(p, q, tuples, draws).select
    decoder = Decoder(NoDraft(), get_verifier("standard"))
    setting = Workload(pair, decoder, Sampling(1.0, 4000, 4050), [("p0", [0, 1])], seed=0)
    row = Acceptance(3, "without_replacement")(setting, 0)
    measured = torch.tensor(row.selected, dtype=torch.float64) / row.num_prefixes
    assert row.num_prefixes == 4000
    assert (measured - expected).abs().max() < 0.02  # about 4 standard errors
