"""Plans and cells as analysis reads them: what was asked for, what is there, what is damaged."""

import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from analysis import labels, load, metrics
from analysis.labels import Label
from analysis.load import read_plan, read_sweep
from analysis.metric_table import measure
from resispec.errors import InvalidInput
from resispec.files import write_json
from tests.toy_cells import (
    METHODS,
    RESISPEC,
    STANDARD,
    make_cell,
    planned,
    rows_of,
    save,
    save_methods,
    write_artefact,
    write_plan,
)

ROOT = Path(__file__).parents[2]


def read(results, cells, part=""):
    return load.load(planned(results, "table1", cells, part), metrics.FIELDS)


@pytest.fixture
def cells(tmp_path):
    return save_methods(tmp_path)


LABELS = {
    "pair": "embedded",
    "dataset": "embedded_code",
    "temperature": 1.0,
    "decoder": "autoregressive",
}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("rows.jsonl", lambda _: ""),
        ("status.json", lambda text: text[: len(text) // 2]),
        # one is left
        ("status.json", lambda text: re.sub(r'"files": {[^,]*, [^,]*, ', '"files": {', text)),
    ],
)
def test_a_damaged_cell_is_one_line_that_says_what_to_do(file, change, tmp_path, cells, capsys):
    write_plan(tmp_path, "table3", cells)
    path = cells[1].folder / file
    path.write_text(change(path.read_text()))
    assert write_artefact("table3", "--results", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"error: cell {cells[1].cell_id}: ") and file in captured.err
    assert "running the sweep again measures it anew" in captured.err
    assert not (tmp_path / "embedded" / "table3.md").exists()


def test_swapped_and_copied_cells_are_damaged(tmp_path, cells, capsys):
    write_plan(tmp_path, "table1", cells)
    first, second, third = (cell.folder for cell in cells)
    second.rename(tmp_path / "aside")
    first.rename(second)
    (tmp_path / "aside").rename(first)
    shutil.copytree(third, third.with_name("copy"))
    names = first.name, second.name, "copy"
    for folder, other in zip(names, (second.name, first.name, third.name), strict=True):
        status = load.read_status(first.with_name(folder))
        assert status.state == "damaged"
        assert status.reason == f"cell.json is that of cell {other}, not of {folder}"
    assert load.read_status(third).state == "done"
    assert write_artefact("table1", "--results", str(tmp_path)) == 1
    assert f"cell {first.name}: cell.json is that of cell {second.name}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["temperature", "seed"])
def test_a_cell_of_other_values_than_its_plan_names_is_refused(name, tmp_path):
    cell = make_cell(tmp_path, "standard", **{name: 1})
    save(cell, rows_of(STANDARD), config={name: 1.0, "device": "cpu"})
    assert read(tmp_path, [cell]).rows
    problem = (
        f"measured with {name} 1.0, and its plan names it 2.*experiment=table1 .*measures it anew"
    )
    with pytest.raises(InvalidInput, match=problem):
        read(tmp_path, [cell.labelled(**{name: 2})])


def test_rows_that_lack_a_field_are_refused(tmp_path):
    cell = save(make_cell(tmp_path, "standard"), [{"num_steps": 1}, {"seed": 1}])
    with pytest.raises(
        InvalidInput, match=f"^cell {cell.cell_id}: its rows lack prompt_index, .*decode_s"
    ):
        read(tmp_path, [cell])


def test_provenance_without_a_commit_is_no_damage(tmp_path):
    cell = save(
        make_cell(tmp_path, "standard"), rows_of(STANDARD), provenance={"device": "a machine"}
    )
    assert read(tmp_path, [cell]).cells[["device", "commit"]].values.tolist() == [
        ["a machine", "unknown"]
    ]


def test_compared_cells_must_share_their_prompts(tmp_path, cells):
    first, second = rows_of(RESISPEC)
    others = [second | {"prompt_id": "other"}], [second | {"seed": 9}]
    for rest, found in zip(([], *others), (r"\['none'\] where", "'other'", "9"), strict=True):
        save(cells[2], [first, *rest])
        with pytest.raises(
            InvalidInput, match=f"^cell {cells[2].cell_id}: measured prompt .*{found}"
        ):
            read(tmp_path, cells)


@pytest.mark.parametrize("fact", ["of", "task"])
def test_cells_of_other_artefacts_and_tasks_may_have_other_prompts(fact, tmp_path):
    """Defect: a sweep over both was measured, and then had no table."""
    cells = [
        save(make_cell(tmp_path, "standard", tree=tree), rows)
        for tree, rows in (("d5b3", rows_of(STANDARD)), ("d4b4", rows_of(STANDARD)[:1]))
    ]
    entries = [
        {"cell_id": cell.cell_id, "labels": cell.labels, "task": "Decode", "of": "table1/main"}
        for cell in cells
    ]

    def read_both():
        write_plan(tmp_path, "sweep", [], part="mine", cells=entries)
        return load.load(read_plan("sweep", "embedded", tmp_path), metrics.FIELDS)

    with pytest.raises(InvalidInput, match="measured prompt"):
        read_both()
    entries[1][fact] = "Other"
    results = read_both()
    assert len(results.rows) == 2 and not results.more


