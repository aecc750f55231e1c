"""From a command line to cells: what is composed, what names a cell, what is refused, the plan."""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from analysis import labels
from analysis.cli import check_profile
from analysis.labels import Label
from experiments import grid, run
from experiments.cell import IGNORED, _digest, build_option, content, node_id
from experiments.cli import read_command_line
from experiments.composition import composed, hydra_here
from experiments.grid import LEFT_OUT, cell_of, cells_of, digest, parts_of, sweep_of
from experiments.overrides import completed, plain
from experiments.schema import CONF, RunConfig
from experiments.store import plans_of, write_plans
from resispec.errors import InvalidInput
from resispec.files import remembered_sha256, write_json
from resispec.trees import chain, grow_map


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=table2/eagle", "audit=false", "dataset=c4"],
        ["experiment=figure3", "part=sequoia", "profile=paper"],
        ["experiment=speed"],
        ["experiment=frontier/bound", "profile=smollm2"],
        [
            "pair=llama2_7b_chat__eagle",
            "dataset=mt_bench",
            "tree=chain,best_16",
            "decoder=eagle_sampled",
        ],
    ],
)
def test_points_are_what_hydra_composes(overrides, monkeypatch):
    """Groups are exchanged in one composition; every point equals Hydra's own composition of it."""
    asked, points = [], []

    def noting_lines(lines):
        asked.append(list(lines))
        return composed(lines)

    def noting_cell(*arguments):
        lines = asked[-1]
        points.append((lines, cell_of(*arguments)))
        return points[-1][1]

    monkeypatch.setattr(grid, "composed", noting_lines)
    monkeypatch.setattr(grid, "cell_of", noting_cell)
    assert 0 < len(cells_of(overrides)) <= len(points)
    for lines, cell in points:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            by_hydra = compose("run", lines, return_hydra_config=True)
        choices = {
            group: option for group, option in by_hydra.hydra.runtime.choices.items() if option
        }
        names = [str(key) for key in by_hydra if key not in ("hydra", "sweep", "parts")]
        again = cell_of(OmegaConf.masked_copy(by_hydra, names), choices)
        assert again.config == cell.config and again.labels.items() <= cell.labels.items()


def test_cells_are_the_same_however_they_are_asked_for():
    narrowed = cells_of(
        ["experiment=table1/main", "verifier=standard,resispec", "temperature=1.0", "audit=false"]
    )
    assert len(narrowed) == 9  # verifiers share three without one
    [alone] = cells_of(["dataset=embedded_code", "temperature=1.0", "verifier=resispec"])
    assert alone.cell_id in {cell.cell_id for cell in narrowed}


@pytest.mark.parametrize(
    ("as_list", "as_sweep"),
    [
        ("verifier=[standard,resispec]", "verifier=standard,resispec"),
        ("temperature=[.6,1]", "temperature=0.6,1"),
        ("sampling.max_new_tokens=[16,32]", "sampling.max_new_tokens=16,32"),
        ("prompt_template=['a, {text}',chat]", "prompt_template='a, {text}',chat"),
        ("pair=[embedded]", "pair=embedded"),
        (
            "experiment=[table5,table1] dataset=[embedded_code]",
            "experiment=table5,table1 dataset=embedded_code",
        ),
    ],
)
def test_a_list_for_a_key_with_one_value_is_a_sweep(as_list, as_sweep):
    first, second = (cells_of(re.split(" (?=dataset)", line)) for line in (as_list, as_sweep))
    assert [str(cell) for cell in first] == [str(cell) for cell in second]
    assert [cell.cell_id for cell in first] == [cell.cell_id for cell in second]


def test_a_list_that_is_a_value_stays_one():
    assert plain(["axes.pairs=[a,b]", "tree.branching=[2,1]"]) == [
        "axes.pairs=[a,b]",
        "tree.branching=[2,1]",
    ]


TABLE2 = [f"table2/{part}" for part in ("chain", "eagle", "sampled", "sequoia")]
RUNS = [f"table2/{part}" for part in ("runs", "runs_eagle", "runs_eagle_softmax")]


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ("experiment=table2 part=all", [*TABLE2[:2], *RUNS, *TABLE2[2:]]),
        ("experiment=table1,table2/runs", ["table1/main", "table2/runs"]),
        ("experiment=table2 part=chain,eagle", ["table2/chain", "table2/eagle"]),
        # the small ones first
        ("experiment=glob([table1,table2,table4,table5]) dataset=embedded_code",
         ["table5", "table4", "table1/main", *TABLE2]),
    ],
)  # fmt: skip
def test_an_artefact_is_all_of_its_parts(overrides, names):
    assert [part.name for part in parts_of(overrides.split())] == names


