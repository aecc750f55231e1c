"""Replay of verifiers on a decoding's logged laws, without its models; format: docs/replay.md."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Generator, Tensor

from resispec.audit.row_checks import check_own_outcomes, check_stops
from resispec.audit.z_score import Terms, step_terms
from resispec.core import Draft, Draws, DrawsKind, Tree
from resispec.distributions import summing_to_one
from resispec.drafters.levels import inner_nodes
from resispec.errors import InvalidInput, first_line
from resispec.files import replacing
from resispec.step import Step
from resispec.trees import Topology
from resispec.verifiers import Verifier
from resispec.verifiers.base import check_verdict, outcomes_of, unchanging

FORMAT = "resispec laws 1"
NAMES = ("parents", "tokens", "target_probs", "draft_probs")
"""A step's tensors; draft_probs has rows for nodes with children only."""


@dataclass(frozen=True)
class LoggedStep:
    """The laws of one step.

    target_probs: (N, V), the target's law at every node of `draft.tree`.
    """

    draft: Draft
    target_probs: Tensor


class LawRecorder:
    """A law recorder: `decoder.generate(..., on_step=recorder)`, then `recorder.write(path)`."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._about = {"format": FORMAT}

    def __call__(self, step: Step) -> None:
        """Copy a step's tree and laws to the host.

        Raises InvalidInput for draws that are not known by their name alone, which is all that a
        file has of them, and for a tree with other draws than those before.
        """
        tree, step_number = step.draft.tree, len(self._tensors) // len(NAMES)
        check_readable(tree.draws)
        if (draws := self._about.setdefault("draws", tree.draws.name)) != tree.draws.name:
            raise InvalidInput(
                f"step {step_number} has draws {tree.draws}, where those before have {draws}; "
                "allowed: a recorder for each"
            )
        draft_probs = step.draft.probs[inner_nodes(tree.topology, step.draft.probs.device)]
        # of a root alone, it has no column
        draft_probs = draft_probs.reshape(-1, step.target_probs.shape[1])
        values = torch.tensor(tree.topology.parents), tree.tokens, step.target_probs, draft_probs
        for name, value in zip(NAMES, values, strict=True):
            self._tensors[_key(step_number, name)] = value.to("cpu", copy=True).contiguous()

    @property
    def drafted(self) -> list[int]:
        """The parents of every node and the drafted tokens, of all steps in turn."""
        names = [name for name in self._tensors if name.endswith((".parents", ".tokens"))]
        return [number for name in names for number in self._tensors[name].tolist()]

    def write(self, path: Path, decoded: str = "") -> None:
        """Write all steps to a file or none; folders are made. decoded: a name for the decoding.

        Raises InvalidInput when the file exists and holds another decoding.
        """
        if path.exists() and (name := _header(path)[0].get("decoded", "")) != decoded:
            raise InvalidInput(
                f"{path} holds another decoding ({name or 'unnamed'}); allowed: another folder"
            )
        with replacing(path) as unfinished:
            save_file(self._tensors, unfinished, self._about | {"decoded": decoded})


def check_readable(draws: DrawsKind) -> None:
    """Raise InvalidInput for draws that a file cannot name."""
    if draws not in list(Draws):
        raise InvalidInput(f"{draws} draws cannot be read from a log; allowed: {', '.join(Draws)}")


def num_steps(path: Path) -> int:
    """The number of steps in a file.

    Raises InvalidInput for a file that holds no laws or no steps, or lacks a part of one.
    """
    return _header(path)[1]


def read_laws(path: Path) -> Iterator[LoggedStep]:
    """The steps of a file, in order, each read when it is asked for.

    Raises InvalidInput, naming the file and the step, for an invalid tree or law.
    """
    metadata, count = _header(path)
    draws = Draws(metadata.get("draws", ""))
    with safe_open(path, "pt") as file:
        for step in range(count):
            try:
                tensors = {name: file.get_tensor(_key(step, name)) for name in NAMES}
                yield _checked(draws, tensors)
            except (InvalidInput, SafetensorError) as error:
                raise InvalidInput(f"{path}, step {step}: {first_line(error)}") from error


def replay(step: LoggedStep, verifier: Verifier, generator: Generator) -> tuple[float, Terms]:
    """The expected number of tokens that a verifier emits, and the `Terms` of those that it draws.

    The expectation is over the verifier's own draws, given the drafted tokens. generator: on the
    host. Raises InvalidInput for draws or a topology that the verifier is not defined for, and for
    a verifier that changes its inputs or whose verdict is none, see `check_verdict`;
    FloatingPointError as `expected_emitted`.
    """
    tree, laws = step.draft.tree, (step.target_probs, step.draft.probs)
    with unchanging(verifier, tree, *laws):
        expected = expected_emitted(verifier, step.draft, step.target_probs)
        verdict = verifier.verify(tree, *laws, generator)
    check_verdict(verifier, verdict, tree, step.target_probs.shape[-1])
    terms = step_terms(Step(step.draft, step.target_probs, verdict))
    return expected, terms


def expected_emitted(verifier: Verifier, draft: Draft, target_probs: Tensor) -> float:
    """Expected tokens of one step given the drafted tree.

    It is the sum over nodes of Pr(the walk stops there) * (depth + 1). target_probs: (N, V), the
    target's laws at the nodes. Raises FloatingPointError where the chances to stop are no law, and
    InvalidInput as `check_own_outcomes`.
    """
    check_own_outcomes(verifier)
    stop = outcomes_of(verifier, draft.tree, target_probs, draft.probs).stop.double()
    check_stops(stop)
    return float(stop @ (draft.tree.topology.depths.to(stop.device) + 1).double())


def _header(path: Path) -> tuple[dict[str, str], int]:
    """A file's metadata and number of steps. Raises InvalidInput as `num_steps` does."""
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            found = set(file.keys())
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"{path} is no file of laws: {first_line(error)}") from error
    if (file_format := metadata.get("format")) != FORMAT:
        raise InvalidInput(
            f"{path} has the format {file_format!r} in its metadata; allowed: {FORMAT!r}"
        )
    if not found:
        raise InvalidInput(f"{path} has no steps; allowed: at least one")
    count = math.ceil(len(found) / len(NAMES))
    expected = {_key(step, name) for step in range(count) for name in NAMES}
    if other := sorted(expected ^ found):
        verb = "lacks" if other[0] in expected else "holds"
        raise InvalidInput(
            f"{path} {verb} {other[0]!r}; allowed: for every step, from 0 in six digits, "
            f"{', '.join(NAMES)}"
        )
    return metadata, count


