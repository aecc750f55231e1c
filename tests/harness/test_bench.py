"""Benches at tiny sizes: rows, what divides them, memory, refused input; no speed is asserted."""

import re
import runpy
import sys
from argparse import Namespace
from contextlib import nullcontext
from itertools import count
from multiprocessing import Pipe
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from experiments.bench import decoders, forwards, frame, memory, peers, rules
from experiments.bench.frame import peak_bytes, run_bench, take_turns
from resispec import timing
from resispec.decode import Sampling
from resispec.embedded import EmbeddedDataset
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.trees import complete, from_child_counts
from tests.toys import table_pair, tiny_llama

CPU = torch.device("cpu")
ALL = {"iid", "without_replacement", "point_mass", "greedy"}
LAWS = {"standard": ALL, "resispec": ALL, "kseq": {"iid"}, "naive": ALL, "greedy": {"greedy"}}
LAWS |= {f"optimal, bins {bins}": {"iid"} for bins in (0, 512, 1024, 2048)}
LAWS |= {"khisti": {"iid"}, "dial": {"iid"}, "lenience": ALL, "relaxed": ALL}
WALKS = (
    LAWS
    | {"univer": {"greedy"}, "typical": ALL}
    | {"traversal": ALL, "traversal_optimal": {"iid"}, "level_optimal": {"iid"}}
)


def every(named):
    return {(name, draws) for name, found in named.items() for draws in found}


def run(monkeypatch, tmp_path, bench, name):
    """A bench's command on RESULTS in `tmp_path`."""
    monkeypatch.setattr(sys, "argv", [name, "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run_bench(name, bench.__doc__, bench.measure)
    assert ended.value.code == 0
    return (tmp_path / "embedded" / f"{name}.md").read_text()


def test_rules_their_rows_ratios_page_and_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        rules, "SHAPES", {"d3b3": complete(3, 3), "uneven": from_child_counts([[2], [1, 2]])}
    )
    for name, value in {
        "VOCAB": 40,
        "TREES": 2,
        "WALKS": 2,
        "LAW_ROUNDS": 2,
        "WALK_ROUNDS": 1,
    }.items():
        monkeypatch.setattr(rules, name, value)
    measured = rules.costs(CPU)
    monkeypatch.setattr(rules, "costs", lambda _: measured)
    page = run(monkeypatch, tmp_path, rules, "bench_rules")
    groups = measured.groupby(["measured", "quantity", "num_nodes"])
    found = {key: set(zip(rows.verifier, rows.draws, strict=True)) for key, rows in groups}
    walks = {(f"walk on {name}", nodes) for name, nodes in (("d3b3", 13), ("uneven", 6))}
    wanted = {(*key, what): WALKS for key in walks for what in ("ms", "ratio")}
    wanted |= {("law", nodes, what): LAWS for nodes in (1, 40) for what in ("ms", "ratio")}
    assert found == {
        (name, what, nodes): every(named) for (name, nodes, what), named in wanted.items()
    }
    assert len(measured) == sum(map(len, found.values())) and (measured.value > 0).all()
    for _, rows in measured.groupby(["measured", "num_nodes"]):
        wide = rows.pivot(index=["verifier", "draws"], columns="quantity", values="value")
        assert (wide.ratio * wide.ms["standard", "iid"]).tolist() == pytest.approx(wide.ms.tolist())
    assert page in capsys.readouterr().out and "–" not in page
    assert (tmp_path / "embedded" / "bench_rules.csv").read_text() == measured.to_csv(index=False)
    page = re.sub(" +", " ", page)
    assert all(f"| {name} | {draws} |" in page for name, draws in every(WALKS))
    assert re.findall(r"\| standard \| iid \| \S+ \| (\S+) \|", page) == ["1.00"] * 3


def test_calls_take_turns_and_the_first_round_is_forgotten(monkeypatch):
    order, turns, clock = [], [], iter(range(100))

    def calls(name):
        return [
            lambda turn, call=call: (order.append((name, call)), turns.append(turn))
            for call in (0, 1)
        ]

    monkeypatch.setattr(frame, "now", lambda _: next(clock) ** 2)
    found = take_turns("test", {name: calls(name) for name in "ab"}, 3, CPU)
    rounds = [(order[n : n + 2], order[n + 2 : n + 4]) for n in range(0, 16, 4)]
    assert all(sorted(both) == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]] for both in rounds)
    assert len({str(both) for both in rounds}) == 2  # either goes first at times
    assert turns == [0] * 8 + [1] * 4 + [2] * 4  # the first round twice
    # Call n of all starts at (2 n)^2 and takes 4 n + 1; of three rounds the second one is the
    # median.
    for name, milliseconds in found.items():
        own = [4 * place + 1 for place, (caller, _) in enumerate(order) if caller == name]
        assert milliseconds == 1e3 * (own[4] + own[5]) / 2


