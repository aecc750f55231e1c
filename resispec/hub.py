"""Local copies of models and data sets of the Hugging Face hub, and clear errors without a copy.

Libraries retry an unreachable hub for half a minute; here a probe with a short time limit comes
first, so that a missing network gives one clear line within seconds. This module imports no torch.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, write_atomically

PROBE_SECONDS = 5.0
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
# Files to load beside weights: configurations, indices of shards, and tokenizers. Other folders and
# formats of a repository (original/, consolidated.*, GGUF) hold the same weights again.
_SMALL = ("*.json", "*.model", "*.txt", "*.jinja")
_FILES: dict[str, Any] = {"allow_patterns": [*_SMALL], "ignore_patterns": "*/*"}
_WEIGHTS = (
    ("model.safetensors", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*.bin"),
)
INDICES = {".safetensors": "model.safetensors.index.json", ".bin": "pytorch_model.bin.index.json"}
"""Ending of weight files -> the file that names all shards."""
_NO_COPY = "is not cached and the hub cannot be reached ({})"
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}
"""Bytes of a parameter by its precision."""


@dataclass(frozen=True)
class Weights:
    """The weights of a model. folder: of a complete copy here, None if they are on the hub."""

    folder: Path | None
    num_bytes: int
    num_parameters: int


def model_folder(name: str, revision: str | None) -> Path:
    """The folder with a model's files; missing files of a model on the hub are downloaded first.

    revision: a branch, tag or commit of a hub name; None for the newest. A folder has none: that of
    a pinned pair stays where the pair is given a folder. A warning says so of a folder that is
    named like a model on the hub. Raises InvalidInput when the folder does not exist, or when the
    hub does not give the model.
    """
    folder = Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if folder.is_dir():
        if revision and not is_path:
            problem = f"{name} is a folder here; revision {revision} is not looked at"
            warnings.warn(f"{problem}; ./{name} names the folder", stacklevel=1)
        return folder
    if is_path or folder.exists():
        raise InvalidInput(
            f"model folder {name} does not exist; "
            "give a folder with config.json or a hub name like owner/model"
        )
    info = _probe("model", name, revision)
    if isinstance(info, str):
        try:
            return Path(snapshot_download(name, revision=revision, local_files_only=True, **_FILES))
        except LocalEntryNotFoundError as error:
            raise _unavailable("model", name, revision, _NO_COPY.format(info)) from error
    if sys.stderr.isatty():
        # otherwise off, so that a run shows one bar; a download may take hours
        enable_progress_bars()
    patterns = [*weight_files(file.rfilename for file in info.siblings), *_SMALL]
    try:
        copy = Path(
            snapshot_download(name, revision=info.sha, **_FILES | {"allow_patterns": patterns})
        )
    except Exception as error:  # whatever the HTTP library in use raises where a connection breaks
        raise InvalidInput(
            f"model {name} cannot be downloaded: {_refusal(error, name, revision)}; "
            "files that have arrived are kept: the same command goes on with the others"
        ) from error
    finally:
        disable_progress_bars()
    if commit_of(copy) and revision != info.sha:
        # asked for a commit, the library does not keep what the name stands for
        with suppress(OSError):
            write_atomically(copy.parents[1] / "refs" / (revision or "main"), info.sha)
    return copy


def weight_files(files: Iterable[str]) -> list[str]:
    """The weight files to read among a repository's files: pickles only if there are no others."""
    names = list(files)
    kinds = (
        [file for file in names if any(fnmatch(file, pattern) for pattern in kind)]
        for kind in _WEIGHTS
    )
    return next((kind for kind in kinds if kind), [])


