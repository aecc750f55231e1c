"""From a command line to cells: what is composed, what names a cell, what is refused, and the plan's file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from toy_runs import save_toys, toy_overrides

from experiments.cells import IGNORED, Cell, content
from experiments.configuration.compose import cell_of, composition
from experiments.configuration.schema import CONF, RunConfig
from experiments.plan import cells_of, parts_of, write_plan
from resispec.errors import InvalidInput
from resispec.files import write_atomically
from resispec.trees import chain, grow_map


def options(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


EXPERIMENTS = sorted(path.relative_to(CONF / "experiment").with_suffix("").as_posix()
                     for path in (CONF / "experiment").rglob("*.yaml"))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(folder, tmp_path):
    return toy_overrides(folder, tmp_path / "results")


@pytest.mark.parametrize("pair", options("pair"))
@pytest.mark.parametrize("profile", options("profile"))
def test_every_pair_and_profile_composes(pair, profile):
    [cell] = cells_of([f"pair={pair}", f"profile={profile}"])
    assert cell.labels["pair"] == pair and cell.folder.parts[-2] == profile


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("profile", options("profile"))
def test_every_experiment_names_its_cells(experiment, profile):
    cells = cells_of([f"experiment={experiment}", f"profile={profile}"])
    assert len({str(cell) for cell in cells}) == len(cells) > 1
    artefact = experiment.partition("/")[0]
    assert any((CONF.parent / "analysis" / name).exists() for name in (artefact, f"{artefact}.py"))


@pytest.mark.parametrize(
    "experiment", [name for name in EXPERIMENTS if not name.startswith("frontier/best_")]
)
def test_points_are_what_hydra_composes(experiment):
    """Groups are exchanged in one composition; every point equals Hydra's own composition of it."""
    [part] = parts_of([f"experiment={experiment}"])
    for cell, point in list(zip(part.cells, part.points, strict=True))[::5]:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("run", list(point), return_hydra_config=True)
        choices = {group: option for group, option in composed.hydra.runtime.choices.items() if option}
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        assert composition(point, "run").choices == choices
        again = cell_of(own, choices)
        assert again.config == cell.config and again.labels.items() <= cell.labels.items()


def test_table1_has_18_cells_and_shares_the_baseline():
    cells = cells_of(["experiment=table1"])
    timed = [cell for cell in cells if not cell.labels.get("audit")]
    assert len(timed) == 18 and len(cells) == 18 + 12  # every timed cell with a verifier has an audit cell
    baselines = [cell for cell in cells if cell.labels["decoder"] == "autoregressive"]
    assert len(baselines) == 6 and all(not {"tree", "verifier"} & set(cell.labels) for cell in baselines)
    [alone] = cells_of(["dataset=embedded_code", "temperature=0.6", "verifier=resispec"])
    assert alone.cell_id in {cell.cell_id for cell in cells}
    assert len(cells_of(["experiment=table1", "dataset=embedded_code", "audit=false"])) == 6
    narrowed = ["experiment=table1", "verifier=standard,resispec", "temperature=1.0", "audit=false"]
    assert len(cells_of(narrowed)) == 9


def test_an_artefact_with_parts_is_all_of_them_and_no_other():
    assert [part.name for part in parts_of(["experiment=table2"])] == [
        "table2/chain", "table2/eagle", "table2/sampled", "table2/sequoia",
    ]  # fmt: skip
    assert [part.name for part in parts_of(["experiment=table1,table4"])] == ["table1", "table4"]


def test_the_parts_of_the_frontier_say_what_each_cell_is_for():
    """Whatever the number of prompts: a longer audit is one because its part says so."""
    parts = {part.name: part.cells for part in parts_of(["experiment=frontier", "num_prompts=192"])}
    assert len(parts["frontier/long"]) == 2 and len(parts["frontier/d5b3"]) == 72
    assert all(cell.config["num_prompts"] == 192 for cells in parts.values() for cell in cells)


