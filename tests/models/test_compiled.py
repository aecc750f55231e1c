"""Compiled forwards of a step: only where they were measured to be faster, with the laws that there were."""

import json

import pytest
import torch
from toys import ToyTokenizer

from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Pair, TransformersModel, build_llama, compiled
from resispec.models.compiled import WhereFaster, compiled_pair
from resispec.trees import complete
from resispec.verifiers import get_verifier

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": None,
}  # fmt: skip
PROMPT = [1, 2, 3, 4, 5]
needs_compiler = pytest.mark.skipif(
    compiled.cpp_compiler() is None or torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="no C++ compiler, or kernels for which what torch writes does not compile",
)


def pair():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Pair(*(TransformersModel(build_llama(**SIZES)) for _ in range(2)), ToyTokenizer())


def steps_of(pair):
    steps = []
    decoder = Decoder(DraftModel(complete(3, 2)), get_verifier("standard"))
    generator = torch.Generator().manual_seed(0)
    decoder.generate(pair, PROMPT, Sampling(1.0, 6, 32), generator, on_step=steps.append)
    return steps


class Stand:
    """In the place of torch.compile: calls of both are counted, and the compiled one is as fast as said."""

    def __init__(self, monkeypatch, times):
        self.calls = {"plain": [], "compiled": []}
        self.clock, self.times = 0.0, times
        monkeypatch.setattr(torch, "compile", lambda body, **_: self.counted("compiled", body.inner))
        monkeypatch.setattr(compiled.time, "perf_counter", lambda: self.clock)

    def counted(self, name, body):
        def call(**arguments):
            self.calls[name].append(arguments["attention_mask"].shape[2])
            self.clock += self.times[name]
            return body(**arguments)

        call.inner, call.config, call.dtype = body, body.config, body.dtype
        return call


def chosen(monkeypatch, file, plain, compiled_s):
    """The calls of a fresh process that forwards 3 positions twice."""
    stand = Stand(monkeypatch, {"plain": plain, "compiled": compiled_s})
    model = pair().target
    body = WhereFaster(stand.counted("plain", model.module.base_model), file)
    session = model.stepping(body).session(16, drafted=3)
    for _ in range(2):
        session.forward(torch.tensor([1, 2, 3]), torch.arange(3), torch.ones(3, 3, dtype=torch.bool).tril())
    return {name: len(calls) for name, calls in stand.calls.items()}


@needs_compiler
@pytest.mark.parametrize(("plain", "compiled_s", "name"), [(3.0, 2.0, "compiled"), (3.0, 2.9, "plain")])
def test_what_is_faster_is_measured_once_and_kept(monkeypatch, tmp_path, plain, compiled_s, name):
    file, other = tmp_path / "compiled.json", {"compiled": "plain", "plain": "compiled"}[name]
    timed = compiled.ROUNDS + 1
    assert chosen(monkeypatch, file, plain, compiled_s) == {name: timed + 2, other: timed}
    [shapes] = json.loads(file.read_text()).values()
    assert shapes == {"3 behind 19": {"plain_s": plain, "compiled_s": compiled_s}}
    # A later process reads it, whatever it would measure, and tries whether compiling works there.
    tried = name == "compiled"
    assert chosen(monkeypatch, file, compiled_s, plain) == {name: 2 + tried, other: 0}


@needs_compiler
def test_laws_stay_and_prompts_are_not_compiled(monkeypatch, tmp_path):
    """With torch's own compiler, for every shape."""
    monkeypatch.setattr(compiled, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(compiled, "ROUNDS", 1)
    plain, fast = steps_of(pair()), steps_of(compiled_pair(pair(), tmp_path))
    assert [step.verdict.tokens for step in plain] == [step.verdict.tokens for step in fast]
    for one, other in zip(plain, fast, strict=True):
        assert torch.allclose(one.target_probs, other.target_probs, atol=1e-6)
    shapes = [
        shape for found in json.loads((tmp_path / "compiled.json").read_text()).values() for shape in found
    ]
    counts = {int(shape.split()[0]) for shape in shapes}
    assert 7 in counts and counts <= {1, 2, 7} and len(PROMPT) not in counts


def test_without_a_compiler_everything_stays(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    given = pair()
    assert compiled_pair(given, tmp_path) is given and not list(tmp_path.iterdir())
    assert "no C++ compiler was found" in caplog.text


def test_a_compiler_that_fails_leaves_forwards_as_they_are(monkeypatch, tmp_path, caplog):
    def broken(_body, **_):
        def call(**_):
            raise RuntimeError("no space left\nmore")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(compiled, "cpp_compiler", lambda: "g++")
    assert [step.verdict.tokens for step in steps_of(compiled_pair(pair(), tmp_path))] == [
        step.verdict.tokens for step in steps_of(pair())
    ]
    assert "stays as it is: no space left" in caplog.text and not list(tmp_path.iterdir())


def test_a_compiler_that_fails_later_leaves_forwards_as_they_are(monkeypatch, tmp_path, caplog):
    """Another process has found that compiling pays; here it does not work any more."""
    model, file = pair().target, tmp_path / "compiled.json"
    found = {"plain_s": 2.0, "compiled_s": 1.0}
    compiled._write(file, compiled._key(model.module.base_model), "1 behind 6", found)

    def broken(**_):
        raise RuntimeError("no space left\nmore")

    monkeypatch.setattr(torch, "compile", lambda _body, **_: broken)
    fast = model.stepping(WhereFaster(model.module.base_model, file))
    sessions = [one.session(5, drafted=1) for one in (model, fast)]
    given = torch.tensor([3]), torch.zeros(1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool)
    assert torch.equal(*(session.forward(*given) for session in sessions))
    assert "a forward of 1 behind 6 stays as it is: no space left" in caplog.text


def test_a_pair_on_another_device_is_refused():
    elsewhere = pair()
    elsewhere.target.device = torch.device("cuda")
    with pytest.raises(InvalidInput, match="on a processor only; the pair is on cuda"):
        compiled_pair(elsewhere)