def test_prompts_of_one_id_and_another_text_are_not_compared(tmp_path, cells):
    """As after an edit of the file that a class of a data set opens; older rows do not tell."""

    def measured(cell, *checksums):
        rows = rows_of(METHODS[str(cell.labels.get("verifier", "autoregressive"))])
        told = [{"prompt_sha256": text} if text else {} for text in checksums]
        save(cell, [row | more for row, more in zip(rows, told, strict=True)])

    measured(cells[0], "a", "b")
    measured(cells[1], None, "b")
    measured(cells[2], "a", None)
    assert len(read(tmp_path, cells).rows) == 3
    measured(cells[2], "a", "changed")
    with pytest.raises(InvalidInput, match="prompt .*'changed'.* has .*'b'.*checksum of its"):
        read(tmp_path, cells)


def test_a_plan_without_cells_makes_an_empty_table(tmp_path):
    results = read(tmp_path, [])
    assert results.cells.empty and measure(results).empty
    assert write_artefact("table1", "--results", str(tmp_path)) == 0


def test_a_cell_is_read_once_a_command(tmp_path, cells, monkeypatch):
    hashed: list[Path] = []
    monkeypatch.setattr(load, "damage", lambda folder, *_: hashed.append(folder))
    write_plan(tmp_path, "table1", cells)
    assert write_artefact("table1", "--results", str(tmp_path)) == 0
    assert len(hashed) == len(cells)


def test_without_a_plan_one_line_names_the_command_and_nothing_is_written(
    tmp_path, capsys, monkeypatch
):
    assert (
        write_artefact("table1", "--profile", "embedded", "--results", str(tmp_path / "nowhere"))
        == 1
    )
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"`make reproduce-table1 PROFILE=embedded RESULTS={tmp_path}/nowhere`" in captured.err
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)  # the usual folder needs no word in the command
    with pytest.raises(InvalidInput, match="`make reproduce-table1 PROFILE=embedded` makes it"):
        read_plan("table1", "embedded", Path("results"))


def test_an_artefact_takes_its_own_plans_only(tmp_path, cells):
    write_plan(tmp_path, "table1_ablation", cells[:1])
    write_plan(tmp_path, "table1_ablation", cells[:1], part="more")
    with pytest.raises(InvalidInput, match="no plan"):
        read_plan("table1", "embedded", tmp_path)
    planned(tmp_path, "table1", cells[1:2])
    # a file of its own and a folder of parts
    plan = planned(tmp_path, "table1", cells[2:], part="more")
    asked = [(one.cell_id, one.part) for one in plan.requests]
    assert asked == [(cells[1].cell_id, ""), (cells[2].cell_id, "more")]
    assert [len(part.requests) for part in plan.by_part()] == [1, 1]


