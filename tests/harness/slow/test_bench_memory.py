"""Memory by torch's allocator: flat in prompts and tokens, proportional to nodes and V."""

import sys

import pytest
import torch

from analysis.load import read_status
from experiments.bench import decoders, frame, memory, rules
from experiments.bench.frame import peak_bytes
from experiments.bench.memory import CASES, peak_of
from experiments.bench.rules import law_call
from experiments.grid import cells_of
from resispec import embedded
from resispec.data import Prompt
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.trees import complete
from resispec.verifiers import get_rule, get_verifier
from tests.harness.toy_runs import run_here

CPU = torch.device("cpu")
ALLOWED_BYTES = 4 * 2**30


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.decoder}, {case.verifier}")
def test_memory_is_flat_in_prompts_and_in_proportion_to_nodes_and_vocabulary(case):
    """So 128,256 tokens and 121 nodes fit 4 GiB; `make bench` measures it."""
    few, nodes = (13, 40) if case.num_nodes == 121 else (case.num_nodes, case.num_nodes)
    small = case._replace(num_nodes=nodes, vocab=4000)
    _, once, often = (peak_of(small, CPU, walks=True, num_prompts=number) for number in (1, 1, 8))
    # the first one also made what is made once for a topology
    assert often == pytest.approx(once, rel=0.01)
    sizes = [small._replace(num_nodes=few), small, small._replace(vocab=16_000)]
    rates = [peak_of(one, CPU, walks=True) / one.num_nodes / one.vocab for one in sizes]
    assert rates == pytest.approx([rates[-1]] * 3, rel=0.05)
    rate = max(rates[-1], peak_of(sizes[-1], CPU, walks=False) / nodes / 16_000)
    assert rate * case.num_nodes * case.vocab < ALLOWED_BYTES


def test_memory_is_flat_in_the_number_of_tokens():
    pair = memory.random_pair(2000, CPU)
    decoder = Decoder(DraftModel(complete(3, 3)), get_verifier("traversal_optimal"))

    def decode(num_tokens):
        sampling = Sampling(1.0, num_tokens, 256 - 3, ignore_eos=True)
        made = decoder.generate(pair, [1, 2], sampling, torch.Generator().manual_seed(0))
        assert len(made.tokens) == num_tokens

    few, many = (peak_bytes(lambda number=number: decode(number), CPU) for number in (10, 100))
    # of both models: keys and values in float32
    cache = 2 * (100 - 10) * 2 * 4 * memory.BODY["hidden_size"]
    assert many - cache == pytest.approx(few, rel=0.05)


@pytest.mark.parametrize("audit", ["false", "true"])
def test_the_memory_of_a_cell_is_flat_in_the_number_of_prompts(audit, toy):
    """From the command line's cell through the loop over its prompts, models included."""

    def peak(num_prompts):
        [cell] = cells_of([*toy, "tree=d4b4", f"audit={audit}", f"num_prompts={num_prompts}"])
        most = peak_bytes(lambda: run_here(cell), CPU)
        assert len((cell.folder / "rows.jsonl").read_text().splitlines()) == num_prompts
        assert read_status(cell.folder).state == "done"
        return most

    peak(1)  # what is made once for a process
    assert peak(8) == pytest.approx(peak(2), rel=0.03)


def test_the_bench_of_decoders_runs_whole(folder, tmp_path, monkeypatch, capsys):
    """From its command line to its page, with a tiny pair in the place of the embedded one."""
    monkeypatch.setattr(embedded.committed, "folder", lambda name: folder / name.partition("_")[0])
    monkeypatch.setattr(
        embedded.EmbeddedDataset, "prompts", lambda _, n: [Prompt("x", "abc def")] * n
    )
    monkeypatch.setattr(decoders, "NEW_TOKENS", 4)
    monkeypatch.setattr(decoders, "SAMPLING", Sampling(1.0, 4, 64, ignore_eos=True))
    monkeypatch.setattr(sys, "argv", ["bench", "--prompts", "2", "--results", str(tmp_path)])
    with pytest.raises(SystemExit):
        frame.run_bench("bench", decoders.__doc__, decoders.measure, prompts=(20, ""))
    page = (tmp_path / "embedded" / "bench.md").read_text()
    assert page in capsys.readouterr().out and page.count("transformers `generate") == 2
    assert "forward of the target" in page and "2 prompts decoded by all four" in page


def test_the_memory_of_a_law_grows_in_proportion_to_the_nodes_and_one_has_no_leading_dimension(
    monkeypatch,
):
    monkeypatch.setattr(rules, "VOCAB", 4000)
    for name, rule, draws in rules.rules():
        few, many = (peak_bytes(law_call(rule, draws, nodes, CPU), CPU) for nodes in (10, 40))
        assert many == pytest.approx(4 * few, rel=0.02), (name, draws)
    laws = [law_call(get_rule("standard"), Draws.IID, nodes, CPU)() for nodes in (1, 2)]
    assert [law.select.shape for law in laws] == [(3,), (2, 3)]
    assert [law.residual.shape for law in laws] == [(4000,), (2, 4000)]
