"""Plans of the profile smollm2: whole, of prompts that exist, with drafters that go together."""

from omegaconf import OmegaConf

from experiments.cell import build
from experiments.check import check_pair
from experiments.grid import parts_of
from experiments.schema import CONF


def test_the_profile_smollm2_has_a_plan_of_every_artefact():
    """Prompts of all cells and searches are there, and what it names exists and goes together."""
    parts = parts_of(["experiment=glob(*)", "profile=smollm2"])
    planned = {part.artefact for part in parts if part.cells}
    stems = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    assert planned == stems
    names = {name for part in parts for name in (part.name, part.artefact)}
    content = OmegaConf.to_container(OmegaConf.load(CONF / "profile" / "smollm2.yaml"))
    assert set(content["artefacts"]) <= names
    for cell in (cell for part in parts for cell in part.cells):
        assert cell.config["num_prompts"] <= cell.config["first_tuning_prompt"] == 144
        assert cell.config["prompt_template"] == "chat" and cell.config["pair"]["fingerprint"]
        if cell.has_tree:
            check_pair(cell.config["pair"], build(cell.config["decoder"]).drafter)
    assert 144 + content["max_tuning_prompts"] <= 164  # HumanEval's problems
