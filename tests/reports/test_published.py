"""Agreement of what was measured here with what is published, and the command that publishes."""

import json
import lzma
import os
import random
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from analysis import audits, cells, publish, published, quotes
from analysis.load import ROOT, read_plan, read_status
from analysis.page import __main__ as page
from analysis.published import ACCEPTED_LENGTHS, Compared, compare
from experiments import verify
from resispec.errors import InvalidInput
from resispec.files import read_json, sealed, write_json
from resispec.trees import grow_map, topology
from tests import toy_artefacts
from tests.toy_cells import (
    PROVENANCE,
    ToyCell,
    make_audit,
    make_cell,
    rows_of,
    save,
    write_artefact,
    write_plan,
)

NUM_PROMPTS = 10
ROWS = {
    "autoregressive": [(1.0, [4])],
    "standard": [(0.5, [1, 2]), (1.0, [2, 0, 2])],
    "resispec": [(0.5, [1, 0, 3])],
}


def measured(results, num_prompts=NUM_PROMPTS, histogram=None):
    """A plan of three cells, two of them audited; histogram: what the last one emits instead."""
    cells = []
    for method, rows in ROWS.items():
        rows = [(1.0, histogram)] if histogram and method == "resispec" else rows
        cells.append(save(make_cell(results, method), rows_of((rows * num_prompts)[:num_prompts])))
    cells += [make_audit(cells[1], 600, 0.0), make_audit(cells[2], 600, 1.0)]
    write_plan(results, "table1", cells)
    return cells


@pytest.fixture
def made(tmp_path, monkeypatch, capsys):
    """Publish ten prompts of the toy cells. Makes table 1 of a folder and gives what it prints."""
    monkeypatch.setattr(published, "FOLDER", tmp_path / "repository" / "results" / "published")

    def run(results):
        assert write_artefact("table1", "--results", str(results)) == 0
        return capsys.readouterr().out

    measured(tmp_path / "theirs")
    assert run(tmp_path / "theirs").endswith(
        "nothing is published for table1 of profile embedded\n"
    )
    publish.publish("table1", "embedded", tmp_path / "theirs", tmp_path / "repository")
    return run


def test_other_numbers_are_named(tmp_path, made):
    cells = measured(tmp_path / "ours", histogram=[4])
    for audit, shift in ((cells[3], 1.0), (cells[4], 0.0)):
        make_audit(
            next(cell for cell in cells if audit.cell_id == f"{cell.cell_id}-audit"), 600, shift
        )
    printed = made(tmp_path / "ours")
    assert printed.endswith("2 of 3 accepted lengths agree, 0 of 2 verdicts\n")
    row = "Python code, d5b3, T = 1, SpecInfer + ResiSpec"
    lengths = f"{row} has 1.00 [1.00, 1.00], published 2.50 [2.50, 2.50]"
    assert f"{lengths}; {row}: no bias seen, published as biased." in printed
    assert (
        "Python code, d5b3, T = 1, SpecInfer (standard): biased, published as no bias seen"
        in printed
    )


def test_what_is_not_compared_is_counted(tmp_path, made):
    """Few prompts, and verdicts that are not there."""
    ours = tmp_path / "ours"
    cells = measured(ours, num_prompts=2)
    few = "(not compared: 3 rows of fewer than 8 prompts)\n"
    assert made(ours).endswith(f"table1.csv: 2 of 2 verdicts agree {few}")
    for audit in cells[3:]:
        audit.folder.joinpath("status.json").unlink()
        audit.folder.joinpath("rows.jsonl").unlink()
    assert made(ours).endswith(f"nothing in it can be compared {few}")


def agreement(ours, folder, compared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "FOLDER", folder)
        return compare(ours, "t", "toy", compared)


def test_overlapping_intervals_agree(tmp_path):
    """Bounds that touch agree; a number with no interval is a point; own keys tell rows apart."""
    columns = ["dataset", "temperature", "verifier", "level", "num_prompts", "quantity"]
    columns += ["value", "lower", "upper"]
    theirs = [
        ["c4", 1.0, "standard", level, 20, "rate", 2.0, 1.0, 3.0] for level in (1, 2, 3, 4, 5, 5)
    ]
    nan = float("nan")
    numbers = [(3.5, 3.0, 4.0), (3.6, 3.1, 4.0), (2.5, nan, nan), (nan, nan, nan), (2.0, 1.0, 3.0)]
    ours = [
        ["c4", 1.0, "standard", level, 20, "rate", *row]
        for level, row in enumerate(numbers, start=1)
    ]
    (tmp_path / "toy").mkdir()
    pd.DataFrame(theirs, columns=columns).to_csv(tmp_path / "toy" / "t.csv", index=False)
    compared = Compared("rate", "rates", ("level",))
    found = agreement(pd.DataFrame(ours, columns=columns), tmp_path, compared)
    left_out = (
        "(not compared: 1 row without a number here, 1 row not published)"  # level 5 is twice there
    )
    assert f"2 of 3 rates agree {left_out}" in found.summary
    differing = "C4, T = 1, standard, level 2 has 3.60 [3.10, 4.00], published 2.00 [1.00, 3.00]"
    assert found.notes[0].endswith(f" Differing: {differing}.")