@pytest.mark.parametrize(
    "content",
    [
        *({"sources": 1}, {"sha256": "0" * 64}, {"cells": [{}]}),
        {"cells": [{"cell_id": "a", "labels": LABELS | {"tree": {"name": "chain"}}}]},
        {"cells": [{"cell_id": "../a", "labels": LABELS}]},
    ],
)
def test_a_damaged_plan_is_one_line(content, tmp_path, cells, capsys):
    path = write_plan(tmp_path, "table1", cells, **content)
    assert write_artefact("table1", "--results", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert (
        error.count("\n") == 1
        and f"plan {path} is damaged" in error
        and "make reproduce-table1" in error
    )


def test_a_plan_older_than_its_configuration_says_so(tmp_path, cells, monkeypatch, capsys):
    monkeypatch.setattr(load, "ROOT", tmp_path)
    (tmp_path / "same.yaml").write_text("a: 1")
    (tmp_path / "changed.yaml").write_text("a: 2")
    then = hashlib.sha256(b"a: 1").hexdigest()
    sources = dict.fromkeys(("same.yaml", "changed.yaml", "gone.yaml"), then)
    write_plan(tmp_path, "table3", cells, sources=sources)
    assert write_artefact("table3", "--results", str(tmp_path)) == 0
    captured = capsys.readouterr()
    said = "The plan of table3 is older than changed.yaml, gone.yaml; `make reproduce-table3"
    assert captured.err.startswith(f"table3: {said}") and captured.err.count("\n") == 1


def test_an_old_plan_that_make_does_not_renew_is_to_be_deleted(tmp_path, cells):
    """Of a part that the artefact no longer has, or that the profile leaves out."""
    sources = {"conf/run.yaml": "0" * 64}
    for artefact, part, profile in (
        ("table2", "gone", "embedded"),
        ("frontier", "greedy", "smollm2"),
    ):
        file = write_plan(tmp_path, artefact, cells[:1], part=part, sources=sources)
        line, *_ = read_plan(artefact, profile, tmp_path, [file]).stale
        make = f"make reproduce-{artefact} PROFILE={profile} RESULTS={tmp_path}"
        remedy = f"name it (part={part}), or delete {file}"
        assert line.endswith(f"older than conf/run.yaml; `{make}` leaves it out: {remedy}.")


def test_a_searched_tree_is_that_beside_its_plan(tmp_path, cells):
    """Defect: a copied folder of results was shown with the trees of the folder it came from."""
    folder = cells[0].results / "embedded" / "growmap"
    folder.mkdir(parents=True)
    (folder / "best.json").write_text("{}")
    tree, own = folder / "best.json", tmp_path / "mine.json"
    given = [replace(cells[1], tree_file=tree), replace(cells[2], tree_file=own)]
    write_plan(cells[0].results, "table1", given)
    copy = tmp_path / "elsewhere" / "results"
    shutil.copytree(cells[0].results, copy, ignore=shutil.ignore_patterns("elsewhere"))
    files = [one.tree_file for one in read_plan("table1", "embedded", copy).requests]
    assert files == [copy / "embedded" / "growmap" / "best.json", own]


def test_a_part_that_no_plan_asks_for_is_named_unless_the_profile_leaves_it_out(
    tmp_path, cells, monkeypatch
):
    """By its own file or by that of a profile in its defaults, whose values it replaces."""
    monkeypatch.setattr(load, "ROOT", tmp_path)
    write_plan(tmp_path, "table2", cells[:1], part="chain")

    def absent():
        stale = read_plan("table2", "embedded", tmp_path).stale
        return [line.removeprefix("table2 has a part ").split(" that ")[0] for line in stale]

    def write(profile, artefacts, *defaults):
        content = {"defaults": defaults, "artefacts": artefacts}
        write_json(tmp_path / "conf" / "profile" / f"{profile}.yaml", content)

    runs = ["runs", "runs_eagle", "runs_eagle_softmax"]
    assert absent() == ["eagle", *runs, "sampled", "sequoia"]
    own = {"table2/eagle": None, "table2/sampled": {"tree": "chain"}, "table3": None}
    write("embedded", own)
    assert absent() == [*runs, "sampled", "sequoia"]
    write("base", {"table2/sampled": None, "table2/sequoia": None})
    write("embedded", own, "base", "_self_")
    assert absent() == [*runs, "sampled"]


def test_an_old_sweep_is_made_anew_by_its_command(tmp_path, cells):
    write_plan(tmp_path, "sweep", cells, part="mine", sources={"conf/run.yaml": "0" * 64})
    said = "The plan of sweep, part mine, is older than conf/run.yaml; its sweep makes it anew."
    assert read_plan("sweep", "embedded", tmp_path).stale == (said,)


def test_a_sweep_of_ones_own_is_drawn_by_its_name_or_the_beginning_of_it(tmp_path, cells, capsys):
    for name, of in (("1a2b3c4d", "table1"), ("1fffffff", "table1"), ("mine", "table2/chain")):
        write_plan(tmp_path, "sweep", cells, part=name, of=of)
    for given in ("1a", "1a2b3c4d"):
        assert write_artefact("table1", "--results", str(tmp_path), "--plan", given) == 0
        out = capsys.readouterr().out
        assert out.startswith("**Sweep 1a2b3c4d, not all of table1: ")
        assert out.splitlines()[-1].startswith("not compared with the published table1: ")
    assert read_sweep("mine", "table2", "embedded", tmp_path).requests[0].part == "chain"
    said = {
        "1": f"2 sweeps in {tmp_path}/embedded/plans/sweep begin with '1'; allowed: 1a2b3c4d, "
        "1fffffff",
        "3": f"no sweeps in {tmp_path}/embedded/plans/sweep begin with '3'; allowed: 1a2b3c4d, "
        "1fffffff, mine",
        "mine": "sweep mine has no cells of table1; allowed: artefacts that it asks for: table2",
    }
    for given, line in said.items():
        assert write_artefact("table1", "--results", str(tmp_path), "--plan", given) == 1
        assert capsys.readouterr().err == f"error: {line}\n"


def test_the_id_and_the_code_of_a_cell_are_read_at_once(tmp_path, monkeypatch):
    """Else another run may change the file in between."""
    provenance = {"code": {"resispec/verifiers/standard.py": "0"}}
    config = {"decoder": {"verifier": {"name": "standard"}}}
    cell = save(
        make_cell(tmp_path, "standard"), rows_of(STANDARD), config=config, provenance=provenance
    )
    read, reader = [], load.read_json
    monkeypatch.setattr(load, "read_json", lambda path: read.append(path.name) or reader(path))
    assert load.read_status(cell.folder).state == "stale"
    assert sorted(read) == ["cell.json", "provenance.json", "status.json"]


def test_one_text_under_the_names_of_two_data_sets_is_refused(tmp_path):
    rows = [row | {"prompt_sha256": f"{row['prompt_index']}"} for row in rows_of(STANDARD)]
    names = ("embedded_code", "embedded_docstrings")
    cells = [save(make_cell(tmp_path, "standard", name), rows) for name in names]
    message = "data sets embedded_docstrings and embedded_code have the same prompts; allowed"
    with pytest.raises(InvalidInput, match=message):
        read(tmp_path, cells)


def test_seconds_that_do_not_count_are_none(tmp_path):
    """Defect: only those of decoding were left out, and steps kept theirs."""
    rows = [row | {"step_s": [0.1]} for row in rows_of(STANDARD)]
    for config in ({"timed": False}, {"audit": True}):
        cell = save(make_cell(tmp_path, "standard", seed=str(config)), rows, config=config)
        frame = planned(tmp_path, "table1", [cell]).prompts(cell.cell_id)
        assert frame[["prefill_s", "decode_s", "step_s"]].isna().all(axis=None)
        assert frame.num_steps.notna().all()


def test_a_tree_that_was_found_anew_is_told(tmp_path):
    """Defect: what is said of a tree was of the new file, beside rows of the old one."""
    tree = tmp_path / "own.json"
    tree.write_text("{}")
    cell = make_cell(tmp_path, "standard")
    entry = {"cell_id": "a", "labels": cell.labels, "tree_file": str(tree)}
    for planned_with, is_told in ((None, False), (load.sha256_of(tree), False), ("0" * 64, True)):
        request = load.Request.read(entry | {load.TREE_SHA256: planned_with})
        plan = load.Plan("table2", "embedded", tmp_path, (request,), "make table2", ())
        assert any("own.json" in line for line in plan.outdated) is is_told


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n\tb: 2\n", r"cannot be read as YAML \(line 2: "),
        ("- a\n- b\n", "holds a list; allowed: keys and values"),
        ("a: \0\n", "cannot be read as YAML"),
    ],
)
def test_a_slip_in_a_configuration_is_one_line(text, problem, tmp_path, monkeypatch):
    """Defect: a traceback, also in commands that do not use the option."""
    path = tmp_path / "tree" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setattr(labels, "CONF", tmp_path)
    for read_it in (lambda: labels.options.__wrapped__("tree"), lambda: load.part_names(path)):
        with pytest.raises(InvalidInput, match=f"^{path} {problem}") as caught:
            read_it()
        assert "\n" not in str(caught.value)


