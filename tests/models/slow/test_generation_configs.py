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
NUM_SEEDS = 12
LLAMA_2_CHAT = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096, "eos_token_id": 2}


def pair_with(folder, config, generation):
    """A toy of Llama-2-chat with these files, as target and as its own draft."""
    write_layout("meta-llama/Llama-2-7b-chat-hf", folder)
    plain = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(plain | config))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    pair = load_pair(str(folder), None)
    return replace(pair, draft=pair.target)


def both(pair, sampling, **asked):
    """The continuations of every seed, by the harness and by `resispec.generate`."""
    decoder = Decoder(DraftModel(complete(3, 2)), get_verifier("standard"))
    speculator = Speculator(pair.target, pair.draft, "d3b2", "standard", tokenizer=pair.tokenizer)
    for seed in range(NUM_SEEDS):
        yield decoder.generate(pair, PROMPT, sampling, torch.Generator().manual_seed(seed))
        yield speculator.generate(PROMPT, seed=seed, max_new_tokens=sampling.max_new_tokens, **asked)


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
    for found in both(pair, Sampling(500.0, 60, 100), temperature=500.0):
        assert found.stop_reason in ("eos", "max_new_tokens")
        assert expected.isdisjoint(found.tokens[:-1])
        assert (found.stop_reason == "eos") == (found.tokens[-1] in expected)
        last.add(found.tokens[-1])
    assert last >= expected


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.0}])
def test_how_a_model_would_sample_by_itself_does_not_count(tmp_path, asked):
    """With the defaults of Llama-2-chat as without any: the same tokens, by the law at temperature 1."""
    plain, chat = (
        pair_with(tmp_path / name, {}, generation)
        for name, generation in (("plain", {"eos_token_id": 2}), ("chat", LLAMA_2_CHAT))
    )
    assert chat.target.module.generation_config.top_p == 0.9
    sampling = Sampling(1.0, 24, 100)
    found = [[one.tokens for one in both(pair, sampling, **asked)] for pair in (plain, chat)]
    assert found[0] == found[1] and len(set(found[0])) > NUM_SEEDS // 2
