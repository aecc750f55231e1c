"""The gallery on a tiny pair: what the audit finds, and what the usual checks say."""

import math
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

from analysis import gallery as page
from analysis.table import markdown
from referee.audit import Statistic, audit_arms, measure
from referee.audit.statistics import normal_z
from referee.gallery import bugs, measures
from referee.gallery.__main__ import gallery
from referee.gallery.exhibits import EXHIBITS, GALLERIES, Exhibit, Gallery, with_defaults
from referee.gallery.measures import write
from referee.rescoring import pair_scorers
from referee.transcripts import Transcript, read_transcripts
from resispec.core import Tree
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.models import Pair
from resispec.sampling import Sampling
from resispec.trees import chain, complete
from resispec.verifiers import Standard, TopDown
from tests.toys import ToyTokenizer, tiny_llama

VOCAB = 64
PROMPTS = tuple((1 + index % 60, 2 + index % 50, 3) for index in range(30))
ASKED = Gallery(EXHIBITS, "", 3, len(PROMPTS), tokens=10, greedy=2, seeds=2)
BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
HERE = [exhibit.name for exhibit in EXHIBITS if "draft model" not in exhibit.name]
FOUND = (
    "wrong residual",
    "drafts cut, q whole",
    "argmax drafts",
    "ids not mapped",
    "greedy verification",
    "temperature without effect",
    "top_k = 50, not declared",
    "ResiSpec",
    "lossy on purpose",
)
"""The faults that 300 tokens of this pair show."""
AT_ZERO = ("leak between answers",)
"""The faults that show at temperature 0, too."""


