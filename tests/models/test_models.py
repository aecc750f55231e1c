"""The cache of tiny Llamas, and pairs of them from folders."""

import pytest
import torch
from toy_architectures import PROMPT, TOPOLOGY, own_logits
from toys import save_tiny_pair, tiny_llama

from resispec.errors import InvalidInput
from resispec.models import DTYPES, TransformersModel, features_of, load_pair


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
    model = TransformersModel(tiny_llama().module.to("cuda", DTYPES[dtype]))
    tokens = torch.arange(10, 10 + TOPOLOGY.num_nodes)
    session = model.session(64, drafted=TOPOLOGY.num_nodes)
    session.extend(torch.tensor(PROMPT).cuda())
    features = session.forward(tokens.cuda(), TOPOLOGY.depths.cuda(), TOPOLOGY.ancestors.cuda())
    for logits, seen in zip(model.head(features).float().cpu(), TOPOLOGY.ancestors, strict=True):
        expected = own_logits(tiny_llama().module, PROMPT + tokens[seen].tolist())[-1]
        error = (logits - expected).abs().max() / expected.abs().max()
        assert error < (1e-3 if dtype == "float32" else 0.1)
