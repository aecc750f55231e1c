"""Loaders of the embedded pairs and data sets; naming one does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from resispec.data import JsonlDataset, Prompt
from resispec.embedded import committed
from resispec.embedded.shapes import INFLATING_VERSION, find_shape
from resispec.errors import InvalidInput
from resispec.kept import check_expected, entry, make_key
from resispec.loaders import of_eagle

if TYPE_CHECKING:
    from resispec.models import Pair

NAMES = ("embedded_reference", "embedded_docstrings", "embedded_code")
"""Data sets by name."""
DRAFTS: Mapping[str, Sequence[str]] = {"2m": ("80k",), "800k": ("420k", "180k", "80k")}
"""Targets by name, which tells their number of parameters -> the drafts that each has taught."""
EAGLES: Mapping[tuple[str, int | None], str] = {
    ("2m", None): "eagle_2m",
    ("2m", 1024): "eagle3_2m_1024",
}
"""Target, and size of an EAGLE-3 drafter's own vocabulary or None for EAGLE -> the folder."""
TEXTS = "texts"
"""The folder of the documents."""
_KIND = "embedded models"


def model_names(target: str, draft: str | None = None) -> list[str]:
    """The folders of a target and, if one is named, of a draft that it has taught.

    Raises InvalidInput for other names.
    """
    drafts = entry("embedded target", target, DRAFTS)
    names = [f"target_{target}"]
    if draft is not None:
        if draft not in drafts:
            raise InvalidInput(
                f"unknown embedded draft {draft!r} of target {target}; allowed: {', '.join(drafts)}"
            )
        names.append(f"draft_{target}_{draft}")
    return names


def eagle_name(target: str, num_draftable: int | None = None) -> str:
    """The folder of a target's EAGLE drafter, or of its EAGLE-3 drafter of so many tokens.

    Raises InvalidInput for one that does not exist.
    """
    if (target, num_draftable) not in EAGLES:
        kinds = [f"{one} (num_draftable={count})" for one, count in EAGLES]
        raise InvalidInput(
            f"unknown embedded EAGLE drafter {target} (num_draftable={num_draftable}); allowed: "
            f"{', '.join(kinds)}"
        )
    return EAGLES[target, num_draftable]


def pair_fingerprint(target: str, draft: str | None) -> str:
    """The keys of the models of a pair."""
    return "-".join(committed.key(name) for name in model_names(target, draft))


def eagle_fingerprint(target: str, num_draftable: int | None = None) -> str:
    """The key of an EAGLE drafter, which depends on its target's."""
    return committed.key(eagle_name(target, num_draftable))


def text_fingerprint() -> str:
    """The key of the texts."""
    return committed.key(TEXTS)


def inflated_fingerprint(shape: str, target: str, draft: str) -> str:
    """16 hexadecimal digits of all that an inflated pair depends on, the small pair included."""
    recipe = (find_shape(shape), INFLATING_VERSION)
    return make_key(recipe, {"pair": pair_fingerprint(target, draft).encode()})


def load_pair(
    target: str = "2m",
    draft: str | None = "80k",
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """A target and a draft that it has taught, see DRAFTS, or no draft.

    device, dtype: as for `resispec.models.load_pair`. fingerprint: that of the expected pair, None
    for any. Raises InvalidInput for an unknown name, for damaged files, and when another pair than
    this one is expected.
    """
    from resispec.models import load_pair as load_models

    check_expected(_KIND, fingerprint, pair_fingerprint(target, draft))
    folders = [str(committed.folder(name)) for name in model_names(target, draft)]
    return load_models(folders[0], folders[1] if draft else None, device=device, dtype=dtype)


@of_eagle
def load_eagle_pair(
    target: str = "2m",
    num_draftable: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """A target with an EAGLE drafter of its own, see EAGLES; otherwise as `load_pair`."""
    from resispec.models import load_eagle_pair as load_models

    drafter = eagle_name(target, num_draftable)
    check_expected(_KIND, fingerprint, committed.key(drafter))
    folders = [str(committed.folder(name)) for name in (*model_names(target), drafter)]
    return load_models(folders[0], folders[1], device=device, dtype=dtype)


def load_inflated_pair(
    shape: str = "llama2_7b__jf68m",
    target: str = "2m",
    draft: str = "80k",
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """An embedded pair with its own laws and the cost of one in `PAIR_SHAPES`; else as `load_pair`.

    The pair is made in memory each time, on `device` and in the precision `dtype`, by
    `resispec.models.inflate`. Raises InvalidInput as `load_pair`, for an unknown shape, and for a
    shape that cannot hold the models.
    """
    from resispec.models.inflate import inflate_pair

    sizes = find_shape(shape)
    check_expected(_KIND, fingerprint, inflated_fingerprint(shape, target, draft))
    small = load_pair(target, draft)  # in float32, so that every number is rounded once
    return inflate_pair(small, asdict(sizes.target), asdict(sizes.draft), device, dtype)


@dataclass(frozen=True)
class EmbeddedDataset:
    """Documents of one kind that nothing was trained on, in a fixed order.

    name: one of NAMES. path: a local .jsonl file that replaces the documents. fingerprint: the
    expected key of the texts; None allows any. Raises InvalidInput for an unknown name.
    """

    name: str
    path: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        entry("data set", self.name, dict.fromkeys(NAMES))

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` prompts.

        Raises InvalidInput when other texts are expected, and as `JsonlDataset` does.
        """
        if self.path is not None:
            return JsonlDataset(self.path).prompts(count)
        check_expected(f"prompts of {self.name}", self.fingerprint, text_fingerprint())
        return JsonlDataset(str(committed.folder(TEXTS) / f"{self.name}.jsonl")).prompts(count)

    def check(self, count: int, _template: str | None = None) -> None:
        """Raise InvalidInput as `prompts` does."""
        self.prompts(count)