def test_an_experiment_is_refused_where_the_profile_lacks_something_and_skipped_by_a_glob():
    with pytest.raises(
        InvalidInput, match="needs axes.eagle_pairs, which conf/profile/embedded.yaml"
    ):
        parts_of(["experiment=table2/eagle", "~axes.eagle_pairs"])
    parts = parts_of(["experiment=glob(table2)", "~axes.eagle_pairs"])
    assert {part.name: part.lacks for part in parts if part.lacks} == {
        f"table2/{part}": "axes.eagle_pairs" for part in ("eagle", "sampled")
    }
    with pytest.raises(
        InvalidInput,
        match="^the profile gives no axes.pairs: left out table1/main, table5$",
    ):
        parts_of(["experiment=glob([table5,table1])", "~axes.pairs"])


def test_a_profile_narrows_artefacts_and_leaves_some_out_unless_they_are_named():
    """A whole artefact where a glob names it, a part also where its artefact is; both say so."""
    words = ["profile=smollm2", "artefacts.table6=null"]
    parts = parts_of(["experiment=glob([table6,frontier])", *words])
    asked = {part.name: part for part in parts}
    left = [name for name, part in asked.items() if part.lacks == LEFT_OUT]
    parts_left = ("best_sequoia", "best_top_k", "greedy", "long", "sequoia", "temperature")
    assert sorted(left) == [*(f"frontier/{part}" for part in parts_left), "table6"]
    assert not any(asked[name].cells for name in left)
    [kseq] = cells_of(["experiment=frontier/d5b3", "profile=smollm2", "verifier=kseq", "audit=true",
                       "dataset=humaneval", "temperature=1.0"])  # fmt: skip
    assert kseq.labels["verifier"] == "kseq"  # a command line takes the place of the profile's
    named = parts_of(["experiment=table6,frontier/greedy", *words])
    assert all(part.cells and not part.lacks for part in named) and len(named) == 2


def test_a_cell_is_named_by_what_determines_it(toy, tmp_path):
    """Not by where files lie or by our classes' modules; a new field counts from the start."""

    def cell_id(*overrides):
        [cell] = cells_of([*toy, *overrides])
        return cell.cell_id

    base = cell_id()
    for same in ("tree.depth=5", "temperature=range(1,2)", "temperature='1'"):
        assert cell_id(same) == base, same
    changes = ["tree=d7b2", "verifier=resispec", "audit=true", "task=kl"]
    assert len({base, *map(cell_id, changes)}) == 5
    [cell] = cells_of(toy)
    assert set(RunConfig.__dataclass_fields__) >= set(IGNORED) and all(IGNORED.values())
    for key in cell.config:
        other = cell.changed(cell.labels, **{key: {"changed": cell.config[key]}})
        assert (other.cell_id == base) == (key in IGNORED), key
    assert cell.changed(cell.labels, new_field=1).cell_id != base
    # times beside which other work ran are no times, and other rows have none
    assert cell_id("timed=false") != base
    assert cell_id("timed=false", "task=kl") == cell_id("task=kl")
    assert cell_id("timed=false", "audit=true") == cell_id("audit=true")

    data, copy = cell.config["dataset"], tmp_path / "copy.jsonl"
    copy.write_bytes(Path(data["path"]).read_bytes())
    for is_same, change in (
        (True, {"_target_": "resispec.somewhere.else.JsonlDataset"}),
        (True, {"path": str(copy)}),
        (False, {"_target_": "somebody.JsonlDataset"}),
    ):
        assert (cell.changed(cell.labels, dataset=data | change).cell_id == base) == is_same
    copy.write_text(copy.read_text() + '{"text": "more"}\n')
    assert cell_id(f"dataset.path={copy}") != base


