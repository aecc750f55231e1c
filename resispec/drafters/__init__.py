"""Drafters that fill a tree: with the root alone, by a draft model, or by the target's features."""

from resispec.drafters.base import Drafter, DraftSession, NoDraft
from resispec.drafters.draft_model import DraftModel
from resispec.drafters.eagle import Eagle
from resispec.drafters.eagle_trees import DynamicTree, Reading

__all__ = ["DraftModel", "DraftSession", "Drafter", "DynamicTree", "Eagle", "NoDraft", "Reading"]