def test_a_cell_is_named_by_what_determines_it(folder, toy):
    def cell_id(*overrides):
        [cell] = cells_of([*toy, *overrides])
        return cell.cell_id

    base = cell_id()
    for same in ("results=elsewhere", "tree.depth=5", "axes.pairs=x", "first_tuning_prompt=9"):
        assert cell_id(same) == base, same
    changes = ["seed=1", "temperature=0.5", "tree=d7b2", "verifier=resispec", "num_prompts=4",
               "first_prompt=1",
               "prompt_template='{text}!'", "audit=true", "task=kl"]  # fmt: skip
    assert len({base, *(cell_id(change) for change in changes)}) == 1 + len(changes)
    with (folder / "prompts.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    assert cell_id() != base


def test_every_value_counts_unless_it_is_ignored_for_a_reason(toy):
    """A field that somebody adds counts from the start."""
    [cell] = cells_of(toy)
    assert set(RunConfig.__dataclass_fields__) >= set(IGNORED) and all(IGNORED.values())
    for key, value in cell.config.items():
        other = cell.changed(cell.labels, **{key: {"changed": value}})
        assert (other.cell_id == cell.cell_id) == (key in IGNORED), key
    assert cell.changed(cell.labels, new_field=1).cell_id != cell.cell_id


def test_no_import_path_and_no_file_path_names_a_cell(toy, tmp_path):
    [cell] = cells_of(toy)
    moved = {"_target_": "resispec.somewhere.else.JsonlDataset"}
    assert cell.changed(cell.labels, dataset=cell.config["dataset"] | moved).cell_id == cell.cell_id
    foreign = {"_target_": "somebody.JsonlDataset"}
    assert cell.changed(cell.labels, dataset=cell.config["dataset"] | foreign).cell_id != cell.cell_id
    source = Path(cell.config["dataset"]["path"])
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(source.read_bytes())
    at_copy = cell.config["dataset"] | {"path": str(copy)}
    assert cell.changed(cell.labels, dataset=at_copy).cell_id == cell.cell_id
    rule = tmp_path / "rule.py"
    rule.write_text("class Rule: pass\n")
    named = {"verifier": {"_target_": "resispec.verifiers.get_verifier", "name": f"{rule}:Rule"}}
    before = cell.changed(cell.labels, decoder=named).cell_id
    rule.write_text("class Rule: x = 1\n")
    assert cell.changed(cell.labels, decoder=named).cell_id != before


def test_a_large_file_is_known_by_its_size_and_three_samples(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.cells.LARGE_BYTES", 100)
    monkeypatch.setattr("experiments.cells.SAMPLE_BYTES", 10)
    found = set()
    for number, change in enumerate([None, 0, 150, 299]):
        data = bytearray(300)
        if change is not None:
            data[change] = 1
        path = tmp_path / f"weights{number}.bin"
        path.write_bytes(bytes(data))
        found.add(content(path))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("overrides", "labels"),
    [
        (["tree=chain", "tree.num_drafted=3,7"],
         [{"tree": "chain(num_drafted=3)"}, {"tree": "chain(num_drafted=7)"}]),
        (["tree=chain"], [{"tree": "chain"}]),
        (["tree=complete", "tree.depth=5", "tree.branching=3"], [{"tree": "complete(branching=3, depth=5)"}]),
        (["verifier=optimal", "verifier.bins=0"], [{"verifier": "optimal(bins=0)"}]),
        (["seed=0,1"], [{"seed": 0}, {"seed": 1}]),
        (["task=kl,decay"], [{"task": "kl"}, {"task": "decay"}]),
        (["verifier=custom", "verifier.name=a/my_rule.py:Rule"],
         [{"verifier": "custom(name=a/my_rule.py:Rule)"}]),
    ],
)  # fmt: skip
def test_labels_carry_what_varies(overrides, labels):
    cells = cells_of(overrides)
    assert [
        {key: cell.labels[key] for key in wanted} for cell, wanted in zip(cells, labels, strict=True)
    ] == labels


def test_two_requests_may_share_a_cell_under_other_labels():
    [one] = cells_of(["tree=d5b3"])
    [other] = cells_of(["tree=complete", "tree.depth=5", "tree.branching=3"])
    assert one.cell_id == other.cell_id and one.labels != other.labels


@pytest.mark.parametrize(
    "override", ["verifier.name=a/rule.py:Rule,b/rule.py:Rule", "+decoder.cache_length=100,200"]
)
def test_no_two_cells_of_a_sweep_have_one_name(override):
    first, second = cells_of(["verifier=custom", "verifier.name=standard", override])
    assert first.labels != second.labels and str(first) != str(second)


def test_what_names_do_not_show_is_refused(monkeypatch):
    """Otherwise one of the two cells would be dropped as a double."""
    monkeypatch.setattr("experiments.configuration.compose._short", lambda _: "...")
    with pytest.raises(InvalidInput, match="two cells of this sweep are both called"):
        cells_of(["verifier=custom", "verifier.name=a.py:Rule,b.py:Rule"])


def test_a_glob_stands_for_options():
    found = cells_of(["tree=glob(d*)", "verifier=glob([s*,k*])"])
    assert {cell.labels["tree"] for cell in found} == {"d3b11", "d4b4", "d4b5", "d5b3", "d7b2"}
    assert {cell.labels["verifier"] for cell in found} == {"standard", "kseq"}


def test_of_a_tree_file_the_topology_counts(toy, tmp_path):
    """Not when, where and from what it was found; and a file without a slash is one, too."""
    path = tmp_path / "map.json"
    ids = []
    for num_drafted, about in ((3, {"started": "now"}), (3, {"started": "then"}), (4, {"started": "then"})):
        grow_map.save(chain(num_drafted), path, about)
        [cell] = cells_of([*toy, "tree=growmap", f"tree.path={path}"])
        ids.append(cell.cell_id)
    assert ids[0] == ids[1] != ids[2]


def test_a_local_folder_without_a_slash_counts_by_content(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights" / "deep").mkdir(parents=True)
    [cell] = cells_of(toy)
    pair = cell.config["pair"] | {"target": "weights"}
    ids = []
    for text in ("one", "two"):
        (tmp_path / "weights" / "deep" / "part.bin").write_text(text)
        ids.append(cell.changed(cell.labels, pair=pair).cell_id)
    assert ids[0] != ids[1]


def test_doubles_are_dropped(toy):
    assert (
        len(cells_of([*toy, "decoder=autoregressive", "verifier=standard,resispec", "audit=false,true"])) == 1
    )


def test_a_plan_says_which_cells_were_asked_for_and_from_what(toy, tmp_path):
    arguments = ["experiment=table1", *toy, "dataset=jsonl", "temperature=1.0"]
    [part] = parts_of(arguments)
    path = write_plan(part, arguments)
    assert path == tmp_path / "results" / "embedded" / "plans" / "table1.json"
    plan = json.loads(path.read_text())
    assert (plan["artefact"], plan["part"], plan["profile"]) == ("table1", "", "embedded")
    assert [cell["cell_id"] for cell in plan["cells"]] == [cell.cell_id for cell in part.cells]
    assert [cell["labels"] for cell in plan["cells"]] == [cell.labels for cell in part.cells]
    assert {"conf/run.yaml", "conf/experiment/table1.yaml", "conf/decoder/specinfer.yaml"} <= set(
        plan["sources"]
    )
    assert plan["command"].startswith("python -m experiments.run experiment=table1 ")


BAD = {
    "verifier=nope": "unknown verifier 'nope'; allowed: block, custom, .*resispec, standard, traversal",
    "verifier=standart": "unknown verifier 'standart'; did you mean standard?",
    "tree=d9b9": "unknown tree 'd9b9'; .*allowed: .*d3b11, d4b4, d4b5, d5b3, d7b2, .*root",
    "dataset=nope": "unknown dataset 'nope'; .*allowed: c4, cnn_dm",
    "pair=nope": "unknown pair 'nope'; .*allowed: .*embedded, .*llama2_7b__jf68m",
    "experiment=nope": "unknown experiment 'nope'; .*allowed: .*table1",
    "experiment=fronteir": "unknown experiment 'fronteir'; did you mean frontier\\? allowed: .*table2",
    "verifier.foo=1": "unknown key 'verifier.foo'; allowed: none in verifier",
    "temprature=1": "unknown key 'temprature'; did you mean temperature\\? allowed: .*num_prompts",
    "temperature=warm": "could not be converted to Float",
    "dataset.pth=x": "unknown key 'dataset.pth'; did you mean dataset.path\\? allowed: .*dataset.name",
    "sampling.max_new=x": "unknown key 'sampling.max_new'; did you mean sampling.max_new_tokens",
    "hydra.verbos=true": "unknown key 'hydra.verbos'; did you mean hydra.verbose",
    "tree=complete": "tree.depth must be given, like tree.depth=VALUE",
    "num_prompts=0": "num_prompts is 0; allowed: greater than or equal to 1",
    "num_prompts=-3": "num_prompts is -3; allowed: greater than or equal to 1",
    "first_prompt=-1": "first_prompt is -1; allowed: greater than or equal to 0",
    "prompt_tokens=-5": "prompt_tokens is -5; allowed: greater than or equal to 1",
    "warmup_prompts=-1": "warmup_prompts is -1; allowed: greater than or equal to 0",
    "num_threads=0": "num_threads is 0; allowed: greater than or equal to 1",
    "seed=-1": "seed is -1; allowed: greater than or equal to 0",
    "seed=99999999999999999999999": "seed is 9+; allowed: less than",
    "temperature=0": "temperature is 0.*; allowed: greater than 0",
    "temperature=inf": "temperature is inf; allowed: a finite number",
    "sampling.max_new_tokens=0": "sampling.max_new_tokens is 0; allowed: greater than or equal to 1",
    "device=gpu": "device is 'gpu'; allowed: ",
    "dtype=int4": "dtype is 'int4'; allowed: ",
    "prompt_template=hello": "prompt_template needs {text} where the document stands; found 'hello'",
    "dataset.path=/nowhere/at_all.jsonl": "dataset.path is '/nowhere/at_all.jsonl', which does not exist",
}  # fmt: skip


@pytest.mark.parametrize("override", BAD)
def test_bad_input_is_refused_in_one_line_before_anything_runs(override):
    with pytest.raises(InvalidInput, match=BAD[override]) as caught:
        cells_of([override])
    assert "\n" not in str(caught.value)


def test_planning_needs_no_torch_and_analysis_no_experiments():
    """So that wrong input is refused at once, and tables can be made anywhere."""
    code = """
import sys
from experiments import launcher, sweep
from experiments.configuration import command
from experiments.plan import cells_of

[cell.cell_id for cell in cells_of(["experiment=table1"])]
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False", done.stderr
    imports = re.compile(r"^\s*(from|import) experiments", re.M)
    sources = (CONF.parent / "analysis").rglob("*.py")
    assert not [path for path in sources if imports.search(path.read_text())]


def test_a_label_does_not_name_another_pair_s_tree_file(folder, toy, tmp_path):
    """Two pairs under one option's name have tree files of their own."""
    write_atomically(tmp_path / "prompts.jsonl", (folder / "prompts.jsonl").read_text())
    [one] = cells_of(["tree=growmap_64", "decoder=sequoia"])
    [other] = cells_of([*toy, "tree=growmap_64", "decoder=sequoia"])
    assert one.config["tree"]["path"].endswith("growmap/embedded.embedded_reference.T1.0.64.json")
    assert f"target-{folder.name}-target" in other.config["tree"]["path"] and isinstance(other, Cell)