def test_files_count_by_what_they_hold(toy, tmp_path, monkeypatch):
    """A rule's file, a folder with no slash in its name, and of a tree's file only the topology."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    [cell] = cells_of(toy)
    rule = {"_target_": "resispec.verifiers.get_verifier", "name": f"{tmp_path}/rule.py:Rule"}
    changed = [
        {"decoder": {"verifier": rule}},
        {"pair": cell.config["pair"] | {"target": "weights"}},
    ]
    ids = []
    for text in ("one", "two"):
        (tmp_path / "rule.py").write_text(text)
        (tmp_path / "weights" / "part.bin").write_text(text)
        ids.append([cell.changed(cell.labels, **values).cell_id for values in changed])
    assert all(one != two for one, two in zip(*ids, strict=True))
    ids = []
    for num_drafted, about in (
        (3, {"started": "now"}),
        (3, {"started": "then"}),
        (4, {"started": "then"}),
    ):
        grow_map.save(chain(num_drafted), tmp_path / "map.json", about)
        [cell] = cells_of([*toy, "tree=growmap", "tree.path=map.json"])
        ids.append(cell.cell_id)
    assert ids[0] == ids[1] != ids[2]


def test_what_another_s_class_is_given_may_be_a_file_by_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tickets").mkdir()
    file = tmp_path / "tickets" / "a"

    def ids(target):
        for text in ("first", "second"):
            file.write_text(text)
            yield node_id({"dataset": {"_target_": target, "source": {"folder": "tickets"}}})

    first, second = ids("my_data.Tickets")
    assert first != second
    first, second = ids("resispec.data.JsonlDataset")  # which reads its path alone
    assert first == second


def test_a_text_that_is_too_long_for_a_path_is_none():
    [cell] = cells_of([f"prompt_template='{'Read this. ' * 30}{{text}}'"])
    assert len(cell.cell_id) == 16


def test_a_value_in_the_home_folder_is_found_there(monkeypatch):
    """Shells do not expand a ~ within a word."""
    for home, given, read in (
        (
            "/home/me",
            "verifier.name=~/a.py:A,~/b.py:B",
            "verifier.name=/home/me/a.py:A,/home/me/b.py:B",
        ),
        ("/home/größe", "dataset.path=~/a.jsonl", "dataset.path='/home/größe/a.jsonl'"),
        ("/home/me", "name=~a", "name='~a'"),
    ):
        monkeypatch.setenv("HOME", home)
        assert read_command_line(["profile=paper", given]).overrides[:2] == ("profile=paper", read)


@pytest.mark.parametrize(
    ("typed", "implied"),
    [
        (["profile=smollm2", "verifier=naive"], ["pair=smollm2_6144", "dataset=humaneval"]),
        (["dataset=c4", "profile=paper"], ["pair=llama2_7b__jf68m"]),
        # Its data sets are the embedded profile's.
        (["profile=inflated"], ["pair=inflated_llama2_7b__jf68m"]),
        (["profile=embedded"], []),
        (["profile=paper", "experiment=table1"], []),
        (["profile=smollm2", "+pair=smollm2_hub"], ["dataset=humaneval"]),
        (["profile=embedded", "axes.main_dataset=embedded_code"], ["dataset=embedded_code"]),
    ],
)
def test_a_typed_sweep_takes_the_pair_and_the_data_set_of_its_profile(typed, implied):
    """Defects: the profile's took the place of +pair, and of axes that were typed."""
    assert read_command_line(typed).overrides == (*typed, *implied)


