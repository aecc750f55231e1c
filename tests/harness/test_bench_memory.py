"""Memory, by the account of torch's allocator: flat in prompts and tokens, proportional to nodes and V."""

import sys
from dataclasses import replace

import pytest
import torch
from toy_runs import run_here, save_toys, toy_overrides

from experiments.bench import memory
from experiments.bench.memory import ALLOWED_BYTES, Case, measure, methods, peak_of
from experiments.bench.peak_memory import peak_bytes
from experiments.plan import cells_of
from experiments.store import CellStore
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
    return Case(decoder, verifier, drafter(few), vocab, num_prompts)


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


def test_every_case_is_measured_once():
    found = {
        (case.decoder, case.verifier, case.num_nodes, case.vocab, case.num_prompts) for case in memory.cases()
    }
    assert len(found) == len(memory.cases())
    trees = {item[:2] for item in found if item[2:] == (121, 128_256, 1)}
    assert trees == {("sequoia", "traversal")} | {
        ("specinfer", name)
        for name in ("standard", "resispec", "optimal", "traversal_optimal", "level_optimal")
    }
    assert {item[:2] for item in found} == trees | {("autoregressive", "standard"), ("chain", "standard")}
    assert {item[2] for item in found} == {1, 5, 13, 40, 121}


def test_the_page_and_the_files(tmp_path, monkeypatch, capsys):
    wanted = [case_of(method, 100, most_nodes=13, num_prompts=2) for method in METHODS]
    monkeypatch.setattr(memory, "cases", lambda: wanted)
    monkeypatch.setattr(sys, "argv", ["memory", "--results", str(tmp_path)])
    memory.main()
    page = (tmp_path / "embedded" / "bench_memory.md").read_text()
    assert page in capsys.readouterr().out and "fits into 4,096 MiB" in page
    lines = (tmp_path / "embedded" / "bench_memory.csv").read_text().splitlines()
    assert (
        lines[0]
        == "decoder,verifier,num_nodes,vocab,num_prompts,peak_bytes,whole_law_bytes,bytes_per_node_token"
    )
    assert len(lines) == 1 + len(METHODS)
    monkeypatch.setattr(memory, "ALLOWED_BYTES", 1000)
    assert "does not fit into 0 MiB" in memory.page_of(measure(wanted[:1], CPU), CPU)