@pytest.fixture(scope="module", autouse=True)
def fewer_kept():
    """50 of 64 tokens would be nearly all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bugs, "KEPT", 8)
        yield


@pytest.fixture(scope="module")
def pair():
    return Pair(tiny_llama(VOCAB), tiny_llama(VOCAB, seed=1), ToyTokenizer())


@pytest.fixture(scope="module")
def wrote(pair, tmp_path_factory):
    """Transcripts of an engine of this process; each is asked once."""
    folder, found = tmp_path_factory.mktemp("gallery"), {}

    def of(name):
        if name not in found:
            exhibit = replace(BY_NAME[name], times=1)
            found[name] = write(exhibit.make(pair, folder), exhibit, ASKED, PROMPTS, folder)
        return found[name]

    return of


@pytest.mark.parametrize("name", HERE)
def test_the_audit_finds_faults_and_no_exact_engine(pair, wrote, name):
    rows = wrote(name)["greedy"]
    num_equal = measures.equal(rows, wrote("standard, chain")["greedy"])
    assert (num_equal == len(rows)) == (name not in AT_ZERO)
    # others' drafts are its own again
    assert "_get_candidate_generator" not in vars(pair.target.module)
    arm = measure(wrote(name)["sampled"], *pair_scorers(pair))
    statistics, allowed = arm.statistics(), audit_arms(arm).allowed_z
    assert (normal_z(statistics[measures.farthest(statistics)]) > allowed) == (name in FOUND)


@pytest.mark.parametrize("name", ["standard, chain", "seed without effect", "draft's noise reused"])
def test_only_one_engine_is_deaf_to_seeds(wrote, name):
    written = wrote(name)
    same, others = (
        measures.equal(written[kind], written["sampled"]) for kind in ("again", "others")
    )
    assert same == ASKED.seeds and (others == ASKED.seeds) == (name[:4] == "seed")
    assert [row.seed for row in written["others"]] == [1000, 1001]


def test_rows_are_compared_with_those_of_their_prompt_and_load():
    """Defect: rows of the second load met prompts that the first one had not been asked again."""

    def rows(load, outputs):
        tokens = {"prompt_token_ids": (1,), "concurrency": load, "temperature": 1.0}
        return [Transcript(output_token_ids=(one,), **tokens) for one in outputs]

    sampled = rows(1, [5, 6, 7]) + rows(4, [8, 9, 10])
    assert measures.equal(rows(1, [5, 6]) + rows(4, [8, 3]), sampled) == 3
    assert measures.equal(sampled, rows(None, [5, 6])) == 2


def test_shared_noise_drops_what_the_draft_also_likes():
    """p = (.1, .6, .3), q = (.5, .5, 0): a rejection, .4 in all, leaves r = (0, 1/4, 3/4).

    The rejected token 0 won at a time T, exponential, so token 1 was not there before q T = T/2:
    its noise is T/2 + e, that of token 2 is e'. Token 1 wins the second race when e' > 3 (T/2 + e),
    with 1/2.5 * 1/4 = .1.
    """
    p, q = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.5, 0.5, 0.0])
    laws, generator = (torch.stack((p, p)), torch.stack((q, q))), torch.Generator().manual_seed(0)
    drafts, counts, rounds = bugs.RacedDrafts(), torch.zeros(2, 3), 4000
    for _ in range(rounds):
        token = drafts.draw(q[None], 1, generator)[0]
        tree = Tree(chain(1), torch.cat((torch.zeros(1, dtype=torch.int64), token)), drafts)
        found = bugs.SharedNoise(drafts).verify(tree, *laws, generator)
        counts[0, token] += 1
        counts[1, found.tokens[0]] += 1
    assert not drafts.noise
    expected = torch.stack((q, torch.tensor([0.1, 0.54, 0.36])))
    torch.testing.assert_close(counts / rounds, expected, atol=0.025, rtol=0)


def test_the_rows_are_wrong_on_trees_alone():
    """Behind the second sibling the target is sure of token 2, behind the first one of token 1."""
    tree = Tree(complete(2, 2), torch.tensor([0, 3, 4]), Draws.IID)
    target = torch.nn.functional.one_hot(torch.tensor([4, 1, 2]), 5).double()
    line = Tree(chain(2), torch.tensor([0, 4, 1]), Draws.IID)
    given = target, torch.full((3, 5), 0.2).double(), torch.Generator().manual_seed(0)
    assert TopDown(Standard()).verify(tree, *given).tokens == (4, 2)
    assert bugs.WrongRows(Standard()).verify(tree, *given).tokens == (4, 1)
    assert bugs.WrongRows(Standard()).verify(line, *given).tokens == (4, 1, 2)


def test_a_draft_that_is_dropped_for_being_unlikely_changes_the_law(monkeypatch):
    """p = (.5, .3, .2), q = (.2, .4, .4), and drafts of q < .3, token 0 alone, are dropped.

    Of token 0, drafted with .2, p itself is left: .2 p. Tokens 1 and 2 are accepted with
    .4 * 3/4 = .3 and .4 * 1/2 = .2, else token 0 follows, .3.
    """
    monkeypatch.setattr("referee.gallery.bugs.LEAST_DRAFTED", 0.3)
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.4, 0.4])
    laws, generator = (torch.stack((p, p)), torch.stack((q, q))), torch.Generator().manual_seed(0)
    counts, rounds = torch.zeros(3), 4000
    for _ in range(rounds):
        token = Draws.IID.draw(q[None], 1, generator)[0]
        tree = Tree(chain(1), torch.cat((torch.zeros(1, dtype=torch.int64), token)), Draws.IID)
        counts[bugs.CensoredDrafts(Standard()).verify(tree, *laws, generator).tokens[0]] += 1
    expected = torch.tensor([0.3, 0.3, 0.2]) + 0.2 * p
    torch.testing.assert_close(counts / rounds, expected, atol=0.025, rtol=0)


def test_the_cache_keeps_siblings_that_were_not_accepted():
    pair, tokens = Pair(tiny_llama(), tiny_llama(seed=1), None), torch.tensor([5, 3, 4])
    decoder = Decoder(DraftModel(complete(2, 2), Draws.IID), Standard())
    wrong = bugs.KeptSiblings("wrong", pair, decoder)._pair.target
    laws = []
    for target, kept in ((wrong, [0, 2]), (pair.target, [0, 1]), (pair.target, [0, 2])):
        session, tree = target.session(8, drafted=3), complete(2, 2)
        session.extend(torch.tensor([1, 2]))
        session.forward(tokens, tree.depths, tree.ancestors)
        session.keep(torch.tensor(kept))
        laws.append(target.head(session.extend(torch.tensor([7]))))
    assert torch.equal(laws[0], laws[1]) and not torch.allclose(laws[0], laws[2])


def test_only_sequences_above_two_are_corrupt(pair, tmp_path):
    exhibit = BY_NAME["corrupt above two sequences"]
    right = BY_NAME["standard, chain"].make(pair, tmp_path)
    settings, seeds = Sampling(max_new_tokens=6), [0, 1, 2]
    prompts = [[1, 5], [1, 6], [1, 7]]
    found = exhibit.make(pair, tmp_path).answers(prompts, settings, seeds)
    expected = right.answers([[1, 5], [1, 6], [1, 5]], settings, seeds)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    [alone] = exhibit.make(pair, tmp_path).answers(prompts[2:], settings, seeds[2:])
    assert alone.tokens == right.answers(prompts[2:], settings, seeds[2:])[0].tokens


def test_the_usual_checks_by_hand(pair):
    record = {"num_accepted_draft_tokens": 3, "completion_tokens": 5}
    short_record = {"num_accepted_draft_tokens": 1, "num_spec_steps": 1}
    rows = [
        Transcript((1, 2), (3, 4), extra={"spec_decode": short_record}),
        Transcript((1,), (3, 4, 5), extra={"spec_decode": record}),
        Transcript((1,), (3,)),
    ]
    assert measures.accepted_length(rows) == 1 + 4 / 3
    assert math.isnan(measures.accepted_length(rows[2:]))
    total = 0.0
    for row in rows:
        logits = pair.target.module(
            torch.tensor([[*row.prompt_token_ids, *row.output_token_ids]])
        ).logits[0]
        laws = logits[len(row.prompt_token_ids) - 1 : -1].log_softmax(-1)
        total -= float(laws.gather(-1, torch.tensor(row.output_token_ids)[:, None]).detach().sum())
    value, lower, upper = measures.perplexity(measure(rows, *pair_scorers(pair)))
    assert lower < value < upper and value == pytest.approx(math.exp(total / 6), rel=1e-4)


def test_the_curve_by_hand():
    """Numbers of tokens are geometric and end with all; where a chance is too small, z is kept."""
    assert measures.points(300) == [50, 79, 126, 199, 300] and measures.points(30) == [30]
    one, far, near = (
        Statistic(0.0, *values) for values in ((-5.0, 0.3173105), (-50.0, 0.0), (9.0, 0.5))
    )
    assert normal_z(one) == pytest.approx(1.0) and normal_z(far) == 50
    assert measures.farthest({"a": near, "b": one, "c": far}) == "c"


def test_from_engines_to_the_page(pair, tmp_path):
    """Engines that are not installed, or fail, are rows; a second run asks for nothing."""

    def missing(*_):
        raise ModuleNotFoundError("No module named 'abacus'")

    shown = [
        BY_NAME["standard, chain"],
        BY_NAME["greedy verification"],
        Exhibit("abacus, 2 beads", missing, "standard, chain"),
    ]
    few, folder = replace(ASKED, exhibits=shown, tokens=8), tmp_path / "gallery"
    *before, frame = gallery(few, pair, PROMPTS[:8], folder)
    assert [table.engine.nunique() for table in before] == [1, 2]  # a stopped gallery has these
    files = {path: path.stat().st_mtime_ns for path in folder.glob("*.jsonl")}
    assert len(files) == 1 + 2 * 4
    *_, again = gallery(few, pair, PROMPTS[:8], folder)
    pd.testing.assert_frame_equal(again, frame)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    path = tmp_path / "gallery.csv"
    frame.to_csv(path, index=False)
    exact, greedy, absent = page.engines(page.read(path))
    assert absent["status"] == "not installed" and absent["reason"] == "No module named 'abacus'"
    assert (exact["verdict"], exact["tokens"]) == ("undecided", 64) and math.isnan(
        exact["first_biased"]
    )
    assert (greedy["verdict"], greedy["first_biased"]) == ("biased", 12)  # by a bet
    row = '{"prompt_token_ids":[1],"output_token_ids":[1]}'
    (folder / "greedy_verification.jsonl").write_text(f"{row}\n")
    [failing] = gallery(replace(few, exhibits=shown[1:2]), pair, PROMPTS[:8], folder)
    failed = failing.iloc[0]
    assert failed.status == "failed" and "prompt_index is None" in failed.reason


def test_engines_with_their_defaults_have_control_arms(pair, tmp_path):
    """The arms of this process draw with seeds of their own, and the page shows what each says."""
    shown = [
        one for one in with_defaults(0.7) if one.name.startswith(("transformers", "target alone"))
    ]
    enough = replace(ASKED, exhibits=shown, tokens=60, greedy=1, seeds=1)  # for a verdict
    *_, frame = gallery(enough, pair, PROMPTS, tmp_path)
    last = frame.groupby("engine", sort=False).last()
    assert list(last.verdict) == ["no bias seen"] * 3, last.reason
    assert last.against_control.fillna("none").tolist() == ["none", "no bias seen", "none"]
    rows = {one.name: read_transcripts(tmp_path / f"{one.stem}.jsonl") for one in shown}
    settings = {name: {row.setting for row in of_engine} for name, of_engine in rows.items()}
    cut = "T=0.7, top_k=8"
    chained = "T=0.7, top_p=0.95, top_k=40, min_p=0.05, in the order of llama.cpp"
    assert [*settings.values()] == [{cut}, {cut}, {chained}]
    assert [of_engine[0].seed for of_engine in rows.values()] == [0, 10_000, 20_000]
    frame.to_csv(tmp_path / "gallery.csv", index=False)
    text = markdown(page.table_of(page.read(tmp_path / "gallery.csv"), "smollm2"))
    assert "| Control | Edges |" in re.sub(" +", " ", text)
    assert "Made by: make gallery PROFILE=smollm2." in text
    [line] = [line for line in text.splitlines() if "assisted, T = 0.7" in line]
    assert [cell.strip() for cell in line.split("|")[-3:-1]] == ["no bias seen", "0"]


def test_every_engine_has_its_files_and_an_exact_one_beside_it():
    for shown in GALLERIES.values():
        by_name = {exhibit.name: exhibit for exhibit in shown.exhibits}
        assert len({exhibit.stem for exhibit in by_name.values()}) == len(by_name)
        for exhibit in by_name.values():
            beside = by_name[exhibit.beside]
            assert not beside.thread and beside.settings == exhibit.settings