def test_an_artefact_without_a_pair_has_its_profile_s(tmp_path):
    """Defect: under profile=smollm2 it measured the embedded pair."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nsweep: {seed: 3}\n")
    words = ["experiment=mine", "profile=smollm2"]
    with hydra_here(str(tmp_path)):
        [cell], [typed] = cells_of(words), cells_of([*words, "pair=embedded"])
    assert (cell.labels["pair"], cell.labels["dataset"]) == ("smollm2_6144", "humaneval")
    assert cell.config["seed"] == 3 and typed.labels["pair"] == "embedded"


def test_a_slip_in_a_profile_s_artefacts_is_refused():
    """Defect: cells were those of the artefact as it is, without a word."""
    for key, near in (("frontier/d5b", "frontier/d5b3"), ("tabel1", "table1")):
        words = ["experiment=frontier/d5b3", f"++artefacts={{{key}: null}}"]
        with pytest.raises(InvalidInput, match=rf"artefacts` '{key}'; did you mean {near}\?"):
            parts_of(words)


def test_a_typed_sweep_has_one_profile(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", "profile=glob(paper)"])
    assert run.main() == 1
    said = "error: profile=glob(paper) is a sweep; allowed: one profile for a command\n"
    assert capsys.readouterr().err == said


def test_every_byte_of_a_large_file_counts_and_is_read_once(tmp_path, monkeypatch):
    """Between processes, too; a copy that was put in its place with its times is another file."""
    monkeypatch.setattr("experiments.cell.LARGE_BYTES", 100)
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    path, data = tmp_path / "weights.bin", bytearray(3 << 20)
    path.write_bytes(data)
    first, times = content(path), path.stat()
    assert first == hashlib.sha256(data).hexdigest()
    data[1 << 20] = 1
    copy = tmp_path / "copy.bin"
    copy.write_bytes(data)
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    copy.replace(path)
    assert content(path) == hashlib.sha256(data).hexdigest() != first
    monkeypatch.setattr("hashlib.file_digest", None)
    _digest.cache_clear()  # as in another process
    assert content(path) == hashlib.sha256(data).hexdigest()
    for kept in (tmp_path / "cache" / "checksums").iterdir():
        kept.write_text("damaged")
    monkeypatch.undo()
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    assert remembered_sha256(path) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("overrides", "labels"),
    [
        (["tree=chain", "tree.num_drafted=3,4"],
         [{"tree": "chain(num_drafted=3)"}, {"tree": "chain"}]),  # four are those of its file
        (["tree=complete", "tree.depth=5", "tree.branching=3"],
        [{"tree": "complete(branching=3, depth=5)"}]),
        (["verifier=optimal", "verifier.bins=0"], [{"verifier": "optimal(bins=0)"}]),
        (["seed=0,1"], [{"seed": 0}, {"seed": 1}]),
        # defects: what these mean was in no label, so the cells passed for those of the option
        (["verifier=optimal", "verifier.bins=${seed}"], [{"verifier": "optimal(bins=0)"}]),
        (["decoder=sequoia", "~decoder.drafter.draws"],
         [{"decoder": "sequoia(drafter.draws=removed)"}]),
        (["sampling.top_p=0.9,1"], [{"sampling.top_p": 0.9}, {"sampling.top_p": 1.0}]),
        # a filter that is on is told in any case
        (["sampling.top_k=40"], [{"sampling.top_k": 40}]),
        (["task=kl,decay", "+decoder.cache_length=100,200"],
         [{"task": task, "decoder": f"specinfer(cache_length={length})"}
          for task in ("kl", "decay") for length in (100, 200)]),
        (["verifier=custom", "verifier.name=a/my_rule.py:Rule,standard"],
         [{"verifier": "custom(name=a/my_rule.py:Rule)"}, {"verifier": "standard"}]),
        (["decoder=autoregressive", "verifier=standard,resispec", "audit=false,true"],
         [{"decoder": "autoregressive"}]),  # what it does not use makes no other cell
        # it names its own verifier, and drafts
        (["tree=fastest", "tree.path=f.json", "audit=false,true", "search=null"],
         [{"decoder": "fastest"}, {"decoder": "fastest", "audit": True}]),
    ],
)  # fmt: skip
def test_labels_carry_what_varies(overrides, labels):
    cells = cells_of(overrides)
    assert [
        {key: cell.labels[key] for key in wanted}
        for cell, wanted in zip(cells, labels, strict=True)
    ] == labels


def test_a_pair_of_one_s_own_is_called_by_its_folders(toy, folder):
    models = [f"target={folder}/target", f"draft={folder}/draft"]
    [cell] = cells_of(completed([*toy, "pair=local", "pair.target=x", *models]))
    label = cell.labels["pair"]
    names = f"{folder.name}/target", f"{folder.name}/draft"
    assert label == f"local(draft={names[1]}, target={names[0]})"
    assert labels.models(label) == names and labels.name("pair", label) == " + ".join(names)
    [alone] = cells_of(
        completed([*toy, "pair=local", models[0], "pair.draft=null", "decoder=autoregressive"])
    )
    assert labels.models(alone.labels["pair"]) == (names[0], labels.ABSENT)


@pytest.mark.parametrize(
    ("line", "key", "expected"),
    [
        ("experiment=frontier/temperature ++num_prompts=4", "num_prompts", {4}),
        ("experiment=table1 ++temperature=0.2", "temperature", {0.2}),
        ("experiment=table1 ++temperature=0.2,0.4", "temperature", {0.2, 0.4}),
        ("experiment=frontier/temperature prompt_counts={frontier:5}", "num_prompts", {5}),
        ("experiment=text/d5b3 sampling={max_new_tokens:16}", "max_new_tokens", {16}),
        ("experiment=text/d5b3 ++sampling={max_new_tokens:16}", "max_new_tokens", {16}),
        ("temperature=0.6,1.0 temperature=0.2", "temperature", {0.2}),
        ("temperature=0.2 temperature=0.6,1.0", "temperature", {0.6, 1.0}),
        ("verifier=standard,resispec verifier=kseq", "verifier", {"kseq"}),
        ("sampling={top_p:0.9} sampling={top_k:50}", "top_p", {0.9}),
        ("experiment=text/d5b3 sampling.max_length=400", "max_new_tokens", {400}),
        ("pair=embedded pair=chat", "pair", {"chat"}),
    ],
)
def test_what_is_typed_counts_and_of_a_key_the_last(line, key, expected, tmp_path):
    """Before an artefact's own values, in whatever form, and before earlier words."""
    (tmp_path / "pair").mkdir()
    text = (CONF / "pair" / "embedded.yaml").read_text()
    (tmp_path / "pair" / "chat.yaml").write_text(f"defaults: [embedded]\n{text}")
    with hydra_here(str(tmp_path)):
        cells = cells_of(line.split())
    found = {
        cell.labels.get(key, (cell.config | cell.config["sampling"]).get(key)) for cell in cells
    }
    assert found == expected


def test_a_word_that_a_later_one_replaces_is_told():
    words = ["experiment=table1", "experiment=table5", "pair=a", "++pair=b,c"]
    words += [
        "tree=d5b3",
        "tree=d5b3",
        "seed=3",
        "seed=4",
        "++first_tuning_prompt=3",
    ]  # twice the same is no mistake
    notes = list(run._ignored(words, cells_of(["tree=d5b3"]), False))
    assert notes == [
        "experiment=table1 changes nothing: experiment=table5 comes later; several values: a,b",
        "pair=a changes nothing: ++pair=b,c comes later; several values: a,b",
        "first_tuning_prompt... changes nothing: no tree file is missing; delete it to search "
        "again",
    ]


def test_another_class_is_no_option_of_ours():
    """Its name would be that of the baseline, and of published rows."""
    [rule] = cells_of(["verifier=standard", "verifier._target_=resispec.verifiers.ResiSpec"])
    assert rule.labels["verifier"] == "standard(_target_=resispec.verifiers.ResiSpec)"
    [drafter] = cells_of(["decoder=specinfer", "decoder.drafter._target_=my.Drafter"])
    assert drafter.labels["decoder"] == "specinfer(drafter._target_=my.Drafter)"
    [searched] = cells_of(["tree=best_16"])  # its class is that of the option it inherits from
    assert searched.labels["tree"] == "best_16"