def test_a_published_file_of_other_numbers_is_not_compared(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "t.csv").write_text("a,b\n1,2\n")
    frame = pd.DataFrame({"quantity": ["accepted_length"], "value": [1.0], "num_prompts": [9]})
    assert "can be compared" in agreement(frame, tmp_path, ACCEPTED_LENGTHS).summary


README = """# Read me
<!-- table1 -->
| old | table |
|---|---|

Profile: another machine.

Words of our own.
<!-- /table1 -->
rest
"""


def test_what_is_published_is_of_its_cells_and_renews_what_is_quoted(tmp_path, made):
    """Not the page that was made here, which says what is newer here than its plan."""
    ours, root = tmp_path / "ours", tmp_path / "repository"
    measured(ours, histogram=[4])
    assert "2 of 3" in made(ours)
    root.joinpath("README.md").write_text(README)
    paths = publish.publish("table1", "embedded", ours, root)
    assert [path.name for path in paths] == ["table1.tar.xz", "table1.csv", "table1.md"]
    assert quotes.renew(root) == [root / "README.md"]
    folder = root / "results" / "published" / "embedded"
    assert (folder / "table1.csv").read_bytes() == (ours / "embedded" / "table1.csv").read_bytes()
    page = (ours / "embedded" / "table1.md").read_text()
    text, _, notes = page.partition("\n\ntable1 has a part ")
    assert notes and (folder / "table1.md").read_text() == f"{text}\n"
    lines = (folder / "table1.md").read_text().splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    [source] = [line for line in lines if line.startswith("Profile:")]
    expected = README.replace("| old | table |\n|---|---|", table).replace(
        "Profile: another machine.", source
    )
    assert (root / "README.md").read_text() == expected
    assert not quotes.renew(root)  # nothing is left to renew
    assert made(ours).endswith("3 of 3 accepted lengths agree, 2 of 2 verdicts\n")


def test_trees_that_a_plan_names_are_published(tmp_path):
    ours, root = tmp_path / "ours", tmp_path / "repository"
    folder = ours / "embedded"
    (folder / "growmap").mkdir(parents=True)
    for name in ("a.64.json", "a.acceptance.csv", "b.64.json", "b.acceptance.csv", ".lock"):
        (folder / "growmap" / name).write_text("content\n")
    grow_map.save(topology.chain(3), folder / "growmap" / "a.64.json")
    cell = make_cell(ours, "standard")
    cell = ToyCell(ours, "a", cell.labels, folder / "growmap" / "a.64.json")
    write_plan(ours, "frontier", [cell], part="best")
    names = [path.name for path in publish.publish("frontier", "embedded", ours, root)]
    assert "frontier.md" in names and names[-2:] == ["a.64.json", "a.acceptance.csv"]
    assert not any(name.startswith("b.") for name in names)


def published_in(root, monkeypatch):
    """The archive of table1 in a repository with nothing else; the folder here has no results."""
    monkeypatch.setattr(publish, "ROOT", root)
    monkeypatch.setattr(published, "FOLDER", root / "results" / "published")
    monkeypatch.setattr(verify, "committed", list)  # models that take long to read
    monkeypatch.setenv("RESISPEC_CACHE", str(root / "cache"))
    (root / "here").mkdir(parents=True)
    monkeypatch.chdir(root / "here")
    return published.archive_of("table1", published.FOLDER / "embedded")


def test_transcripts_of_an_artefact_are_published_beside_its_table(tmp_path):
    folder = tmp_path / "results" / "embedded"
    (folder / "arms").mkdir(parents=True)
    for name in ("arms.md", "arms_more.csv", "arms2.csv"):
        (folder / name).write_text("content\n")
    for name in ("b.json", "a.jsonl", ".a.jsonl.lock", "a.jsonl.server.log"):
        (folder / "arms" / name).write_text(name)
    paths = publish.publish("arms", "embedded", tmp_path / "results", tmp_path)
    assert [path.name for path in paths] == ["arms.md", "arms_more.csv", "arms.tar.xz"]
    path = paths[-1]
    with tarfile.open(path) as file:
        assert file.getnames() == ["a.jsonl", "b.json"]


