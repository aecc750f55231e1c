"""README and docs quote the published numbers, and docs list the options that there are."""

import re
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis import quotes
from tests.harness.toy_runs import run

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "results" / "published" / "embedded"
README = (ROOT / "README.md").read_text()
CLAIMS = quotes.claims(ROOT)
OPTIONS = (ROOT / "docs" / "running.md").read_text()
INFLATED = (ROOT / "docs" / "inflated.md").read_text()
LABELS = ("pair", "dataset", "decoder", "tree", "verifier")


def test_what_must_be_quoted_is():
    for name, block in (("docs/speed", "bench"), ("docs/exactness", "audit")):
        assert f"<!-- {block} -->\n" in (ROOT / f"{name}.md").read_text()


@pytest.mark.parametrize("page", quotes.pages(ROOT), ids=lambda page: page.name)
def test_what_is_quoted_is_that_of_the_committed_results(page):
    text = page.read_text()
    assert text == quotes.renewed_text(text, PUBLISHED.parent, CLAIMS), "run analysis.publish"


def test_the_readme_s_prose_has_few_numbers_and_none_is_typed_by_hand():
    """At most eight, the paper's own claim among them; its table is a block."""
    prose = quotes.BLOCK.sub("", README[: README.index("## Two commands")])
    assert len(quotes.NUMBERS.findall(prose)) <= 7
    rest = re.sub(r"\b\d{4}\.\d{5}\b", "", quotes.NUMBERS.sub("", prose))
    assert re.findall(r"\d[.,]\d+", rest) == ["1.86"]


def test_what_is_said_of_speed_beside_the_frontier_is_in_its_table():
    frame = pd.read_csv(PUBLISHED / "frontier.csv")
    speeds = frame[
        (frame.quantity == "speedup_vs_autoregressive") & (frame.verifier != "resispec")
    ].value
    # "no exact verifier makes one of these trees faster than one token at a time"
    assert speeds.max() < 1
    assert set(frame.verdict[frame.verifier != "resispec"].dropna()) == {"no bias seen"}


def listed():
    """group -> the options that the table names."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", OPTIONS, re.M)
    return {group: set(re.findall(r"`([^`]+)`", cells.split(" (")[0])) for group, cells in rows}


def test_every_option_that_is_listed_exists():
    assert set(listed()) == {*LABELS, "task"}
    for group, options in listed().items():
        assert options <= {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}, group


def test_every_option_that_was_ever_measured_or_is_swept_is_listed():
    """An added option needs no line before a number of it is published; `--help` lists it."""
    used = {group: set() for group in LABELS}
    for path in PUBLISHED.glob("*.csv"):
        frame = pd.read_csv(path)
        for group in set(LABELS) & set(frame) if "cell_id" in frame else ():
            used[group] |= {str(value).partition("(")[0] for value in frame[group].dropna()}
    for path in (ROOT / "conf" / "profile").glob("*.yaml"):
        profile = OmegaConf.load(path)
        axes = OmegaConf.to_container(profile.axes, resolve=True) if "axes" in profile else {}
        pairs = [
            [names] if isinstance(names, str) else names
            for key, names in axes.items()
            if "pairs" in key
        ]
        used["pair"] |= {name for names in pairs for name in names}
        used["dataset"] |= set(axes.get("datasets", ()))
    for group, options in used.items():
        assert options - {"ceiling"} <= listed()[group], group


def test_the_help_lists_every_option():
    text = run("--help").stdout
    for group in listed():
        [line] = re.findall(rf"^{group}: (.*)$", text, re.M)
        assert set(line.split(", ")) == {
            path.stem for path in (ROOT / "conf" / group).glob("*.yaml")
        }


def test_the_readme_is_one_screen():
    assert len(README.splitlines()) <= 65


def test_what_is_said_of_the_inflated_pair_s_speed_is_in_its_table():
    frame = pd.read_csv(PUBLISHED.parent / "inflated_cpu" / "speed.csv")
    gains = frame[frame.quantity == "speedup_vs_one_token"]
    assert set(gains[gains.entry == "chain 3"].value.round(1)) == {1.3, 1.4}
    assert "chains of 2 drafted tokens decode 1.3 to 1.4 times" in INFLATED
    eight = gains[gains.entry.str.endswith(" 8") & ~gains.entry.str.startswith("chain")]
    is_likeliest = eight.entry.str.startswith("point_mass")
    for told, chosen in (
        ("trees of 8 positions .87 to 1.06 times", eight[~is_likeliest]),
        ("(.71 to .82 if they are the\n  likeliest tokens)", eight[is_likeliest]),
        ("d5b3 .47 to .62 times", gains[gains.entry.str.startswith("d5b3")]),
    ):
        values = chosen.value.round(2)
        least, most = (f"{value:.2f}".removeprefix("0") for value in (values.min(), values.max()))
        assert told in INFLATED and f"{least} to {most}" in told