def test_two_cells_of_one_name_are_refused(monkeypatch):
    """Otherwise one of them would be dropped as a double."""
    monkeypatch.setattr("experiments.grid._short", lambda _: "...")
    with pytest.raises(InvalidInput, match="two cells of this sweep are both called"):
        cells_of(["verifier=custom", "verifier.name=a.py:Rule,b.py:Rule"])


def test_a_searched_tree_s_file_is_named_by_the_labels(folder, toy):
    """Two pairs under one option's name have tree files of their own; a path of one's own stays."""
    [one] = cells_of(["tree=growmap_64", "decoder=sequoia"])
    [other] = cells_of([*toy, "tree=growmap_64", "decoder=sequoia"])
    assert one.config["tree"]["path"].endswith("growmap/embedded.embedded_reference.T1.0.64.json")
    assert f"target-{folder.name}-target" in other.config["tree"]["path"]
    [filtered] = cells_of(
        ["tree=growmap_64", "decoder=sequoia", "sampling.top_p=0.9", "sampling.top_k=40"]
    )
    assert filtered.config["tree"]["path"].endswith(
        ".embedded_reference.T1.0.top_p-0.9.top_k-40.64.json"
    )


def test_a_name_in_a_tree_s_path_that_stands_for_nothing_is_refused():
    """Otherwise trees of several data sets would share a file."""
    with pytest.raises(
        InvalidInput, match="tree.path is .*, with {datset}; allowed: {pair}, .*{filters}"
    ):
        cells_of(
            ["tree=growmap_64", "decoder=sequoia", "tree.path='{pair}.{datset}{filters}.json'"]
        )


def test_filters_make_other_cells_and_those_that_are_off_make_none():
    [plain] = cells_of([])
    [off] = cells_of(["sampling.top_p=1", "sampling.top_k=0", "sampling.min_p=0"])
    older = {key: value for key, value in plain.config["sampling"].items() if "top" not in key}
    assert off.cell_id == plain.cell_id == plain.changed(plain.labels, sampling=older).cell_id
    filtered = cells_of(["temperature=0.6,1", "sampling.top_p=0.8,0.9"])
    names = [f"T={at} sampling.top_p={top_p}" for at in (0.6, 1.0) for top_p in (0.8, 0.9)]
    assert [str(cell).partition("standard ")[2] for cell in filtered] == names
    assert len({cell.cell_id for cell in (*filtered, plain)}) == 5


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("temperature=range(0.2,1.2,0.2)", [0.2, 0.4, 0.6, 0.8, 1.0]),
        ("temperature=sort(0.6,0.2,1,reverse=true)", [1.0, 0.6, 0.2]),
        ("tree=choice(d5b3, d4b4)", ["d5b3", "d4b4"]),
        ("tree=glob([d*,chain],exclude=[d5*,d3*])", ["chain", "d4b4", "d4b5", "d7b2"]),
    ],
)
def test_a_sweep_goes_over_what_hydra_says(override, expected):
    name = override.partition("=")[0]
    found = [cell.labels.get(name, cell.config[name]) for cell in cells_of([override])]
    assert found == expected
    assert all(
        isinstance(value, Label | type(wanted))
        for value, wanted in zip(found, expected, strict=True)
    )


def test_a_plan_says_which_cells_were_asked_for_and_from_what(tmp_path):
    arguments = ["experiment=figure3/specinfer", f"results={tmp_path}", "wandb.mode=offline"]
    sweep = sweep_of(arguments)
    write_plans(sweep, arguments)
    [path], [part] = plans_of(sweep), sweep.parts
    assert path == tmp_path / "embedded" / "plans" / "figure3" / "specinfer.json"
    plan = json.loads(path.read_text())
    assert (plan["artefact"], plan["part"], plan["profile"]) == ("figure3", "specinfer", "embedded")
    assert [cell["cell_id"] for cell in plan["cells"]] == [cell.cell_id for cell in part.cells]
    sources = {"conf/run.yaml", "conf/experiment/figure3.yaml", "conf/decoder/specinfer.yaml"}
    assert sources <= plan["sources"].keys()
    assert plan["command"] == f"resispec run experiment=figure3/specinfer results={tmp_path}"
    [part] = parts_of(["tree=chains_121"])
    inherited = {"conf/tree/chains_121.yaml", "conf/tree/chains.yaml"}
    assert inherited <= part.sources.keys()


