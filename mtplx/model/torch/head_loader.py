"""Finds a head for a loaded model, in a head file or in the model's own checkpoint, and says why there is none."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtplx.errors import ModelError
from mtplx.model.families import FAMILIES
from mtplx.model.head_file import HeadFile
from mtplx.model.mtp import find_mtp_weights
from mtplx.model.spec import HeadInfo, ModelSpec
from mtplx.model.torch.definition import load_mtp_model
from mtplx.model.torch.head import DraftModules, TorchHead
from mtplx.model.torch.head_modules import FileModules, MtpModules
from mtplx.model.torch.output import OutputHead
from mtplx.model.torch.paged import PagedCache

log = logging.getLogger(__name__)


def load_modules(model: Any, folder: Path, spec: ModelSpec, head: HeadFile | None) -> DraftModules | None:
    """Returns the networks of the head file, else those of the checkpoint's own; None if there are none.

    Raises:
        ModelError: the file isn't for this model, or the checkpoint's own weights aren't whole.
    """
    if head is not None:
        if FAMILIES[spec.architecture].has_experts:
            raise ModelError(f"head files are for dense models, {spec.architecture} has experts; use --draft-head none")
        return FileModules(head, model)
    found = find_mtp_weights(folder, spec)
    if found.why_none is not None:
        log.warning("%s: %s; it serves without a draft head", folder, found.why_none)
    return MtpModules(load_mtp_model(model, folder, spec)) if found.num_modules else None


def make_head(modules: DraftModules, head: HeadFile | None, model: Any, cache: PagedCache) -> TorchHead:
    """Returns the head that drafts with `modules`, over the draft vocabulary if the file has one."""
    output = OutputHead.of(model)
    if head is None or head.draft_vocab is None:
        return TorchHead(modules, output, cache, model.dtype)
    ids_W = head.draft_vocab.astype(np.int64)
    return TorchHead(modules, output.rows(torch.from_numpy(ids_W).to(model.device)), cache, model.dtype, ids_W)


def head_info(modules: DraftModules, head: HeadFile | None, spec: ModelSpec) -> HeadInfo:
    """What the status says of the head."""
    if head is not None:
        return head.info
    return HeadInfo("the checkpoint's own", modules.num_modules, spec.vocab_size)
