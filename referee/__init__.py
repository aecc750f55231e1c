"""Referee of engines: do the tokens that an engine emits follow the law of its target model?"""

from resispec.errors import guard_imports

guard_imports(__name__)
