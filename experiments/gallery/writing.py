"""What every engine of the gallery is asked, and the files of transcripts that it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from resispec.engines import Engine, Settings, write_transcripts
from resispec.transcripts import Transcript

Prompt = tuple[int, ...]

OTHER_SEED = 1000
"""The first seed where other seeds are asked for; prompt i uses it + i."""


@dataclass(frozen=True)
class Asked:
    """What is asked. settings: of the sampled answers.

    num_greedy: how many of the prompts are also continued at temperature 0. num_seeds: how many are sampled
    twice more, with the same seed and with another.
    """

    prompts: tuple[Prompt, ...]
    settings: Settings
    num_greedy: int
    num_seeds: int


@dataclass(frozen=True)
class Written:
    """What an engine wrote: sampled, greedy, and sampled again with the same and with other seeds."""

    sampled: list[Transcript]
    greedy: list[Transcript]
    again: list[Transcript]
    others: list[Transcript]


def write(engine: Engine, asked: Asked, stem: Path) -> Written:
    """Let an engine write what its files, which begin with `stem`, lack. Raises as `write_transcripts`."""
    few = asked.prompts[: asked.num_seeds]
    return Written(
        write_transcripts(engine, asked.prompts, asked.settings, _file(stem, "")),
        write_greedy(engine, asked, stem),
        write_transcripts(engine, few, asked.settings, _file(stem, ".again")),
        write_transcripts(engine, few, asked.settings, _file(stem, ".others"), OTHER_SEED),
    )


def write_greedy(engine: Engine, asked: Asked, stem: Path) -> list[Transcript]:
    """The answers at temperature 0 alone."""
    prompts, settings = asked.prompts[: asked.num_greedy], replace(asked.settings, temperature=0.0)
    return write_transcripts(engine, prompts, settings, _file(stem, ".greedy"))


def _file(stem: Path, kind: str) -> Path:
    return stem.with_name(f"{stem.name}{kind}.jsonl")