def test_what_quotes_a_new_artefact_is_renewed_when_all_are_published(tmp_path, monkeypatch):
    """Also if other artefacts are published before it."""
    published_in(tmp_path, monkeypatch)
    readme, results = tmp_path / "README.md", Path("results/embedded")
    results.mkdir(parents=True)
    for name in ("frontier", "table1"):
        (results / f"{name}.md").write_text("| new |\n")
    readme.write_text("<!-- table1 -->\n| old |\n<!-- /table1 -->\n")
    assert publish.main([]) == 0
    assert readme.read_text() == "<!-- table1 -->\n| new |\n<!-- /table1 -->\n"


def test_artefacts_and_the_page_are_drawn_from_published_cells_as_they_were(
    tmp_path, monkeypatch, capsys
):
    """Gaps, audits, categories, trees, rows that call something else tokens, a cell's id twice."""
    archive = published_in(tmp_path, monkeypatch)
    monkeypatch.setattr("analysis.figures.save_figure", lambda *_: [])
    names, made = ("table1", "figure2", "frontier", "speed"), dict[str, bytes]()

    def drawn(name):
        assert write_artefact(name) == 0
        return {
            path.name: path.read_bytes() for path in Path("results/embedded").glob(f"{name}*.*")
        }

    for name in names:
        toy_artefacts.ARTEFACTS[name](Path("results"))
        for plan in Path("results/embedded/plans").rglob("*.json"):
            write_json(plan, sealed(read_json(plan)))
        made |= drawn(name)
        written = archive.with_name(f"{name}{published.SUFFIX}")
        assert publish.main([name]) == 0 and f"wrote {written}\n" in capsys.readouterr().out
        Path("results").rename(name)
    assert len(made) > 12 and made == {
        stem: file for name in names for stem, file in drawn(name).items()
    }
    line = (
        "drawn from results/published/embedded/cells/speed.tar.xz, our cells; "
        "`make reproduce-speed PROFILE="
    )
    assert line in capsys.readouterr().out.splitlines()[-1]
    assert cells.main([]) == 0
    write_plan(Path("results"), "sweep", [], part="mine")  # a sweep of one's own is no artefact
    assert page.main([]) == 0
    Path("results/embedded/plans/sweep/mine.json").unlink()
    facts = json.loads(Path("results/embedded/provenance.json").read_text())
    assert facts["Drawn from"] == "results/published/embedded/cells"
    assert {*pd.read_csv("results/embedded/results.csv").artefact} == {*names}
    for arguments in (("table1", "--results", "elsewhere"), ("table2",)):
        assert write_artefact(*arguments) == 1
    assert write_artefact("table1", "--plan", "mine") == 1
    # from now on the page is about what is measured here
    toy_artefacts.ARTEFACTS["table2"](Path("results"))
    assert page.main([]) == cells.main([]) == 0 and write_artefact("table1") == 0
    assert "Drawn from" not in json.loads(Path("results/embedded/provenance.json").read_text())
    assert {*pd.read_csv("results/embedded/results.csv").artefact} == {"table2"}


def test_publishing_an_artefact_replaces_its_own_cells_alone(tmp_path, monkeypatch):
    archive, results = published_in(tmp_path, monkeypatch), Path("results")
    first, *others = measured(results)
    rows = [row | {"tokens": [1, 2]} for row in rows_of(ROWS["standard"] * 5)]
    write_plan(results, "levels", [first, save(others[0], rows), others[2]])

    archives = {name: archive.with_name(f"{name}.tar.xz") for name in ("table1", "levels")}

    def content(name):
        assert publish.main([name]) == 0
        folder = published.unpacked(archives[name])
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*.json*")
        }

    def num_cells():
        facts = read_json(archive.parents[1] / "provenance.json")
        return int(facts["Cells measured"])

    before, of_levels = content("table1"), content("levels")
    assert num_cells() == 5  # of both, each once
    written = {name: path.read_bytes() for name, path in archives.items()}
    os.utime(first.folder / "rows.jsonl", (0, 0))
    assert content("levels") == of_levels and content("table1") == before
    assert written == {name: path.read_bytes() for name, path in archives.items()}
    assert b"tokens_sha256" in of_levels[f"raw/embedded/{others[0].cell_id}/rows.jsonl"]
    assert not any(b'"tokens"' in file for file in (before | of_levels).values())
    save(first, rows_of([(2.0, [9])] * 10))
    write_plan(results, "table1", [first])
    after = content("table1")
    assert archives["levels"].read_bytes() == written["levels"] and num_cells() == 3
    assert {name.split("/")[2] for name in after if name.startswith("raw")} == {first.cell_id}
    rows_file = f"raw/embedded/{first.cell_id}/rows.jsonl"
    assert len(of_levels) == 13 and after[rows_file] != before[rows_file]
    (first.folder / "rows.jsonl").write_text("")
    with pytest.raises(InvalidInput, match="rows.jsonl is not what was written"):
        publish.archive(read_plan("table1", "embedded", results), archive)


