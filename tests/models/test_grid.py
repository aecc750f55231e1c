"""Weights of eight and four bits: what they are rounded to, and that all ways give one law."""

import copy

import pytest
import torch
from torch import nn

from referee.rescoring import load_scorers
from resispec.errors import InvalidInput
from resispec.models import TransformersModel, load_eagle_pair, load_pair
from resispec.models.checkpoint import read_checkpoint
from resispec.models.grid import BITS, grid_of, precision_of, put_on_grids, rounded
from resispec.models.linear import FEW_BITS, FORCED, PLAIN, quicken
from tests.models.toy_architectures import made
from tests.toys import save_tiny_pair

pytestmark = pytest.mark.numerics


def random_weight(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("bits", "bound"), [(8, 1 / 254), (4, 1 / 30)])
def test_a_rounded_weight_is_within_half_a_step_of_the_weight(bits, bound):
    weight = random_weight(48, 96)
    groups = weight if bits == 8 else weight.unflatten(1, (-1, 32))
    span = 2 * groups.abs().amax(-1) if bits == 8 else groups.amax(-1) - groups.amin(-1)
    gap = (rounded(weight, bits).dense().float() - weight).abs().reshape(groups.shape).amax(-1)
    scale_error = 2**-7 * groups.abs().amax(-1)  # scales and results are in bfloat16
    assert (gap <= (bound / (2 if bits == 8 else 1)) * span + scale_error).all()
    assert gap.max() > 0


def test_groups_of_a_q4_1_file_are_kept():
    """Whole numbers, step and least value of each group are those of the file."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (16, 3, 32), generator=generator)
    numbers[..., 0], numbers[..., 1] = 0, 15  # as llama.cpp rounds: the least and the largest
    step, least = torch.rand(2, 16, 3, 1, generator=generator).half().float()
    grid = rounded((numbers * step - least).flatten(1), 4)
    assert torch.equal(grid.numbers.long(), numbers.flatten(1))
    kept_step, middle = grid.scales.transpose(0, 1).unbind(-1)
    assert torch.equal(kept_step, step[..., 0].bfloat16())
    assert torch.allclose(middle.float(), (8 * step - least)[..., 0], rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_whole_numbers_give_the_product_of_the_rounded_weight(name, has_bias, monkeypatch):
    layer = nn.Linear(64, 48, bias=has_bias)
    layer.weight.data = random_weight(48, 64)
    module = nn.Sequential(layer)
    module.get_output_embeddings, module.get_decoder = lambda: None, lambda: module
    put_on_grids(module, name)
    for way in (FEW_BITS, PLAIN):
        monkeypatch.setenv(FORCED, way)
        quicken(layer)
        assert layer.product.choice == (way,) * 3
        for shape in ((1, 64), (9, 64), (2, 20, 64)):
            inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
            expected = nn.functional.linear(inputs.double(), layer.weight.double())
            expected += layer.bias.double() if has_bias else 0
            with torch.inference_mode():
                found = layer(inputs).double()
            assert (found - expected).norm() <= 2**-6 * expected.norm()


@pytest.mark.parametrize("name", BITS)
def test_a_pair_of_few_bits_has_one_law_and_says_so(name, tmp_path, monkeypatch):
    monkeypatch.setenv(FORCED, FEW_BITS)
    save_tiny_pair(tmp_path)
    folders = str(tmp_path / "target"), str(tmp_path / "draft")
    pair = load_pair(*folders, dtype=f"float32/{name}")
    assert [precision_of(model.module) for model in (pair.target, pair.draft)] == ["float32", name]
    ways = pair.ways()
    assert ways["draft"]["forward"] == "lean"
    kinds = {words.split()[1]: way for words, way in ways["draft"]["linear"].items()}
    assert kinds == dict.fromkeys((name, "int8"), FEW_BITS)  # the output layer has 8 bits
    tokens = torch.arange(9)
    lean, modules = pair.draft, pair.draft.of_modules()
    laws = [model.head(model.session(9).extend(tokens)).float() for model in (lean, modules)]
    assert (laws[0] - laws[1]).norm() <= 2**-4 * laws[1].norm()
    whole = load_pair(folders[1], None).target
    gap = (whole.head(whole.session(9).extend(tokens)) - laws[0]).norm() / laws[0].norm()
    assert gap > 1e-3  # another law than that of float32


@pytest.mark.parametrize("name", BITS)
def test_positions_are_not_rounded_with_the_weights(name, tmp_path):
    """Defect: rotary frequencies became bfloat16, and far positions were off by a radian."""
    save_tiny_pair(tmp_path)
    modules = [
        read_checkpoint(str(tmp_path / "target"), None, precision, "cpu")[0]
        for precision in ("float32", name)
    ]
    whole, few = (module.base_model.rotary_emb.inv_freq for module in modules)
    assert few.dtype == torch.float32 and torch.equal(few, whole)
    assert {parameter.dtype for parameter in modules[1].parameters()} == {torch.bfloat16}


def test_a_layer_that_was_changed_or_moved_has_no_grid(tmp_path):
    save_tiny_pair(tmp_path)
    module, _ = read_checkpoint(str(tmp_path / "target"), None, "int4", "cpu")
    layer = module.base_model.layers[0].mlp.down_proj
    assert grid_of(layer) is not None and grid_of(copy.deepcopy(layer)) is not None
    wide = copy.deepcopy(module).float()
    assert precision_of(module) == "int4" and precision_of(wide) == "float32"
    assert grid_of(wide.base_model.layers[0].mlp.down_proj) is None
    model = TransformersModel(module)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert grid_of(layer) is None
    tokens = torch.arange(4)
    lean, modules = (each.session(4).extend(tokens) for each in (model, model.of_modules()))
    assert (lean - modules).float().norm() <= 2**-5 * modules.float().norm()


def test_what_has_no_grid_is_refused(tmp_path):
    save_tiny_pair(tmp_path)
    folder = str(tmp_path / "target")
    with pytest.raises(InvalidInput, match="int4 is for the device cpu; found meta"):
        read_checkpoint(folder, None, "int4", "meta")
    for dtype in ("int3", "float32/int3"):
        with pytest.raises(InvalidInput, match=r"unknown dtype 'int3'; allowed: float32, .*int4"):
            load_pair(folder, None, dtype=dtype)
    with pytest.raises(InvalidInput, match="dtype is 'int8/int8/int4'; allowed: one precision, or"):
        load_pair(folder, folder, dtype="int8/int8/int4")
    with pytest.raises(InvalidInput, match="dtype is float32/int8; allowed: one, which an EAGLE"):
        load_eagle_pair(folder, folder, dtype="float32/int8")
    scorers = load_scorers([folder, folder], "cpu", "float32/int8")
    assert [scorer.precision for scorer in scorers] == ["float32", "int8"]
    with pytest.raises(InvalidInput, match="is 24 wide; allowed: multiples of 32"):
        module = nn.Sequential(nn.Linear(24, 8))
        module.get_output_embeddings = lambda: None
        put_on_grids(module, "int4")
    for kind, weight in (("GPT2", r"h\.0\.attn\.c_attn\.weight"), ("Mixtral", "layers.0.mlp.*")):
        with pytest.raises(InvalidInput, match=f"dtype is int8, and {weight} is no linear layer's"):
            put_on_grids(made(kind), "int8")
    put_on_grids(made("Gemma 3 with images"), "int8")  # what reads images is in no law of texts