def test_a_plan_has_the_files_as_they_were_when_its_cells_were_composed(tmp_path, monkeypatch):
    """Defect: one that was edited while trees were searched for counted as composed from."""
    arguments = ["experiment=figure3/specinfer", f"results={tmp_path}"]
    sweep = sweep_of(arguments)
    before = sweep.parts[0].sources["conf/run.yaml"]
    monkeypatch.setattr("analysis.load.sha256_of", lambda _: "another")
    write_plans(sweep, arguments)
    [path] = plans_of(sweep)
    assert json.loads(path.read_text())["sources"]["conf/run.yaml"] == before != "another"


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ("experiment=table1 num_prompts=1", ["sweep/digest"]),
        (
            "experiment=table1,table2/chain jobs=1 cells_per_job=2 wandb.mode=offline",
            ["table1/main", "table2/chain"],
        ),
        ("experiment=table2 part=chain reuse=true", ["table2/chain"]),
        ("experiment=table2 part=chain name=mine", ["sweep/mine"]),
        ("profile=paper experiment=table2/chain axes.pairs=embedded name=a", ["sweep/a"]),
        ("verifier=naive,standard", ["sweep/digest"]),
    ],
)
def test_what_asks_for_other_cells_has_a_plan_beside_the_artefact_s(overrides, names):
    sweep = sweep_of(overrides.split())
    folder = Path("results") / sweep.cells[0].config["profile"] / "plans"
    names = [name.replace("digest", digest(sweep.cells)) for name in names]
    assert [*plans_of(sweep)] == [folder / f"{name}.json" for name in names]


def test_parts_take_the_place_of_a_plan_of_the_whole(tmp_path):
    """Of a version in which the artefact had no parts; a single part leaves it there."""
    whole = tmp_path / "embedded" / "plans" / "table1.json"
    for artefact, is_left in (("table1/runs", True), ("table1", False)):
        write_json(whole, {})
        arguments = [f"experiment={artefact}", f"results={tmp_path}"]
        write_plans(sweep_of(arguments), arguments)
        assert whole.exists() == is_left, artefact


@pytest.mark.parametrize("words", [["verifier=naive"], ["experiment=table2/chain"]])
def test_a_sweep_does_not_take_an_artefact_s_name(words):
    with pytest.raises(InvalidInput, match="name is 'table1', the name of an artefact"):
        sweep_of([*words, "name=table1"])
    with pytest.raises(InvalidInput, match="name is 'frontier-d5b3', the name of a part of fronti"):
        sweep_of([*words, "name=frontier-d5b3"])


