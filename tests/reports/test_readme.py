"""README and docs say what the repository holds: published numbers, commands, options and files."""

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "embedded"
README = (ROOT / "README.md").read_text()
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
}
MAKEFILE = (ROOT / "Makefile").read_text()
STEMS = re.search(r"^ARTEFACTS := (.*)$", MAKEFILE, re.M).group(1).split()


def between(marker, page):
    return page.split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0].strip()


def quoted():
    """(page, marker) of all that is quoted from a page with tables; the frontier's block is prose."""
    found = [
        (name, marker)
        for name, path in PAGES.items()
        for marker in re.findall(r"<!-- (\w+) -->", path.read_text())
    ]
    return [(name, marker) for name, marker in found if marker != "frontier"]


def test_what_must_be_quoted_is():
    assert {("README.md", "table1"), ("README.md", "audit"), ("README.md", "bench")} <= set(quoted())
    assert ("docs/exactness.md", "audit") in quoted()


@pytest.mark.parametrize(("name", "marker"), quoted())
def test_tables_are_those_of_the_committed_results(name, marker):
    shown = [line for line in between(marker, PAGES[name].read_text()).splitlines() if line.startswith("|")]
    committed = (PUBLISHED / f"{marker}.md").read_text().splitlines()
    assert shown == [line for line in committed if line.startswith("|")], (
        f"{name}: run analysis.publish {marker}"
    )


def test_what_is_said_of_the_frontier_is_in_its_table():
    frame = pd.read_csv(PUBLISHED / "frontier.csv")
    section = " ".join(between("frontier", README).split())
    for temperature, decoder, tree, verifier, quantity in [
        *((t, "specinfer", "best_121", "traversal_optimal", "accepted_length") for t in (1.0, 0.6)),
        *((t, "specinfer", "best_121", "traversal_optimal", "accepted_length_gain") for t in (1.0, 0.6)),
        *((t, "specinfer", "d5b3", "traversal_optimal", "accepted_length_gain") for t in (1.0, 0.6)),
        *((t, "specinfer", "d5b3", "resispec", "accepted_length") for t in (1.0, 0.6)),
        *((t, "sequoia", "best_121", "traversal", "accepted_length") for t in (1.0, 0.6)),
        *((t, "top_k", "best_121", "naive", "accepted_length") for t in (1.0, 0.6)),
    ]:
        wanted = (temperature, decoder, tree, verifier, quantity)
        keys = ["temperature", "decoder", "tree", "verifier", "quantity"]
        rows = frame[(frame[keys] == list(wanted)).all(axis=1)]
        assert len(rows) == 3 and f"{rows.value.min():.2f} to {rows.value.max():.2f}" in section, wanted
    exact = frame[(frame.verifier != "resispec") & (frame.verdict != "") & frame.verdict.notna()]
    assert set(exact.verdict) == {"exact"} and set(frame.status) == {"done"}
    autoregressive = frame[frame.quantity == "speedup_vs_autoregressive"].value.dropna()
    assert autoregressive.max() < 1  # "none of these trees is faster than one token at a time"


def test_every_artefact_has_a_sweep_and_a_script():
    experiments = {path.stem for path in (ROOT / "conf" / "experiment").iterdir()}
    assert experiments == set(STEMS)
    for stem in STEMS:
        script = ROOT / "analysis" / f"{stem}.py"
        assert script.is_file() or (ROOT / "analysis" / stem / "__main__.py").is_file(), stem


def test_every_target_and_option_that_is_named_exists():
    targets = {*STEMS, *(f"reproduce-{stem}" for stem in STEMS)}
    targets |= set(re.findall(r"^([a-z0-9-]+):.*##", MAKEFILE, re.M))
    for path in PAGES.values():
        named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", path.read_text(), re.M))
        assert named <= targets, f"{path.name}: {named - targets}"
    groups = re.findall(r"^\| `(\w+)` \| (.*) \|$", README, re.M)
    assert {"pair", "dataset", "decoder", "tree", "verifier", "task"} <= {group for group, _ in groups}
    for group, cells in groups:
        options = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert set(re.findall(r"`([^`]+)`", cells.split(" (")[0])) == options, group


def test_links_lead_somewhere():
    for page in (*PAGES.values(), ROOT / "results" / "README.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_nothing_that_is_quoted_is_in_a_users_own_folder():
    """Runs write to results/PROFILE, which git ignores; README and docs quote results/published."""
    for page in PAGES.values():
        found = re.findall(r"\]\((?:\.\./)?results/(?!published/|reference/|README)[^)]*\)", page.read_text())
        assert not found, f"{page.name}: {found}"
