"""The benches at tiny sizes: rows, what they are divided by, refused input; no speed is asserted."""

import sys

import pytest
import torch
from toys import save_tiny_pair

from experiments.bench import contest as contests
from experiments.bench import decoders, step_time
from experiments.bench import rules as bench_rules
from experiments.bench.contest import Timed, contest
from experiments.bench.peak_memory import peak_bytes
from experiments.bench.rules import MEASURED_NODES, Size, law_call, measure, page_of, rules
from resispec import embedded
from resispec.data import Prompt
from resispec.decode import Sampling
from resispec.draws import Draws
from resispec.trees import complete, parallel_chains
from resispec.verifiers import get_rule

CPU = torch.device("cpu")
SHAPES = {"d3b3": complete(3, 3), "2 paths of 3": parallel_chains(2, 3)}
TINY = Size(vocab=40, shapes=SHAPES, trees=2, walks=2, law_rounds=2, walk_rounds=1)
ALL = {"iid", "without_replacement", "point_mass", "greedy"}
LAWS = {"standard": ALL, "resispec": ALL, "kseq": {"iid"}, "naive": ALL, "greedy": {"greedy"}}
LAWS |= {f"optimal, bins {bins}": {"iid"} for bins in (0, 512, 1024, 2048)}
WALKS = LAWS | {"traversal": ALL, "traversal_optimal": {"iid"}, "level_optimal": {"iid"}}


@pytest.fixture(scope="module")
def frame():
    return measure(TINY, CPU)


def labels(frame, measured, quantity, num_nodes):
    found = frame[
        (frame.measured == measured) & (frame.quantity == quantity) & (frame.num_nodes == num_nodes)
    ]
    pairs = list(zip(found.verifier, found.draws, strict=True))
    assert len(pairs) == len(set(pairs)) and (found.value > 0).all()
    return set(pairs)


def every(named):
    return {(name, draws) for name, found in named.items() for draws in found}


def test_every_rule_and_verifier_has_its_rows(frame):
    for nodes in (1, 40):
        assert labels(frame, "law", "ms", nodes) == labels(frame, "law", "ratio", nodes) == every(LAWS)
    for nodes in (1, 10, 40):
        assert labels(frame, "law", "peak_bytes", nodes) == every(LAWS)
    for shape, nodes in (("d3b3", 13), ("2 paths of 3", 7)):
        for quantity in ("ms", "ratio"):
            assert labels(frame, f"walk on {shape}", quantity, nodes) == every(WALKS)
    assert len(frame) == 7 * len(every(LAWS)) + 4 * len(every(WALKS))


def test_ratios_are_to_standard_with_iid_draws(frame):
    for (_, _), rows in frame[frame.quantity != "peak_bytes"].groupby(["measured", "num_nodes"]):
        wide = rows.pivot(index=["verifier", "draws"], columns="quantity", values="value")
        assert wide.ratio["standard", "iid"] == 1
        assert (wide.ratio * wide.ms["standard", "iid"]).tolist() == pytest.approx(wide.ms.tolist())


def test_a_contest_takes_turns_and_forgets_the_first_round(monkeypatch):
    order, turns, clock = [], [], iter(range(100))

    def calls(name):
        return [lambda turn, call=call: (order.append((name, call)), turns.append(turn)) for call in (0, 1)]

    contestants = [Timed((name,), calls(name)) for name in "ab"]
    monkeypatch.setattr(contests, "now", lambda _: next(clock) ** 2)
    contest("test", contestants, 3, CPU)
    rounds = [(order[n : n + 2], order[n + 2 : n + 4]) for n in range(0, 16, 4)]
    assert all(sorted(both) == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]] for both in rounds)
    assert len({str(both) for both in rounds}) == 2  # either goes first at times
    assert turns == [0] * 8 + [1] * 4 + [2] * 4  # the first round twice
    # Call n of all starts at (2 n)^2 and takes 4 n + 1.
    for contestant in contestants:
        own = [4 * place + 1 for place, (name, _) in enumerate(order) if (name,) == contestant.labels]
        wanted = [own[n : n + 2] for n in (2, 4, 6)]
        assert contestant.seconds == wanted
        assert contestant.milliseconds == 1e3 * (wanted[1][0] + wanted[1][1]) / 2


