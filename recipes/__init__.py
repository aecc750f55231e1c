"""How the models that resispec measures came about: what trains and converts them.

embedded: the models and texts that come with the package. smollm2: a published chat model and its
drafters. train_eagle, inflate: commands for models of one's own. training: what they share. No
other room imports this one; configurations name its loaders.
"""

from resispec.errors import guard_imports

guard_imports(__name__)
