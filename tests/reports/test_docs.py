"""README and docs name what exists: commands that compose, targets, modules, files, options and links."""

import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.configuration.schema import CONF
from experiments.plan import cells_of
from experiments.train_eagle import checked

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLLOWED = "extend.md"  # what test_extend.py does as it says; what it names is not here before
ARTEFACTS = sorted(path.stem for path in (CONF / "experiment").iterdir())
# Names that earlier versions had.
GONE = (
    r"resispec\.(topology|growmap|tree_search|cache|record|law_rows|hub|eagle_training|eagle_recipe)\b",
    r"experiments\.(grow_map|best_shape|search|step_time|bench_rules|law_tasks|contexts|maps)\b",
    r"results/embedded/\w+\.\w+\)|results/paper|add-a-verifier|slab_cache|`weights=",
)


def commands(page: Path) -> list[str]:
    """Everything that starts with `python -m`, in blocks and in text, without comments."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"(?:^|`)(python -m [^`#\n]+)", text, re.M)
    return [line.strip().removesuffix("...").strip() for line in found]


def lines(module: str) -> list[str]:
    """The arguments of every command of one module, each once."""
    every = [command for page in PAGES if page.name != FOLLOWED for command in commands(page)]
    found = [command.removeprefix(f"python -m {module}") for command in every if command.split()[2] == module]
    return list(dict.fromkeys(arguments.strip() for arguments in found))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder in which every file that a command names exists."""
    monkeypatch.chdir(tmp_path)

    def overrides(arguments: str) -> list[str]:
        given = [word for word in shlex.split(arguments) if not word.startswith("-")]
        for key, _, value in (word.partition("=") for word in given):
            if key in ("pair.target", "pair.draft"):
                Path(value).mkdir(parents=True, exist_ok=True)
            elif key in ("dataset.path", "tree.path", "verifier.name"):
                Path(value.partition(":")[0]).touch()
        return given

    return overrides


@pytest.mark.parametrize("arguments", lines("experiments.run"))
def test_every_run_that_is_shown_composes(desk, arguments):
    found = cells_of(desk(arguments))
    assert found and all(str(cell) for cell in found)


@pytest.mark.parametrize("arguments", lines("experiments.audit"))
def test_every_audit_that_is_shown_composes(desk, arguments):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert compose("audit", desk(arguments)).verifier


@pytest.mark.parametrize("arguments", lines("experiments.train_eagle"))
def test_every_training_that_is_shown_composes(desk, arguments):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train_eagle", desk(arguments), return_hydra_config=False)
        assert checked(OmegaConf.to_container(config, resolve=True)).steps > 0


def test_the_commands_that_must_be_shown_are():
    for module in ("experiments.run", "experiments.audit", "experiments.train_eagle"):
        assert lines(module), module
    page = ROOT / "docs" / "running.md"
    shown = " ".join(commands(page))
    for word in (
        "experiment=table1",
        "experiment=frontier",
        "hydra/launcher=submitit_slurm",
        "dataset=jsonl",
    ):
        assert word in shown
    for word in ("--help", "--cfg job --resolve", "-sc install=bash"):
        assert word in page.read_text(), word
    for word in ("make reproduce-table1 ", "make reproduce ", "`make status`", "`pip install .`"):
        assert word in PAGES[0].read_text(), word


def test_every_module_that_is_shown_exists():
    for page in PAGES:
        own = re.findall(r"^`(\w+/[\w/]+)\.py`:$", page.read_text(), re.M)  # what the page itself writes
        named = {command.split()[2] for command in commands(page)}
        named |= set(re.findall(r"`((?:resispec|experiments|analysis)(?:\.\w+)+)", page.read_text()))
        for name in named - {path.replace("/", ".") for path in own}:
            assert exists(name), f"{page.name}: {name}"


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, _, attribute = name.rpartition(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    return bool(module) and exists(module) and hasattr(importlib.import_module(module), attribute)


def test_every_file_that_is_named_exists():
    for page in (*PAGES, ROOT / "results" / "README.md"):
        text = page.read_text()
        own = re.findall(r"^`(\w+/[\w./]+)`:$", text, re.M)
        for name in set(re.findall(r"`((?:resispec|experiments|analysis|conf|tests|docs)/[\w./]*)`", text)):
            placeholder = "PART" in name or "NAME" in name
            assert placeholder or name in own or (ROOT / name).exists(), f"{page.name}: {name}"


def test_every_target_that_is_named_exists():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    named = {
        target for page in PAGES for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", page.read_text(), re.M)
    }
    named |= {f"{prefix}{stem}" for stem in ARTEFACTS for prefix in ("", "reproduce-")}
    for profile in sorted(path.stem for path in (ROOT / "conf" / "profile").glob("*.yaml")):
        command = ["make", "--dry-run", *sorted(named), f"PROFILE={profile}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_variables_of_make_are_known():
    allowed = re.search(r"^VARIABLES := (.*)$", (ROOT / "Makefile").read_text(), re.M).group(1).split()
    for page in PAGES:
        for arguments in re.findall(r"(?:^|`)make [a-z0-9-]+((?: \w+=[^\s`]+)+)", page.read_text(), re.M):
            for word in arguments.split():
                name, _, value = word.partition("=")
                assert name in allowed, f"{page.name}: {word}"
                assert name != "part" or list((CONF / "experiment").glob(f"*/{value}.yaml")), word


def test_every_artefact_has_a_sweep_and_a_script():
    for stem in ARTEFACTS:
        script = ROOT / "analysis" / f"{stem}.py"
        assert script.is_file() or (ROOT / "analysis" / stem / "__main__.py").is_file(), stem
        page = ROOT / "docs" / "artefacts" / f"{stem}.md"
        assert f"`make reproduce-{stem}`" in PAGES[0].read_text() and page.is_file(), stem
        for heading in ("What the paper did", "What we do", "How to read it"):
            assert f"\n## {heading}\n" in page.read_text(), f"{stem}: {heading}"


def test_links_lead_somewhere():
    for page in (*PAGES, ROOT / "results" / "README.md", ROOT / "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_nothing_that_is_quoted_is_in_a_users_own_folder():
    """Runs write to results/PROFILE, which git ignores; README and docs quote results/published."""
    for page in PAGES:
        found = re.findall(r"\]\((?:\.\./)*results/(?!published/|reference/|README)[^)]*\)", page.read_text())
        assert not found, f"{page.name}: {found}"


def test_nothing_is_called_as_it_was():
    for page in (*PAGES, ROOT / "results" / "README.md"):
        for pattern in GONE:
            found = re.search(pattern, page.read_text())
            assert found is None, f"{page.name}: {found and found[0]}"