def test_speeds_are_ratios_to_the_counterpart():
    names = {"ours": 0.5, "theirs": 1.0, "our chain": 0.25, "their chain": 1.0}
    contestants = [Timed((name,), [], [[seconds]] * 3) for name, seconds in names.items()]
    frame = decoders.speeds(contestants).frame
    assert frame.ratio.tolist() == [2.0, 1.0, 4.0, 1.0]
    assert frame["tokens/s"].tolist() == [decoders.NEW_TOKENS / seconds for seconds in names.values()]
    split = {"step": 10.0, "target": 5.5, "draft": 3.2, "verify": 0.8, "commit": 0.3}
    split |= {"target forward": 5.0, "draft forward": 3.0}
    shares = decoders.parts(split).frame.set_index("part").share
    assert shares["all but the forwards"] == pytest.approx(0.2) and shares[:-1].sum() == pytest.approx(1)
    page = decoders.page(contestants, split, CPU)
    assert "forward of the target" not in decoders.page(contestants, None, CPU)
    assert "20.0%" in page and "| our chain " in page and "3 prompts decoded by all four" in page


def test_the_bench_of_decoders_runs_whole(tmp_path, monkeypatch, capsys):
    """From its command line to its page, with a tiny pair in the place of the embedded one."""
    save_tiny_pair(tmp_path)
    monkeypatch.setattr(embedded, "ensure_model", lambda _, name: tmp_path / name.split()[0])
    monkeypatch.setattr(embedded.EmbeddedDataset, "prompts", lambda _, n: [Prompt("x", "abc def")] * n)
    monkeypatch.setattr(decoders, "NEW_TOKENS", 4)
    monkeypatch.setattr(decoders, "SAMPLING", Sampling(1.0, 4, 64, ignore_eos=True))
    monkeypatch.setattr(sys, "argv", ["bench", "--prompts", "2", "--results", str(tmp_path)])
    decoders.main()
    page = (tmp_path / "embedded" / "bench.md").read_text()
    assert page in capsys.readouterr().out and page.count("transformers `generate") == 2


@pytest.mark.parametrize(
    ("bench", "arguments", "message"),
    [
        (decoders, ["--prompts", "0"], "'0'; allowed: a number from 1"),
        (decoders, ["--prompts", "many"], "'many'; allowed: a number from 1"),
        (bench_rules, ["--device", "abacus"], "device 'abacus'; allowed: cpu"),
        (bench_rules, ["--bogus"], "unrecognized arguments: --bogus"),
        (step_time, ["--device", "cpu", "--layers", "-1"], "'-1'; allowed: a number from 1"),
    ],
)
def test_what_a_bench_cannot_do_is_refused_in_one_line(bench, arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and line.startswith("error: ") and message in line


def test_peak_memory_counts_what_is_held_at_once():
    """Three tensors of 4 kB at the worst moment, the intermediate one freed before the fourth."""
    ones = torch.ones(1000)
    assert peak_bytes(lambda: (ones + 1) + (ones + 2), CPU) == pytest.approx(12_000, abs=500)
    assert peak_bytes(lambda: ((ones + 1) + 1) + 1, CPU) == pytest.approx(8000, abs=500)


@pytest.mark.parametrize(("name", "rule", "draws"), rules())
def test_the_memory_of_a_law_grows_in_proportion_to_the_nodes(name, rule, draws):
    few, many = (peak_bytes(law_call(rule, draws, (nodes, 4000), CPU), CPU) for nodes in MEASURED_NODES[1:])
    assert many == pytest.approx(few * MEASURED_NODES[2] / MEASURED_NODES[1], rel=0.02), name


def test_one_node_has_no_leading_dimension():
    shapes = []
    for nodes in (1, 2):
        law = law_call(get_rule("standard"), Draws.IID, (nodes, 9), CPU)()
        shapes.append((law.select.shape, law.residual.shape))
    assert shapes == [((3,), (9,)), ((2, 3), (2, 9))]


def test_the_page_and_the_files(frame, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_rules, "measure", lambda *_: frame)
    monkeypatch.setattr(bench_rules, "Size", lambda: TINY)
    monkeypatch.setattr(bench_rules.os, "getloadavg", lambda: (1.0, 1.0, 1.0))
    monkeypatch.setattr(sys, "argv", ["bench_rules", "--results", str(tmp_path)])
    bench_rules.main()
    page = (tmp_path / "embedded" / "bench_rules.md").read_text()
    assert page == page_of(frame, TINY, CPU) and page in capsys.readouterr().out
    assert (tmp_path / "embedded" / "bench_rules.csv").read_text() == frame.to_csv(index=False)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    assert {tuple(row[:2]) for row in rows} == every(WALKS) | {("verifier", "draws")}
    assert {len(row) for row in rows} == {9, 4}
    [law, *walks] = [row for row in rows if row[:2] == ["standard", "iid"]]
    assert len(walks) == 2 and law[3] == law[5] == "1.00" and "–" not in page
    assert all(walk[3] == "1.00" for walk in walks)
