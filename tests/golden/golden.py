"""What must not change when code moves: which cells artefacts ask for, and what toy cells measure.

    python -m tests.golden.golden cells rows    # writes both files anew

`cells.json` counts the cells of every experiment of every profile and has a digest of their printed
labels and identities, in which whatever is made on a machine counts by its configuration.
`rows.json` has the rows of toy cells without their times.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from analysis.load import part_names
from experiments.cell import build
from experiments.grid import cells_of
from experiments.store import CellStore
from experiments.worker import measure
from tests.harness.toy_runs import ignore, rows, save_toys, toy_overrides

HERE = Path(__file__).parent
CONF = HERE.parents[1] / "conf"
NOWHERE = "results=golden-results"  # a folder that is not there: trees count by their names
PROFILES = sorted(path.stem for path in (CONF / "profile").glob("*.yaml"))

SMALL = "tree=complete tree.depth=3 tree.branching=3"
EAGLE = "pair=llama2_7b_chat__eagle pair.draft={folder}/eagle prompt_template=null"
CASES = [
    "decoder=autoregressive temperature=0.6,1.0",
    f"{SMALL} temperature=0.6,1.0 "
    "verifier=standard,resispec,kseq,naive,optimal,traversal,traversal_optimal",
    f"{SMALL} verifier=level_optimal",
    f"{SMALL} decoder=sequoia temperature=0.6,1.0 verifier=standard,resispec,naive,traversal",
    f"{SMALL} decoder=greedy verifier=greedy,standard",
    f"{SMALL} decoder=top_k verifier=naive,standard",
    "tree=chain verifier=block,standard audit=false,true",
    f"{SMALL} decoder=specinfer,sequoia,top_k verifier=standard audit=true",
    f"{EAGLE} decoder=eagle,eagle_softmax tree=eagle2 verifier=standard,resispec",
    f"{EAGLE} decoder=eagle_sampled tree=eagle1 verifier=standard temperature=0.6,1.0",
    f"{SMALL} task=kl task.num_prefixes=1 task.num_tuples=16 num_prompts=1",
    f"{SMALL} task=residuals task.num_prefixes=1 task.num_tuples=16 num_prompts=1",
    f"{SMALL} task=decay task.num_prefixes=2 task.num_tuples=8",
    f"{SMALL} task=bound task.num_prefixes=1 task.rollouts=1 num_prompts=1",
    f"{SMALL} task=scaling task.num_prefixes=1 task.rollouts=1 num_prompts=1",
    f"{SMALL} task=profile num_prompts=1",
    f"{SMALL} task=bias task.num_prefixes=2 task.num_tuples=16 verifier=resispec,level_optimal",
]


def experiments() -> list[str]:
    """The experiments whose cells are written down for every profile, each part of one apart."""
    paths = sorted((CONF / "experiment").glob("*.yaml"))
    return [
        f"{path.stem}/{part}" if part else path.stem
        for path in paths
        for part in part_names(path) or [""]
    ]


def cells_digest(experiment: str, profile: str) -> dict[str, Any]:
    """An experiment's number of cells, and 16 hexadecimal digits of their labels and identities."""
    cells = cells_of([f"experiment={experiment}", f"profile={profile}", NOWHERE])
    named = sorted(json.dumps([_printed(cell), _identity(cell)], sort_keys=True) for cell in cells)
    return {
        "count": len(cells),
        "sha256": hashlib.sha256("\n".join(named).encode()).hexdigest()[:16],
    }


def check_cells(profile: str) -> None:
    """Assert that the experiments ask for the cells that are written down."""
    golden = json.loads((HERE / "cells.json").read_text())
    found = {
        f"{experiment} {profile}": cells_digest(experiment, profile) for experiment in experiments()
    }
    assert found == {
        name: digest for name, digest in golden.items() if name.endswith(f" {profile}")
    }


def _printed(cell: Any) -> dict[str, str]:
    return {name: str(value) for name, value in cell.labels.items()}


def _identity(cell: Any) -> str:
    """The cell's id if nothing that it needs were made on this machine."""
    # its file need not exist
    labels = {name: value for name, value in cell.labels.items() if name != "tree"}
    neutral = {key: _without_fingerprints(value) for key, value in cell.config.items()}
    return cell.changed(labels, **neutral).cell_id


def _without_fingerprints(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _without_fingerprints(value) for key, value in node.items() if key != "fingerprint"
        }
    return node


def toy_rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every toy cell by its printed name, each without its times."""
    found = {}
    for case in CASES:
        overrides = [
            *toy_overrides(folder, folder / "results"),
            *case.format(folder=folder).split(),
        ]
        cells = cells_of(overrides)
        for setting in dict.fromkeys(cell.setting for cell in cells):  # its pair is loaded once
            measure([cell for cell in cells if cell.setting == setting], ignore)
        for cell in cells:
            name = " ".join(
                f"{key}={value}" for key, value in _printed(cell).items() if key != "dataset"
            )
            # each is read as what it was
            CellStore(cell.folder).rows(build(cell.config["task"]).row)
            found[f"{cell.task_name} {name}"] = [_without_times(row) for row in rows(cell)]
    return found


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    """A row without times, and without the process that took them and the cell's turn in it."""
    kept = (
        key for key in row if not key.endswith(("_s", "_ms")) and key not in ("timed_by", "turn")
    )
    return {key: row[key] for key in kept}


def main() -> None:
    """Write the files that are named anew."""
    for name in sys.argv[1:]:
        if name == "cells":
            content: Any = {f"{experiment} {profile}": cells_digest(experiment, profile)
                            for profile in PROFILES for experiment in experiments()}  # fmt: skip
        else:
            with tempfile.TemporaryDirectory() as folder:
                content = toy_rows(save_toys(Path(folder) / "golden"))
        lines = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()
        )
        (HERE / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