def test_publishing_leaves_no_table_of_a_part_that_is_gone(tmp_path, monkeypatch, capsys):
    """Defect: it stayed beside the new table, and was quoted on. Older plans were published too."""
    archive, results = published_in(tmp_path, monkeypatch), Path("results")
    plan = write_plan(results, "table1", measured(results)[:1])
    content = read_json(plan)
    write_json(plan, sealed({**content, "sources": {"conf/run.yaml": "another"}}))
    folder = archive.parents[1]
    folder.mkdir(parents=True)
    for name in ("table1_runs.csv", "table12.csv"):
        (folder / name).write_text("old\n")
    assert publish.main(["table1"]) == 0
    assert {path.name for path in folder.glob("table1*.csv")} == {"table1.csv", "table12.csv"}
    assert "older than conf/run.yaml" in capsys.readouterr().err


def test_published_cells_name_no_folder_of_the_machine(tmp_path):
    """Neither results, nor clone, nor home; what is published is a whole cell still."""
    results = tmp_path / "results"
    config = {
        "results": str(results),
        "tree": {"path": f"{results}/embedded/growmap/best.json"},
        "dataset": {"path": str(Path.home() / "questions.jsonl"), "name": f"{ROOT}/conf"},
    }
    origin = PROVENANCE | {"command": ["run.py", f"results={results}"]}
    cell = save(
        make_cell(results, "standard"), rows_of(ROWS["standard"]), config=config, provenance=origin
    )
    write_plan(results, "table1", [cell], command=f"python -m experiments.run results={results}")
    archive = tmp_path / "table1.tar.xz"
    publish.archive(read_plan("table1", "embedded", results), archive)
    folder = published.unpacked(archive)
    written = "".join(path.read_text() for path in folder.rglob("*.json*"))
    assert not any(str(place) in written for place in (tmp_path, ROOT, Path.home()))
    copy = folder / cell.folder.relative_to(results)
    assert read_json(copy / "cell.json")["config"] == {
        "results": "results",
        "tree": {"path": "results/embedded/growmap/best.json"},
        "dataset": {"path": "~/questions.jsonl", "name": "./conf"},
    }
    assert read_status(copy).state == "done"


def test_published_rows_that_are_not_those_of_their_status_are_refused(
    tmp_path, monkeypatch, capsys
):
    archive, results = published_in(tmp_path, monkeypatch), Path("results")
    measured(results)
    publish.archive(read_plan("table1", "embedded", results), archive)
    results.rename("measured")
    rows = next(published.unpacked(archive).glob("raw/embedded/*/rows.jsonl"))
    rows.write_text(rows.read_text().replace('"num_steps": 3', '"num_steps": 2') + "\n")
    assert write_artefact("table1") == 1
    assert "rows.jsonl is not what was written" in capsys.readouterr().err


