"""Memory, by the account of torch's allocator: flat in prompts and tokens, proportional to nodes and V."""

import sys
from dataclasses import replace

import pytest
import torch
from toy_runs import run_here, save_toys, toy_overrides
from toys import save_tiny_pair

from experiments.bench import decoders, memory
from experiments.bench.frame import peak_bytes
from experiments.bench.memory import ALLOWED_BYTES, Decoding, measure, methods, peak_of
from experiments.grid import cells_of
from experiments.store import CellStore
from resispec import embedded
from resispec.data import Prompt
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.trees import complete
from resispec.verifiers import get_verifier

CPU = torch.device("cpu")
METHODS = list(methods())
NAMES = [f"{decoder}, {verifier}" for decoder, verifier, *_ in METHODS]
every_method = pytest.mark.parametrize("method", METHODS, ids=NAMES)


def case_of(method, vocab, most_nodes=40, num_prompts=1):
    decoder, verifier, drafter, nodes = method
    few = max(number for number in nodes if number <= most_nodes)
    return Decoding(decoder, verifier, drafter(few), vocab, num_prompts)


@every_method
def test_memory_is_flat_in_the_number_of_prompts(method):
    _, once, often = (
        peak_of(case_of(method, 2000, num_prompts=number), CPU, walks=True) for number in (1, 1, 8)
    )
    assert often == pytest.approx(once, rel=0.01)  # the first one also made what is made once for a topology


@every_method
def test_memory_is_in_proportion_to_nodes_and_vocabulary(method):
    few, more = case_of(method, 4000, most_nodes=13), case_of(method, 4000)
    frame = measure([few, more, replace(more, vocab=16_000)], CPU)
    rates = frame.bytes_per_node_token.tolist()
    assert rates == pytest.approx([rates[-1]] * 3, rel=0.05)


@every_method
def test_a_vocabulary_of_128256_tokens_and_121_nodes_fit_4_gib(method):
    """By the proportion above; `make bench` measures it."""
    found = measure([case_of(method, 16_000)], CPU)
    assert found[["peak_bytes", "whole_law_bytes"]].max(axis=None) * 128_256 / 16_000 < ALLOWED_BYTES


@pytest.mark.parametrize("verifier", ["standard", "traversal_optimal"])
def test_memory_is_flat_in_the_number_of_tokens(verifier):
    pair, decoder = memory.random_pair(2000, CPU), Decoder(DraftModel(complete(3, 3)), get_verifier(verifier))

    def decode(num_tokens):
        sampling = Sampling(1.0, num_tokens, 256 - 3, ignore_eos=True)
        made = decoder.generate(pair, [1, 2], sampling, torch.Generator().manual_seed(0))
        assert len(made.tokens) == num_tokens

    few, many = (peak_bytes(lambda number=number: decode(number), CPU) for number in (10, 100))
    cache = 2 * (100 - 10) * 2 * 4 * memory.BODY["hidden_size"]  # of both models: keys and values in float32
    assert many - cache == pytest.approx(few, rel=0.05)


@pytest.mark.parametrize("audit", ["false", "true"])
def test_the_memory_of_a_cell_is_flat_in_the_number_of_prompts(audit, tmp_path):
    """From the command line's cell through the loop over its prompts, models included."""
    folder = save_toys(tmp_path / "toys")

    def peak(num_prompts):
        overrides = [*toy_overrides(folder, tmp_path / "results"), "tree=d4b4", f"audit={audit}"]
        [cell] = cells_of([*overrides, f"num_prompts={num_prompts}"])
        most = peak_bytes(lambda: run_here(cell), CPU)
        assert len((cell.folder / "rows.jsonl").read_text().splitlines()) == num_prompts
        assert CellStore(cell.folder).status().state == "done"
        return most

    peak(1)  # what is made once for a process
    assert peak(8) == pytest.approx(peak(2), rel=0.03)


def test_the_bench_of_decoders_runs_whole(tmp_path, monkeypatch, capsys):
    """From its command line to its page, with a tiny pair in the place of the embedded one."""
    save_tiny_pair(tmp_path)
    folder_of = {True: tmp_path / "target", False: tmp_path / "draft"}
    monkeypatch.setattr(embedded.recipe.ModelRecipe, "folder", lambda it: folder_of[it.teacher is None])
    monkeypatch.setattr(embedded.EmbeddedDataset, "prompts", lambda _, n: [Prompt("x", "abc def")] * n)
    monkeypatch.setattr(decoders, "NEW_TOKENS", 4)
    monkeypatch.setattr(decoders, "SAMPLING", Sampling(1.0, 4, 64, ignore_eos=True))
    monkeypatch.setattr(sys, "argv", ["bench", "--prompts", "2", "--results", str(tmp_path)])
    decoders.main()
    page = (tmp_path / "embedded" / "bench.md").read_text()
    assert page in capsys.readouterr().out and page.count("transformers `generate") == 2
    assert "forward of the target" in page and "2 prompts decoded by all four" in page
