"""Numbers of texts, on answers worked out by hand."""

import math

import pytest

from analysis import text
from analysis.load import read_plan
from resispec.errors import InvalidInput
from tests.toy_cells import make_cell, make_row, save, shown, write_plan

PROMPTS = 8


def answers(surprisal, prompts=PROMPTS, seed=0):
    """Rows of answers of four tokens, of which one is outside of the law; surprisal: of each."""
    about = {"surprisal_unwarped": 4.0, "num_outside": 1, "stop_reason": "eos"}
    about |= {"num_ngrams": [4, 3, 2, 1], "num_distinct": [2, 3, 2, 0]}
    rows = [make_row(index, 1.0, [2, 1]) | about for index in range(prompts)]
    return [
        row | {"surprisal": surprisal + row["prompt_index"], "seed": row["prompt_index"] + seed}
        for row in rows
    ]


def made(root, own, baseline, seeds=(0,)):
    cells = []
    for seed in seeds:
        label = {"seed": seed} if len(seeds) > 1 else {}
        first = make_cell(root, "autoregressive", **label)
        cells.append(save(first, answers(baseline, seed=seed)))
        rows = own(seed) if callable(own) else answers(own, seed=seed)
        cells.append(save(make_cell(root, "resispec", **label), rows))
    write_plan(root, "text", cells)
    return text.make(read_plan("text", "embedded", root)).tables


def test_numbers_are_sums_over_all_runs(tmp_path):
    """Surprisals 0 to 7 and 3 to 10, 80 in all, over 2 × 8 × 3 tokens of the law's support."""
    table, differences = made(tmp_path, lambda seed: answers(seed * 3.0, seed=seed), 0.0, (0, 1))
    row = shown(table).iloc[1]
    assert row["Perplexity"].startswith(f"{math.exp(80 / 48):.2f} [")
    assert row["Distinct 1"] == "0.500 [0.500, 0.500]" and row["Repeated 4"].startswith("1.000")
    assert row["Tokens"].startswith("4.0") and row["Ended"].startswith("1.000")
    assert shown(differences)["Nats a token"].tolist() == ["0.500 [0.500, 0.500]"]


def test_what_differs_is_named_and_what_does_not_is_said(tmp_path):
    """Texts that differ in their surprisals alone, which are paired by prompts.

    They vary by 7 nats between prompts and differ by 3 in each.
    """
    assert shown(made(tmp_path, 3.0, 0.0)[0])["Differs"].tolist() == ["–", "Perplexity"]
    assert shown(made(tmp_path, 0.0, 0.0)[0])["Differs"].tolist() == ["–", "none seen"]


def test_other_prompts_than_those_of_no_speculation_are_refused(tmp_path):
    cells = [save(make_cell(tmp_path, "autoregressive"), answers(0.0))]
    again = make_cell(tmp_path, "resispec", dataset="c4")
    cells.append(save(again, answers(0.0)))
    write_plan(tmp_path, "text", cells)
    with pytest.raises(InvalidInput, match="has no run on embedded_code .* speculation, .8, "):
        text.make(read_plan("text", "embedded", tmp_path))


def test_settings_that_a_sweep_varied_have_lines_of_their_own(tmp_path):
    cells = [
        save(make_cell(tmp_path, name, **{"sampling.max_new_tokens": most}), answers(most * 3.0))
        for most in (1, 2)
        for name in ("autoregressive", "resispec")
    ]
    write_plan(tmp_path, "text", cells)
    table, differences = text.make(read_plan("text", "embedded", tmp_path)).tables
    assert shown(table)["sampling.max new tokens"].tolist() == ["1", "1", "2", "2"]
    assert [*map(float, shown(table)["Perplexity"].str[:4])] == pytest.approx(
        # 3 or 6 and a mean of 3.5 nats of a prompt, over 3 tokens
        [math.exp(mean / 3) for mean in (6.5, 6.5, 9.5, 9.5)],
        abs=0.1,
    )
    assert len(shown(differences)) == 2 and "one run" in table.caption


def test_other_limits_than_those_of_no_speculation_are_refused(tmp_path):
    """Defect: a profile's longer answers of one method seemed to be what its verifier does."""
    limits = {"sampling": {"max_new_tokens": 64}}, {"sampling": {"max_new_tokens": 256}}
    names = ("autoregressive", "resispec")
    cells = [
        save(make_cell(tmp_path, name), answers(0.0), config=limit)
        for name, limit in zip(names, limits, strict=True)
    ]
    write_plan(tmp_path, "text", cells)
    with pytest.raises(
        InvalidInput, match="has .8, 256, .* allowed: those of no speculation, .8, 64, "
    ):
        text.make(read_plan("text", "embedded", tmp_path))
