"""What generation_config.json says: which tokens end a sequence counts, how to sample does not."""

import json
from dataclasses import replace

import pytest
import torch
from toy_layouts import write_layout

from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.generation import Speculator
from resispec.models import load_pair
from resispec.trees import complete
from resispec.verifiers import get_verifier

PROMPT = [1, 5, 9, 3]
NUM_SEEDS = 16


def pair_with(folder, config, generation):
    """A toy of a chat model with these files, as target and as its own draft."""
    write_layout("google/gemma-3-1b-it", folder)
    plain = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(plain | config))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    pair = load_pair(str(folder), None)
    return replace(pair, draft=pair.target)


def both(pair, seed, sampling):
    """The continuations by the harness and by `resispec.generate`."""
    decoder = Decoder(DraftModel(complete(3, 2)), get_verifier("standard"))
    speculator = Speculator(pair.target, pair.draft, "d3b2", "standard", tokenizer=pair.tokenizer)
    given = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens, "seed": seed}
    generator = torch.Generator().manual_seed(seed)
    return decoder.generate(pair, PROMPT, sampling, generator), speculator.generate(PROMPT, **given)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 4}, {"eos_token_id": [7, 9]}, {7, 9}),
        ({"eos_token_id": [4, 9, 11]}, {"do_sample": True}, {4, 9, 11}),
        ({"eos_token_id": 4}, None, {4}),
        ({"eos_token_id": None}, {}, {2}),  # the tokenizer's
    ],
)
def test_decoding_ends_at_every_token_that_the_files_name(tmp_path, config, generation, expected):
    pair = pair_with(tmp_path / "model", config, generation)
    assert pair.end_token_ids == expected
    last = set()
    for seed in range(NUM_SEEDS):
        for found in both(pair, seed, Sampling(500.0, 60, 100)):
            assert found.stop_reason in ("eos", "max_new_tokens")
            assert expected.isdisjoint(found.tokens[:-1])
            assert (found.stop_reason == "eos") == (found.tokens[-1] in expected)
            last.add(found.tokens[-1])
    assert last >= expected
