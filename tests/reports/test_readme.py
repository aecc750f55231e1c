"""README and docs quote the published numbers, and docs list the options that there are."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis.publish import quoted

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "embedded"
README = (ROOT / "README.md").read_text()
OPTIONS = (ROOT / "docs" / "running.md").read_text()
INFLATED = (ROOT / "docs" / "inflated.md").read_text()
FRONTIER = (ROOT / "docs" / "artefacts" / "frontier.md").read_text()
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
}
LABELS = ("pair", "dataset", "decoder", "tree", "verifier")


def between(marker, page):
    return page.split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0].strip()


def blocks():
    """(page, marker) of all that is quoted: ARTEFACT of the embedded profile, PROFILE/ARTEFACT of others."""
    return [
        (name, marker)
        for name, path in PAGES.items()
        for marker in re.findall(r"<!-- (\w+(?:/\w+)?) -->", path.read_text())
    ]


def test_what_must_be_quoted_is():
    wanted = {("README.md", "frontier_summary"), ("docs/speed.md", "bench"), ("docs/exactness.md", "audit")}
    assert wanted <= set(blocks())


@pytest.mark.parametrize(("name", "marker"), blocks())
def test_what_is_quoted_is_that_of_the_committed_results(name, marker):
    shown = between(marker, PAGES[name].read_text())
    profile, stem = f"embedded/{marker}".split("/")[-2:]
    page = (PUBLISHED.parent / profile / f"{stem}.md").read_text()
    assert shown == quoted(shown, page), f"{name}: run analysis.publish {stem}"


def test_what_is_said_of_the_frontier_is_in_its_table():
    frame = pd.read_csv(PUBLISHED / "frontier.csv")
    section = " ".join(between("frontier", FRONTIER).split())
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
    autoregressive = frame[(frame.quantity == "speedup_vs_autoregressive") & (frame.verifier != "resispec")]
    assert autoregressive.value.dropna().max() < 1  # "no exact verifier makes one of these trees faster"


def test_what_is_said_of_whole_levels_is_in_their_table():
    frame = pd.read_csv(PUBLISHED / "levels.csv")
    own = frame[(frame.verifier == "level_optimal") & (frame.tree == "best_121")]
    [said] = re.findall(r"^Deciding \[whole levels at once\].*$", README, re.M)
    for quantity in ("accepted_length", "accepted_length_gain"):
        for temperature in (1.0, 0.6):
            values = own[(own.quantity == quantity) & (own.temperature == temperature)].value
            assert len(values) == 3 and f"{values.min():.2f}–{values.max():.2f}" in said
    assert set(own.verdict) == {"exact"} and "exact (6 of 6)" in said


def listed() -> dict[str, set[str]]:
    """group -> the options that the table names."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", OPTIONS, re.M)
    return {group: set(re.findall(r"`([^`]+)`", cells.split(" (")[0])) for group, cells in rows}


def test_every_option_that_is_listed_exists():
    assert set(listed()) == {*LABELS, "task"}
    for group, options in listed().items():
        assert options <= {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}, group


def test_every_option_that_was_ever_measured_or_is_swept_is_listed():
    """An option that someone adds needs no line before a number of it is published; `--help` lists it."""
    used = {group: set() for group in LABELS}
    for path in PUBLISHED.glob("*.csv"):
        frame = pd.read_csv(path)
        for group in set(LABELS) & set(frame) if "cell_id" in frame else ():
            used[group] |= {str(value).partition("(")[0] for value in frame[group].dropna()}
    for path in (ROOT / "conf" / "profile").glob("*.yaml"):
        axes = OmegaConf.to_container(OmegaConf.load(path).axes)
        used["pair"] |= {name for key, names in axes.items() if "pairs" in key for name in names.split(",")}
        used["dataset"] |= set(axes["datasets"].split(","))
    for group, options in used.items():
        assert options - {"ceiling"} <= listed()[group], group


def test_the_help_lists_every_option():
    command = [sys.executable, "-m", "experiments.run", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for group in listed():
        [line] = re.findall(rf"^{group}: (.*)$", text, re.M)
        assert set(line.split(", ")) == {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


def test_the_readme_is_no_longer_than_it_should_be():
    assert len(README.splitlines()) <= 120


def test_what_is_said_of_the_inflated_pair_s_speed_is_in_its_table():
    frame = pd.read_csv(PUBLISHED.parent / "inflated_cpu" / "speed.csv")
    gains = frame[frame.quantity == "speedup_vs_one_token"]
    eight = gains[gains.entry.isin(["iid 8", "without_replacement 8"])].value
    assert set(eight.round(1)) == {1.1, 1.2} and "trees of 8 positions decode 1.1 to 1.2 times" in INFLATED
    d5b3 = gains[gains.entry.str.startswith("d5b3")].value
    assert d5b3.between(0.4, 0.55).all() and "d5b3 half of them" in INFLATED
