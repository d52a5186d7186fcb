"""The layers of a text encoder, computed for the tokens of a batch and not for its padding.

Padding costs what text costs: with lengths as they come, a batch of 8 takes three times as long padded. Here the texts
are one row of tokens, and attention looks at each text by itself. A classifier reads the first token of each text, so
its last layer computes no other token. A layer is ten calls of torch, where transformers has fifteen nested modules:
that saves a single text a seventh of its time.

The embeddings before the layers and the heads after them stay as transformers has them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from inference.engines.accelerate.ragged_attention import Attention, PackedTexts
from inference.engines.accelerate.shortcut import Override


class Parts(NamedTuple):
    """The modules of one layer."""

    attention: Any
    query: nn.Module
    key: nn.Module
    value: nn.Module
    mix: nn.Module
    mix_norm: nn.Module
    widen: nn.Module
    activation: Callable[[torch.Tensor], torch.Tensor]
    narrow: nn.Module
    norm: nn.Module

    def are_plain(self) -> bool:
        """Return True if no module is quantized, adapted or of a kind that is not known here."""
        products = (self.query, self.key, self.value, self.mix, self.widen, self.narrow)
        return all(type(product) is nn.Linear and product.bias is not None for product in products) and all(
            type(norm) is nn.LayerNorm for norm in (self.mix_norm, self.norm)
        )


def _find_bert_layers(model: PreTrainedModel) -> tuple[nn.Module, list[Parts]]:
    def read_parts(layer: nn.Module) -> Parts:
        attention, attended = layer.attention.self, layer.attention.output
        return Parts(
            attention=attention,
            query=attention.query,
            key=attention.key,
            value=attention.value,
            mix=attended.dense,
            mix_norm=attended.LayerNorm,
            widen=layer.intermediate.dense,
            activation=layer.intermediate.intermediate_act_fn,
            narrow=layer.output.dense,
            norm=layer.output.LayerNorm,
        )

    return model.encoder, [read_parts(layer) for layer in model.encoder.layer]


def _find_distilbert_layers(model: PreTrainedModel) -> tuple[nn.Module, list[Parts]]:
    def read_parts(layer: nn.Module) -> Parts:
        attention, ffn = layer.attention, layer.ffn
        return Parts(
            attention=attention,
            query=attention.q_lin,
            key=attention.k_lin,
            value=attention.v_lin,
            mix=attention.out_lin,
            mix_norm=layer.sa_layer_norm,
            widen=ffn.lin1,
            activation=ffn.activation,
            narrow=ffn.lin2,
            norm=layer.output_layer_norm,
        )

    return model.transformer, [read_parts(layer) for layer in model.transformer.layer]


# The types of models whose layers do not depend on positions. Each function returns the module that runs the layers,
# and the parts of the layers.
KINDS: dict[str, Callable[[PreTrainedModel], tuple[nn.Module, list[Parts]]]] = {
    "bert": _find_bert_layers,
    "camembert": _find_bert_layers,
    "distilbert": _find_distilbert_layers,
    "electra": _find_bert_layers,
    "roberta": _find_bert_layers,
    "xlm-roberta": _find_bert_layers,
}


class EncoderLayer:
    """A layer that computes rows of tokens."""

    def __init__(self, parts: Parts, kind: type[Attention] = Attention) -> None:
        self.parts = parts
        self.attention = kind(size=parts.attention.attention_head_size, scale=parts.attention.scaling)

    def compute_all_tokens(self, rows: torch.Tensor, texts: PackedTexts) -> torch.Tensor:
        """Compute all tokens: (tokens, hidden) in and out."""
        parts = self.parts
        query, key, value = (_multiply(part, rows) for part in (parts.query, parts.key, parts.value))
        return self.compute_after_attention(self.attention.attend_all_tokens(texts, query, key, value), rows)

    def compute_first_tokens(self, rows: torch.Tensor, texts: PackedTexts) -> torch.Tensor:
        """Compute the first token of each text: (tokens, hidden) in, (texts, hidden) out."""
        parts, first = self.parts, rows[texts.firsts]
        key, value = _multiply(parts.key, rows), _multiply(parts.value, rows)
        return self.compute_after_attention(
            self.attention.attend_first_tokens(texts, _multiply(parts.query, first), key, value), first
        )

    def compute_after_attention(self, attended: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        parts = self.parts
        mixed = _normalize(parts.mix_norm, _multiply(parts.mix, attended).add_(rows))
        wide = parts.activation(_multiply(parts.widen, mixed))
        return _normalize(parts.norm, _multiply(parts.narrow, wide).add_(mixed))


def _multiply(linear: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """Compute what the module does, packed or not, without the work of torch around a module's call."""
    return linear.forward(rows)


def _normalize(norm: nn.LayerNorm, rows: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class UnpaddedForward:
    """The `forward` of the module that runs the layers."""

    first_only = False  # True if the last layer computes the first token of each text only, as most classifiers read

    def __init__(self, layers: Sequence[EncoderLayer], texts: Callable[..., PackedTexts] = PackedTexts) -> None:
        self.layers, self.texts = layers, texts

    def __call__(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *rest: Any, **options: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Compute the layers: (texts, longest, hidden) in and out, with zeros for padding.

        The states are (texts, 1, hidden) if `first_only`.
        """
        texts = self.texts(hidden_states.shape, None if attention_mask is None else attention_mask[:, 0, 0])
        rows = texts.remove_padding(hidden_states)
        *earlier, last = self.layers
        for layer in earlier:
            rows = layer.compute_all_tokens(rows, texts)
        if self.first_only:
            states = texts.restore_order(last.compute_first_tokens(rows, texts)).unsqueeze(1)
        else:
            states = texts.add_padding(last.compute_all_tokens(rows, texts))
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states)


def make_unpadded_encoder(model: PreTrainedModel) -> Override | None:
    """Return the shortcut that computes the layers of a model here; None for a model whose layers are not known."""
    known = find_layers(model)
    if known is None:
        return None
    runner, parts = known
    if not is_on_gpu(model):
        return Override(runner, "forward", UnpaddedForward([EncoderLayer(layer) for layer in parts]))
    kind = _choose_attention(model, parts[0].attention.attention_head_size)
    texts = functools.partial(PackedTexts, device=model.device, has_groups=kind is Attention)
    return Override(runner, "forward", UnpaddedForward([EncoderLayer(layer, kind) for layer in parts], texts))


def find_layers(model: PreTrainedModel) -> tuple[nn.Module, list[Parts]] | None:
    """Return the module that runs the layers, and the parts of the layers.

    Return None for a model of another kind, or on several devices, or whose layers another library computes. A model
    whose attention is not torch's makes masks of another type, which fail the trial of the shortcut.
    """
    is_spread = len(set(getattr(model, "hf_device_map", {}).values())) > 1
    if model.config.model_type not in KINDS or is_spread:
        return None
    runner, parts = KINDS[model.config.model_type](model.base_model)
    return (runner, parts) if all(layer.are_plain() for layer in parts) else None


def is_on_gpu(model: PreTrainedModel) -> bool:
    """Return True if `model`, which is on one device, computes on a GPU."""
    return bool(model.device.type != "cpu")


def _choose_attention(model: PreTrainedModel, size: int) -> type[Attention]:
    from inference.engines.accelerate import varlen_attention  # it needs what another torch may not have

    return (
        varlen_attention.Varlen if varlen_attention.supports_head_size(model.device, model.dtype, size) else Attention
    )
