"""The numbers of docs/optimal-verification.md, computed."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from resispec.audit.ceiling import ceiling
from resispec.audit.row_checks import accepted
from resispec.core import Draws, Tree
from resispec.trees import chain, from_child_counts
from resispec.verifiers import available, get_rule, get_verifier
from tests.accounts import accepted_tokens

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "optimal-verification.md").read_text()
FLAT = re.sub(r"(?<=[^\n|])\n *(?=[^\n|])", " ", PAGE)
"""The page with every paragraph on a line of its own."""
P, Q = (
    torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
    torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64),
)


def figures(pattern):
    """The numbers of a passage of the page, which must be there once."""
    [found] = re.findall(pattern, FLAT)
    return [float(number) for number in re.findall(r"−?\d*\.?\d+", found.replace("−", "-"))]


def acceptance(name):
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    law = get_rule(name).law(P.expand(9, -1), Q.expand(9, -1), pairs, Draws.IID)
    return float(Q[pairs].prod(-1) @ accepted(law, pairs))


def test_the_table_of_prefixes():
    rows = re.findall(r"^\| (3[, \d]*) \| (.*) \|$", PAGE, re.M)
    assert [tokens for tokens, _ in rows] == ["3", "3, 2", "3, 2, 1"]
    cells = [
        [float(cell.strip(" *").replace("−", "-")) for cell in line.split("|")] for _, line in rows
    ]
    p, q = P.flip(0).cumsum(0), Q.flip(0).cumsum(0)
    gaps = q**2 - p
    wanted = torch.stack((p, q, gaps, (p + gaps.max()) / q), -1)
    assert torch.allclose(torch.tensor(cells, dtype=torch.float64), wanted, atol=1e-9)
    assert figures(r"So d = (\.14 and the ceiling is \*\*\.86\*\*)") == pytest.approx(
        [float(gaps.max()), float(ceiling(P, Q, 2, Draws.IID))]
    )


def test_the_proxy_the_choice_and_the_test():
    low, high = 0.8, (1 - 0.5 - 0.14) / (1 - 0.8)
    assert figures(r"c0 = (\.8), and c1 =") == pytest.approx([low])
    assert figures(r"c1 = .* = (1\.8)\. With") == pytest.approx([high])
    proxy = torch.minimum(torch.maximum(P, low * Q), high * Q)
    assert figures(r"m = clip\(p, c0 q, c1 q\) = \((.*?)\)") == pytest.approx(proxy.tolist())
    accept = (P / proxy).clamp_max(1)
    assert figures(r"token 2 with probability (.*?), token 3") == pytest.approx(
        [0.3, 0.32, float(accept[1])]
    )
    assert figures(r"token 3 with (.*?), and") == pytest.approx([0.2, 0.32, float(accept[2])])
    pairs = torch.tensor([[0, 1], [2, 0], [1, 2], [1, 1]])
    law = get_rule("optimal").law(P.expand(4, -1), Q.expand(4, -1), pairs, Draws.IID)
    wanted = [[1, 0], [0, 1], [accept[1] / 2, accept[2] / 2], [accept[1] / 2] * 2]
    assert torch.allclose(law.select, torch.tensor(wanted, dtype=torch.float64), atol=1e-12)
    assert acceptance("optimal") == pytest.approx(0.86)
    assert figures(r"at the second: \*\*(.*?)\*\*") == pytest.approx([acceptance("standard")])


@pytest.mark.parametrize("name", ["optimal", "standard", "traversal", "traversal_optimal", "block"])
def test_the_chain(name):
    target = torch.tensor([[1 / 3, 2 / 3]] * 2, dtype=torch.float64)
    fractions = {
        "walk": re.findall(r"2/3 \+ 4/9 = \*\*(\d+)/(\d+)\*\*", FLAT),
        "leaves": re.findall(r"2/3 \+ 5/9 = \*\*(\d+)/(\d+)\*\*", FLAT),
    }
    [(over, under)] = fractions["walk" if name in ("optimal", "standard") else "leaves"]
    found = accepted_tokens(get_verifier(name), chain(2), (target, target.flip(-1)), Draws.IID)
    assert found == pytest.approx(int(over) / int(under), abs=1e-12)


def test_what_the_page_names_exists():
    named = {name for name in re.findall(r"`([a-z_/]+\.py)`", PAGE) if "/" in name}
    assert named and all(
        (ROOT / name).exists() or (ROOT / "resispec" / name).exists() for name in named
    )
    for test in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {test}(" in (ROOT / "tests" / "library" / "test_traversal.py").read_text()
    table = PAGE[PAGE.index("## When to use which") : PAGE.index("## References")]
    used = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.M)))
    assert len(used) > 8 and {*used} <= {*available()}


def tokens(name, topology, p, q):
    """Accepted tokens of two drafted ones, with fair laws at the root, p and q below it."""
    # 0 is the root's
    rows = [torch.tensor([[0, 0.5, 0.5], *[[0, *law]] * 2]).double() for law in (p, q)]
    return accepted_tokens(get_verifier(name), topology, rows)


def test_subtrees_examined_one_after_the_other():
    """The optimum, attained by this decision: of two paths take the one whose child is token 2."""
    [p, q] = [[1 / 4, 3 / 4], [1 / 2, 1 / 2]]
    assert "p = (1/4, 3/4), q = (1/2, 1/2) below" in FLAT
    topology = from_child_counts([[2], [1, 1]])
    assert figures(r"in 1/2 \+ 3/8 of all cases: \*\*(.*?)\*\* tokens") == pytest.approx(
        [tokens("traversal_optimal", topology, p, q)], abs=1e-6
    )
    assert figures(r"one of the two always: \*\*(.*?)\*\* tokens, the optimum") == pytest.approx(
        [tokens("level_optimal", topology, p, q)], abs=1e-6
    )
    accepted = torch.zeros(2, 2, dtype=torch.float64)
    for children in torch.cartesian_prod(torch.arange(2), torch.arange(2)):
        chances = (children == children.max()).double()
        for sibling, token in enumerate(children.tolist()):
            accepted[sibling, token] += chances[sibling] / chances.sum() / 4
    assert torch.allclose(accepted, torch.tensor([p, p]).double() / 2) and "1/2 · 3/4" in FLAT


def test_siblings_weigh_the_same_whatever_is_below_them():
    second, first = (from_child_counts([[2], row]) for row in ([0, 1], [1, 0]))
    fair = [0.5, 0.5]
    passage = FLAT[FLAT.index("**Siblings weigh the same") : FLAT.index("**Is it only that")]
    said = [float(number) for number in re.findall(r"\*\*([\d.]+)\*\*", passage)]
    found = [
        tokens("traversal_optimal", second, fair, fair),
        2,  # by always taking the second
        tokens("standard", second, fair, fair),
        tokens("standard", first, fair, fair),
    ]
    assert said == pytest.approx(found, abs=1e-6)
    assert tokens("level_optimal", second, fair, fair) == pytest.approx(said[0], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "passed"), [("level_optimal", 3 / 8), ("traversal_optimal", 1 / 2)]
)
def test_shares_do_not_ask_what_can_be_used(name, passed):
    """Of two nodes of weight 1/2 the second drafts a token that its target never has."""
    assert "passes on 3/8, where 1/2 is possible (and from the leaves up is reached)" in FLAT
    topology, fair = from_child_counts([[2], [1, 1]]), [0.5, 0.5]
    target, draft = (
        torch.tensor([fair, first, second, fair, fair], dtype=torch.float64)
        for first, second in (([0, 1], [1, 0]), (fair, [0, 1]))
    )
    found = 0.0
    for child in range(2):
        tree = Tree(topology, torch.tensor([0, 0, 1, child, 1]), Draws.IID)
        found += float(get_verifier(name).outcomes(tree, target, draft).stop[3:].sum()) / 2
    assert found == pytest.approx(passed, abs=1e-6)


def test_what_the_published_table_says_about_not_knowing():
    """The largest price of not knowing, and what `traversal_optimal` leaves in the same worlds."""
    frame = pd.read_csv(ROOT / "results" / "published" / "embedded" / "joint.csv")
    means = frame[frame.possible > 1].pivot_table(
        "accepted", ["shape", "vocab", "laws"], "verifier"
    )
    optimum = means["joint optimum"]
    price = 100 * (1 - means["joint optimum, drafted knowledge"] / optimum)
    left = 100 * (1 - means["traversal_optimal"] / optimum)
    assert figures(r"costs at most (.*?) % of the optimum") == pytest.approx(
        [price.max()], abs=0.005
    )
    assert figures(r"`traversal_optimal` leaves ([\d.]+) % in the mean and up to") == pytest.approx(
        [left.mean()], abs=0.05
    )
    assert figures(r"% in the mean and up to (.*?) %") == pytest.approx([left.max()], abs=0.05)


def test_what_whole_levels_cost():
    """The numbers are those of the published bench."""
    frame = pd.read_csv(ROOT / "results" / "published" / "embedded" / "bench_rules.csv")
    for shape in ("d5b3", "10 paths of 12"):
        draws = (frame.draws == "iid") | (frame.verifier == "univer")
        is_walk = (frame.measured == f"walk on {shape}") & draws & (frame.num_nodes == 121)
        found = frame[is_walk].set_index(["verifier", "quantity"]).value
        level = [found["level_optimal", what] for what in ("ratio", "ms")]
        wanted = [found["traversal_optimal", "ratio"], *level]
        wanted += [
            found[name, "ratio"] for name in ("univer", "khisti", "gbv") if (name, "ratio") in found
        ]
        assert figures(rf"\n\| {shape} \|(.*)\|\n") == pytest.approx(wanted, abs=0.05)
