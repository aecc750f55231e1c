"""Cells whose code has changed: what counts as code, and what becomes of them and their rows."""

import json
import shutil

import pytest
from huggingface_hub import constants

from analysis.load import read_plan, read_status
from experiments import worker
from experiments.cell import CellFailed
from experiments.grid import cells_of
from experiments.scheduler import given_up, outcome
from experiments.status import standings
from experiments.store import status_of
from experiments.worker import measure
from resispec import code_digest
from resispec.code_digest import changed_files, check_loaded, code_digests, own_digests
from resispec.errors import InvalidInput
from tests.harness.toy_runs import hashes, ignore, messages, rows, run, run_here

RULE = '''"""A rule."""
from helper_of_rule import SHARE
from resispec.verifiers import Standard


class Rule(Standard):
    """The standard rule."""

    share = SHARE
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of our verifiers, draws and drafters, whose files a test may change."""
    for part in ("verifiers", "draws", "drafters", "trees"):
        shutil.copytree(code_digest.PACKAGE / part, tmp_path / "resispec" / part)
    shutil.copy(code_digest.PACKAGE / "distributions.py", tmp_path / "resispec")
    monkeypatch.setattr(code_digest, "PACKAGE", tmp_path / "resispec")
    monkeypatch.setattr(worker, "OWN_CODE", {})
    return tmp_path / "resispec"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def edit_standard(package):
    """Change the code of the standard rule."""
    other = "SHARE = 0.9\nfrom dataclasses"
    edit(package / "verifiers" / "standard.py", "from dataclasses", other)


def stop_after_two(cell):
    """Stop the measurement of a cell after two prompts."""

    def stop(_line, done, _total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, CellFailed)):
        measure([cell], stop)


def save(folder):
    """Write a user's rule that imports a module beside it; returns how a command line names it."""
    (folder / "helper_of_rule.py").write_text("SHARE = 0.5\n")
    (folder / "rule.py").write_text(RULE)
    return [f"verifier.name={folder}/rule.py:Rule", "verifier=custom"]


def changes(config, path, old, new):
    """The names of the files that an edit changes for a cell."""
    before, text = code_digests(config), path.read_text()
    edit(path, old, new)
    changed = changed_files(before, code_digests(config))
    path.write_text(text)
    return changed


def test_the_code_of_a_cell_is_its_verifier_draws_and_drafter_and_what_they_import():
    [cell] = cells_of(["pair=embedded", "verifier=standard"])
    names = {name.removeprefix("resispec/") for name in code_digests(cell.config)}
    assert {
        "verifiers/standard.py",
        "verifiers/recursive.py",
        "draws/iid.py",
        "distributions.py",
    } <= names
    assert {"drafters/draft_model.py", "drafters/levels.py", "verifiers/top_down.py"} <= names
    assert not names & {"verifiers/resispec.py", "verifiers/optimal.py", "draws/hub.py"}
    named = cells_of(["pair=embedded", "verifier=custom", "verifier.name=level_optimal"])[0].config
    assert "resispec/verifiers/max_score_transport.py" in code_digests(named)
    over = cells_of(["pair=embedded", "verifier=dial", "verifier.rule=level_optimal"])[0].config
    assert "resispec/verifiers/level_optimal.py" in code_digests(over)
    kinds = cells_of(["pair=embedded", "decoder=spec_hub"])[0].config
    assert "resispec/draws/hub.py" in code_digests(kinds)
    assert set(code_digests(cell.config)) <= set(own_digests())


def test_comments_docstrings_and_formatting_are_no_change_of_code(package):
    [cell] = cells_of(["pair=embedded", "verifier=standard"])
    path, line = package / "verifiers" / "standard.py", "from dataclasses import dataclass"
    assert changes(cell.config, path, line, f"# a comment\n\n{line}  # another") == []
    assert changes(cell.config, path, '"""', '"""Other words. ') == []
    assert changes(cell.config, path, line, f"{line}\nSHARE = 1") == [
        "resispec/verifiers/standard.py"
    ]
    assert (
        changes(
            cell.config, package / "verifiers" / "optimal.py", "import torch", "import torch.nn"
        )
        == []
    )


@pytest.mark.parametrize("text", ["class Rule(:\n", "number = 1" + " + 1" * 5000])
def test_a_file_that_cannot_be_parsed_counts_by_its_bytes(text, tmp_path):
    (tmp_path / "rule.py").write_text(text)
    config = {"decoder": {"name": f"{tmp_path}/rule.py:Rule"}}
    assert list(code_digests(config)) == ["rule.py"]
    assert changes(config, tmp_path / "rule.py", text, f"{text}# more\n") == ["rule.py"]


def test_modules_of_the_users_count_and_installed_ones_do_not(tmp_path, monkeypatch):
    [cell] = cells_of(["pair=embedded", *save(tmp_path)])
    assert {"rule.py", "helper_of_rule.py", "resispec/verifiers/standard.py"} <= set(
        code_digests(cell.config)
    )
    assert changes(cell.config, tmp_path / "helper_of_rule.py", "0.5", "0.9") == [
        "helper_of_rule.py"
    ]
    package = tmp_path / "folder" / "people_rules"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .inner import Mine\n")
    (package / "inner.py").write_text("import numpy\nfrom . import shares\nclass Mine: pass\n")
    (package / "shares.py").write_text("SHARE = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path / "folder")
    names = {"_target_": "people_rules.Mine", "other": {"_target_": "torch.nn.Linear"}}
    assert sorted(code_digests({"decoder": names})) == [
        "package torch",  # named, and so by its version and files
        *(f"people_rules/{name}.py" for name in ("__init__", "inner", "shares")),
    ]
    recorded = code_digests({"decoder": names}) | {"elsewhere.py": "0"}  # of another machine
    assert changed_files(recorded, code_digests({"decoder": names})) == []


def test_files_that_a_rule_of_the_users_may_read_count(tmp_path, monkeypatch):
    """Defect: thresholds in a file beside a rule were changed, and its old numbers stayed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shares.json").write_text('{"share": 0.5}')
    rule = "import json\nfrom pathlib import Path\n"
    rule += 'SHARE = json.loads(Path(__file__).with_name("shares.json").read_text())["share"]\n'
    (tmp_path / "reading.py").write_text(f"{rule}class Rule: pass\n")
    config = {"decoder": {"_target_": "reading.Rule"}}
    assert changes(config, tmp_path / "shares.json", "0.5", "0.9") == ["shares.json"]


@pytest.mark.parametrize("name", ["shares.pkl", "core.py"])
def test_any_file_beside_a_rule_that_it_names_counts(name, tmp_path, monkeypatch):
    """Defect: one of an unknown kind, or a module that it loads by its path, did not."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / name).write_text("SHARE = 0.5\n")
    (tmp_path / "naming.py").write_text(f"NAME = '{name}'\nclass Rule: pass\n")
    config = {"decoder": {"_target_": "naming.Rule"}}
    assert changes(config, tmp_path / name, "0.5", "0.9") == [name]


def test_a_module_beside_a_rule_counts_whatever_else_has_its_name(tmp_path, monkeypatch):
    """Defect: an installed one hid it, and its edits left the old numbers as done."""
    for folder in ("site-packages", "rules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "toy_common.py").write_text("SHARE = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    (tmp_path / "rules" / "rule.py").write_text("import toy_common\nclass Rule: pass\n")
    config = {"decoder": {"verifier": {"name": f"{tmp_path}/rules/rule.py:Rule"}}}
    path = tmp_path / "rules" / "toy_common.py"
    assert changes(config, path, "0.5", "0.9") == ["toy_common.py"]


@pytest.mark.parametrize(
    "way", ['@registry.register("mine")', "@register(NAME)", '@register(name="mine")']
)
def test_a_rule_that_is_registered_in_another_way_counts(way, package):
    path = package / "verifiers" / "mine.py"
    path.write_text(f"{way}\nclass Mine:\n    SHARE = 0.5\n")
    named = {"_target_": "resispec.verifiers.get_verifier", "name": "mine"}
    config = {"decoder": {"verifier": named}}
    assert "resispec/verifiers/mine.py" in changes(config, path, "0.5", "0.9")


def test_draws_whose_name_has_a_type_count(package):
    path = package / "draws" / "flat.py"
    path.write_text('class Flat(DrawsKind):\n    name: ClassVar[str] = "flat"\n    POWER = 0.5\n')
    config = {"decoder": {"drafter": {"draws": "flat"}}}
    assert changes(config, path, "0.5", "0.9") == ["resispec/draws/flat.py"]


def test_tasks_and_trees_count_unless_a_cell_is_older_than_that(package):
    """Defect: a corrected formula of a user's own task left the old numbers as done."""
    tasks = package.parent / "experiments" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "overlap.py").write_text("SHARE = 0.5\nfrom resispec.verifiers import Standard\n")
    (package / "trees" / "mine.py").write_text("SHARE = 0.5\ndef star(): pass\n")
    tree = {"_target_": "resispec.trees.mine.star"}
    config = {"decoder": {"topology": tree}, "task": {"_target_": "experiments.tasks.overlap.O"}}
    for path, name in (
        (tasks / "overlap.py", "experiments/tasks/overlap.py"),
        (package / "trees" / "mine.py", "resispec/trees/mine.py"),
    ):
        assert changes(config, path, "0.5", "0.9") == [name]
    assert "resispec/verifiers/standard.py" not in code_digests(config)
    assert changed_files({}, code_digests(config)) == []


def test_the_version_of_a_class_s_package_counts(tmp_path, monkeypatch):
    about = tmp_path / "site-packages" / "toy_rules-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "toy_rules_of.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(about.parent)
    found = []
    for record in ("toy_rules_of.py,sha256=a,1\n", "toy_rules_of.py,sha256=b,1\n"):
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-rules\nVersion: 1.0\n")
        (about / "RECORD").write_text(record)
        code_digest._of_package.cache_clear()
        found.append(code_digests({"decoder": {"_target_": "toy_rules_of.Mine"}}))
    assert changed_files(*found) == ["package toy-rules"]


def test_a_file_that_changes_under_a_process_that_has_read_it_is_refused(tmp_path, monkeypatch):
    """Defect: a job measured with the old module, and recorded the new one."""
    monkeypatch.setattr(code_digest, "_LOADED", {})
    (tmp_path / "rule.py").write_text("class Rule: pass\n")
    config = {"decoder": {"verifier": {"name": f"{tmp_path}/rule.py:Rule"}}}
    check_loaded(config)
    edit(tmp_path / "rule.py", "pass", "SHARE = 1")
    with pytest.raises(InvalidInput, match=r"^rule.py has changed since this process read it"):
        check_loaded(config)


def test_the_version_of_an_entry_point_s_package_counts(tmp_path, monkeypatch):
    """Defect: its files are in site-packages, which is left out."""
    site = tmp_path / "site-packages"
    about = site / "toy_stale-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "toy_stale.py").write_text("from resispec.verifiers import Standard as Mine\n")
    entries = "[resispec.verifiers]\nstale_mine = toy_stale:Mine\nstandard = toy_stale:Mine\n"
    (about / "entry_points.txt").write_text(f"{entries}[resispec.datasets]\nd = toy_stale:D\n")
    monkeypatch.syspath_prepend(site)

    def digests(version):
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ts\nVersion: {version}\n")
        code_digest._entry.cache_clear()
        configs = [cells_of(words.split())[0].config for words in asked]
        return [code_digests(config) for config in configs]

    custom = "pair=embedded verifier=custom verifier.name="
    asked = [
        f"{custom}stale_mine",
        "pair=embedded dataset=custom dataset.name=d",
        "pair=embedded verifier=dial verifier.rule=stale_mine",
        f"{custom}standard",
    ]
    before, after = digests("1.0"), digests("1.1")
    changed = [changed_files(*two) for two in zip(before, after, strict=True)]
    assert changed == [["package ts"], ["package ts"], ["package ts"], []]


def test_the_files_of_a_data_set_s_class_count(tmp_path):
    (tmp_path / "d.py").write_text("import texts_of_d\nclass Tickets: pass\n")
    (tmp_path / "texts_of_d.py").write_text("TEXTS = ['a']\n")
    words = ["pair=embedded", "dataset=custom", f"dataset.name={tmp_path}/d.py:Tickets"]
    [cell] = cells_of(words)
    assert changes(cell.config, tmp_path / "texts_of_d.py", "'a'", "'b'") == ["texts_of_d.py"]


def test_the_files_of_a_pair_s_loader_count(tmp_path, monkeypatch):
    (tmp_path / "pair_of_mine.py").write_text("SCALE = 1\ndef load(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"pair": {"_target_": "pair_of_mine.load"}}
    assert changes(config, tmp_path / "pair_of_mine.py", "1", "2") == ["pair_of_mine.py"]


def test_a_hub_s_name_that_stands_for_another_commit_makes_a_cell_stale(
    toy, tmp_path, monkeypatch, folder
):
    """A complete one, and one that goes on: as far as a revision does not say it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def publish(commit):
        repo = tmp_path / "hub" / "models--o--m"
        shutil.copytree(folder / "target", repo / "snapshots" / commit)
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / "main").write_text(commit)

    first, second = "a" * 40, "b" * 40
    publish(first)
    named = [word for word in toy if not word.startswith("pair")]
    [cell] = cells_of([*named, "pair=local", "pair.target=o/m", f"pair.draft={folder}/draft"])
    [pinned] = cells_of(
        [*named, "pair=local", "pair.target=o/m", f"+pair.target_revision={first}",
         f"pair.draft={folder}/draft"]
    )  # fmt: skip
    run_here(pinned)

    stop_after_two(cell)
    worker._KEPT.clear()  # as in another process
    build_pair = worker.build_pair

    def load(config):
        publish(second)  # the newer one is seen when it is fetched
        return build_pair(config)

    with monkeypatch.context() as patched:
        patched.setattr(worker, "build_pair", load)
        run_here(cell)
    facts = json.loads((cell.folder / "provenance.json").read_text())
    assert len(rows(cell)) == 3 and "before" not in facts
    assert facts["model_commits"]["target"] == second
    assert read_status(cell.folder).state == "done"
    shutil.rmtree(tmp_path / "hub")
    assert read_status(cell.folder).state == "done"  # as on another machine
    publish(first)
    assert read_status(cell.folder).reason == "its code has changed: target on the hub"
    publish(second)
    assert {read_status(one.folder).state for one in (pinned, cell)} == {"done"}


def test_a_cell_whose_verifier_is_edited_is_measured_again_and_its_files_are_named(toy, package):
    [cell] = cells_of([*toy, "verifier=standard"])
    first = hashes(run_here(cell))
    assert read_status(cell.folder).state == "done"
    started = (cell.folder / "status.json").stat().st_mtime_ns
    edit_standard(package)
    status = read_status(cell.folder)
    assert (status.state, status.reason) == (
        "stale",
        "its code has changed: resispec/verifiers/standard.py",
    )
    assert cell.cell_id == cells_of([*toy, "verifier=standard"])[0].cell_id
    kept = cells_of([*toy, "verifier=standard", "reuse=true"])[0]
    assert kept.cell_id == cell.cell_id and status_of(kept).state == "done"
    run_here(kept)
    assert (cell.folder / "status.json").stat().st_mtime_ns == started
    assert hashes(run_here(cell)) == first and read_status(cell.folder).state == "done"
    assert (cell.folder / "status.json").stat().st_mtime_ns > started
    assert "before" not in json.loads((cell.folder / "provenance.json").read_text())


def test_a_command_measures_a_stale_cell_again_or_keeps_it_and_everybody_is_told(
    toy, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    command, results = [*toy, *save(tmp_path), "num_prompts=1", "name=own"], tmp_path / "results"
    assert run(*command).returncode == 0
    [cell] = cells_of(command)
    edit(tmp_path / "helper_of_rule.py", "0.5", "0.75")
    plan = read_plan("sweep", "embedded", results)
    assert plan.status(cell.cell_id).state == "done"
    assert plan.outdated[-1].startswith(
        "1 of 1 cells is stale: measured with other code of helper_of_rule.py;"
    )
    _, whole = standings("embedded", results)
    assert whole.states == {"stale": 1}
    kept = run(*command, "reuse=true")
    assert kept.returncode == 0 and "1 done (1 before)" in kept.stderr
    why = "its code has changed: helper_of_rule.py"
    assert messages(kept.stderr)[0] == f"note: {cell}: {why}; it is kept, for reuse=true"
    again = run(*command)
    assert again.returncode == 0 and "1 done (0 before)" in again.stderr
    assert messages(again.stderr)[0] == f"{cell}: {why}; it is measured again"
    assert "1 done (1 before)" in run(*command).stderr


def test_rows_of_other_code_are_not_resumed_from(toy, package):
    [cell] = cells_of([*toy, "verifier=standard"])
    stop_after_two(cell)
    partial = cell.folder / "rows.partial.jsonl"
    assert len(partial.read_text().splitlines()) == 2
    edit_standard(package)
    run_here(cell)
    facts = json.loads((cell.folder / "provenance.json").read_text())
    assert len(rows(cell)) == 3 and "before" not in facts
    assert facts["code"]["resispec/verifiers/standard.py"]


def test_cells_that_do_not_say_what_code_they_had_stay_as_they_are(toy, package):
    [cell] = cells_of([*toy, "verifier=standard"])
    run_here(cell)
    path = cell.folder / "provenance.json"
    facts = json.loads(path.read_text())
    del facts["code"]
    path.write_text(json.dumps(facts))
    worker.CellStore(cell.folder).write_status(worker.Status("done"))
    edit_standard(package)
    assert read_status(cell.folder).state == "done"


def test_rows_of_other_code_stay_until_the_models_are_loaded(toy, package, monkeypatch):
    """Defect: a model that could not be loaded took the rows along, also for the old code."""
    [cell] = cells_of([*toy, "verifier=standard"])
    before = rows(run_here(cell))
    path = package / "verifiers" / "standard.py"
    text = path.read_text()
    edit_standard(package)

    def refuse(_):
        raise InvalidInput("no memory is left")

    with monkeypatch.context() as patched:
        patched.setattr(worker, "build_pair", refuse)
        with pytest.raises(CellFailed, match="no memory is left"):
            measure([cell], ignore)
    lines, silent, _ = outcome([cell], [f"{cell}: no memory is left"], ignore, is_well=False)
    assert lines == [f"error: {cell}: no memory is left"] and not silent
    assert given_up([cell], "killed") == [f"error: {cell}: killed"]
    assert read_status(cell.folder).state == "stale" and rows(cell) == before
    path.write_text(text)
    assert read_status(cell.folder).state == "done"
    edit_standard(package)
    assert read_status(run_here(cell).folder).state == "done"
    assert "before" not in json.loads((cell.folder / "provenance.json").read_text())


def test_files_of_one_text_with_others_beside_them_are_not_one_cell(toy, tmp_path):
    """Defect: a table had the same numbers for both, or those of the second under the first."""
    names = []
    for name, share in (("old", 0.5), ("new", 0.75)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shares.json").write_text(f"[{share}]")
        rule = "from resispec.verifiers import Standard\n"
        rule += 'class Rule(Standard): table = "shares.json"\n'
        (tmp_path / name / "rule.py").write_text(rule)
        names.append(f"{tmp_path}/{name}/rule.py:Rule")
    words = [*toy, "verifier=custom", "num_prompts=1"]
    done = run(*words, f"verifier.name={','.join(names)}")
    [line] = messages(done.stderr)
    assert done.returncode == 1 and not (tmp_path / "results").exists()
    assert "would be one cell: their files have the same text, and what differs is beside" in line
    assert ": shares.json; allowed: a comment in one of the files" in line

    first, second = ([*words, f"verifier.name={name}"] for name in names)
    assert run(*first).returncode == 0
    [cell] = cells_of(first)
    before = rows(cell)
    for more in ([], ["reuse=true"]):
        done = run(*second, *more)
        [line] = messages(done.stderr)
        assert done.returncode == 1 and f"cell {cell.cell_id} is that of decoder.verifier" in line
        assert f"name={names[0]}, of the same text, and what differs is beside it: shares" in line
    assert rows(cell) == before and "1 done (1 before)" in run(*first).stderr
    shutil.rmtree(tmp_path / "old")
    moved = run(*second)
    assert moved.returncode == 0 and "shares.json; it is measured again" in moved.stderr
