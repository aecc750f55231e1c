"""The README says what the repository holds."""

import re
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def between(marker, page):
    return page.split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0].strip()


def test_tables_are_those_of_the_committed_results():
    exactness = (ROOT / "docs" / "exactness.md").read_text()
    for marker, page in (("table1", README), ("bench", README), ("audit", README), ("audit", exactness)):
        shown = [line for line in between(marker, page).splitlines() if line.startswith("|")]
        committed = (ROOT / "results" / "embedded" / f"{marker}.md").read_text().splitlines()
        assert shown == [line for line in committed if line.startswith("|")], (
            f"{marker} is not that of results/embedded"
        )


def test_what_is_said_of_the_frontier_is_in_its_table():
    frame = pd.read_csv(ROOT / "results" / "embedded" / "frontier.csv")
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
        rows = frame[
            (frame[["temperature", "decoder", "tree", "verifier", "quantity"]] == list(wanted)).all(axis=1)
        ]
        assert len(rows) == 3 and f"{rows.value.min():.2f} to {rows.value.max():.2f}" in section, wanted
    exact = frame[(frame.verifier != "resispec") & (frame.verdict != "") & frame.verdict.notna()]
    assert set(exact.verdict) == {"exact"} and set(frame.status) == {"done"}
    autoregressive = frame[frame.quantity == "speedup_vs_autoregressive"].value.dropna()
    assert autoregressive.max() < 1  # "none of these trees is faster than one token at a time"


def test_every_target_and_option_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    stems = re.search(r"^ARTEFACTS := (.*)$", makefile, re.M).group(1).split()
    targets = {
        *stems,
        *(f"reproduce-{stem}" for stem in stems),
        *re.findall(r"^([a-z0-9-]+):.*##", makefile, re.M),
    }
    assert {path.stem.split("_")[0] for path in (ROOT / "conf" / "experiment").glob("*.yaml")} == set(stems)
    assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", README, re.M)) <= targets
    for group, cells in re.findall(r"^\| `(\w+)` \| (.*) \|$", README, re.M):
        options = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert set(re.findall(r"`([^`]+)`", cells.split(" (")[0])) == options, group


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
