"""The networks of a draft head: transformers' multi-token-prediction layers, or those of a head file.

Letters of shapes: N flat tokens, D hidden.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from mtplx.errors import ModelError
from mtplx.model.head_file import HeadFile
from mtplx.model.head_shapes import DRAFT_VOCAB
from mtplx.model.torch.attention import PagedStep


class MtpModules:
    """The modules of a `MtpModel` of transformers, one cache layer each."""

    def __init__(self, mtp_model: Any) -> None:
        self._mtp_model = mtp_model
        self.num_modules: int = mtp_model.num_mtp_layers
        self.num_layers = self.num_modules
        self.hidden_size: int = mtp_model.config.hidden_size

    def forward(
        self, module: int, token_ids: torch.Tensor, hidden_ND: torch.Tensor, positions: torch.Tensor, step: PagedStep
    ) -> torch.Tensor:
        """See `DraftModules.forward`."""
        out_1ND: torch.Tensor = self._mtp_model.forward_layer(
            module, hidden_ND[None], positions[None], mtp_cache=None, input_ids=token_ids[None], paged=step
        )
        return out_1ND[0]


class FileModules:
    """The one module of a head file beside a dense model, whose embedding and rotary frequencies it shares.

    Its blocks are what the model's last layer is: the same attention, window, norms and activation.
    """

    num_modules = 1

    def __init__(self, head: HeadFile, model: Any) -> None:
        """Raises ModelError where the file's tensors aren't those of the model's layers."""
        self._trunk = model.get_decoder()
        self.num_layers = head.metadata.num_blocks
        self.hidden_size = head.metadata.hidden_size
        config = _block_config(model.config, head)
        is_nested = bool(config.nested_rope_parameter_keys(config.rope_parameters))
        self._rope_kind = {"layer_type": config.layer_types[0]} if is_nested else {}
        with torch.device("meta"):
            network = _FileNetwork(config, self._trunk, self.num_layers)
        self._network = _filled(network, head, model)

    def forward(
        self, module: int, token_ids: torch.Tensor, hidden_ND: torch.Tensor, positions: torch.Tensor, step: PagedStep
    ) -> torch.Tensor:
        """See `DraftModules.forward`."""
        assert module == 0
        embedded_1ND = self._trunk.get_input_embeddings()(token_ids[None])
        rope = self._trunk.rotary_emb(embedded_1ND, positions[None], **self._rope_kind)
        layer_arguments = {"position_ids": positions[None], "position_embeddings": rope, "paged": step}
        out_1ND: torch.Tensor = self._network(embedded_1ND, hidden_ND[None], layer_arguments)
        return out_1ND[0]


class _FileNetwork(nn.Module):
    """Parameters are named as in a head file."""

    def __init__(self, config: Any, trunk: Any, num_blocks: int) -> None:
        super().__init__()
        norm_class, layer_class = type(trunk.norm), type(trunk.layers[-1])
        self.enorm = norm_class(config.hidden_size, eps=config.rms_norm_eps)
        self.hnorm = norm_class(config.hidden_size, eps=config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.blocks = nn.ModuleList(layer_class(config, layer) for layer in range(num_blocks))
        self.norm = norm_class(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, embedded_1ND: torch.Tensor, hidden_1ND: torch.Tensor, layer_arguments: dict[str, Any]
    ) -> torch.Tensor:
        x_1ND = self.eh_proj(torch.cat((self.enorm(embedded_1ND), self.hnorm(hidden_1ND)), dim=-1))
        for block in self.blocks:
            x_1ND = block(x_1ND, attention_mask=None, **layer_arguments)
        out_1ND: torch.Tensor = self.norm(x_1ND)
        return out_1ND


def _block_config(config: Any, head: HeadFile) -> Any:
    """The model's configuration as its layers read it, for blocks that are numbered from 0."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = head.metadata.num_blocks
    config.intermediate_size = head.intermediate_size
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[-1]] * head.metadata.num_blocks
    return config


def _filled(network: _FileNetwork, head: HeadFile, model: Any) -> _FileNetwork:
    """The network with the file's numbers, in the model's number format and on its device."""
    places = network.state_dict()
    names = set(head.shapes) - {DRAFT_VOCAB}
    wrong = sorted(
        (set(places) ^ names) | {name for name in names & set(places) if head.shapes[name] != tuple(places[name].shape)}
    )
    if wrong:
        raise ModelError(
            f"the draft head {head.path} is not for this model: its {wrong[0]} doesn't fit the model's own layers; "
            "choose another, or --draft-head none"
        )
    tensors = {name: torch.from_numpy(head.floats(name)).to(model.device, model.dtype) for name in places}
    network.load_state_dict(tensors, assign=True)
    return network.eval().requires_grad_(False)
