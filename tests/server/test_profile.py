"""GET /v1/profile: a table or a trace of hyper's steps, and a refusal in words everywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema_rs import Draft202012Validator

from mtplx.batching.state import SchedulerMode
from mtplx.telemetry.stages import StepRecorder
from tests.fakes import FakeDraftingRunner
from tests.live import DRAFTING_MODES, LiveServer, live_server
from tests.server.asgi import ask, error_of
from tests.server.fakes import FakeStreams, engine_status, fake_server
from tests.unit.test_stages import checked_events

WORKER_STAGES = ["plan", "draft", "forward", "sample", "commit"]


def generate(server: LiveServer, num_tokens: int) -> None:
    server.post("/v1/completions", prompt="x" * 40, temperature=0, max_tokens=num_tokens, ignore_eos=True)


def test_a_hyper_server_tells_where_its_time_went(tmp_path: Path) -> None:
    runner = FakeDraftingRunner(0.6)
    with live_server(tmp_path, runner, "hyper", draft_depth=3) as server:
        generate(server, 30)
        page, status = server.client.get("/v1/profile").json(), server.status()
        described = server.client.get("/openapi.json").json()
    assert page["num_steps"] == page["last_step"] == status["num_steps"] == len(runner.plans)
    assert (page["model"], page["num_dropped"]) == ("fake-model", 0)
    assert page["num_draft_tokens"] == status["drafts"]["num_draft_tokens"] > 0
    assert page["num_accepted_tokens"] == status["drafts"]["num_accepted_tokens"] > 0
    assert page["num_decode_tokens"] == 29, "the first comes with the prompt's last chunk"
    assert page["tokens_per_step"] == 29 / page["num_decode_steps"] > 1
    rows = {row["stage"]: row for row in page["stages"]}
    assert list(rows) == [*WORKER_STAGES, "hand_over", "detokenise"]
    assert sum(rows[stage]["share"] for stage in WORKER_STAGES) == pytest.approx(1)
    assert sum(rows[stage]["total_ms"] for stage in WORKER_STAGES) == pytest.approx(page["steps_ms"])
    sizes = {plan.num_tokens for plan in runner.plans}
    assert [row["num_tokens"] for row in page["forward_by_tokens"]] == sorted(sizes)
    schema = described["paths"]["/v1/profile"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": described["components"]}).validate(page)


def test_what_came_before_can_be_left_out_and_a_trace_be_had(tmp_path: Path) -> None:
    with live_server(tmp_path, FakeDraftingRunner(1.0), "hyper", draft_depth=3) as server:
        generate(server, 30)
        first = server.client.get("/v1/profile").json()
        generate(server, 9)
        parameters = {"after_step": first["last_step"]}
        second = server.client.get("/v1/profile", params=parameters).json()
        trace = server.client.get("/v1/profile", params={**parameters, "format": "trace"}).json()
    assert second["last_step"] == first["last_step"] + second["num_steps"]
    assert second["num_decode_tokens"] == 8
    steps = [event for event in checked_events(trace) if event.get("cat") == "step"]
    assert [event["args"]["number"] for event in steps] == list(range(first["last_step"] + 1, second["last_step"] + 1))
    assert sum(event["args"]["emitted"] for event in steps) == 9


@pytest.mark.parametrize("mode", [*(mode for mode in DRAFTING_MODES if mode != "hyper"), "ar_batch"])
@pytest.mark.parametrize("form", ["table", "trace"])
def test_other_modes_refuse_in_words(tmp_path: Path, mode: str, form: str) -> None:
    server = fake_server(tmp_path, FakeStreams(engine=engine_status(scheduler_mode=SchedulerMode(mode))))
    response = ask(server, "GET", "/v1/profile", params={"format": form})
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "hyper_only"
    assert f"this server runs {mode}" in error["message"]
    assert "--scheduler-mode hyper" in error["message"]


@pytest.mark.parametrize("mode", [mode for mode in DRAFTING_MODES if mode != "hyper"])
def test_other_modes_record_nothing(tmp_path: Path, mode: str) -> None:
    with live_server(tmp_path, FakeDraftingRunner(), mode, draft_depth=2) as server:
        generate(server, 5)
        assert server.client.get("/v1/profile").json()["error"]["code"] == "hyper_only"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [({"after_step": "-1"}, "after_step"), ({"after_step": "x"}, "after_step"), ({"format": "chrome"}, "format")],
)
def test_wrong_parameters_are_refused_by_name(tmp_path: Path, parameters: dict[str, str], param: str) -> None:
    server = fake_server(tmp_path, recorder=StepRecorder())
    response = ask(server, "GET", "/v1/profile", params=parameters)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_before_the_first_step_the_table_is_empty(tmp_path: Path) -> None:
    server = fake_server(tmp_path, recorder=StepRecorder())
    page = ask(server, "GET", "/v1/profile").json()
    assert (page["num_steps"], page["tokens_per_step"], page["stages"]) == (0, None, [])
    assert ask(server, "HEAD", "/v1/profile").status_code == 200


def test_a_key_is_needed_where_there_are_keys(tmp_path: Path) -> None:
    server = fake_server(tmp_path, recorder=StepRecorder(), api_keys=("k",))
    assert ask(server, "GET", "/v1/profile").status_code == 401