def test_an_artefact_of_ones_own_keeps_its_files_too(tmp_path):
    """Defect: a sweep took the files of a part, and those of an experiment of --config-dir."""
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nsweep: {seed: [0, 1]}\nparts: {short: {num_prompts: 2}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with hydra_here(str(tmp_path)):
        for name in ("mine", "mine-short"):
            with pytest.raises(InvalidInput, match=f"name is '{name}', the name of a"):
                sweep_of(["verifier=naive", f"name={name}"])
    own = sweep_of(["experiment=frontier/d5b3", "name=frontier-d5b3"])
    assert own.is_artefacts and own.name == "frontier-d5b3"


def test_a_name_s_plan_is_not_taken_by_another_sweep(tmp_path):
    """The same sweep goes on, also with other words, and may grow."""
    words = [f"results={tmp_path}", "name=mine"]

    def plan(*more):
        write_plans(sweep_of([*words, *more]), [*words, *more])

    plan("seed=0,1")
    plan("seed=0,1", "jobs=2")
    plan("seed=0,1,2")
    [path] = plans_of(sweep_of(words))
    before = path.read_text()
    for other in (["verifier=kseq"], ["seed=0,1"], ["seed=0,1,2", "num_prompts=4"]):
        with pytest.raises(
            InvalidInput, match="name is 'mine', that of another sweep, resispec run"
        ):
            plan(*other)
    assert path.read_text() == before
    plan("name=artefact", "experiment=table1/main", "num_prompts=9")
    for other in (["experiment=table4", "num_prompts=9"], ["experiment=table4"]):
        with pytest.raises(InvalidInput, match="name is 'artefact', that of another sweep"):
            plan("name=artefact", *other)  # an artefact's own cells took the files, too
    searched = ["name=tree", "decoder=sequoia", "tree=growmap_64"]
    plan(*searched)  # it has no id before it is found
    plan(*searched, "jobs=2")
    tree = cells_of([*words, *searched])[0].tree_file
    tree.parent.mkdir(parents=True)
    grow_map.save(chain(2), tree)
    plan(*searched)
    tree.unlink()  # to search again
    plan(*searched, "search.num_prompts=20")
    with pytest.raises(InvalidInput, match="name is 'tree'"):
        plan("name=tree", "tree=chain")
    path.write_text(before.replace("seed=", "sed="))  # of a damaged plan nothing is lost
    plan("verifier=kseq")


BAD = {
    "verifier=standart": "unknown verifier 'standart'; did you mean standard\\? allowed: block, "
    ".*traversal",
    "experiment=fronteir": "unknown experiment 'fronteir'; did you mean frontier\\? allowed: "
    ".*table2",
    "experiment=glob(z*)": r"experiment=glob\(z\*\) has no values; allowed: a,b, .*glob\(pattern\)",
    "verifier.foo=1": "unknown key 'verifier.foo'; allowed: none in verifier",
    "temprature=1": "unknown key 'temprature'; did you mean temperature\\? allowed: .*num_prompts",
    "temperature=warm": "temperature: Value 'warm' of type 'str' could not be converted to Float",
    "dataset.pth=x": "unknown key 'dataset.pth'; did you mean dataset.path\\? allowed: "
    ".*dataset.name",
    "tree=complete": "tree.depth must be given, like tree.depth=DEPTH",
    "num_threads=0": "num_threads is 0; allowed: 1 to 1024",
    "pair=local pair.target=nofolder": "pair.target is 'nofolder', which does not exist; .* on "
    "the hub",
    "sampling.max_new_tokens=0": "sampling.max_new_tokens is 0; allowed: from 1",
    "sampling.top_p=1.5": "sampling: top_p is 1.5; allowed: above 0, up to 1, where 1 is off",
    "sampling.top_k=-1": "sampling: top_k is -1; allowed: whole numbers from 0, where 0 is off",
    "sampling.min_p=0.1,2": "sampling: min_p is 2.0; allowed: from 0 to 1, where 0 is off",
    "device=mps": "device is 'mps'; allowed: cpu",  # it has no float64, in which draws are made
    "prompt_template=hello": "prompt_template needs {text} where the document stands; found "
    "'hello'",
    "pair=local pair.target=/tmp": "pair.target is '/tmp'; allowed: .* with config.json; found "
    "none in it",
    "pair=local pair.target=/dev/zero": "pair.target is '/dev/zero'; .* with config.json; found "
    "no folder",
    "dataset=jsonl dataset.path=/dev/zero": "dataset.path is '/dev/zero', which is a device, .* "
    "regular file",
    "dataset=jsonl dataset.path=/tmp": "dataset.path is '/tmp', which is a folder; allowed: a "
    "regular file",
    "dataset=jsonl dataset.path=nowhere.jsonl": "dataset.path is 'nowhere.jsonl', which does not "
    "exist",
    "temperature=range(5,1)": r"temperature=range\(5,1\) has no values; allowed: a,b, choice",
    "temperature=interval(0.1,1)": r"temperature=interval\(0.1,1\) has no values; allowed: ",
    "seed=1,range(3)": r"seed=1,range\(3\): a sweep among values; allowed: ",
    "profile=embedded,paper": "profile has several values, embedded, paper; allowed: one for a "
    "command",
    "num_prompts=4,8": "num_prompts has several values, 4, 8; allowed: one for a command",
    "jobs=1,2": "jobs has several values, 1, 2, with which embedded .* is the same; allowed: one",
    "wandb.project=a,b": "wandb.project has several values, a, b, with which",
    "tree=best_16 search.num_prompts=15,45": "search.num_prompts has several values, 15, 45, with",
    "task=kl timed=true,false": "timed has several values, True, False, with which",
    "~prompt_template": "~prompt_template takes away what every cell has; allowed: "
    "prompt_template=VALUE",
    "experiment=table1 sweep.temperature=0.3": "sweep.temperature=0.3 is for files; allowed: KEY",
    "parts={a:{}}": "parts={a:{}} is for files; allowed: KEY=VALUE",
    "experiment=table1 axes.datasets=a,b": r"axes.datasets=a,b is a sweep; allowed: a list, "
    r"axes.datasets=\[a,b\]",
    "experiment=table1 ++part=main": r"\+\+part is not taken; allowed: part=VALUE",
    "part=chain": "part=chain goes with an artefact's name; allowed: experiment=NAME part=chain",
    "experiment=table2/chain part=eagle": "part=eagle goes with an artefact's name",
}


@pytest.mark.parametrize("override", BAD)
def test_bad_input_is_refused_in_one_line_before_anything_runs(override):
    with pytest.raises(InvalidInput, match=BAD[override]) as caught:
        cells_of(override.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("tree=best_16 tree.path=a${max_tuning_prompts}.json max_tuning_prompts=15,45", 2),
        ("timed=true,false audit=false,true", 4),  # an audit stands beside both
        ("seed=0,1 temperature=0.6,1", 4),
    ],
)
def test_a_key_whose_values_make_other_cells_may_have_several(line, count):
    assert len(cells_of(line.split())) == count


def test_a_pair_names_its_model_s_settings_and_the_command_line_goes_before_them(tmp_path):
    text = (CONF / "pair" / "llama2_7b_chat__eagle.yaml").read_text()
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "chat.yaml").write_text(
        f"{text}\ntemperature: 0.6\nsampling: {{top_p: 0.9}}\n"
    )

    def laws(*overrides):
        with hydra_here(str(tmp_path)):
            cells = cells_of(["pair=chat", "profile=embedded", *overrides])
        return [(cell.config["temperature"], cell.labels.get("sampling.top_p")) for cell in cells]

    assert laws() == [(0.6, 0.9)]
    assert laws("temperature=1") == [(1.0, 0.9)]
    assert laws("sampling.top_p=0.95,1") == [(0.6, 0.95), (0.6, 1.0)]
    assert laws("sampling.top_p=1") == [(0.6, None)]
    with hydra_here(str(tmp_path)):  # the rest is the profile's
        assert cells_of(["pair=chat"])[0].config["sampling"]["max_new_tokens"] == 64