def test_options_may_be_empty_or_set_other_keys_alone(tmp_path, monkeypatch):
    """Defect: a traceback of whatever asks for a printed name."""
    (tmp_path / "tree").mkdir()
    texts = {"bare": "label:\n", "empty": "", "sets": "# @package _global_\ntemperature: 0.5\n"}
    for name, text in texts.items():
        (tmp_path / "tree" / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(labels, "CONF", tmp_path)
    nodes = labels.options.__wrapped__("tree")
    assert nodes == {"bare": {"label": None}, "empty": {}, "sets": {}}
    monkeypatch.setattr(labels, "options", lambda _: nodes)
    assert [labels.name("tree", name) for name in texts] == list(texts)
    assert load.part_names(tmp_path / "tree" / "empty.yaml") == []


def test_a_pair_with_another_model_is_no_longer_its_option():
    """Defect: its row had the names of the option's models, beside the paper's numbers."""
    other = Label("llama2_7b__jf68m", {"draft": "my/draft"})
    assert labels.models("llama2_7b__jf68m") == ("Llama-2-7B", "68M")
    assert labels.models(other) == ("Llama-2-7B", "my/draft")
    assert labels.name("pair", other) == "Llama-2-7B + my/draft"
    assert labels.paper_models("llama2_7b__jf68m")["draft"] == "JF68M"
    revised = Label("llama2_7b__jf68m", {"draft_revision": "main", "target_revision": "v2"})
    names = ("Llama-2-7B, target_revision=v2", "68M, draft_revision=main")
    assert labels.models(revised) == names
    for label in (other, revised):
        assert labels.paper_models(label) == {"target": "", "draft": ""}
    alone = Label("embedded", {"draft": None})
    assert labels.models(alone) == ("embedded 2M", labels.ABSENT)
    assert labels.name("pair", alone) == "embedded 2M"
