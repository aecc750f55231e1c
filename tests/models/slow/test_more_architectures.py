"""Every kind of model that we know to differ: its own logits, in chains and trees, and in bfloat16.

Some are in test_architectures.py in float32.
"""

import pytest
import torch

from resispec.models import TransformersModel, features_of
from tests.models.toy_architectures import (
    KINDS,
    PLAIN,
    PROMPT,
    SCALED,
    SOME,
    check_trees,
    distance,
    made,
    own_logits,
)


@pytest.mark.parametrize("name", SCALED | PLAIN)
def test_the_logits_are_the_model_s_own_in_bfloat16(name):
    """The head is the model's own, also where its last layer is not all of it."""
    module = made(name).to(torch.bfloat16)
    model = TransformersModel(module)
    logits, expected = model.head(features_of(model, PROMPT)), own_logits(module, PROMPT)
    assert logits.dtype == expected.dtype and distance(logits, expected) < 0.03


@pytest.mark.parametrize("name", [name for name in KINDS if name not in SOME])
def test_a_tree_is_many_sequences_and_a_cached_step_a_fresh_one(name):
    check_trees(made(name))