def test_options_of_a_folder_of_ones_own_are_added_to_ours(tmp_path, capsys):
    (tmp_path / "pair").mkdir()
    text = (CONF / "pair" / "embedded.yaml").read_text()
    (tmp_path / "pair" / "embedded.yaml").write_text(text)
    (tmp_path / "pair" / "mine.yaml").write_text(f"defaults: [embedded]\n{text}")
    words = ["pair=[mine,embedded]", f"--config-dir={tmp_path}", "profile=embedded"]
    line = read_command_line(words)
    with hydra_here(line.flags.config_dir):
        mine, ours = cells_of(line.overrides)
        [part] = parts_of(["pair=mine"])  # its plan is older than these files once they are edited
        [changed] = cells_of(["pair=mine", "pair.draft=null"])
    assert mine.labels["pair"] == Label("mine") and mine.cell_id == ours.cell_id
    assert {str(tmp_path / "pair" / "mine.yaml"), "conf/pair/embedded.yaml"} <= part.sources.keys()
    assert str(tmp_path / "pair" / "embedded.yaml") not in part.sources
    assert changed.labels["pair"] == Label("mine", {"draft": None})
    assert (
        "pair/embedded.yaml is not read, since conf/pair/embedded.yaml comes first"
        in capsys.readouterr().err
    )
    assert line.again == [f"--config-dir={tmp_path}", *line.overrides]
    with pytest.raises(InvalidInput, match="unknown pair 'mine'"):
        cells_of(["pair=mine", "+pair.new=1"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("task=profile audit=true", "audit is true, and task profile has none; allowed: decode"),
        ("task=race tree=fastest timed=false", "task race measures times alone; allowed: true"),
        (
            "dataset=embedded_code,embedded_docstrings dataset.path={path}",
            "is given for embedded_code and embedded_docstrings; allowed: one of them",
        ),
    ],
)
def test_what_would_count_wrongly_or_twice_is_refused(line, message, tmp_path):
    """Defects: times beside other work in tasks without audits, and prompts counted three times.

    The prompts were those of one file in place of three data sets.
    """
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a"}')
    with pytest.raises(InvalidInput, match=message):
        cells_of(line.format(path=path).split())


def test_a_copied_profile_has_its_own_name(tmp_path):
    """Defect: its cells were planned and shown as those of the profile it was copied from."""
    (tmp_path / "profile").mkdir()
    text = (CONF / "profile" / "embedded.yaml").read_text()
    file, words = tmp_path / "profile" / "mine.yaml", ["profile=mine", f"--config-dir={tmp_path}"]
    file.write_text(text)
    with pytest.raises(InvalidInput, match="profile=mine says profile: embedded; allowed: profile"):
        read_command_line(words)
    file.write_text(text.replace("profile: embedded", "profile: mine"))
    line = read_command_line(words)
    with hydra_here(line.flags.config_dir):
        assert sweep_of(line.overrides).cells[0].config["profile"] == "mine"
    with pytest.raises(InvalidInput, match="unknown profile 'mine'"):
        check_profile("mine", tmp_path)
    (tmp_path / "mine" / "plans").mkdir(parents=True)
    check_profile("mine", tmp_path)  # defect: what was measured could not be shown


def test_rows_of_a_task_of_one_s_own_may_have_times(tmp_path):
    """Defect: measured beside other work or not, it was the same cell."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("_target_: mine.Decoding\n")
    line = read_command_line(["task=mine", f"--config-dir={tmp_path}", "profile=embedded"])
    with hydra_here(line.flags.config_dir):
        cells = [
            cell
            for is_timed in ("true", "false")
            for cell in cells_of([*line.overrides, f"timed={is_timed}"])
        ]
    assert len({cell.cell_id for cell in cells}) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("num_drafted: 3\n\tdepth: 4\n", r"line 2: found character"),
        ("num_drafted: 3\n  depth: 4\n", r"line 2: mapping values are not allowed"),
        ("num_drafted: 3\nnum_drafted: 4\n", r"line 2: found duplicate key num_drafted"),
    ],
)
def test_a_slip_in_an_option_is_one_line(text, problem, tmp_path):
    """Defect: a traceback of the parser."""
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree" / "mine.yaml"
    path.write_text(text)
    message = rf"^{path} cannot be read as YAML \({problem}.*\)$"
    with hydra_here(str(tmp_path)), pytest.raises(InvalidInput, match=message):
        cells_of(["tree=mine"])
    with pytest.raises(InvalidInput, match=message):
        build_option(path)


@pytest.mark.parametrize("text", ["", "# @package _global_\ntemperature: 0.5\n"])
def test_a_verifier_s_option_without_a_class_is_one_line(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InvalidInput, match="mine names no class of its own; allowed: one with"):
        build_option(tmp_path / "mine.yaml")