def _key(step: int, name: str) -> str:
    """The name of a tensor of a step in a file."""
    return f"{step:06}.{name}"


def _checked(draws: DrawsKind, tensors: Mapping[str, Tensor]) -> LoggedStep:
    """The step that these tensors make up. Raises InvalidInput if they are not a valid step."""
    parents, tokens, target, draft = (tensors[name] for name in NAMES)
    if parents.dtype != torch.int64 or parents.ndim != 1:
        found = f"{tuple(parents.shape)} of {parents.dtype}"
        raise InvalidInput(f"parents is {found}; allowed: (N,) of torch.int64")
    topology = Topology(tuple(parents.tolist()))
    inner = inner_nodes(topology, tokens.device).tolist()
    num_nodes, vocab_size = topology.num_nodes, target.shape[-1] if target.ndim else 0
    law = (torch.float32, torch.float64)  # shorter numbers round laws
    allowed = {
        "tokens": ((num_nodes,), (torch.int64,)),
        "target_probs": ((num_nodes, vocab_size), law),
        "draft_probs": ((len(inner), vocab_size), law),
    }
    for name, (shape, dtypes) in allowed.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
            expected = f"{shape} of {' or '.join(map(str, dtypes))}"
            raise InvalidInput(
                f"{name} is {tuple(tensor.shape)} of {tensor.dtype}; allowed: {expected}"
            )
    if not bool(((tokens >= 0) & (tokens < vocab_size)).all()):
        raise InvalidInput(f"tokens holds {tokens.tolist()[:8]}; allowed: below {vocab_size}")
    for name, laws in (("target_probs", target), ("draft_probs", draft)):
        # sums are rounded
        if not bool(((laws.sum(-1) - 1).abs() < 1e-3).all() and (laws >= 0).all()):
            raise InvalidInput(
                f"{name} has a row that is no law; allowed: numbers from 0 that sum to 1"
            )
    target, draft = summing_to_one(target), summing_to_one(draft)
    rows = torch.zeros_like(target)
    rows[inner] = draft.to(target.dtype)
    tree = Tree(topology, tokens, draws)
    tree.check_siblings()
    _check_drawn(tree, rows)
    return LoggedStep(Draft(tree, rows), target)


def _check_drawn(tree: Tree, draft_probs: Tensor) -> None:
    """Raise InvalidInput, naming the node, for a token that its law (V,) cannot give.

    draft_probs: (N, V), for nodes with children.
    """
    for parents, children in tree.topology.families:
        siblings = tree.tokens[children]
        for rank, law in enumerate(tree.draws.laws(draft_probs[parents], siblings)):
            is_impossible = law.gather(-1, siblings[:, rank, None])[:, 0] == 0
            if bool(is_impossible.any()):
                node = int(children[is_impossible, rank][0])
                raise InvalidInput(
                    f"node {node} holds token {int(tree.tokens[node])}, which its law does not "
                    f"give; allowed for {tree.draws} draws: tokens with mass in draft_probs"
                )
