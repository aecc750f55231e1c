"""Drafters fill a tree: with nothing, from a draft model, or from the target's features."""

from resispec.drafters.base import Drafter, DraftSession
from resispec.drafters.draft_model import DraftModel
from resispec.drafters.eagle import Eagle, Reading
from resispec.drafters.eagle_trees import DynamicTree
from resispec.drafters.no_draft import NoDraft

__all__ = ["DraftModel", "DraftSession", "Drafter", "DynamicTree", "Eagle", "NoDraft", "Reading"]
