"""Ways of linear layers: the same product but for rounding, the fastest is taken and kept."""

import copy
import json
import pickle
import threading

import pytest
import torch
from torch import nn

from resispec.errors import InvalidInput
from resispec.models import TransformersModel, eagle_files, linear, load_pair, save_eagle
from resispec.models.linear import FORCED, PACKED, PLAIN, ROWS, TRANSPOSED, QuickLinear, can_pack
from tests.models.toy_architectures import made
from tests.toys import save_tiny_pair, tiny_eagle, tiny_llama

pytestmark = pytest.mark.numerics

ROUNDING = {torch.float32: 2**-20, torch.bfloat16: 2**-6}
WAYS = [
    pytest.param(
        way,
        dtype,
        marks=pytest.mark.skipif(
            way == PACKED and not can_pack(dtype), reason=f"no packed {dtype} here"
        ),
    )
    for way in (PLAIN, PACKED, TRANSPOSED)
    for dtype in ROUNDING
]


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A cache of its own, in which shapes of any size are timed; yields its folder."""
    monkeypatch.delenv(FORCED)
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(linear, "_CHOSEN", {})
    monkeypatch.setattr(linear, "LEAST", 1)
    return tmp_path / "cache" / "linear"


def weights(*shape, number=1):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for _ in range(number)]


@pytest.mark.parametrize(("way", "dtype"), WAYS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_way_gives_the_same_but_for_rounding(way, dtype, has_bias, monkeypatch):
    monkeypatch.setenv(FORCED, way)
    layer = nn.Linear(32, 48, bias=has_bias).to(dtype)
    with torch.inference_mode():
        for shape in ((1, 32), (5, 32), (2, 20, 32)):
            inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
            expected = nn.functional.linear(inputs, layer.weight, layer.bias)
            linear.quicken(layer)
            assert layer.product.choice == (way,) * 3
            found = layer(inputs)
            assert found.dtype == dtype and found.shape == expected.shape
            assert (found - expected).abs().max() <= ROUNDING[dtype] * expected.abs().max()


def test_the_fastest_way_is_taken_for_each_number_of_rows(monkeypatch):
    """By a clock that goes on as each way's calls are made to last."""
    seconds = {PLAIN: (4.0, 4.0, 4.0), TRANSPOSED: (3.9, 1.0, 9.0), PACKED: (2.0, 2.0, 3.0)}
    clock, own = [0.0], linear._multiply

    def multiply(way, weight, bias):
        function = own(PLAIN if way == PACKED else way, weight, bias)

        def call(inputs):
            clock[0] += seconds[way][ROWS.index(len(inputs))]
            return function(inputs)

        return call

    monkeypatch.setattr(linear, "_multiply", multiply)
    monkeypatch.setattr(linear, "can_pack", lambda _: True)
    monkeypatch.setattr(linear.time, "perf_counter", lambda: clock[0])
    assert linear.fastest(weights(8, 4, number=3)) == (PACKED, TRANSPOSED, PACKED)
    seconds[PACKED] = (9.0, 9.0, 9.0)  # what gains a fortieth is no gain
    assert linear.fastest(weights(8, 4)) == (PLAIN, TRANSPOSED, PLAIN)


@pytest.mark.parametrize("fault", ["raises", "is wrong"])
def test_a_way_that_fails_or_is_wrong_is_done_without(fault, monkeypatch):
    own = linear._multiply

    def multiply(way, weight, bias):
        if way == PLAIN:
            return own(way, weight, bias)
        if fault == "raises":
            raise RuntimeError("a private operator")
        return lambda inputs: own(PLAIN, weight, bias)(inputs) * 1.001

    monkeypatch.setattr(linear, "_multiply", multiply)
    assert linear.fastest(weights(8, 4)) == (PLAIN,) * 3


def test_choices_are_kept_for_other_processes(kept, monkeypatch):
    chosen, asked = (PACKED, PLAIN, PLAIN), []
    monkeypatch.setattr(linear, "can_pack", lambda _: True)
    monkeypatch.setattr(linear, "fastest", lambda found, _: asked.append(len(found)) or chosen)
    layers = [*weights(8, 4, number=2), *weights(4, 8)]
    assert linear.choices(layers) == [chosen] * 3 and asked == [2, 1]
    [file] = kept.glob("*.json")
    content = json.loads(file.read_text())
    assert content["ways"] == {"8x4 float32": [*chosen], "4x8 float32": [*chosen]}
    monkeypatch.setattr(linear, "_CHOSEN", {})  # another process
    assert linear.choices(layers) == [chosen] * 3 and asked == [2, 1]
    torch.set_num_threads(2)
    try:
        linear.choices(layers)  # is another question
    finally:
        torch.set_num_threads(1)
    assert asked == [2, 1] * 2 and len([*kept.glob("*.json")]) == 2


@pytest.mark.usefixtures("kept")
def test_processes_that_start_together_choose_alike(monkeypatch):
    """The second one waits for the first, and reads what it wrote."""
    begun, go_on, answers = threading.Event(), threading.Event(), []

    def slow(*_):
        begun.set()
        assert go_on.wait(20)
        return (TRANSPOSED,) * 3

    monkeypatch.setattr(linear, "fastest", slow)
    first = threading.Thread(target=lambda: answers.append(linear.choices(weights(8, 4))))
    first.start()
    assert begun.wait(20)
    monkeypatch.setattr(linear, "_CHOSEN", {})
    monkeypatch.setattr(linear, "fastest", lambda *_: (PLAIN,) * 3)
    second = threading.Thread(target=lambda: answers.append(linear.choices(weights(8, 4))))
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert answers == [[(TRANSPOSED,) * 3]] * 2


