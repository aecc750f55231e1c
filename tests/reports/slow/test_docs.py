"""README and docs name what exists: commands, targets, modules, files, options and links."""

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.cli import read_command_line
from experiments.grid import cells_of
from experiments.overrides import completed
from experiments.schema import CONF
from recipes.train_eagle import checked
from resispec import commands as console

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "docs" / "README.md"
TEXTS = {
    page: page.read_text()
    for page in (*PAGES, ROOT / "results" / "README.md", ROOT / "CHANGELOG.md")
}
FOLLOWED = "extend.md"  # test_extend.py does as it says; what it names is not here before
ARTEFACTS = sorted(path.stem for path in (CONF / "experiment").iterdir())


def commands(page):
    """Everything that starts with `python -m` or `resispec`, in blocks and in text.

    Comments are left out, and every command has the module that is called.
    """
    text = TEXTS[page].replace("\\\n", " ")
    text = re.sub(r" (\[(--)?[A-Z]+[^]]*\]|KEY=VALUE\b)", "", text)  # they stand for words
    lines = re.findall(r"(?:^|`)((?:python -m |resispec [a-z]+\b)[^`#\n]*)", text, re.M)
    lines = [line.strip().removesuffix("...").strip() for line in lines]
    return [as_module(line) for line in lines if line != "python -m"]


def as_module(line):
    """A line with `python -m MODULE` in place of `resispec COMMAND`."""
    if not line.startswith("resispec "):
        return line
    _, name, *words = shlex.split(line)
    module = "resispec.console" if name == "list" else console.COMMANDS[name].module
    if name == "table" and words:
        module = f"analysis.{words.pop(0)}".removesuffix(".NAME").replace(".<artefact>", "")
    return shlex.join(["python", "-m", module.removesuffix(".__main__"), *words])


def arguments_of(module):
    """The arguments of every command of one module, each once."""
    every = [command for page in PAGES if page.name != FOLLOWED for command in commands(page)]
    own = [
        command.removeprefix(f"python -m {module}")
        for command in every
        if command.split()[2] == module
    ]
    return list(dict.fromkeys(arguments.strip() for arguments in own))


COMMANDS = [
    (module, line)
    for module in ("experiments.run", "experiments.audit", "recipes.train_eagle")
    for line in arguments_of(module)
    if line not in {f"experiment={name}" for name in ARTEFACTS}  # which test_golden.py composes
]


@pytest.mark.parametrize(("module", "line"), COMMANDS)
def test_every_command_that_is_shown_composes(module, line, tmp_path, monkeypatch):
    """In a folder in which every file that the command names exists."""
    monkeypatch.chdir(tmp_path)
    overrides = [word for word in shlex.split(line) if not word.startswith("-")]
    for key, _, value in (word.partition("=") for word in overrides):
        if key.rpartition(".")[2] in ("target", "draft"):
            Path(value).mkdir(parents=True, exist_ok=True)
            (Path(value) / "config.json").touch()
        elif key in ("dataset.path", "tree.path", "verifier.name"):
            Path(value.partition(":")[0]).touch()
    if module == "experiments.run":
        assert all(map(str, cells_of(completed(overrides))))
        return
    if module == "experiments.audit":  # NAME is verifier=NAME
        overrides = list(read_command_line(overrides, "audit", ["pair"]).overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(module.rpartition(".")[2], overrides)
        if module == "experiments.audit":
            assert bool(config.verifier) is bool(line)
        else:
            assert checked(OmegaConf.to_container(config, resolve=True)).steps > 0


def exists(name):
    """Whether a dotted name is a module, or something in one."""
    module, _, attribute = name.rpartition(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    return bool(module) and exists(module) and hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_modules_files_and_links_that_are_named_exist(page):
    text = TEXTS[page]
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    if page.name == "CHANGELOG.md":
        return
    written = re.findall(r"^`(\w+/[\w./]+)`:$", text, re.M)  # by the reader, as the page says
    modules = {
        name for name in (command.split()[2] for command in commands(page)) if "<" not in name
    }
    modules |= set(
        re.findall(r"`((?:resispec|experiments|analysis|referee)(?:\.(?!json)\w+)+)", text)
    )
    for name in modules - {path.removesuffix(".py").replace("/", ".") for path in written}:
        assert exists(name), name
    for name in set(
        re.findall(r"`((?:resispec|experiments|analysis|conf|tests|docs)/[\w./]*)`", text)
    ):
        assert "PART" in name or "NAME" in name or name in written or (ROOT / name).exists(), name
    # Runs write to results/PROFILE, which git ignores.
    links = re.findall(r"\]\((?:\.\./)*results/(?!published/|reference/|README)[^)]*\)", text)
    assert not links


def test_every_target_and_variable_that_is_named_exists():
    command = ["make", "NONE=1"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    allowed = re.search(r"; allowed: (.*)\. +Stop", refused.stderr).group(1).split()
    targets = {f"{prefix}{stem}" for stem in ARTEFACTS for prefix in ("", "reproduce-")}
    for page in PAGES:
        targets |= set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", TEXTS[page], re.M))
        for arguments in re.findall(
            r"(?:^|`)make [a-z0-9-]+((?: \w+=[^\s`]+)+)", TEXTS[page], re.M
        ):
            assert {word.partition("=")[0] for word in arguments.split()} <= set(allowed), page.name
    for profile in sorted(path.stem for path in (ROOT / "conf" / "profile").glob("*.yaml")):
        has_bench = profile in ("embedded", "smollm2")
        named = targets if has_bench else targets - {"bench"}
        command = ["make", "--dry-run", *sorted(named), f"PROFILE={profile}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stem", ARTEFACTS)
def test_every_artefact_has_a_script_and_a_page(stem):
    assert exists(f"analysis.{stem}")
    page = ROOT / "docs" / "artefacts" / f"{stem}.md"
    assert f"(artefacts/{stem}.md)" in TEXTS[INDEX] and f"`make reproduce-{stem}`" in TEXTS[INDEX]
    for heading in ("What the paper did", "What we do", "How to read it"):
        assert f"\n## {heading}\n" in TEXTS[page], heading
