"""What fills a tree: nothing, or a draft model."""

from resispec.drafters.base import Drafter, DraftSession
from resispec.drafters.draft_model import DraftModel
from resispec.drafters.no_draft import NoDraft

__all__ = ["DraftModel", "DraftSession", "Drafter", "NoDraft"]
