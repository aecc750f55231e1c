"""The joint optimum: the most tokens that any exact verifier of a small tree can accept.

worlds: p and q after every sequence of a few tokens. account: a verifier in a world, enumerated. program: the
linear program, of which every exact verifier is a point.
"""

from resispec.audit.joint.account import Account, account
from resispec.audit.joint.program import JointProgram, Optimum
from resispec.audit.joint.worlds import World, mixtures, random_world

__all__ = ["Account", "JointProgram", "Optimum", "World", "account", "mixtures", "random_world"]
