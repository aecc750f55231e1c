"""Decode every prompt and log its steps' laws, on which `experiments.replay` compares verifiers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.tasks.base import Row, Task, Workload, hash_tokens, identity, share
from experiments.tasks.sampled_trees import is_misread
from resispec.decode import Decoder
from resispec.errors import InvalidInput
from resispec.replay import LawRecorder, check_readable


@dataclass(frozen=True)
class LawsRow(Row):
    """One logged prompt. num_emitted: tokens of all `num_steps` steps."""

    num_steps: int
    num_emitted: int


@dataclass(frozen=True)
class Laws(Task):
    """Task that decodes every prompt and logs its laws.

    folder: for the files, one for each prompt.
    """

    row: ClassVar[type[LawsRow]] = LawsRow
    folder: str

    def check(self, decoder: Decoder) -> None:
        """See `Task`; a file says by a known name how siblings were drawn."""
        super().check(decoder)
        draws = decoder.drafter.draws
        check_readable(draws)
        if is_misread(decoder.drafter):
            raise InvalidInput(
                "a file of laws says how siblings were drawn; found the likeliest tokens, told as "
                f"draws {draws}; allowed: decoder=eagle, or one that draws"
            )

    def __call__(self, workload: Workload, index: int) -> LawsRow:
        """See `Task`.

        Raises InvalidInput if the folder has laws of this prompt from another decoding.
        """
        recorder, generator = LawRecorder(), workload.generator(index)
        prompt = workload.prompts[index][1]
        generation = workload.decoder.generate(
            workload.pair, prompt, workload.sampling, generator, recorder
        )
        path = Path(self.folder) / f"prompt-{index:05}.safetensors"
        # all exact methods write the same tokens at temperature 0, on other trees
        recorder.write(path, hash_tokens([*prompt, *generation.tokens, *recorder.drafted]))
        emitted = generation.num_emitted
        return LawsRow(
            **identity(workload, index), num_steps=len(emitted), num_emitted=sum(emitted)
        )

    def progress(self, rows: Sequence[LawsRow]) -> dict[str, str]:
        """The accepted length, and the number of files."""
        emitted, steps = sum(row.num_emitted for row in rows), sum(row.num_steps for row in rows)
        return {"accepted_length": share(emitted, steps, ".2f"), "logged": f"{len(rows)} files"}
