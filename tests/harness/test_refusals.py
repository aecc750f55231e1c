"""Command lines that cannot be, each refused in one line before the first cell; notes; paths."""

import errno
import subprocess

import pytest

from experiments import check
from experiments import run as runner
from experiments.grid import cells_of
from recipes.smollm2 import SmolLM2Dataset
from resispec.errors import InvalidInput
from tests.harness.toy_runs import messages, run, save_rule

REFUSED = {
    # without torch
    "results=": "results is ''; allowed: a folder",
    "results=(a),b": "'results=(a),b' cannot be read; a text is quoted: \"results='(a),b'\"",
    "+sampling.foo=1": "unknown key 'sampling.foo'; allowed: sampling.max_new_tokens",
    "-m verifier=standard,resispec --cfg job": "--cfg shows one configuration: leave --multirun "
    "out",
    "--help --info": "--help and --info were given; allowed: one of them",
    "verifier=[naive,block] --cfg job": "verifier=naive,block has several values; allowed: one, "
    "since",
    "--resolve": "--resolve goes with --cfg or --help",
    "--package pair": "--package goes with --cfg",
    "--run": "--run is not taken; leave it out",
    "--config-name x": "--config-name is not taken; a command has one configuration; allowed: "
    "KEY=VALUE",
    "--config-path x": "--config-path is not taken; allowed: --config-dir FOLDER",
    "--experimental-rerun x": "--experimental-rerun is not taken; allowed: the same command again",
    "--config-dir {own}/none": "--config-dir={own}/none is no folder",
    "hydra.searchpath=[{own}]": "hydra.searchpath is not taken; allowed: --config-dir FOLDER",
    "tree=5": "unknown tree '5'; allowed: best, best_121",
    "tree=chain,true": "unknown tree 'true'; allowed: best, best_121",
    "verifier=[]": "verifier=[] has no values; allowed: verifier=a,b or verifier=[a,b]",
    "temperature=range(0,1,0)": "temperature=range(0,1,0): the step of a range is 0; allowed: "
    "range(start,",
    "=3": "'=3' has no key; allowed: KEY=VALUE",
    "@x=1": "'@x=1' has no key; allowed: KEY=VALUE",
    "tree=growmap tree.path={own}": "tree.path={own} is no file; allowed: a file, or a tree",
    "tree=growmap tree.path={own}/x.txt": "grow map {own}/x.txt: unknown kind of file '.txt'",
    "tree=growmap tree.path=gone.pt": "tree file gone.pt does not exist; a search writes .json "
    "files only",
    "tree=growmap tree.path=gone.json search=null": "tree.path=gone.json does not exist; "
    "allowed: a file",
    "num_prompts=9999": "9999 prompts were asked for and {toys}/prompts.jsonl has 8; lower "
    "num_prompts",
    "dataset=embedded_code num_prompts=9999": "9999 prompts were asked for and ",
    "hydra/sweeper=optuna": "unknown hydra/sweeper 'optuna'; allowed: basic",
    "experiment=frontier part=d5b4": "unknown part of frontier 'd5b4'; did you mean d5b3? "
    "allowed: auto",
    "experiment=table3 part=d5b4": "table3 has no parts; found 'd5b4'",
    # in a process that has it
    "task=race": "task=race goes with tree=fastest, which says what is timed",
    "task=bound decoder=sequoia": "the ceiling of a tree is measured for i.i.d. siblings",
    "task=laws task.folder=x decoder=spec_hub tree=d7b2": "hub draws cannot be read from a log; "
    "allowed: iid",
    "task=decay verifier=greedy": "greedy is not exact for draws 'iid'; supported: greedy",
    "task=scaling verifier=block": "block verification: a node of 2 children; allowed: chains",
    "decoder=eagle": "the decoder needs an EAGLE drafter and the pair has a draft model; "
    "allowed: a pair",
    "pair=embedded_eagle": "the decoder needs a draft model and the pair has an EAGLE drafter",
    "pair.draft=null": "the decoder needs a draft model and the pair has no draft",
    "+pair.foo=1": "resispec.models.load_pair cannot be called: got an unexpected keyword "
    "argument 'foo'",
    "verifier=custom verifier.name={own}/rule.py:Nope": "rule.py has no 'Nope'; it has Rule",
    "decoder=specinfer,top_k verifier=kseq,block": "(2 more of 4 cells cannot be, either)",
    "tree=best_16 verifier=block": "block verification: a node of 2 children",  # before the search
    "dataset.path={own}/chats.jsonl": "prompt 0 is a later turn of a chat; allowed with "
    "prompt_template=chat",
    "prompt_template=chat": "the tokenizer {toys}/target has no chat template; give "
    "prompt_template=",
    "pair=embedded prompt_template=chat": "the embedded models have no chat template",
}


