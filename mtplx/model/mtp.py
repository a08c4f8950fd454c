"""Which multi-token-prediction weights a checkpoint carries beside its model, told from names and headers alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mtplx.model.checkpoint import read_header, weight_files
from mtplx.model.families import FAMILIES
from mtplx.model.spec import ModelSpec

# How such weights are called where no tested family says otherwise.
_FOREIGN = re.compile(r"^(model\.)?mtp(_layers)?\.")


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """How many modules can be used, in turn; where it is 0 though something is there, `why_none` says why."""

    num_modules: int = 0
    why_none: str | None = None


def find_mtp_weights(folder: Path, spec: ModelSpec) -> MtpWeights:
    """What the checkpoint in `folder` has for drafting. Raises: ModelError, where a weight file can't be read."""
    names = mtp_names(spec)
    is_there = any(names.search(name) for path in weight_files(folder) for name in read_header(path))
    if spec.num_mtp_layers and not is_there:
        return MtpWeights(why_none="config.json names multi-token-prediction layers, but the checkpoint has none")
    if is_there and not spec.num_mtp_layers:
        return MtpWeights(why_none=f"the multi-token-prediction weights of this {spec.architecture} can't be used")
    return MtpWeights(spec.num_mtp_layers)


def mtp_names(spec: ModelSpec) -> re.Pattern[str]:
    """Matches the names of the multi-token-prediction weights that a checkpoint of this model may have.

    DeepSeek-V3 with 61 layers and one module:  model.layers.61.*        Mellum:  mtp.*
    """
    prefix = FAMILIES[spec.architecture].mtp_prefix
    if prefix is None or not spec.num_mtp_layers:
        return _FOREIGN
    layers = range(spec.num_layers, spec.num_layers + spec.num_mtp_layers)
    prefixes = sorted({prefix.format(layer=layer) for layer in layers})
    return re.compile("|".join(f"^{re.escape(one)}" for one in prefixes))