def test_parts_of_a_step_hold_their_forwards_and_no_clocks(monkeypatch):
    """With a clock that ticks once whenever it is read, so that no load of the machine matters."""
    ticks = count()
    for module in (timing, decoders):
        monkeypatch.setattr(module, "now", lambda _: float(next(ticks)))
    monkeypatch.setattr(decoders, "SAMPLING", Sampling(1.0, 16, 64))
    monkeypatch.setattr(decoders, "clock_seconds", lambda *_: 0.0)
    split = decoders.step_split(Pair(tiny_llama(), tiny_llama(seed=1), None), [[1, 2, 3]])
    assert split["step"] > split["target"] + split["draft"] + split["verify"] + split["commit"]
    assert (
        split["target"] > split["target/forward"] > 0
        and split["draft"] > split["draft/forward"] > 0
    )
    monkeypatch.setattr(decoders, "clock_seconds", lambda _, num_clocks: 1.0 * num_clocks)
    less = decoders.step_split(Pair(tiny_llama(), tiny_llama(seed=1), None), [[1, 2, 3]])
    assert (
        less["step"] < split["step"] - 1000 * 4
    )  # a second for every clock of a step, of which there are more


def test_speeds_are_ratios_to_the_counterpart_and_parts_add_up(monkeypatch):
    times = {"ours": 500.0, "theirs": 1000.0, "our chain": 100.0, "their chain": 400.0}
    monkeypatch.setattr(decoders, "take_turns", lambda *_: times)
    frame = decoders.speeds({}, [], table_pair()).frame
    assert frame["tokens/s"].tolist() == [decoders.NEW_TOKENS / (ms / 1e3) for ms in times.values()]
    assert frame.ratio.tolist() == [2.0, 1.0, 4.0, 1.0]
    split = {"step": 10.0, "target": 5.5, "draft": 3.2, "verify": 0.8, "commit": 0.3}
    split |= {"target/forward": 5.0, "draft/forward": 3.0}
    shares = decoders.parts(split).frame.set_index("part").share
    assert shares["all but the forwards"] == pytest.approx(0.2) and shares[
        :-1
    ].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            *(["--device", "cuda"], "device 'cuda' cannot be used; this machine has cpu"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it can be used here"),
        ),
        (["--results", "/proc/x"], "/proc/x"),
        (["--results", "."], "No such file or directory: '"),  # it is there, but takes no file
    ],
)
def test_what_a_bench_cannot_do_is_refused_in_one_line(
    arguments, message, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("embedded").symlink_to("/proc/self")
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    monkeypatch.delitem(sys.modules, "experiments.bench.rules", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("experiments.bench.rules", run_name="__main__")
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and line.startswith("error: ") and message in line


def test_peak_memory_counts_what_is_held_at_once():
    """Three tensors of 4 kB at the worst moment, the intermediate one freed before the fourth."""
    ones = torch.ones(1000)
    assert peak_bytes(lambda: (ones + 1) + (ones + 2), CPU) == pytest.approx(12_000, abs=500)
    assert peak_bytes(lambda: ((ones + 1) + 1) + 1, CPU) == pytest.approx(8000, abs=500)


def test_peak_memory_counts_nothing_of_what_was_there_before():
    """Neither blocks at addresses where an earlier measurement had others."""
    ones = torch.ones(1000)
    held: list[torch.Tensor] = []

    def fill() -> None:
        held.extend(ones + 1 for _ in range(50))

    peak_bytes(fill, CPU)
    held.clear()
    fill()

    def take_turns_with_them() -> None:
        held.clear()
        _ = ones + 1

    assert peak_bytes(take_turns_with_them, CPU) == pytest.approx(4000, abs=500)


def test_the_page_of_memory_has_walks_and_whole_laws(monkeypatch, tmp_path):
    few = [case._replace(num_nodes=13, vocab=500) for case in memory.CASES[2:4]]
    monkeypatch.setattr(memory, "CASES", few)
    page = re.sub(" +", " ", run(monkeypatch, tmp_path, memory, "bench_memory"))
    assert "| specinfer | standard | 13 |" in page and "| specinfer | resispec | 13 |" in page
    columns = "decoder,verifier,num_nodes,vocab,peak_bytes,whole_law_bytes,bytes_per_node_token"
    frame = pd.read_csv(tmp_path / "embedded" / "bench_memory.csv")
    assert list(frame) == columns.split(",")
    # of the standard rule, whose law is small, both peak elsewhere
    assert frame.whole_law_bytes[1] > 1.1 * frame.peak_bytes[1]
    assert frame.bytes_per_node_token.tolist() == (frame.peak_bytes / 13 / 500).tolist()


def test_forwards_are_split_into_matrices_and_the_rest(monkeypatch, tmp_path):
    monkeypatch.setattr(forwards, "load_pair", lambda: Pair(tiny_llama(), tiny_llama(), None))
    sizes = {"hidden_size": 72, "intermediate_size": 48, "vocab_size": 128}
    monkeypatch.setattr(forwards, "SMOLLM2", forwards.SMOLLM2 | sizes | {"head_dim": 8})
    monkeypatch.setattr(sys, "argv", ["x", "--results", str(tmp_path), "--rounds", "2"])
    with pytest.raises(SystemExit) as ended:
        run_bench("f", "", forwards.measure, None, rounds=(1, ""), layers=(2, ""))
    assert ended.value.code == 0
    frame = pd.read_csv(tmp_path / "embedded" / "f.csv")
    assert len(frame) == 3 * 2 * 2 and (frame[list(forwards.WAYS)] > 0).all(None)
    ratios = frame["lean"] / frame["matrices alone"]
    assert frame["lean over matrices"].tolist() == pytest.approx(ratios.tolist())
    assert (frame["lean over one position"][::2] == 1).all()


class Answering:
    """The end of a pipe to a process that takes `seconds` for `tokens` tokens."""

    def __init__(self, tokens, seconds):
        self.answer, self.asked = (tokens, seconds), []

    def send(self, question):
        self.asked.append(question)

    def recv(self):
        return self.answer


def test_peers_take_turns_and_are_compared_at_their_width(monkeypatch):
    ways = [
        peers.Way("resispec", "float32", peers.PLAIN, 10**9, Answering(8, 2.0)),
        peers.Way("resispec", "4 bits", peers.PLAIN, 10**8, Answering(8, 0.5)),
        peers.Way("llama.cpp", "float32", peers.PLAIN, 10**9, Answering(8, 1.0)),
        peers.Way("llama.cpp", "float32", "draft model", 0, Answering(12, 1.0)),
    ]
    pair = table_pair()
    monkeypatch.setattr(peers, "processes", lambda: nullcontext(ways))
    monkeypatch.setattr(peers, "dataset", lambda: EmbeddedDataset("embedded_reference"))
    monkeypatch.setattr(pair.tokenizer, "encode_chat", len, raising=False)
    monkeypatch.setattr(peers, "load_pair", lambda _: pair)
    monkeypatch.setattr(peers, "SUMMED", 100)
    _, _, found = peers.measure(Namespace(prompts=2, device=CPU))
    assert found["tokens/s"].tolist() == [4, 8, 12, 16] and found.weights.tolist()[-1] == "4 bits"
    assert found["GB/s"].tolist()[:2] == [4, 8] and found["GB/s"].isna().tolist()[2]
    assert found[f"over llama.cpp, {peers.PLAIN}"].tolist()[:3] == [0.5, 1.0, 1.5]
    assert found[f"over resispec, {peers.PLAIN}"].tolist()[:3] == [1.0, 2.0, 3.0]
    for way in ways:  # the first question warms up
        assert [number for _, _, number in way.connection.asked] == [0, 1, 2]
        assert way.connection.asked[0][:2] == (way.name, way.connection.asked[1][1])


def test_a_peer_whose_process_ends_is_one_line():
    here, there = Pipe()
    there.close()
    with pytest.raises(InvalidInput, match=r"^the process of abacus, 4 bits, ended; its reason"):
        peers.received(here, "abacus", "4 bits")
    peers._end(here)


def test_a_process_of_a_peer_answers_until_it_is_told_to_end(monkeypatch, tmp_path):
    pair = table_pair()
    monkeypatch.setattr(peers, "load_pair", lambda *_, **__: pair)
    monkeypatch.setattr(pair.target, "module", nn.Linear(3, 4, bias=False), raising=False)
    here, there = Pipe()
    questions = [(peers.PLAIN, [0, 1], 3), ("chain of 4", [0, 1], 3), None]
    for question in questions:
        here.send(question)
    peers.answering(there, "resispec", "float32", tmp_path)
    ways = here.recv()
    assert ways[peers.PLAIN] == 48 and ways["chain of 4"] == 0
    for _ in questions[:-1]:
        tokens, seconds = here.recv()
        assert tokens == peers.NEW_TOKENS and seconds > 0