def typed(toy, line):
    """The toys' overrides without those whose place the line's take, and then the line's."""
    own = line.split()
    keys = {word.partition("=")[0] for word in own}
    kept = [word for word in toy if not {word.partition("=")[0], word.partition(".")[0]} & keys]
    return [*kept, *own]


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_written(
    line, toy, folder, tmp_path
):
    save_rule(tmp_path, "raise KeyError('lost')")
    (tmp_path / "x.txt").write_text("no tree")
    (tmp_path / "chats.jsonl").write_text('{"text": "And?", "earlier": ["Why?", "So."]}\n' * 3)
    done = run(*typed(toy, line.format(own=tmp_path)))
    [said] = messages(done.stderr)
    assert done.returncode == 1 and said.startswith("error: ") and not done.stdout
    assert REFUSED[line].format(own=tmp_path, toys=folder) in said
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()]


@pytest.mark.parametrize("body", ["raise KeyError('lost')", "exit(3)"])
def test_a_rule_that_raises_anything_else_is_left_to_its_cell(body, toy, tmp_path):
    """It may do so for want of its target's laws."""
    check.rehearse_cells(
        cells_of([*toy, "verifier=custom", f"verifier.name={save_rule(tmp_path, body)}"])
    )


def test_text_that_is_not_made_yet_is_not_made_to_count_its_prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    data = SmolLM2Dataset("smollm2_explain")
    message = "193 prompts were asked for and smollm2_explain has at most 192"
    with pytest.raises(InvalidInput, match=message):
        data.check(193, None)
    data.check(192, None)
    assert not list(tmp_path.iterdir())


def test_what_changes_nothing_is_said(toy):
    lines = [
        "+foo=1",
        "hydra.sweep.dir=X",
        "hydra/sweeper=basic",
        "+hydra.job.env_set.A=1",
        "decoder=autoregressive",
        "tree=d4b4,chain",
        "audit=true",
        "num_prompts=1",
    ]
    done = run(*typed(toy, " ".join(["+used=5", "prompt_tokens=${used}", *lines])))
    notes = [line for line in messages(done.stderr) if line.startswith("note: ")]
    assert done.returncode == 0 and notes == [
        *(
            f"note: {key}=... changes nothing without a launcher: hydra/launcher=NAME"
            for key in ("hydra.sweep.dir", "hydra/sweeper", "hydra.job.env_set.A")
        ),
        "note: tree=... changes nothing: decoder=autoregressive has no tree",
        "note: audit=... changes nothing: decoder=autoregressive drafts nothing",
        "note: foo=... changes nothing but names of cells: nothing refers to foo",
    ]


def test_a_complete_sweep_needs_nothing_of_its_results_but_to_read_them(toy, tmp_path, monkeypatch):
    """And results lie on any path, letters of no alphabet included."""
    command = [*toy, f"results={tmp_path}/my größe & co", "num_prompts=1"]
    assert run(*command).returncode == 0

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(runner, "write_plans", refuse)
    done = run(*command)
    note, last = messages(done.stderr)
    assert note == "note: the plan stays as it is ([Errno 30] Read-only file system)"
    assert done.returncode == 0 and last.startswith("1 cell: 1 done (1 before)")
    assert run(*command, "seed=1").returncode == 1


def test_a_run_whose_table_is_not_written_has_not_done_all(toy, tmp_path):
    """Defect: its exit code was 0."""
    (tmp_path / "results" / "embedded").mkdir(parents=True)
    (tmp_path / "results" / "embedded" / "sweeps").write_text("no folder")
    done = run(*toy, "num_prompts=1", "name=mine")
    assert done.returncode == 1 and "1 cell: 1 done (0 before)" in done.stderr
    assert "error: no table of mine: " in done.stderr


def test_make_hands_a_folder_on_as_it_is():
    command = ["make", "--dry-run", "status", "RESULTS=my größe's & co", "PROFILE=embedded"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--results 'my größe'\\''s & co'" in printed


def test_make_hands_a_verifier_on_as_one_word():
    """What the word means is in test_console.py."""
    name = "my rules/rule.py:MyRule"
    command = ["make", "--dry-run", "audit", f"VERIFIER={name}", "PROFILE=embedded"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.rstrip().endswith(f"results='results' '{name}'")


def test_a_verifier_of_paths_may_have_a_searched_tree_of_its_own(tmp_path):
    given = ["verifier=gbv", "decoder=specinfer", f"results={tmp_path}"]
    check._check_parts(cells_of([*given, "tree=own_121"])[0])
