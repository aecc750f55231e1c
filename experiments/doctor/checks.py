"""Findings about what cells read: hub, models, data sets, and whether pairs fit into the device's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from huggingface_hub import constants, get_token

from experiments.doctor.device import Device, free_memory
from experiments.doctor.finding import GIB, Finding, gib, note, ok, problem
from experiments.doctor.machine import RESULTS_BYTES, disk
from experiments.doctor.needs import DataNeed, PairNeed, named
from experiments.doctor.repositories import REACHED, Repository, Wanted
from experiments.doctor.sizes import ITEM_BYTES, Size, of_shape
from resispec.files import cache_root
from resispec.hub import Access

Found = Mapping[Wanted, Repository]
LAW_BYTES = 16
"""Bytes a verified position and token of the vocabulary that a step holds, see `experiments.bench.memory`."""
RESERVED_BYTES = GIB
"""What an accelerator's context and its libraries' working memory take beside."""


def hub(found: Found) -> Finding:
    """Whether the hub answers, where anything comes from one."""
    asked = [one for one in found.values() if not one.is_local]
    if not asked:
        return ok("hub", "not needed")
    if any(one.access in REACHED for one in asked):
        return ok("hub", f"{constants.ENDPOINT} answers")
    absent = [one.wanted.name for one in asked if one.copy is None]
    why = f"HF_HUB_OFFLINE is set, so that {constants.ENDPOINT} is not asked"
    if any(one.access == Access.UNREACHABLE for one in asked):
        said = next(one.said for one in asked if one.access == Access.UNREACHABLE)
        why = f"{constants.ENDPOINT} cannot be reached{f' ({said})' if said else ''}"
    if not absent:
        return ok("hub", f"{why}; there is a copy here of all {len(asked)} repositories")
    todo = "connect, or set HF_HOME to a filled cache"
    return problem("hub", f"{why}, and there is no copy here of {named(absent)}", todo)


def model(repository: Repository) -> Finding:
    """Whether a model can be read, from where, and how large it is."""
    name, size = f"model {repository.wanted.name}", repository.size
    large = f", {size} {size.source}" if size else ""
    if repository.copy:
        return ok(name, f"in {repository.copy}{large}")
    if repository.access == Access.OPEN and not repository.is_local:
        num_bytes = download_bytes(repository)
        return ok(name, f"on the hub{large}, {gib(num_bytes) if num_bytes else 'unknown'} to download")
    return _refused(name, repository, "a local folder: pair.target=FOLDER pair.draft=FOLDER")


def data(need: DataNeed, found: Found) -> Finding:
    """Whether a data set can be read, and from where."""
    name = f"data set {need.name}"
    if need.wanted is None:
        return ok(name, "made here at first use, from text that every Python has")
    repository = found[need.wanted]
    if repository.copy:
        return ok(name, f"in {repository.copy}")
    if repository.access == Access.OPEN and not repository.is_local:
        much = "streamed" if need.is_streamed else f"{gib(repository.num_bytes)} to download"
        return ok(name, f"{need.wanted.name} on the hub, {much}")
    return _refused(name, repository, "a local file: dataset.path=FILE.jsonl")


def _refused(name: str, repository: Repository, instead: str) -> Finding:
    """Why a repository cannot be read, and how it could be."""
    page = (
        f"{constants.ENDPOINT}/{'datasets/' * (repository.wanted.kind == 'dataset')}{repository.wanted.name}"
    )
    login = "log in: `hf auth login`, or HF_TOKEN" + ("" if get_token() else " (no token is known here)")
    why, todo = {
        Access.OPEN: (repository.said, "complete it"),
        Access.GATED: ("gated, and closed to this account", f"ask for access on {page}, then {login}"),
        Access.TOKEN: ("the hub does not take the token", login),
        Access.MISSING: ("the hub has no such repository, or it is private", f"look at {page}; {login}"),
        Access.REVISION: (f"there is no revision {repository.wanted.revision}", f"look at {page}"),
        Access.REFUSED: (f"the hub refuses it ({repository.said})", "try again later"),
        Access.UNREACHABLE: ("no copy here, and the hub cannot be reached", "connect"),
        Access.OFFLINE: ("no copy here, and HF_HUB_OFFLINE is set", "unset it"),
    }[repository.access]
    if repository.said.startswith("the copy") and repository.access != Access.OPEN:
        why = f"{repository.said}, and {why.removeprefix('no copy here, and ')}"
    return problem(name, why, f"{todo}; or {instead}")


def pair(need: PairNeed, found: Found, device: Device) -> Finding:
    """Whether a pair's weights, caches and laws fit into the device's memory."""
    name = f"pair {need.name}"
    if need.trained:
        is_there = all((cache_root() / key).is_dir() for key in need.trained)
        return ok(
            name, f"trained, in {cache_root()}" if is_there else "trained here at first use, in minutes"
        )
    sizes = _sizes(need, found)
    unknown = [one.name for one in need.models if found[one].size is None]
    large = needed_bytes(need, sizes, device)
    said = f"needs {gib(large)} ({_shares(need, sizes, device)})"
    if unknown:
        said += f" and what {named(unknown)} takes, whose size nothing says"
    if device.missing or not device.total:
        return note(name, f"{said}; how much there is, is not known")
    if large > device.total:
        return problem(name, f"too large for {device.name}: {said}, has {gib(device.total)}", _smaller(need))
    if large > device.free:
        todo = "end what holds the rest, or choose another device"
        return problem(name, f"{said}; {gib(device.free)} of {gib(device.total)} are free", todo)
    if (passing := _passing_bytes(need, sizes, device)) > (free := free_memory()[0]) > 0:
        todo = "end what holds it, or load on another machine"
        return note(name, f"{said}; loading passes {gib(passing)} through the machine's {gib(free)}", todo)
    return note(name, said) if unknown else ok(name, f"{said}, {gib(device.free)} are free")


def _sizes(need: PairNeed, found: Found) -> list[Size]:
    shapes = [of_shape(shape, "by its shape") for shape in need.shapes]
    return shapes or [size for one in need.models if (size := found[one].size) is not None]


def needed_bytes(need: PairNeed, sizes: Sequence[Size], device: Device) -> int:
    """Memory of the device that a pair takes: of what is known of it."""
    reserved = 0 if device.kind == "cpu" else RESERVED_BYTES
    return (
        sum(one.device_bytes(need.dtype, need.places) for one in sizes) + _law_bytes(need, sizes) + reserved
    )


def _law_bytes(need: PairNeed, sizes: Sequence[Size]) -> int:
    return LAW_BYTES * need.nodes * max((one.vocab for one in sizes), default=0)


def _shares(need: PairNeed, sizes: Sequence[Size], device: Device) -> str:
    weights = sum(one.parameters for one in sizes) * ITEM_BYTES[need.dtype]
    caches = sum(one.device_bytes(need.dtype, need.places) for one in sizes) - weights
    reserved = "" if device.kind == "cpu" else f", the device's own {gib(RESERVED_BYTES)}"
    laws = gib(_law_bytes(need, sizes))
    return f"weights {gib(weights)} in {need.dtype}, caches {gib(caches)}, laws {laws}{reserved}"


def _smaller(need: PairNeed) -> str:
    halved = "" if ITEM_BYTES[need.dtype] <= 2 else "dtype=float16, "
    return f"{halved}a smaller pair, or a larger device"


def _passing_bytes(need: PairNeed, sizes: Sequence[Size], device: Device) -> int:
    """Weights that are read into the machine's memory on their way to an accelerator, one model at a time."""
    if device.kind == "cpu" or need.shapes:
        return 0
    return max((one.parameters for one in sizes), default=0) * ITEM_BYTES[need.dtype]


def download_bytes(repository: Repository) -> int:
    """What is to be downloaded of it: 0 where that is nothing or unknown, a guess from a known shape."""
    if repository.copy or repository.is_local:
        return 0
    known = repository.num_bytes or (repository.size.num_bytes if repository.size else 0)
    return known or (2 * repository.size.parameters if repository.size else 0)


def space(needs: Iterable[DataNeed], found: Found, results: Path) -> Iterator[Finding]:
    """Whether what is to be downloaded, and results, have their place on the disk."""
    streamed = {need.wanted for need in needs if need.is_streamed}
    large = sum(download_bytes(one) for wanted, one in found.items() if wanted not in streamed)
    if large:
        cache = Path(constants.HF_HUB_CACHE)
        yield disk("downloads", cache, large, "set HF_HOME to a folder on a larger disk")
    yield disk("results", results, RESULTS_BYTES, "make place, or give RESULTS=FOLDER on another disk")
