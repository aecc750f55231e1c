"""Repositories on a hub: may we read them, is there a copy here, and how large is what they hold.

Every question has a short limit of time and all are asked at once, so that a machine without a network is
told so within seconds. Of a model only config.json is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, file_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from experiments.doctor import sizes
from experiments.doctor.sizes import Size
from resispec.errors import first_line
from resispec.hub import PROBE_SECONDS, Access, access_of, datasets_cache, weight_files

DEADLINE_S = 15.0
"""For all answers together."""
REACHED = set(Access) - {Access.UNREACHABLE, Access.OFFLINE}
"""What only a hub that answers can say."""


@dataclass(frozen=True)
class Wanted:
    """A repository, or a local place instead. kind: "model" or "dataset".

    folder: of a data set, that of the files which are read; "" for all.
    """

    kind: str
    name: str
    revision: str | None = None
    folder: str = ""


@dataclass(frozen=True)
class Repository:
    """What is known of one.

    copy: the folder here that holds all of it, None without one. size: of a model, None where nothing says
    it. said: more about its access, or what is wrong with the copy. num_bytes: to download, 0 where unknown.
    """

    wanted: Wanted
    access: Access
    copy: Path | None = None
    size: Size | None = None
    said: str = ""
    num_bytes: int = 0

    @property
    def is_local(self) -> bool:
        """Whether a file or a folder was named, and no repository of a hub."""
        return Path(self.wanted.name).expanduser().exists()

    @property
    def is_usable(self) -> bool:
        """Whether it can be read, here or from the hub."""
        return self.copy is not None or self.access == Access.OPEN


def look_at(wanted: Collection[Wanted], deadline_s: float = DEADLINE_S) -> dict[Wanted, Repository]:
    """What is known of each, all asked at once; one that did not answer in time is unreachable."""
    found: dict[Wanted, Repository] = {}

    def ask(one: Wanted) -> None:
        found[one] = _look_at(one)

    # No pool of threads, since Python would wait for those that hang before it ends.
    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in dict.fromkeys(wanted)]
    deadline = time.monotonic() + deadline_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {deadline_s:g} s"
    done = dict(found)  # a late thread may still add to the other one
    return {
        one: done.get(one) or _without_hub(one, Access.UNREACHABLE, late) for one in dict.fromkeys(wanted)
    }


def _look_at(wanted: Wanted) -> Repository:
    place = Path(wanted.name).expanduser()
    if place.exists():
        return _of_copy(wanted, place, Access.OPEN)
    if constants.HF_HUB_OFFLINE:
        return _without_hub(wanted, Access.OFFLINE)
    try:
        return _asked(wanted)
    except Exception as error:  # noqa: BLE001 - whatever the HTTP library in use raises without a network
        return _without_hub(wanted, access_of(error), first_line(error))


def _asked(wanted: Wanted) -> Repository:
    """What the hub says; raises whatever it refuses with."""
    api = HfApi()
    about = {"revision": wanted.revision, "timeout": PROBE_SECONDS, "files_metadata": True}
    info: Any = (api.model_info if wanted.kind == "model" else api.dataset_info)(wanted.name, **about)
    files = {one.rfilename: one.size or 0 for one in info.siblings or ()}
    if wanted.kind == "dataset":
        copy = cached(wanted)
        read = [size for name, size in files.items() if name.startswith(wanted.folder)] or files.values()
        return Repository(wanted, Access.OPEN, copy, num_bytes=0 if copy else sum(read))
    # Not by way of the cache, which would look as if the model were there.
    address = hf_hub_url(wanted.name, "config.json", revision=wanted.revision, endpoint=api.endpoint)
    answer = get_session().get(
        address, headers=build_hf_headers(), timeout=PROBE_SECONDS, follow_redirects=True
    )
    hf_raise_for_status(answer)
    config = answer.json()
    kept = _without_hub(wanted, Access.OPEN)
    if kept.copy:  # what is missing of a copy is downloaded
        return kept
    weights = weight_files(files)
    is_counted = bool(info.safetensors and weights and weights[0].endswith(".safetensors"))
    counted = info.safetensors.total if is_counted else 0
    num_bytes = sum(files[name] for name in weights)
    try:
        size = sizes.of_config(config, counted, num_bytes, "as the hub says")
    except (LookupError, TypeError, ValueError) as error:
        said = f"its config.json gives no size ({first_line(error)})"
        return Repository(wanted, Access.OPEN, None, None, said, num_bytes)
    return Repository(wanted, Access.OPEN, None, size, "", num_bytes)


def _without_hub(wanted: Wanted, access: Access, said: str = "") -> Repository:
    """What a copy here says, or else what is known of the model's shape."""
    copy = cached(wanted)
    if copy is not None:
        return _of_copy(wanted, copy, access)
    known = sizes.KNOWN.get(wanted.name) if wanted.kind == "model" else None
    size = sizes.of_shape(known, "by its known shape") if known else None
    return Repository(wanted, access, None, size, said)


def _of_copy(wanted: Wanted, folder: Path, access: Access) -> Repository:
    if wanted.kind == "dataset":
        return Repository(wanted, access, folder)
    try:
        return Repository(wanted, access, folder, sizes.of_folder(folder, "by the copy here"))
    except (OSError, LookupError, TypeError, ValueError) as error:
        said = f"the copy here is not complete: {first_line(error)}"
        return Repository(wanted, access, None, None, said)


def cached(wanted: Wanted) -> Path | None:
    """The folder of the hub's cache that holds a repository at its revision; None without one."""
    if wanted.kind == "dataset":
        own = Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(
            repo_id=wanted.name, repo_type="dataset"
        )
        places = (datasets_cache(wanted.name), own / "snapshots")
        return next((path for path in places if path.is_dir()), None)
    try:
        found = try_to_load_from_cache(wanted.name, "config.json", revision=wanted.revision)
    except ValueError:  # no name of a repository
        return None
    return Path(found).parent if isinstance(found, str) else None
