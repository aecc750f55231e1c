"""Names on the Hugging Face hub: is one reachable, is it cached, and what to do when it is neither.

Libraries retry an unreachable hub for half a minute; a probe with a short time limit comes first, so that a
missing network is one clear line within seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import HfApi, constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound, HfHubHTTPError

from resispec.errors import InvalidInput, first_line

PROBE_SECONDS = 5.0


def looks_like_path(name: str) -> bool:
    """Whether a model or data name means a local path and not `owner/name` on the hub."""
    return name.startswith((".", "/", "~")) or name.count("/") != 1 or Path(name).exists()


def is_offline(kind: str, name: str, revision: str | None) -> bool:
    """Whether `name` must come from the local cache because the hub cannot be asked; False when it can.

    kind: "model" or "dataset". Raises InvalidInput, naming the ways out, when the hub cannot be asked and
    nothing is cached, or when the hub refuses the name.
    """
    option = "dataset.path=FILE.jsonl" if kind == "dataset" else "pair.target=FOLDER pair.draft=FOLDER"
    at = f"{kind} {name}" + (f" at revision {revision}" if revision else "")
    ways = f"ways out: connect to the hub, set HF_HOME to a filled cache, or give a local path ({option})"
    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=PROBE_SECONDS)
            return False
        except HfHubHTTPError as error:
            raise InvalidInput(f"{at}: the hub refuses it ({first_line(error)}); {ways}") from error
        except Exception as error:  # noqa: BLE001 - whatever the HTTP library in use raises without a network
            cause = first_line(error)
    else:
        cause = "HF_HUB_OFFLINE is set"
    if not _is_cached(kind, name):
        raise InvalidInput(f"{at} is not cached and the hub cannot be reached ({cause}); {ways}")
    return True


def _is_cached(kind: str, name: str) -> bool:
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        repos = frozenset()
    return any(repo.repo_type == kind and repo.repo_id == name for repo in repos) or (
        kind == "dataset" and _datasets_cache(name).is_dir()
    )


def _datasets_cache(name: str) -> Path:
    """Where the datasets library keeps its prepared copy of a repository."""
    home = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
    return home / name.replace("/", "___").lower()
