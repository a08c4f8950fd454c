"""What the head's states are compared with: the model's own distribution, over the draft vocabulary.

Legend: N slots, H hidden size, R draft vocabulary, C slots of a piece.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PIECE = 256  # slots whose logits are held at once: they fit a processor's cache, and memory stays bounded
_TEMPERATURE = 0.7  # of both sides: a head is to be right about the likeliest tokens, which greedy answers consist of


def soft_cross_entropy(state_NH: Tensor, target_NH: Tensor, output_RH: Tensor) -> Tensor:
    """Mean over N of the cross-entropy of softmax(W state / T) against softmax(W target / T), in nats; float32.

    `state_NH` is what is trained; `target_NH` and the output head W (`output_RH`, bfloat16 or float32) are constants.
    """
    result: Tensor = _SoftCrossEntropy.apply(state_NH, target_NH, output_RH)  # type: ignore[no-untyped-call]
    return result


class _SoftCrossEntropy(torch.autograd.Function):
    """Works through the slots piece by piece and keeps the gradient alone, never [N, R] logits."""

    @staticmethod
    def forward(ctx: Any, state_NH: Tensor, target_NH: Tensor, output_RH: Tensor) -> Tensor:
        total = torch.zeros(())
        gradient_NH = torch.empty(state_NH.shape)
        states, targets = ((x_NH / _TEMPERATURE).to(output_RH.dtype) for x_NH in (state_NH, target_NH))
        for begin in range(0, len(state_NH), _PIECE):
            piece = slice(begin, begin + _PIECE)
            target_CR = (targets[piece] @ output_RH.T).softmax(-1, dtype=torch.float32)
            found_CR = (states[piece] @ output_RH.T).log_softmax(-1, dtype=torch.float32)
            total -= torch.dot(found_CR.view(-1), target_CR.view(-1))
            error_CR = found_CR.exp_().sub_(target_CR)
            gradient_NH[piece] = error_CR.to(output_RH.dtype) @ output_RH
        ctx.save_for_backward(gradient_NH)
        return total / max(1, len(state_NH))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient_NH,) = ctx.saved_tensors
        return gradient_NH * (gradients[0] / (_TEMPERATURE * max(1, len(gradient_NH)))), None, None
