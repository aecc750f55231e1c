"""Figure 3: where a step's time goes, with a clock that waits for the device around every part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.tasks.base import Row, Task, Workload, hash_tokens, identity, share
from resispec.timing import Stopwatch, clock_seconds, measuring

PARTS = {
    "draft_s": "draft",
    "target_s": "target",
    "verify_s": "verify",
    "shaping_s": "verify/shaping",
    "budget_s": "verify/shaping/budget",
    "redistribution_s": "verify/shaping/redistribution",
    "proxy_s": "verify/shaping/proxy",
    "commit_s": "commit",
}
"""Field of the row -> the part of a `resispec.timing.Stopwatch` whose seconds it holds."""


@dataclass(frozen=True)
class ProfileRow(Row):
    """One profiled prompt: the tokens are those of `Decode`.

    The seconds cannot be compared with its seconds. No field is called `decode_s`, so that no
    throughput can be computed from such a row. profiled_s: seconds of all steps with the loop. For
    its parts see PARTS; a part that a rule does not name is 0. shaping_s: reshaping of residuals.
    proxy_s: the normalisation that every rule of Algorithm 1 has. num_timed: number of timed parts.
    clock_s: seconds of as many empty parts afterwards.
    """

    num_emitted: int
    num_steps: int
    tokens_sha256: str
    profiled_s: float
    draft_s: float
    target_s: float
    verify_s: float
    shaping_s: float
    budget_s: float
    redistribution_s: float
    proxy_s: float
    commit_s: float
    num_timed: int
    clock_s: float


@dataclass(frozen=True)
class Profile(Task):
    """Task that decodes every prompt as `Decode` does, to the same tokens, with a stopwatch."""

    row: ClassVar[type[ProfileRow]] = ProfileRow

    def __call__(self, workload: Workload, index: int) -> ProfileRow:
        """See `Task`."""
        device, prompt = workload.pair.target.device, workload.prompts[index][1]
        stopwatch, generator = Stopwatch(device), workload.generator(index)
        with measuring(stopwatch):
            generation = workload.decoder.generate(
                workload.pair, prompt, workload.sampling, generator
            )
        return ProfileRow(
            **identity(workload, index),
            num_emitted=sum(generation.num_emitted),
            num_steps=len(generation.num_emitted),
            tokens_sha256=hash_tokens(generation.tokens),
            profiled_s=generation.decode_s,
            **{field: stopwatch.seconds.get(path, 0.0) for field, path in PARTS.items()},
            num_timed=stopwatch.num_timed,
            clock_s=clock_seconds(device, stopwatch.num_timed),
        )

    def progress(self, rows: Sequence[ProfileRow]) -> dict[str, str]:
        """Milliseconds a step, and the share of shaping in them."""
        seconds, steps = sum(row.profiled_s for row in rows), sum(row.num_steps for row in rows)
        shaping = share(sum(row.shaping_s for row in rows), seconds, ".1%")
        return {"step_ms": share(1e3 * seconds, steps, ".2f"), "shaping": shaping}
