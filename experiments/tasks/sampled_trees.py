"""Drafted trees and target rollouts after a prefix, with both models' laws at their nodes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from experiments.tasks.base import Workload
from resispec.audit.ceiling import tree_log_ratios
from resispec.core import Draft, Draws, DrawsKind, Tree
from resispec.cuda_graphs import upload
from resispec.decode import Decoder
from resispec.drafters import Drafter, DraftModel, Eagle
from resispec.drafters.levels import inner_nodes
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Model, Pair, Warp, features_of
from resispec.replay import expected_emitted
from resispec.trees import Topology, parallel_chains, root_only, union
from resispec.verifiers.base import Verifier, outcomes_of, verifier_name

INFINITE = 1e6
"""Number that stands for infinity in rows, since JSON has none; real log ratios are far smaller."""
Method = tuple[DraftModel, Verifier]


def compare(
    workload: Workload,
    prefixes: Sequence[list[int]],
    methods: Sequence[Method],
    generator: Generator,
    rollouts: int = 0,
) -> tuple[list[float], list[list[list[float]]], list[list[float]]]:
    """Measure methods after each prefix; methods with the same draws see parts of one drafted tree.

    Draws that cannot be cut have a drafted tree for every topology.

    rollouts: paths of the target after each prefix, as deep as the first method's tree; with 0,
    only the first result is measured.

    Returns

    - for each method, the expected tokens of a step given the drafted trees, summed over prefixes,
    - [method][prefix][level], the largest log prod p / q over the drafted tree's paths to that
      level,
    - [rollout][level], the same along paths of the target.

    Ratios with a zero probability are plus or minus INFINITE.
    """
    emitted, trees, paths = [0.0] * len(methods), [[] for _ in methods], []
    parts = defaultdict[DraftModel, list[int]](list)  # by drafter, and by topology if not cut
    for place, (drafter, _) in enumerate(methods):
        parts[
            replace(drafter, topology=root_only()) if drafter.draws.can_be_cut else drafter
        ].append(place)
    unions = [
        (replace(drafter, topology=union([methods[place][0].topology for place in places])), places)
        for drafter, places in parts.items()
    ]
    for prefix in prefixes:
        root = Root(workload.pair, prefix, workload.sampling.warp)
        for union_drafter, places in unions:
            union_draft = root.draft(union_drafter, generator)
            laws = root.laws(workload.pair.target, union_draft.tree)
            for place in places:
                drafter, verifier = methods[place]
                draft, target_probs = part(union_draft, laws, drafter.topology)
                emitted[place] += expected_emitted(verifier, draft, target_probs)
                if rollouts:
                    trees[place].append(
                        _finite(tree_log_ratios(draft.tree, target_probs, draft.probs))
                    )
        if rollouts:
            chains = parallel_chains(rollouts, methods[0][0].topology.num_levels - 1)
            paths += _finite(root.target_path_ratios(chains, generator))
    return emitted, trees, paths


def filled_by_draft_model(decoder: Decoder) -> DraftModel:
    """A decoder's drafter. Raises InvalidInput unless it is the draft model."""
    if not isinstance(decoder.drafter, DraftModel):
        allowed = "allowed: decoder=specinfer, sequoia, top_k, greedy, spec_hub"
        raise InvalidInput(f"trees are measured where the draft model fills them; {allowed}")
    return decoder.drafter


def drafter_of_own_laws(decoder: Decoder, measured: str) -> DraftModel:
    """A decoder's drafter, for what is measured of siblings from the draft's own laws.

    measured: what that is, for the message. Raises InvalidInput for any other drafter.
    """
    drafter = filled_by_draft_model(decoder)
    if type(drafter) is not DraftModel:  # one that derives from it may draft from other laws
        found = f"found {type(drafter).__name__}, allowed: DraftModel"
        raise InvalidInput(f"{measured} from the draft's own laws; {found}")
    if drafter.recycled or drafter.sharpness != 1:
        allowed = "allowed: recycled=0 and sharpness=1"
        raise InvalidInput(f"{measured} from the draft's own laws; {allowed}")
    return drafter


def plain_drafter(decoder: Decoder, measured: str) -> DraftModel:
    """The drafter of `drafter_of_own_laws`. Raises InvalidInput unless siblings are i.i.d., too."""
    drafter = drafter_of_own_laws(decoder, measured)
    if drafter.draws != Draws.IID:
        found = f"found draws {drafter.draws}, allowed: decoder=specinfer"
        raise InvalidInput(f"{measured} for i.i.d. siblings of the draft's law; {found}")
    return drafter


def has_likeliest(drafter: object) -> bool:
    """Whether siblings are the likeliest tokens, whatever draws the rule is told."""
    return isinstance(drafter, Eagle) and not drafter.reading.is_sampled


def is_misread(drafter: Drafter) -> bool:
    """Whether siblings are the likeliest tokens, and the rule is told that they were drawn."""
    return has_likeliest(drafter) and drafter.draws != Draws.POINT_MASS


