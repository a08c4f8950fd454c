"""What endpoints ask of a request before they do anything for it."""

from __future__ import annotations

from mtplx.batching.state import SchedulerMode
from mtplx.errors import ModelNotFoundError, RequestError
from mtplx.server.context import ServerContext
from mtplx.server.error_bodies import MAX_ECHOED_CHARACTERS
from mtplx.server.protocol.strict import UNSUPPORTED


def check_model_name(name: str, context: ServerContext) -> None:
    """Raises ModelNotFoundError for any name but the served one."""
    if name != context.model_name:
        shown = name[:MAX_ECHOED_CHARACTERS]
        raise ModelNotFoundError(f"the model {shown!r} does not exist; this server has {context.model_name!r}", "model")


def check_cohort(cohort: str | None, context: ServerContext) -> None:
    """Raises RequestError where the mode has no cohorts, so that the field would be without effect."""
    mode = context.streams.status().scheduler_mode
    if cohort is not None and mode is not SchedulerMode.MTP_COHORT_EXPERIMENTAL:
        raise RequestError(
            f"this server runs {mode}, and only {SchedulerMode.MTP_COHORT_EXPERIMENTAL} has cohorts",
            "cohort",
            UNSUPPORTED,
        )