BROKEN = {
    "no JSON": "{",
    "a list": "[]",
    "of other rows": json.dumps({"rows": [1], "ways": {"8x4 float32": [PLAIN]}}),
    "an unknown way": json.dumps({"rows": ROWS, "ways": {"8x4 float32": ["x", PLAIN, PLAIN]}}),
    "no ways": json.dumps({"rows": ROWS, "ways": {"8x4 float32": None}}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_written_anew(content, kept, monkeypatch):
    monkeypatch.setattr(linear, "fastest", lambda *_: (TRANSPOSED,) * 3)
    linear.choices(weights(4, 4))
    [file] = kept.glob("*.json")
    file.write_text(content)
    monkeypatch.setattr(linear, "_CHOSEN", {})
    assert linear.choices(weights(8, 4)) == [(TRANSPOSED,) * 3]
    assert "8x4 float32" in json.loads(file.read_text())["ways"]


def test_a_cache_that_cannot_be_written_is_no_error(kept, monkeypatch):
    kept.parent.write_text("a file where the folder would be")
    asked = []
    monkeypatch.setattr(linear, "fastest", lambda *_: asked.append(1) or (TRANSPOSED,) * 3)
    for _ in range(2):
        assert linear.choices(weights(8, 4)) == [(TRANSPOSED,) * 3]
    assert asked == [1]  # this process knows


@pytest.mark.usefixtures("kept")
def test_what_is_small_or_too_large_to_copy_is_not_packed(monkeypatch):
    monkeypatch.setattr(linear, "fastest", lambda *_: (PACKED, TRANSPOSED, PLAIN))
    monkeypatch.setattr(linear, "can_pack", lambda _: True)
    large = weights(8, 4)
    assert linear.choices(large) == [(PACKED, TRANSPOSED, PLAIN)]
    with monkeypatch.context() as there:
        there.setattr(linear, "memory_bytes", lambda: 4 * large[0].nbytes - 1)
        assert linear.choices(large) == [(PLAIN, TRANSPOSED, PLAIN)]
    monkeypatch.setattr(linear, "LEAST", 33)
    assert linear.choices(large) == [(PLAIN,) * 3]
    assert linear.choices([weight.to("meta") for weight in weights(8, 8)]) == [(PLAIN,) * 3]


def test_an_unknown_way_is_refused(monkeypatch):
    monkeypatch.setenv(FORCED, "fast")
    with pytest.raises(InvalidInput, match=r"RESISPEC_LINEAR 'fast'.*plain, packed, transposed"):
        tiny_llama()


def test_models_of_every_kind_use_the_ways_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv(FORCED, TRANSPOSED)
    save_tiny_pair(tmp_path)
    pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"))
    for ways in pair.ways().values():
        assert ways["forward"] == "lean" and {*ways["linear"].values()} == {TRANSPOSED}
        assert {"64x32 float32", "128x32 float32", "32x64 float32"} <= {*ways["linear"]}
    module = made("Qwen3")
    module.save_pretrained(tmp_path / "other")
    pair.tokenizer.inner.save_pretrained(tmp_path / "other")
    other = load_pair(str(tmp_path / "other"), None)
    assert other.ways()["target"]["forward"] == "modules of transformers"
    assert {*other.ways()["target"]["linear"].values()} == {TRANSPOSED}
    assert other.ways()["draft"] is None
    assert TransformersModel(module).ways()["linear"] == {}  # a program's own module is left alone
    reduced = pair.target.drafting(torch.tensor([5, 2]))
    assert reduced.ways()["linear"]["64x32 float32"] == TRANSPOSED
    features = torch.randn(2, 32)
    drafted, whole = reduced.head(features), pair.target.head(features)
    assert torch.allclose(drafted[:, [2, 5]], whole[:, [2, 5]], atol=1e-5)
    save_eagle(tiny_eagle(), tmp_path / "eagle")
    drafter = eagle_files.load_eagle(str(tmp_path / "eagle"), tiny_llama())
    assert {*drafter.ways()["linear"].values()} == {TRANSPOSED}


@pytest.mark.parametrize("way", [PACKED, TRANSPOSED])
def test_layers_that_are_copied_moved_or_trained_are_plain_ones(way, monkeypatch):
    """A copy of the weights that does not follow them would go on giving the old outputs."""
    monkeypatch.setenv(FORCED, way)
    layer, features = nn.Linear(4, 4), torch.ones(1, 4)
    linear.quicken(layer)
    assert isinstance(layer, QuickLinear)
    assert layer(features).requires_grad  # by the weights themselves
    for plain in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        copy.deepcopy(layer).double(),
    ):
        assert "product" not in vars(plain) and torch.equal(plain.weight, layer.weight)
    layer.load_state_dict(
        {name: torch.zeros_like(value) for name, value in layer.state_dict().items()}
    )
    with torch.inference_mode():
        assert not layer(features).any()
