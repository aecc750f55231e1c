"""The code in the documentation runs, and does what the text says."""

import re
from pathlib import Path

import pytest
import torch
from toys import table_pair

from resispec.audit.battery import supported_draws, worst_error
from resispec.audit.checked import CheckedRule
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import Draws, get_rule, get_verifier

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-verifier.md").read_text()


@pytest.fixture
def rule_file(tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    path = tmp_path / "my_rule.py"
    path.write_text(code)
    return path


def test_the_page_s_rule_is_exact_and_decodes(rule_file):
    name = f"{rule_file}:DrawAndLook"
    rule = CheckedRule(get_rule(name), name)
    assert supported_draws(rule) == tuple(Draws)
    assert all(worst_error(rule, draws).error < 1e-9 for draws in Draws)
    decoder = Decoder(DraftModel(complete(3, 2)), get_verifier(name))
    result = decoder.generate(table_pair(), [0], Sampling(1.0, 20, 64), torch.Generator().manual_seed(0))
    assert len(result.tokens) == 20 and max(result.num_emitted) > 1


def test_the_page_s_class_has_at_most_20_lines(rule_file):
    code = rule_file.read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.py:Rule", "verifier file nothing.py does not exist"),
        ("{file}:Other", "has no 'Other'; it has .*DrawAndLook"),
        ("{file}:Law", "verifier '.*Law'"),
    ],
)
def test_what_cannot_be_a_verifier_is_named(rule_file, name, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        get_verifier(name.format(file=rule_file))
    assert "\n" not in str(caught.value)
