"""Laws that a decoding logged, and verifiers that are replayed on them."""

import re

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.load import read_plan
from experiments.grid import cells_of
from experiments.replay import laws_files, main, measure
from experiments.states import States
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.replay import LawRecorder, num_steps, read_laws, replay
from resispec.trees import complete, from_child_counts, root_only
from resispec.verifiers import TopDown, get_rule, get_verifier
from resispec.verifiers.base import Outcomes
from tests.harness.toy_runs import messages, run
from tests.toys import table_pair

BUSHY, UNEVEN = complete(3, 2), from_child_counts([[2], [0, 2]])


class Watched:
    """A verifier that remembers where its generator stood, and what it decided."""

    def __init__(self, verifier):
        self.verifier, self.decided = verifier, []

    def verify(self, tree, target_probs, draft_probs, generator):
        state = generator.get_state()
        self.decided.append(
            (state, self.verifier.verify(tree, target_probs, draft_probs, generator))
        )
        return self.decided[-1][1]


def logged(path, verifier="standard", draws=Draws.IID, tokens=40, seed=0, topology=BUSHY):
    """Decode, log, and return what the verifier saw and did in every step."""
    watched, recorder = Watched(get_verifier(verifier)), LawRecorder()
    Decoder(DraftModel(topology, draws), watched).generate(
        table_pair(vocab=6, seed=3),
        [1, 2],
        Sampling(1.0, tokens, None),
        torch.Generator().manual_seed(seed),
        on_step=recorder,
    )
    recorder.write(path)
    return watched.decided


@pytest.mark.parametrize(
    ("verifier", "draws"),
    [("standard", Draws.IID), ("traversal", Draws.WITHOUT_REPLACEMENT)],
)
def test_the_same_laws_give_the_same_verdicts(verifier, draws, tmp_path):
    decided = logged(tmp_path / "laws", verifier, draws, topology=UNEVEN)
    steps, generator, gaps = list(read_laws(tmp_path / "laws")), torch.Generator(), []
    assert len(steps) == len(decided) == num_steps(tmp_path / "laws") > 10
    for step, (state, verdict) in zip(steps, decided, strict=True):
        laws = step.draft.tree, step.target_probs, step.draft.probs
        assert get_verifier(verifier).verify(*laws, generator.set_state(state)) == verdict
        expected, terms = replay(step, get_verifier(verifier), generator.set_state(state))
        assert 1 <= expected <= 3 and len(terms.surprisal) == verdict.num_emitted
        gaps += [
            get_verifier(verifier).verify(*laws, generator).num_emitted - expected
            for _ in range(30)
        ]
    gaps = torch.tensor(gaps)
    assert abs(float(gaps.mean())) < 4 * float(gaps.std()) / len(gaps) ** 0.5


