"""Repositories on a hub: whether they can be read, whether a copy is here,
and the sizes of their models.

All questions are asked at once, each with a short time limit, so that a machine without a network
gets its answer within seconds. Of a model only config.json is read.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    file_download,
    get_local_safetensors_metadata,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import NotASafetensorsRepoError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from resispec.embedded.shapes import Shape
from resispec.errors import first_line
from resispec.files import read_json
from resispec.hub import PROBE_SECONDS, Access, access_of, datasets_cache, weight_files

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}


@dataclass(frozen=True)
class Size:
    """The number of a model's parameters. source: words for a line that say where it comes from."""

    parameters: int
    source: str

    def __str__(self) -> str:
        billions = self.parameters / 1e9
        number = f"{billions:.2g} billion" if billions >= 0.1 else f"{1e3 * billions:.3g} million"
        return f"{number} parameters {self.source}"


@dataclass(frozen=True)
class Wanted:
    """A repository on a hub, or a local path in its place. kind: "model" or "dataset".

    folder: the folder of the files of a data set that are read; "" for all files.
    """

    kind: str
    name: str
    revision: str | None = None
    folder: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the name is that of an existing file or folder,
        and not of a repository on a hub.
        """
        return Path(self.name).expanduser().exists()


@dataclass(frozen=True)
class Repository:
    """Facts about a repository.

    copy: the local folder or file that holds all of it, None without one. size: a model's size,
    None if unknown. reason: more about the access, or what is wrong with the copy. num_bytes: bytes
    to download, 0 if unknown.
    """

    wanted: Wanted
    access: Access
    copy: Path | None = None
    size: Size | None = None
    reason: str = ""
    num_bytes: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it can be read, here or from the hub."""
        return self.copy is not None or (self.access == Access.OPEN and not self.wanted.is_local)


def look_at(wanted: Collection[Wanted], deadline_s: float = 15.0) -> dict[Wanted, Repository]:
    """Facts about each repository; without an answer within `deadline_s` it counts
    as unreachable.
    """
    pool = ThreadPoolExecutor(max(1, len(wanted)))
    answers = {place: pool.submit(_look_at, place) for place in wanted}
    done = wait(answers.values(), deadline_s).done
    pool.shutdown(wait=False)
    reason = f"no answer within {deadline_s:g} s"
    return {
        place: answer.result()
        if answer in done
        else _without_hub(place, Access.UNREACHABLE, reason)
        for place, answer in answers.items()
    }


def _look_at(wanted: Wanted) -> Repository:
    if wanted.is_local:
        return _of_copy(wanted, Path(wanted.name).expanduser(), Access.OPEN)
    if constants.HF_HUB_OFFLINE:
        return _without_hub(wanted, Access.OFFLINE)
    try:
        return _asked(wanted)
    except Exception as error:  # noqa: BLE001
        # whatever the HTTP library in use raises without a network
        return _without_hub(wanted, access_of(error), first_line(error))


def _asked(wanted: Wanted) -> Repository:
    """Facts about a repository as the hub gives them; raises the hub's refusal as it comes."""
    limit: dict[str, Any] = {"revision": wanted.revision, "timeout": PROBE_SECONDS}
    info: Any = HfApi().repo_info(wanted.name, repo_type=wanted.kind, files_metadata=True, **limit)
    repository = _without_hub(wanted, Access.OPEN)
    if repository.copy:  # otherwise the rest of it is downloaded
        return repository
    files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    if wanted.kind == "dataset":
        sizes = [size for name, size in files.items() if name.startswith(wanted.folder)]
        return replace(repository, num_bytes=sum(sizes or files.values()))
    # Not by way of the cache: with this file in it, it would look as if the model were there.
    address = hf_hub_url(
        wanted.name, "config.json", revision=wanted.revision, endpoint=constants.ENDPOINT
    )
    headers = build_hf_headers()
    answer = get_session().get(
        address, headers=headers, timeout=PROBE_SECONDS, follow_redirects=True
    )
    hf_raise_for_status(answer)
    weights = weight_files(files)
    num_bytes = sum(files[name] for name in weights)
    is_counted = info.safetensors and any(name.endswith(".safetensors") for name in weights)
    parameters = info.safetensors.total if is_counted else 0
    try:
        size = size_of(answer.json(), parameters, num_bytes, "as the hub says")
    except (AttributeError, ValueError) as error:
        reason = f"its config.json gives no size ({first_line(error)})"
        return Repository(wanted, Access.OPEN, None, None, reason, num_bytes)
    return Repository(wanted, Access.OPEN, None, size, "", num_bytes or 2 * size.parameters)


def _without_hub(wanted: Wanted, access: Access, reason: str = "") -> Repository:
    """Facts from a copy in the hub's cache, if there is one."""
    if wanted.kind == "dataset":
        name = file_download.repo_folder_name(repo_id=wanted.name, repo_type="dataset")
        places = (datasets_cache(wanted.name), Path(constants.HF_HUB_CACHE) / name / "snapshots")
        copy = next((path for path in places if path.is_dir()), None)
        return Repository(wanted, access, copy, reason=reason)
    with suppress(ValueError):  # the name cannot be a repository's
        config = try_to_load_from_cache(wanted.name, "config.json", revision=wanted.revision)
        if isinstance(config, str):
            return _of_copy(wanted, Path(config).parent, access)
    return Repository(wanted, access, reason=reason)


def _of_copy(wanted: Wanted, folder: Path, access: Access) -> Repository:
    """Facts from a local copy: a data set counts as complete,
    a model only with all shards of its weights.
    """
    if wanted.kind == "dataset":
        return Repository(wanted, access, folder)
    try:
        files = weight_files(path.name for path in folder.iterdir())
        if not files:
            raise FileNotFoundError(f"there are no weights in {folder}")
        parameters = 0
        with suppress(NotASafetensorsRepoError):
            parameters = sum(get_local_safetensors_metadata(folder).parameter_count.values())
        num_bytes = sum((folder / file).stat().st_size for file in files)
        size = size_of(read_json(folder / "config.json"), parameters, num_bytes, "by the copy here")
    except (OSError, LookupError, TypeError, ValueError) as error:
        return Repository(
            wanted, access, reason=f"the copy here is not complete: {first_line(error)}"
        )
    return Repository(wanted, access, folder, size)


def size_of(config: Mapping[str, Any], parameters: int, num_bytes: int, source: str) -> Size:
    """The size of a model, by the bytes of its weights and its config.json
    if nothing counted its parameters.

    parameters: their number, or 0.
    """
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix(
        "torch."
    )
    return Size(parameters or num_bytes // ITEM_BYTES.get(dtype, 4), source)


def size_of_shape(shape: Shape, source: str) -> Size:
    """The size of a Llama of a known shape."""
    width = shape.hidden_size
    kv_width = width // shape.num_attention_heads * shape.num_key_value_heads
    layer = 2 * width * (width + kv_width) + 3 * width * shape.intermediate_size + 2 * width
    parameters = 2 * shape.vocab_size * width + shape.num_hidden_layers * layer + width
    return Size(parameters, source)
