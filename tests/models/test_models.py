"""The real model path on tiny Llamas: tree attention, the cache, and loading."""

import pytest
import torch
from toys import save_tiny_pair, tiny_llama

from resispec.errors import InvalidInput
from resispec.models import build_llama, features_of, load_pair
from resispec.trees import complete, from_child_counts

TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2}
TOPOLOGIES = {"d3b3": complete(3, 3), "uneven": from_child_counts([[3], [2, 0, 1], [1, 0, 2]])}


def forward_tree(model, session, topology, tokens):
    return model.head(session.forward(tokens, topology.depths, topology.ancestors))


def causal_logits(model, tokens):
    """The reference: transformers' own causal forward of one sequence; logits of the last position."""
    with torch.inference_mode():
        return model.module(input_ids=torch.tensor([tokens])).logits[0, -1]


def path_to(topology, node):
    return [] if node < 0 else [*path_to(topology, topology.parents[node]), node]


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("seed", range(3))
def test_one_tree_forward_equals_a_causal_forward_of_every_path(name, seed):
    model, topology = tiny_llama(seed=seed), TOPOLOGIES[name]
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(64, (13,), generator=generator).tolist()
    tokens = torch.randint(64, (topology.num_nodes,), generator=generator)
    session = model.session(64, drafted=topology.num_nodes)
    session.extend(torch.tensor(prompt))
    logits = forward_tree(model, session, topology, tokens)
    for node in range(topology.num_nodes):
        path = tokens[path_to(topology, node)].tolist()
        assert torch.allclose(logits[node], causal_logits(model, prompt + path), atol=5e-4)


@pytest.mark.parametrize("seed", range(3))
def test_decoding_goes_on_after_a_commit(seed):
    """Keep a path that is not contiguous, then compare with a forward that never saw the tree."""
    model, topology = tiny_llama(seed=seed), TOPOLOGIES["uneven"]
    prompt, tokens = [1, 2, 3, 4, 5], torch.arange(10, 10 + topology.num_nodes)
    session = model.session(64, drafted=topology.num_nodes)
    session.extend(torch.tensor(prompt))
    forward_tree(model, session, topology, tokens)
    path = path_to(topology, topology.num_nodes - 1)
    assert path != list(range(len(path)))
    session.keep(torch.tensor(path))
    logits = model.head(session.extend(torch.tensor([7, 8])))
    assert torch.allclose(
        logits[-1], causal_logits(model, [*prompt, *tokens[path].tolist(), 7, 8]), atol=5e-4
    )


def test_a_full_cache_says_so():
    session = tiny_llama().session(4, drafted=2)
    with pytest.raises(IndexError, match="index 6 is out of bounds"):
        session.extend(torch.arange(5))
    drafted = torch.arange(3)
    with pytest.raises(IndexError, match="holds 2 rows of a step; 3"):
        session.forward(drafted, drafted, torch.ones(3, 3, dtype=torch.bool).tril())


def test_a_pair_loads_from_folders(tmp_path):
    save_tiny_pair(tmp_path)
    for dtype, expected in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"), dtype=dtype)
        assert pair.target.module.dtype == expected and pair.target.context == 256
        tokens = pair.tokenizer.encode("abc def")
        assert pair.tokenizer.decode(tokens) == "abc def"
        logits = pair.target.head(features_of(pair.target, tokens))
        assert logits.shape == (len(tokens), 64)
    assert load_pair(str(tmp_path / "target"), None).draft is None


def test_what_cannot_make_a_pair_is_refused_in_one_line(tmp_path):
    save_tiny_pair(tmp_path)
    target = str(tmp_path / "target")
    cases = [
        ({"draft": str(tmp_path / "nothing")}, "does not exist"),
        ({"draft": "owner/unreachable"}, "ways out"),
        ({"draft": None, "dtype": "int8"}, "unknown dtype 'int8'; allowed: float32, bfloat16, float16"),
        ({"draft": None, "device": "cuda:99"}, "device 'cuda:99' cannot be used; this machine has cpu"),
    ]
    for options, message in cases:
        with pytest.raises(InvalidInput, match=message) as caught:
            load_pair(target, **options)
        assert "\n" not in str(caught.value)
    (tmp_path / "target" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        load_pair(target, None)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_tree_forward_on_cuda(dtype):
    model = tiny_llama()
    from resispec.models import DTYPES, TransformersModel

    reference = tiny_llama()
    model = TransformersModel(model.module.to("cuda", DTYPES[dtype]))
    topology, prompt = TOPOLOGIES["uneven"], [1, 2, 3, 4]
    tokens = torch.arange(10, 10 + topology.num_nodes)
    session = model.session(64, drafted=topology.num_nodes)
    session.extend(torch.tensor(prompt).cuda())
    features = session.forward(tokens.cuda(), topology.depths.cuda(), topology.ancestors.cuda())
    logits = model.head(features).float().cpu()
    for node in range(topology.num_nodes):
        expected = causal_logits(reference, prompt + tokens[path_to(topology, node)].tolist())
        error = (logits[node] - expected).abs().max() / expected.abs().max()
        assert error < (1e-3 if dtype == "float32" else 0.1)


def test_build_llama_counts():
    module = build_llama(**TINY, vocab_size=10, max_position_embeddings=16, tie_word_embeddings=True)
    assert sum(parameter.numel() for parameter in module.parameters()) == 10 * 8 + 4 * 64 + 3 * 64 + 3 * 8