def member(name, kind=tarfile.REGTYPE, content=b"", **changed):
    """A member of an archive with its content; changed: other attributes of it."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in changed.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * (-len(content) % 512)


END = b"\0" * 1024
WHOLE = lzma.compress(member("a/b", content=b"abc") + member("a/c") + END)
HOSTILE = {
    "no archive": (b"", "cut off"),
    "text": (b"no archive at all", "not supported"),
    "half": (WHOLE[:-20], "cut off"),
    "changed": (WHOLE[:30] + b"?" + WHOLE[31:], "Corrupt"),
    "more": (WHOLE + b"?", "after its end"),
    "no end": (lzma.compress(member("a", content=b"a" * 2000)[:1000]), "unexpected end of data"),
    "bad header": (lzma.compress(member("a") + b"?" * 512 + END), "a header in it is damaged"),
    "bomb": (lzma.compress(b"\0" * 5000), "more than the 4096 bytes"),
    "upwards": (lzma.compress(member("a/../../b", content=b"abc") + END), "outside"),
    "from the root": (lzma.compress(member("/a", content=b"abc") + END), "outside"),
    "link": (lzma.compress(member("a", tarfile.SYMTYPE, linkname="/etc") + END), "no plain file"),
    "hard link": (
        lzma.compress(member("a", tarfile.LNKTYPE, linkname="/etc/passwd") + END),
        "no plain file",
    ),
    "fifo": (lzma.compress(member("a", tarfile.FIFOTYPE) + END), "no plain file"),
    "device": (lzma.compress(member("a", tarfile.CHRTYPE) + END), "no plain file"),
    "twice": (lzma.compress(member("a") + member("a") + END), "twice"),
    "loop": (lzma.compress(member("a", size=-512) + END), "below 0"),
    "file and folder": (lzma.compress(member("a") + member("a/b") + END), "cannot be unpacked"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_or_hostile_archive_is_one_line(name, tmp_path, monkeypatch, capsys):
    content, problem = HOSTILE[name]
    archive = published_in(tmp_path, monkeypatch)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(content)
    monkeypatch.setattr(published, "LARGEST", 4096)
    for command in (
        lambda: write_artefact("table1"),
        lambda: verify.main(["--results", str(archive.parents[3])]),
    ):
        assert command() == 1
        captured = capsys.readouterr()
        [line] = [
            line for line in (captured.out + captured.err).splitlines() if "table1.tar.xz" in line
        ]
        assert "cannot be unpacked" in line and problem in line and line.endswith("; git has it")
    assert not (tmp_path / "a").exists() and not (archive.parents[1] / "a").exists()


def test_a_python_without_a_filter_for_archives_unpacks_them(tmp_path, monkeypatch):
    archive = tmp_path / "whole.tar.xz"
    archive.write_bytes(WHOLE)
    # Python below 3.11.4, as Debian 12 has it
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert (published.unpacked(archive) / "a" / "b").read_bytes() == b"abc"


def test_what_is_damaged_in_an_archive_is_named(tmp_path, monkeypatch, capsys):
    archive, results = published_in(tmp_path, monkeypatch), Path("results")
    measured(results)
    publish.archive(read_plan("table1", "embedded", results), archive)
    with tarfile.open(archive) as file:
        contents = {name: file.extractfile(name).read() for name in file.getnames()}
    name = next(name for name in contents if name.endswith("rows.jsonl"))
    contents[name] += b"{}\n"
    data = b"".join(member(name, content=content) for name, content in contents.items())
    archive.write_bytes(lzma.compress(data + END))
    assert verify.main(["--results", str(archive.parents[3])]) == 1
    folder, _, file_name = name.rpartition("/")
    problem = f"{archive}/{folder}: status.json says that {file_name} is not what was written; "
    assert problem in capsys.readouterr().out


def test_compact_audits_give_the_same_statistics():
    """To the last bit, with as many terms, whatever they are; also where a prompt has none."""
    generator = random.Random(0)
    rows = [
        {name: [generator.gauss(0, 9) ** 2 for _ in range(size)] for name in audits.TERMS}
        for size in (1, 7, 600, 500)
    ]
    for row in rows:
        for name in ("overdraft", "overdraft_variance"):
            row[name] = [None if place % 5 == 0 else term for place, term in enumerate(row[name])]
    found, sizes = audits.judged("a", pd.DataFrame(rows)), [len(row["rank"]) for row in rows]
    publish.compact(rows)
    assert audits.judged("a", pd.DataFrame(rows)) == found and found["audited_tokens"] == 1108
    assert [len(row["rank"]) for row in rows] == sizes and rows[2]["rank"] == [0.0] * 600
    assert rows[0]["overdraft"] == [None] and rows[1]["overdraft"][-2:] == [None, None]


def test_by_default_everything_that_was_made_is_published(tmp_path, monkeypatch, capsys):
    assert publish.main(["--results", str(tmp_path), "table1"]) == 1
    assert "`make table1` makes it" in capsys.readouterr().err and not list(tmp_path.iterdir())
    done: list[str] = []
    monkeypatch.setattr(publish, "publish", lambda artefact, *_: done.append(artefact) or [])
    monkeypatch.setattr(publish, "ROOT", tmp_path / "repository")
    assert publish.main(["--results", str(tmp_path)]) == 1
    assert "holds no artefact" in capsys.readouterr().err
    (tmp_path / "embedded").mkdir()
    pages = ("table1.md", "table1.csv", "frontier.md", "frontier_shapes.md", "audit.md")
    for name in (*pages, "sweep_categories.md"):
        (tmp_path / "embedded" / name).write_text("")
    assert publish.main(["--results", str(tmp_path)]) == 0 and done == [
        "audit",
        "frontier",
        "table1",
    ]
