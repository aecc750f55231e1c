"""What a cell wrote, step by step: python -m experiments.show."""

import json

from toy_runs import rows, run_here

from experiments import show
from experiments.grid import parts_of
from experiments.store import write_plan


class Letters:
    """Tokens are letters, and two tokens of 9 are one character."""

    def decode(self, tokens):
        text = "".join("abcdefgh?"[token - 1] for token in tokens)
        return text.replace("??", "é").replace("?", "\ufffd")


def test_a_character_that_two_steps_write_is_the_later_ones():
    assert list(show.pieces(Letters(), [1, 2, 9, 9, 3], [2, 1, 1, 3])) == ["ab", "", "é", "c"]


def test_a_cell_is_shown_with_its_prompt_answer_steps_and_times(toy, tmp_path, capsys):
    [part] = parts_of(toy)
    write_plan(part, toy)
    [cell] = part.cells
    run_here(cell)
    row = rows(cell)[1]
    options = ["--results", str(tmp_path / "results")]

    def error(*arguments):
        assert show.main([*arguments, *options]) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert show.main([cell.cell_id[:6], "1", *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"cell {cell.cell_id}: pair llama2_7b__jf68m")
    assert "\nprompt 1: p1, " in printed and "\nabc def gh abc" in printed
    assert f"tokens of each step: {' '.join(map(str, row['step_emitted']))}\n" in printed
    answer = printed.partition("stands between steps\n")[2].partition("\n\ntokens of")[0]
    assert answer.count("|") >= row["num_steps"] - 1 and "\ntimes: prompt " in printed

    assert "no cells in" in error("x")
    assert "has no prompt 7; allowed: 0 to 2" in error(cell.cell_id, "7")
    (cell.folder.parent / "twin").mkdir()
    (cell.folder.parent / "twin" / "cell.json").write_text("{}")
    assert f"2 cells in {cell.folder.parent} begin with ''" in error("")
    earlier = [{key: value for key, value in one.items() if key != "tokens"} for one in rows(cell)]
    (cell.folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in earlier))
    assert "keeps no tokens" in error(cell.cell_id)
