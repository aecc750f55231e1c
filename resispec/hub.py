"""Names on the Hugging Face hub: local copies of what they name, and what to do when there is none.

Libraries retry an unreachable hub for half a minute; a probe with a short time limit comes first, so that a
missing network is one clear line within seconds. Nothing here takes torch.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, scan_cache_dir, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    CacheNotFound,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

from resispec.errors import InvalidInput, first_line

PROBE_SECONDS = 5.0
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
# Beside weights: configurations, indices of shards, and tokenizers. Other folders and formats of a repository
# (original/, consolidated.*, GGUF) hold the same weights again.
_SMALL = ("*.json", "*.model", "*.txt", "*.jinja")
_WEIGHTS = (("model.safetensors", "model-*.safetensors"), ("pytorch_model.bin", "pytorch_model-*.bin"))
_COMMIT = re.compile("[0-9a-f]{40}")


class Access(StrEnum):
    """Whether a repository can be read."""

    OPEN = "open"
    GATED = "gated"
    TOKEN = "token refused"
    MISSING = "missing"
    REVISION = "no such revision"
    REFUSED = "refused"
    UNREACHABLE = "hub not reachable"
    OFFLINE = "HF_HUB_OFFLINE is set"


def access_of(error: Exception) -> Access:
    """What an error says that was raised while the hub was asked."""
    if isinstance(error, GatedRepoError):
        return Access.GATED
    if isinstance(error, RevisionNotFoundError):
        return Access.REVISION
    if isinstance(error, RepositoryNotFoundError):
        return Access.MISSING
    if not isinstance(error, HfHubHTTPError):
        return Access.UNREACHABLE
    return Access.TOKEN if error.response.status_code == 401 else Access.REFUSED


def looks_like_path(name: str) -> bool:
    """Whether a model or data name means a local path and not `owner/name` on the hub."""
    return name.startswith((".", "/", "~")) or name.count("/") != 1 or Path(name).exists()


def model_folder(name: str, revision: str | None) -> Path:
    """The folder with a model's files; one on the hub is downloaded first, as far as it is not cached.

    revision: a branch, tag or commit of a hub name; None for the newest. Raises InvalidInput when there is no
    such folder, or when the hub does not give it.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if looks_like_path(name):
        raise InvalidInput(
            f"model folder {name} does not exist; "
            "give a folder with config.json or a hub name like owner/model"
        )
    info = _asked("model", name, revision)
    if info is None:
        return _cached_folder(name, revision)
    if sys.stderr.isatty():
        enable_progress_bars()  # transformers' are off, so that a run shows one bar; this may take hours
    try:
        wanted = needed_files(file.rfilename for file in info.siblings or ())
        return Path(snapshot_download(name, revision=info.sha, allow_patterns=wanted))
    except Exception as error:  # whatever the HTTP library in use raises where a connection breaks
        raise InvalidInput(
            f"model {name} cannot be downloaded: {_refusal(error, name, revision)}; "
            "files that have arrived are kept: the same command goes on with the others"
        ) from error
    finally:
        disable_progress_bars()


def needed_files(files: Iterable[str]) -> list[str]:
    """Of a repository's files those that loading a model takes."""
    here = [file for file in files if "/" not in file]
    return weight_files(here) + [file for file in here if any(fnmatch(file, one) for one in _SMALL)]


def weight_files(files: Iterable[str]) -> list[str]:
    """Of a repository's files those of weights that are read: pickles only where it has no others."""
    here = [file for file in files if "/" not in file]
    kinds = ([file for file in here if any(fnmatch(file, one) for one in kind)] for kind in _WEIGHTS)
    return next((kind for kind in kinds if kind), [])


def commit_of(folder: Path) -> str | None:
    """The commit of the hub that a folder is a copy of; None for a folder outside of the hub's cache."""
    is_copy = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if is_copy else None


def is_offline(kind: str, name: str, revision: str | None) -> bool:
    """Whether `name` must come from the local cache because the hub cannot be asked; False when it can.

    kind: "model" or "dataset". Raises InvalidInput, naming the ways out, when the hub cannot be asked and
    nothing is cached, or when the hub refuses the name.
    """
    return _asked(kind, name, revision) is None


def _asked(kind: str, name: str, revision: str | None) -> Any | None:
    """What the hub says about a name, None where only the cache can be asked. Raises as `is_offline`."""
    option = "dataset.path=FILE.jsonl" if kind == "dataset" else "pair.target=FOLDER pair.draft=FOLDER"
    at = f"{kind} {name}" + (f" at revision {revision}" if revision else "")
    ways = f"ways out: connect to the hub, set HF_HOME to a filled cache, or give a local path ({option})"
    if not constants.HF_HUB_OFFLINE:
        try:
            return HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=PROBE_SECONDS)
        except Exception as error:  # whatever the HTTP library in use raises without a network
            if access_of(error) != Access.UNREACHABLE:
                why = _refusal(error, name, revision)
                raise InvalidInput(f"{at}: the hub refuses it: {why}; {ways}") from error
            cause = first_line(error)
    else:
        cause = "HF_HUB_OFFLINE is set"
    if not _is_cached(kind, name):
        raise InvalidInput(f"{at} is not cached and the hub cannot be reached ({cause}); {ways}")
    return None


def _refusal(error: Exception, name: str, revision: str | None) -> str:
    """Why the hub does not give something, and what to do about it."""
    known = {
        Access.GATED: f"it is gated; ask for access at {constants.ENDPOINT}/{name} and {LOG_IN}",
        Access.REVISION: f"it has no revision {revision}; null takes the newest",
        Access.MISSING: f"there is no such repository, or it is private; check the name, or {LOG_IN}",
        Access.TOKEN: f"the token is not valid; {LOG_IN} to another",
    }
    return known.get(access_of(error)) or first_line(error)


def _cached_folder(name: str, revision: str | None) -> Path:
    """The cached copy of a model. Raises InvalidInput when this revision's configuration is not in it."""
    config = try_to_load_from_cache(name, "config.json", constants.HF_HUB_CACHE, revision)
    if not isinstance(config, str):
        at = f"at revision {revision}" if revision else "with a config.json"
        raise InvalidInput(f"model {name} is not cached {at}, and the hub cannot be asked")
    return Path(config).parent


def _is_cached(kind: str, name: str) -> bool:
    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        repos = frozenset()
    return any(repo.repo_type == kind and repo.repo_id == name for repo in repos) or (
        kind == "dataset" and datasets_cache(name).is_dir()
    )


def datasets_cache(name: str) -> Path:
    """Where the datasets library keeps its prepared copy of a repository."""
    home = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
    return home / name.replace("/", "___").lower()
