"""Which cells share a job, and that a job loads a pair once."""

import pytest
from hydra.core.config_store import ConfigStore

from experiments import cluster, worker
from experiments.cell import CellBusy
from experiments.composition import hydra_here
from experiments.grid import cells_of
from experiments.launcher import launch_of
from experiments.store import CellStore
from resispec.errors import InvalidInput


def sizes(cells, most):
    jobs = cluster.jobs_for(cells, most)
    assert sorted(id(cell) for job in jobs for group in job for cell in group) == sorted(
        map(id, cells)
    )
    for job in jobs:
        assert len({cell.labels["pair"] for group in job for cell in group}) == 1
    return [[len(group) for group in job] for job in jobs]


def test_a_job_has_cells_of_one_pair_and_keeps_together_what_is_timed_in_turns():
    timed = ["tree=d5b3,d7b2,chain", "temperature=1.0,0.6", "audit=false"]
    assert sizes(cells_of(timed), 16) == [[3, 3]]
    assert sizes(cells_of(timed), 5) == [[3], [3]]  # 2 of the second group would be torn off
    assert sizes(cells_of(timed), 2) == [[3], [3]]  # defect: 2 and 1, whose times do not compare
    assert sizes(cells_of(timed), 1) == [[1]] * 6
    audits = ["tree=d5b3,d7b2,chain", "temperature=1.0,0.6", "audit=true"]
    assert sizes(cells_of(audits), 4) == [[1, 1, 1, 1], [1, 1]]
    pairs = [*audits, "pair=embedded,embedded_800k__80k"]
    assert sizes(cells_of(pairs), 16) == [[1] * 6, [1] * 6]


def test_a_job_loads_its_pair_once_and_waits_last_for_what_another_run_measures(toy, monkeypatch):
    cells = cells_of([*toy, "temperature=1.0,0.6,0.4"])
    order, loaded = [], []
    build, measure = worker.build, worker.measure

    def built(node):
        loaded.extend([node["_target_"]] * ("target" in node))
        return build(node)

    def measured(group, report, wait):
        try:
            measure(group, report, wait)
            order.append(group[0])
        except CellBusy:
            order.append("busy")
            held.__exit__(None, None, None)  # the other run is done with it
            raise

    monkeypatch.setattr(worker, "build", built)
    monkeypatch.setattr(worker, "measure", measured)
    held = CellStore(cells[0].folder).locked()
    held.__enter__()
    [job] = cluster.jobs_for(cells, 16)
    assert cluster.MeasuringJob().checkpoint(job).args == (job,)
    assert cluster._measure_all(job) == []
    assert order == ["busy", cells[1], cells[2], cells[0]] and len(loaded) == 1


def test_a_job_tells_of_failed_cells_and_goes_on(toy, monkeypatch):
    cells = cells_of([*toy, "temperature=1.0,0.6"])

    def fail(group, _report, _wait):
        raise OSError(f"no space for {group[0].config['temperature']}")

    monkeypatch.setattr(worker, "measure", fail)
    [job] = cluster.jobs_for(cells, 16)
    assert cluster._measure_all(job) == [
        f"{cell}: OSError: no space for {cell.config['temperature']}" for cell in cells
    ]


def test_a_launcher_that_submits_no_jobs_is_refused():
    """As those that other packages bring along."""
    store = ConfigStore.instance()
    store.store("other", {"_target_": "other.Launcher"}, group="hydra/launcher")
    try:
        with hydra_here(), pytest.raises(InvalidInput, match="basic, submitit_local, submitit_sl"):
            launch_of(["hydra/launcher=other"])
    finally:
        store.repo["hydra"]["launcher"].pop("other.yaml")