def find_weights(name: str, revision: str | None) -> Weights:
    """The weights of a model, in its folder, in the hub's cache or on the hub; none is downloaded.

    Raises InvalidInput, naming the ways out, when `model_folder` would, or some weights are
    missing.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _weights_in(folder)
    info = _probe("model", name, revision)
    commit = revision if isinstance(info, str) else info.sha
    try:
        copy = snapshot_download(name, revision=commit, local_files_only=True, **_FILES)
        return _weights_in(Path(copy))
    except (LocalEntryNotFoundError, InvalidInput) as error:
        if isinstance(info, str):
            reason = _NO_COPY.format(info)
            if isinstance(error, InvalidInput):
                reason = f"is not complete ({error}) and the hub cannot be reached ({info})"
            raise _unavailable("model", name, revision, reason) from error
    # Not into the cache, where this file alone would look like a copy of the model.
    with TemporaryDirectory() as place:
        try:
            options: dict[str, Any] = {"local_dir": place, "etag_timeout": PROBE_SECONDS}
            config = hf_hub_download(name, "config.json", revision=commit, **options)
        except Exception as error:  # whatever the HTTP library in use raises
            reason = f"is refused by the hub: {_refusal(error, name, revision)}"
            raise _unavailable("model", name, revision, reason) from error
        item_bytes = _item_bytes(Path(config))
    files = {file.rfilename: file.size or 0 for file in info.siblings}
    num_bytes = sum(files[file] for file in weight_files(files))
    return Weights(None, num_bytes, num_bytes // item_bytes)


def _weights_in(folder: Path) -> Weights:
    """The weights in a folder. Raises InvalidInput when it lacks some of them."""
    files = weight_files(path.name for path in folder.iterdir())
    if not files:
        raise InvalidInput(f"there are no weights in {folder}")
    index = folder / INDICES[Path(files[0]).suffix]
    shards = set(read_json(index)["weight_map"].values()) if index.is_file() else set()
    if missing := sorted(shards - {*files}):
        raise InvalidInput(f"{folder} lacks {', '.join(missing)}")
    num_bytes = sum((folder / file).stat().st_size for file in files)
    return Weights(folder, num_bytes, num_bytes // _item_bytes(folder / "config.json"))


def _item_bytes(config: Path) -> int:
    """The bytes of a parameter, by a model's config.json."""
    content = read_json(config)
    dtype = str(content.get("dtype") or content.get("torch_dtype")).removeprefix("torch.")
    return ITEM_BYTES.get(dtype, 4)


def commit_of(folder: Path) -> str | None:
    """The hub's commit that a folder is a copy of; None for a folder outside of the hub's cache."""
    is_copy = folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", folder.name)
    return folder.name if is_copy else None


def cached_commit(name: str, revision: str | None = None) -> str | None:
    """The commit that a model's name stands for in the hub's cache; None if it is not there.

    revision: a branch or a tag, by default the hub's default branch.
    """
    with suppress(HFValidationError):
        file = try_to_load_from_cache(name, "config.json", revision=revision)
        return commit_of(Path(file).parent) if isinstance(file, str) else None
    return None


def must_use_copy(name: str, revision: str | None) -> bool:
    """Whether a data set must come from the local cache because the hub cannot be asked.

    Raises InvalidInput, naming the ways out, when it must and nothing is cached, or the hub refuses
    the name.
    """
    cause = _probe("dataset", name, revision)
    if not isinstance(cause, str):
        return False
    files = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    if not (files.is_dir() or datasets_cache(name).is_dir()):
        raise _unavailable("dataset", name, revision, _NO_COPY.format(cause))
    return True


def datasets_cache(name: str) -> Path:
    """The folder in which the datasets library keeps its prepared copy of a repository."""
    home = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
    return home / name.replace("/", "___").lower()


def _probe(kind: str, name: str, revision: str | None) -> Any:
    """The hub's information about a name, or a text that says why the hub cannot be asked.

    kind: "model" or "dataset". Raises InvalidInput, naming the ways out, when the hub refuses the
    name.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise _unavailable(kind, name, revision, f"is no name of a hub: {error}") from error
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        options: dict[str, Any] = {"revision": revision, "timeout": PROBE_SECONDS}
        has_sizes = kind == "model"  # a data set may have thousands of files
        return HfApi().repo_info(name, repo_type=kind, files_metadata=has_sizes, **options)
    except Exception as error:  # whatever the HTTP library in use raises without a network
        if not isinstance(error, HfHubHTTPError):
            return first_line(error)
        reason = f"is refused by the hub: {_refusal(error, name, revision)}"
        raise _unavailable(kind, name, revision, reason) from error


def _refusal(error: Exception, name: str, revision: str | None) -> str:
    """The reason why the hub does not give something, and what to do about it."""
    if isinstance(error, GatedRepoError):  # which is a RepositoryNotFoundError, too
        return f"it is gated; ask for access at {constants.ENDPOINT}/{name} and {LOG_IN}"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {revision}; null takes the newest"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no such repository, or it is private; check the name, or {LOG_IN}"
    if isinstance(error, HfHubHTTPError) and error.response.status_code == 401:
        return f"the token is not valid; {LOG_IN} to another"
    return first_line(error)


def _unavailable(kind: str, name: str, revision: str | None, reason: str) -> InvalidInput:
    option = (
        "dataset.path=FILE.jsonl" if kind == "dataset" else "pair.target=FOLDER pair.draft=FOLDER"
    )
    at = f" at revision {revision}" if revision else ""
    return InvalidInput(
        f"{kind} {name}{at} {reason}; ways out: connect to the hub, set HF_HOME to a filled cache, "
        f"or give a local path ({option})"
    )