@dataclass(frozen=True)
class Root:
    """The end of a prefix, where trees begin: its last token is their root.

    warp: turns logits into laws of the target; `warp.for_draft` does so for the draft, as in
    decoding.
    """

    pair: Pair
    prefix: list[int]
    warp: Warp

    def draft(self, drafter: DraftModel, generator: Generator) -> Draft:
        """Let the pair's draft fill a topology, as decoding does."""
        session = drafter.session(self.pair, self.warp.for_draft, len(self.prefix))
        reads_features = drafter.recycled or isinstance(self.pair.draft, EagleModel)
        known, length = self.prefix[:-1], len(self.prefix)
        features = features_of(self.pair.target, known, length) if reads_features else None
        session.prefill(self.prefix, features)
        return session.draft(self.prefix[-1], generator)

    def laws(self, model: Model, tree: Tree) -> Tensor:
        """A model's laws (N, V) of the next token at nodes with children, uniform at leaves."""
        device, topology = model.device, tree.topology
        nodes = inner_nodes(topology, torch.device("cpu"))
        session = model.session(len(self.prefix), drafted=len(nodes))
        if self.prefix[:-1]:
            session.extend(upload(self.prefix[:-1], device))
        visible = topology.ancestors[nodes][:, nodes].to(device)
        features = session.forward(
            tree.tokens[nodes.to(device)], topology.depths[nodes].to(device), visible
        )
        warp = self.warp if model is self.pair.target else self.warp.for_draft
        inner = warp.law(model.head(features))
        laws = inner.new_full((topology.num_nodes, inner.shape[1]), 1 / inner.shape[1])
        return laws.index_copy_(0, nodes.to(device), inner)

    def target_path_ratios(self, topology: Topology, generator: Generator) -> Tensor:
        """log prod p / q along the target's paths, for `parallel_chains`: (chains, D-1) float64."""
        draft, num_chains = self.pair.draft_model(), len(topology.children[0])
        swapped = Pair(draft, self.pair.target, self.pair.tokenizer)
        session = DraftModel(topology).session(swapped, self.warp, len(self.prefix))
        session.prefill(self.prefix, None)
        paths = session.draft(self.prefix[-1], generator)
        parents, tokens = list(topology.parents[1:]), paths.tree.tokens[1:]
        p, q = (
            rows[parents, tokens].double().log()
            for rows in (paths.probs, self.laws(draft, paths.tree))
        )
        return (p - q).view(-1, num_chains).cumsum(0).T  # a level has a node of every chain


def check_leaves(verifier: Verifier, draws: DrawsKind, topology: Topology) -> None:
    """Raise InvalidInput if what a verifier keeps depends on the target's laws at leaves.

    Trees of `Root` have uniform ones there. It is tried on made-up laws, beside a certain one.
    """
    if topology.num_nodes == 1:
        return
    size, generator = max(map(len, topology.children)) + 1, Generator().manual_seed(0)
    tokens = torch.zeros(topology.num_nodes, dtype=torch.int64)
    for children in topology.children:
        tokens[list(children)] = torch.arange(len(children))
    shape = topology.num_nodes, size
    target, draft = (torch.rand(shape, generator=generator).softmax(-1) for _ in range(2))
    leaves = [number for number, below in enumerate(topology.children) if not below]
    certain = one_hot(torch.tensor(0), size).to(target.dtype)
    stops = []
    for law in (torch.full_like(certain, 1 / size), certain):
        target[leaves] = law
        outcomes = outcomes_of(verifier, Tree(topology, tokens, draws), target.clone(), draft)
        stops.append(outcomes.stop.clone())
    if not torch.allclose(*stops, atol=1e-4):
        raise InvalidInput(
            f"{verifier_name(verifier)} decides by the target's laws at leaves, which are not "
            "measured here; allowed: a verifier that draws its final token from them alone, or "
            "task=decode"
        )


def part(draft: Draft, target_probs: Tensor, topology: Topology) -> tuple[Draft, Tensor]:
    """The part of a drafted tree that has this topology, first siblings first, and its target laws.

    If the draws can be cut, or it is the whole tree, it has the law of a tree that the draft model
    drafts for this topology. target_probs: (N, V), of the whole tree. Raises IndexError when the
    topology does not fit.
    """
    nodes = [0] * topology.num_nodes
    for node, children in enumerate(topology.children):
        for rank, child in enumerate(children):
            nodes[child] = draft.tree.topology.children[nodes[node]][rank]
    tree = Tree(topology, draft.tree.tokens[nodes], draft.tree.draws)
    return Draft(tree, draft.probs[nodes]), target_probs[nodes]


def _finite(log_ratios: Tensor) -> list:
    """Path ratios as numbers for JSON."""
    return log_ratios.clamp(-INFINITE, INFINITE).tolist()
