"""Containers, citation, workflow and issue forms agree with the project; linters read them all."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_every_such_file_is_linted():
    command = ["make", "--dry-run", "lint"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [path.relative_to(ROOT) for path in (ROOT / ".github").rglob("*.yml")]
    for file in (*files, "CITATION.cff", "compose.yaml", "Dockerfile"):
        assert f" {file}" in done.stdout, file


def test_the_two_tiers_run_what_every_change_passes_from_the_oldest_python_on():
    script = ROOT / ".ci" / "run"
    tiers = [
        read(".github/workflows/ci.yml")["jobs"]["ci"],
        read(".github/workflows/nightly.yml")["jobs"]["everything"],
    ]
    for job in tiers:
        assert PROJECT["requires-python"] == f">={job['strategy']['matrix']['python'][0]}"
    steps = [step["run"] for job in tiers for step in job["steps"] if "run" in step]
    assert steps == ["make lint", "make test", "make test-all", "make test-kernels"]
    # `make test` and the slow tests are all tests
    lines = re.findall(r"^(?:make|\.venv).*$", script.read_text(), re.M)
    slow = ".venv/bin/python -m pytest -m slow"
    assert lines == ["make lint", "make test", slow, "make test-kernels"]
    assert os.access(script, os.X_OK) and "\nmake test " in (ROOT / "README.md").read_text()


def test_actions_are_pinned_by_commit():
    for path in (ROOT / ".github" / "workflows").iterdir():
        for used in re.findall(r"uses: (.*)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", used), used


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    for key in ("version", "license"):
        assert citation[key] == PROJECT[key]
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert f"{citation['version']} ({citation['date-released']})" in titles


def test_a_release_has_at_most_60_lines_of_changes():
    _, *releases = (ROOT / "CHANGELOG.md").read_text().split("\n## ")
    assert releases and max(len(release.splitlines()) for release in releases) <= 60


def test_containers_mount_what_the_image_keeps_and_run_as_the_caller():
    image = (ROOT / "Dockerfile").read_text()
    services = read("compose.yaml")["services"]
    service = services["resispec"]
    # runs without a GPU
    assert "deploy" not in service and services["gpu"].keys() == {"extends", "deploy"}
    assert services["gpu"]["extends"] == "resispec"
    # else `make` installs again
    assert image.index("touch .venv/installed") > image.index("COPY . .")
    mounted = {volume["target"] for volume in service["volumes"]}
    kept = set(re.findall(r"(?:HF_HOME|RESISPEC_CACHE)=(\S+)", image))
    assert mounted == kept | {"/app/results"} and len(kept) == 2
    assert service["user"].startswith("${CALLER:?")
    [made] = re.findall(
        r"install --directory --mode=1777 (.*?)\n\n", image.replace("\\\n", " "), re.S
    )
    home = re.search(r"HOME=(/\S+) USER", image).group(1)
    assert {home, "results", *kept} <= set(made.split())
    assert re.search(r"^USER [1-9]", image, re.M)  # never root, whatever is typed