def test_a_file_that_is_named_twice_counts_once(tmp_path, monkeypatch):
    """Its steps would be taken for more evidence than there is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laws").mkdir()
    for name in "ab":
        (tmp_path / "laws" / f"{name}.safetensors").write_text(name)
    (tmp_path / "link.safetensors").symlink_to("laws/a.safetensors")
    places = ["laws", "laws/a.safetensors", f"{tmp_path}/laws/b.safetensors", "link.safetensors"]
    assert len(laws_files(places)) == 2
    (tmp_path / "copy.safetensors").write_text("a")  # defect: its prompt counted twice
    with pytest.raises(InvalidInput, match=r"copy.safetensors is a copy of laws/a.safetensors"):
        laws_files([*places, "copy.safetensors"])


def test_a_last_step_that_lacks_a_part_is_no_step_less(tmp_path):
    """Defect: it was left out, and with it the short last step of every text."""
    logged(tmp_path / "laws", tokens=3)
    tensors = load_file(tmp_path / "laws")
    last = max(tensors)
    about = {"format": "resispec laws 1", "draws": "iid"}
    save_file({name: tensors[name] for name in tensors if name != last}, tmp_path / "laws", about)
    with pytest.raises(InvalidInput, match=f"laws lacks '{last}'; allowed: for every step"):
        list(read_laws(tmp_path / "laws"))
    save_file(tensors | {"more": tensors[last].clone()}, tmp_path / "laws", about)
    with pytest.raises(InvalidInput, match="laws lacks '00000"):
        list(read_laws(tmp_path / "laws"))


def test_steps_of_a_root_alone_are_logged_and_read(tmp_path):
    logged(tmp_path / "laws", tokens=3, topology=root_only())
    steps = list(read_laws(tmp_path / "laws"))
    assert [step.draft.probs.shape for step in steps] == [(1, 6)] * 3
    assert replay(steps[0], get_verifier("standard"), torch.Generator())[0] == 1


@pytest.mark.slow
def test_the_command_compares_verifiers_and_finds_the_biased_one(tmp_path, capsys):
    for seed in range(8):
        logged(tmp_path / "laws" / f"{seed}.safetensors", tokens=175, seed=seed)
    words = [str(tmp_path / "laws"), "verifier=standard,resispec,traversal_optimal"]
    assert main([*words, "--out", str(tmp_path / "found.csv")]) == 0
    found = pd.read_csv(tmp_path / "found.csv").set_index("verifier")
    assert list(found.verdict) == ["no bias seen", "biased", "no bias seen"]
    assert found.gain["standard"] == 1 and (found.gain_lower[1:] > 1).all()
    steps = [
        step for seed in range(8) for step in read_laws(tmp_path / "laws" / f"{seed}.safetensors")
    ]
    expected = [replay(step, get_verifier("standard"), torch.Generator())[0] for step in steps]
    assert found.accepted_length["standard"] == pytest.approx(sum(expected) / len(steps))
    assert f"Verifiers on {len(steps):,} logged steps of 8 files" in capsys.readouterr().out


WRONG = [
    ({"format": "laws"}, {}, "has the format 'laws' in its metadata; allowed: 'resispec laws 1'"),
    ({"draws": "dice"}, {}, "unknown draws 'dice'; known: iid"),
    ({}, {"tokens": lambda it: it + 6}, r"tokens holds \[.*\]; allowed: below 6"),
    *(
        ({}, {name: lambda it: it.flatten()[0]}, rf"step 0: .* is \(\) of .*; allowed: \({shape}\)")
        for name, shape in (
            ("parents", "N,"),
            ("tokens", "7,"),
            ("target_probs", "7, 0"),
        )
    ),
    (
        {},
        {"parents": lambda it: it * torch.nan},
        r"parents is .* of torch.float32; allowed: .*int64",
    ),
    ({}, {"parents": torch.zeros_like}, "step 0: a topology starts with its root"),
    ({}, {"target_probs": lambda it: it[1:]}, r"target_probs is \(6, 6\) .*; allowed: \(7, 6\)"),
    ({}, {"draft_probs": lambda it: it * 0.9}, "draft_probs has a row that is no law"),
    ({}, {"target_probs": lambda it: it * torch.nan}, "target_probs has a row that is no law"),
    (
        {},
        {"draft_probs": torch.Tensor.half},
        r"draft_probs is .* of torch.float16; allowed: .*float32 or",
    ),
    (
        {"draws": "greedy"},
        {"tokens": torch.zeros_like},
        r"siblings below node 0 hold \[0, 0.*different tokens",
    ),
]


@pytest.mark.parametrize(("about", "changes", "message"), WRONG)
def test_a_damaged_log_is_one_line(about, changes, message, tmp_path, capsys):
    logged(tmp_path / "laws", tokens=3)
    tensors = load_file(tmp_path / "laws")
    for name, change in changes.items():
        tensors[f"000000.{name}"] = change(tensors[f"000000.{name}"])
    save_file(tensors, tmp_path / "laws", {"format": "resispec laws 1", "draws": "iid"} | about)
    assert main([str(tmp_path / "laws"), "verifier=standard"]) == 1
    [line] = messages(capsys.readouterr().err)
    assert re.search(f"^error: .*{message}", line)


def test_what_is_no_log_is_one_line(tmp_path, capsys):
    (tmp_path / "text").write_text("no tensors")
    for words, message in [
        ([str(tmp_path / "text")], "text is no file of laws"),
        ([str(tmp_path / "nowhere")], "nowhere has no laws; allowed: .safetensors files"),
        (["verifier=standard"], "no laws are given"),
    ]:
        assert main(words) == 1
        assert message in messages(capsys.readouterr().err)[-1]


def test_what_is_read_is_not_written_over(tmp_path, capsys):
    laws, rule = tmp_path / "laws.safetensors", tmp_path / "mine.py"
    logged(laws, tokens=3)
    rule.write_text("class Mine: pass")
    before = laws.read_bytes()
    for words in (
        [str(laws), "--out", str(laws)],
        [str(tmp_path), "--out", f"{tmp_path}/./{laws.name}"],
        [str(laws), f"verifier={rule}:Mine", "--out", str(rule)],
    ):
        assert main(words) == 1
        assert "is read by this command" in messages(capsys.readouterr().err)[-1]
    assert laws.read_bytes() == before and rule.read_text() == "class Mine: pass"
    assert main([str(laws), "--out", ""]) == 1
    assert "a folder; allowed: the name of a file" in messages(capsys.readouterr().err)[-1]


@pytest.mark.parametrize("seed", [2**64, -1])
def test_a_seed_that_cannot_be_is_refused(seed, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["laws", "--seed", str(seed)])
    assert (
        "allowed: a number from 0, of 18 digits at most" in capsys.readouterr().err.splitlines()[-1]
    )


def test_laws_that_are_rounded_within_the_limit_are_replayed(tmp_path):
    path = tmp_path / "laws"
    logged(path, tokens=200)
    tensors = load_file(path)
    tensors |= {
        name: 0.9993 * law for name, law in tensors.items() if name.endswith("target_probs")
    }
    save_file(tensors, path, {"format": "resispec laws 1", "draws": "iid"})
    assert main([str(path), "verifier=standard,traversal"]) == 0


def test_a_sweep_logs_laws_once_for_each_decoding(toy, tmp_path):
    """What another cell logged is not written over."""
    command = [*toy, "task=laws", f"task.folder={tmp_path}/laws", "tree=d4b4"]
    assert run(*command).returncode == 0
    files = sorted((tmp_path / "laws").glob("*"))
    assert [path.name for path in files] == [f"prompt-{index:05}.safetensors" for index in range(3)]
    assert all(step.target_probs.shape == (85, 64) for path in files for step in read_laws(path))
    # the folder that it fills does not rename the cell
    assert "1 done (1 before)" in run(*command).stderr
    other = run(*command, "seed=7")
    assert other.returncode == 1 and "holds another decoding" in other.stderr
    # at temperature 0 all trees decode the same tokens
    greedy = [*toy, "task=laws", f"task.folder={tmp_path}/greedy", "temperature=0"]
    assert run(*greedy, "tree=d4b4").returncode == 0
    other = run(*greedy, "tree=chain")
    assert other.returncode == 1 and "holds another decoding" in other.stderr


def test_laws_whose_files_are_gone_are_logged_again(toy, tmp_path):
    """Defect: the cell counted as complete, and nothing was there to replay."""
    folder = tmp_path / "laws"
    command = [*toy, "task=laws", f"task.folder={folder}", "tree=d4b4"]
    assert run(*command).returncode == 0
    first, second, third = sorted(folder.glob("*"))
    kept = first.stat().st_mtime_ns
    second.unlink()
    [cell] = cells_of(command)
    assert States("embedded", tmp_path / "results").status(cell.cell_id).state == "missing"
    assert read_plan("sweep", "embedded", tmp_path / "results").status(cell.cell_id).state == "done"
    again = run(*command)
    assert again.returncode == 0 and "1 done (0 before)" in again.stderr
    reason = f"1 of 3 files that it has written are gone, the first {second}; it is measured again"
    assert messages(again.stderr)[0] == f"{cell}: {reason}"
    assert all(len(list(read_laws(path))) for path in (first, second, third))
    assert first.stat().st_mtime_ns == kept and "1 done (1 before)" in run(*command).stderr


def test_siblings_that_their_law_cannot_give_are_refused(tmp_path):
    """Defect: a logger that swapped the rows of two nodes more than doubled the tokens a step."""
    even = torch.full((3, 4), 0.25)
    rows = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    step = {"parents": torch.tensor([-1, 0, 1]), "tokens": torch.tensor([0, 1, 2])}

    def read(draft_probs, draws="iid", **other):
        tensors = step | {"target_probs": even, "draft_probs": draft_probs} | other
        named = {f"000000.{name}": tensor.contiguous() for name, tensor in tensors.items()}
        save_file(named, tmp_path / "laws", {"format": "resispec laws 1", "draws": draws})
        return list(read_laws(tmp_path / "laws"))

    assert len(read(rows)) == len(read(rows.flip(0), "point_mass")) == 1
    with pytest.raises(InvalidInput, match="step 0: node 1 holds token 1, which its law does not"):
        read(rows.flip(0))
    # without replacement, the second sibling of an exhausted law is any other token
    pair = {"parents": torch.tensor([-1, 0, 0]), "draft_probs": torch.eye(4)[:1]}
    assert read(draws="without_replacement", tokens=torch.tensor([0, 0, 3]), **pair)
    with pytest.raises(InvalidInput, match="node 1 holds token 3"):
        read(draws="without_replacement", tokens=torch.tensor([0, 3, 0]), **pair)


def test_a_known_bias_is_said_where_the_log_is_too_short_to_show_it(tmp_path, capsys):
    logged(tmp_path / "laws", tokens=20)
    assert main([str(tmp_path / "laws"), "verifier=standard,resispec"]) == 0
    printed = capsys.readouterr().out
    assert "biased (enumerated)" in printed and "resispec: ResiSpec is biased with draws" in printed


def test_a_file_of_laws_has_one_kind_of_draws():
    recorder = LawRecorder()
    for draws in (Draws.IID, Draws.POINT_MASS):
        decoder = Decoder(DraftModel(BUSHY, draws), get_verifier("naive"))
        given = table_pair(vocab=6), [1, 2], Sampling(1.0, 4, None), torch.Generator()
        if draws is Draws.IID:
            decoder.generate(*given, on_step=recorder)
        else:
            with pytest.raises(InvalidInput, match="draws point_mass, where those before have iid"):
                decoder.generate(*given, on_step=recorder)


def test_draws_that_a_file_cannot_name_are_not_recorded():
    """Defect: their fields were lost, and rules were replayed on other laws."""

    class Own(type(Draws.IID)):
        name, are_independent, can_be_cut = "own", True, True

    decoder = Decoder(DraftModel(BUSHY, Own()), get_verifier("standard"))
    given = table_pair(vocab=6), [1, 2], Sampling(1.0, 4, None), torch.Generator()
    with pytest.raises(InvalidInput, match="own draws cannot be read from a log; allowed: iid"):
        decoder.generate(*given, on_step=LawRecorder())


def test_chances_that_are_no_law_give_no_length(tmp_path):
    """Defect: `outcomes` that lose half of the chances halved the accepted length of `verify`."""

    class Halved(TopDown):
        def outcomes(self, *given):
            outcomes = super().outcomes(*given)
            return Outcomes(outcomes.stop / 2, outcomes.final)

    logged(tmp_path / "laws")
    step = next(read_laws(tmp_path / "laws"))
    with pytest.raises(FloatingPointError, match="chances to stop in .* sum to 0.5"):
        replay(step, Halved(get_rule("standard")), torch.Generator())


def test_laws_of_temperature_0_accuse_nobody_who_is_exact_there(tmp_path):
    """Defect: ResiSpec was called biased on them, where it emits the likeliest tokens."""
    recorder = LawRecorder()
    Decoder(DraftModel(BUSHY), get_verifier("standard")).generate(
        table_pair(vocab=6, seed=3), [1, 2], Sampling(0, 20), torch.Generator(), on_step=recorder
    )
    recorder.write(tmp_path / "laws")
    assert measure([tmp_path / "laws"], "resispec", 0).attrs["shown_bias"] is None
    assert "biased" in measure([tmp_path / "laws"], "dial", 0).attrs["shown_bias"]
