"""The EAGLE drafter (arXiv 2401.15077, 2406.16858): one Llama layer predicts the next feature.

A feature is the target's hidden state after its final norm. Row t pairs feature f_t with the next
token x_{t+1}, has position t, and predicts f_{t+1}; the target's own head turns that into the law
of x_{t+2}.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from resispec.models.kv_cache import KeyValues, Mask, cache_argument
from resispec.models.linear import described, products_in, quicken_again
from resispec.models.module_state import ModuleState

CACHE = cache_argument(LlamaDecoderLayer.forward)
"""The name by which a Llama layer and its attention take a cache."""


class EagleModule(nn.Module):
    """The drafter's network: fc(embedding, feature), then a Llama layer; no first or final norm.

    Parameters have their published names.
    """

    taps, num_draftable, head = (), None, None

    def __init__(self, config: LlamaConfig, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        layer: Any = LlamaDecoderLayer(config, layer_idx=0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, **attention: Any
    ) -> Tensor:
        """Predicted features (..., K, H).

        tokens, positions: (..., K) int64; features: (..., K, H), the feature before each token.
        attention: the layer's mask and cache; without a mask every row sees itself and all rows
        before it.
        """
        hidden = self.fc(torch.cat((self.embed_tokens(tokens), features), -1))
        return self.layers[0](
            hidden, position_embeddings=self.rotary_emb(hidden, positions), **attention
        )


class EagleSession:
    """One sequence in an EAGLE drafter: committed rows of true features, then the rows of a step.

    It is like the `Session` of a model, but every row also takes the feature before its token.
    """

    def __init__(self, module: Any, capacity: int, drafted: int) -> None:
        self._module, self._dtype = module, module.fc.weight.dtype
        self.device = module.fc.weight.device
        self._rows = KeyValues(1, capacity, drafted, self.device)
        self.clear = self._rows.clear

    @torch.inference_mode()
    def extend(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Commit rows of tokens (K,) int64 and true features (K, H); each sees all rows before it.

        Returns predicted features (K, H).
        """
        return self._forward(tokens, features, *self._rows.extend(len(tokens)))

    @torch.inference_mode()
    def forward(self, tokens: Tensor, features: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """Append K rows to the current step and return their predicted features (K, H).

        tokens, depths, visible: as for `Session.forward`. features: (K, H).
        """
        return self._forward(tokens, features, *self._rows.draft(depths, visible))

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        options = {"attention_mask": mask, CACHE: self._rows.cache, "use_cache": True}
        return self._module(tokens[None], features[None].to(self._dtype), positions, **options)[0]


class EagleModel:
    """An EAGLE drafter, ready to draft.

    module: an `EagleModule` or an `Eagle3Module`. commit: the hub's commit, None for one from
    elsewhere. taps: the target's layers whose inputs are features. head: a function from predicted
    features (K, H) to logits (K, V); None if the target's head is used. num_draftable: how many
    tokens can be drafted.
    """

    def __init__(self, module: Any, commit: str | None = None) -> None:
        self.module, self.commit = module.eval(), commit
        self.taps: tuple[int, ...] = module.taps
        self.head: Callable[[Tensor], Tensor] | None = module.head
        self.vocab_size: int = module.config.vocab_size
        self.num_draftable: int = module.num_draftable or self.vocab_size
        self.context: int = module.config.max_position_embeddings
        self.device: torch.device = module.fc.weight.device
        self._state = ModuleState(module)

    def state(self) -> ModuleState:
        """The module's state, see `TransformersModel.state`; changed weights are packed anew."""
        state = ModuleState(self.module)
        if state != self._state:
            with torch.inference_mode(False), torch.no_grad():
                quicken_again(self.module)
            self._state = ModuleState(self.module)
        return self._state

    def ways(self) -> dict[str, Any]:
        """See `TransformersModel.ways`."""
        products = described(products_in(self.module))
        return {"forward": "modules of transformers", "linear": products}

    def session(self, capacity: int, drafted: int = 0) -> EagleSession:
        """Start an empty sequence for `capacity` committed rows and `drafted` rows of a step."""
        return EagleSession(self.module, capacity, drafted)


def build_drafter(kind: Callable[..., Any], config: Any, *arguments: Any, seed: int = 0) -> Any:
    """A freshly initialised drafter in float32: `kind(config, *arguments)`.

    kind: `EagleModule` or `Eagle3Module`. config: a `LlamaConfig`; its attention is set to sdpa.
    The caller's random state stays as it was.
    """
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return kind(config, *arguments)
