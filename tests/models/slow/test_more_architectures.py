"""Every kind of model that we know to differ: its own logits, in both precisions, and in trees."""

import pytest
import torch
from toy_architectures import KINDS, PLAIN, SCALED, check_logits, check_trees


@pytest.mark.parametrize("name", SCALED | PLAIN)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_the_logits_are_the_model_s_own(name, dtype, rounding):
    check_logits(name, dtype, rounding)


@pytest.mark.parametrize("name", KINDS)
def test_a_tree_is_many_sequences_and_a_cached_step_a_fresh_one(name):
    check_trees(name)
