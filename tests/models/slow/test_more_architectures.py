"""Every kind of model that we know to differ: its own logits, in both precisions, and in trees.

Some are in test_architectures.py in float32.
"""

import pytest
import torch
from toy_architectures import KINDS, PLAIN, SCALED, SOME, check_logits, check_trees


@pytest.mark.parametrize("name", [name for name in SCALED | PLAIN if name not in SOME])
def test_the_logits_are_the_model_s_own(name):
    check_logits(name, torch.float32, 1e-5)


@pytest.mark.parametrize("name", SCALED | PLAIN)
def test_the_logits_are_the_model_s_own_in_bfloat16(name):
    check_logits(name, torch.bfloat16, 0.03)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in SOME])
def test_a_tree_is_many_sequences_and_a_cached_step_a_fresh_one(name):
    check_trees(name)
