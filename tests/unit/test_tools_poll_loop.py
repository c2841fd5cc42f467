"""The poll loop of a tool call, by the numbers of the tools face's table; a scripted line and a clock of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.tools import DEFAULT_POLL_EVERY_MS, DEFAULT_TIMEOUT_MS, TASK_STATES, TERMINAL_STATES, ToolResult
from delegation.tools.descriptor import Dialect
from delegation.tools.poll_loop import Abort, Call
from delegation.tools.results import INVALID, Answer, read_rpc
from tests.support.tool_peers import P1_ENDS, task

Told = dict[str, Any] | Answer
METADATA = ["agent", "taskId", "state", "polls", "ms"]


class Clock:
    """Time passes when somebody sleeps, and while an answer is on its way."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedLine:
    """The answer to the message, then one for each GetTask; the last one for ever."""

    def __init__(self, told: Sequence[Told], clock: Clock, *, dialect: Dialect, answer_s: float) -> None:
        self.dialect = dialect
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self._told, self._clock, self._answer_s = told, clock, answer_s

    def send(self, text: str) -> Answer:
        self.sent.append(text)
        return self._answer(0)

    def get(self, task_id: str) -> Answer:
        self.asked.append(task_id)
        return self._answer(len(self.asked))

    def cancel(self, task_id: str) -> None:
        self.cancelled.append(task_id)

    def _answer(self, position: int) -> Answer:
        self._clock.sleep(self._answer_s)
        told = self._told[min(position, len(self._told) - 1)]
        return told if isinstance(told, Answer) else read_rpc({"result": told}, ())


class Played:
    """One call, and what was said in it."""

    def __init__(
        self,
        *told: Told,
        timeout: float = 300,
        poll: float = 60,
        dialect: Dialect = Dialect.TOOLNEXUS,
        answer_s: float = 0.0,
        strict_seed: bool = False,
        abort: Callable[[ScriptedLine], bool] | None = None,
    ) -> None:
        clock = Clock()
        self.line = ScriptedLine(told, clock, dialect=dialect, answer_s=answer_s)
        call = Call(
            line=self.line,
            agent="Demo Bot",
            timeout_ms=timeout,
            poll_every_ms=poll,
            strict_seed=strict_seed,
            abort=Abort(None if abort is None else lambda: abort(self.line)),
            clock=clock,
            sleep=clock.sleep,
        )
        self.result: ToolResult = call.run("do it")
        self.output = self.result.output
        self.metadata = self.result.metadata


def working(kind: str) -> dict[str, Any]:
    return task(kind, "working")


def finished(kind: str) -> dict[str, Any]:
    end = P1_ENDS[kind]
    assert isinstance(end, dict)
    return end


def failed(text: str) -> Answer:
    return Answer(error=text)


def test_01_defaults() -> None:
    """Five minutes and a second; three states are the end, five are known."""
    assert (DEFAULT_TIMEOUT_MS, DEFAULT_POLL_EVERY_MS) == (300_000, 1000)
    assert {"completed", "failed", "canceled"} == TERMINAL_STATES
    assert {"submitted", "working", "completed", "failed", "canceled"} == TASK_STATES


@pytest.mark.parametrize(
    ("kind", "output"),
    [("echo", "line one\nline two"), ("multi", "part one\npart two"), ("history", "final reply"), ("data", "")],
    ids=["15_joins_text", "16_across_artifacts", "17_history_fallback", "no_text_at_all"],
)
def test_15_16_17_completed(kind: str, output: str) -> None:
    """The texts of all artifacts, each on its line; without any, the agent's last words in the history."""
    played = Played(task(kind, "submitted"), working(kind), finished(kind))
    assert (played.output, played.result.is_error) == (output, False)
    assert (played.metadata["state"], played.metadata["polls"]) == ("completed", 2)


def test_18_the_history_skips_an_agent_message_without_text() -> None:
    """Words are looked for backwards."""
    history = [("agent", "what I found"), ("user", "thanks"), ("agent", "")]
    assert Played(task("x", "completed", history=history)).output == "what I found"


def test_19_an_empty_text_is_a_text() -> None:
    """An artifact that says nothing is what the agent said; the history is not looked at."""
    assert Played(task("x", "completed", artifacts=[[""]], history=[("agent", "words")])).output == ""


@pytest.mark.parametrize(
    ("end", "output"),
    [
        (finished("fail"), "A2A task task-fail failed: boom"),
        (task("fail", "failed", says=["boom", "bang"]), "A2A task task-fail failed: boom\nbang"),
        (finished("cancel"), "A2A task task-cancel canceled"),
        (finished("failed"), "A2A task task-failed failed"),
    ],
    ids=["20_failed_with_detail", "21_multi_part_detail", "22_canceled_no_detail", "failed_no_detail"],
)
def test_20_21_22_ended_otherwise(end: dict[str, Any], output: str) -> None:
    """The state, and the agent's words if there are any; without them no colon."""
    played = Played(end)
    assert (played.output, played.result.is_error) == (output, True)
    assert played.metadata["state"] == end["status"]["state"]


def test_23_timeout() -> None:
    """The configured number is told, the last state, and how long it took."""
    played = Played(task("hang", "submitted"), working("hang"))
    assert (played.output, played.result.is_error) == ("A2A task task-hang timed out after 300ms (state=working)", True)
    assert played.metadata["ms"] >= 300
    assert played.metadata["state"] == "working"


def test_24_an_abort_that_is_always_true() -> None:
    """The message is sent all the same, and nothing is asked after it."""
    played = Played(working("hang"), abort=lambda _: True)
    assert (played.output, played.result.is_error) == ("A2A task task-hang canceled", True)
    assert (played.metadata["state"], played.metadata["polls"]) == ("canceled", 0)
    assert (len(played.line.sent), played.line.asked) == (1, [])


def test_25_an_abort_between_two_polls() -> None:
    """Nothing is asked any more; the agent is told where there is a way."""
    played = Played(working("slow"), abort=lambda line: len(line.asked) == 1, timeout=10_000)
    assert (played.output, played.metadata["state"]) == ("A2A task task-slow canceled", "canceled")
    assert (played.line.asked, played.line.cancelled) == (["task-slow"], ["task-slow"])


def test_26_an_end_that_was_told_beats_an_abort() -> None:
    """What the agent has done is not thrown away."""
    played = Played(finished("echo"), abort=lambda _: True)
    assert (played.output, played.result.is_error) == ("line one\nline two", False)
    later = Played(working("echo"), finished("echo"), abort=lambda line: len(line.asked) == 1)
    assert not later.result.is_error


@pytest.mark.parametrize("at", [0, 1], ids=["SendMessage", "GetTask"])
def test_27_an_abort_while_a_request_fails(at: int) -> None:
    """It is what the caller wanted, whatever became of the request."""
    told: list[Told] = [working("slow")] * at + [failed("HTTP transport timeout")]
    played = Played(*told, abort=lambda line: len(line.sent) + len(line.asked) > at)
    task_id = "task-slow" if at else ""
    assert (played.output, played.metadata["taskId"]) == (f"A2A task {task_id} canceled", task_id)
    assert played.metadata["state"] == "canceled"


@pytest.mark.parametrize(
    ("told", "output", "task_id"),
    [
        ([working("rpc"), failed("agent exploded")], "agent exploded", "task-rpc"),
        ([failed("agent exploded")], "agent exploded", ""),
        ([failed("HTTP 500: oops")], "HTTP 500: oops", ""),
        ([working("http"), failed("HTTP 503: busy")], "HTTP 503: busy", "task-http"),
        ([INVALID], "invalid JSON-RPC response", ""),
    ],
    ids=["28_mid_poll", "29_on_send", "31_http_on_send", "31_http_on_get", "33_no_json"],
)
def test_28_29_31_33_an_error_ends_the_call(told: list[Told], output: str, task_id: str) -> None:
    """No second try; what is known of the task is told."""
    played = Played(*told)
    assert (played.output, played.result.is_error) == (output, True)
    assert (played.metadata["taskId"], played.metadata["polls"]) == (task_id, 0)
    assert played.metadata["state"] == ("working" if task_id else "submitted")


@pytest.mark.parametrize(
    ("error", "output"),
    [
        ({"code": -32601}, "JSON-RPC error -32601"),
        ({"code": -32601, "message": ""}, "JSON-RPC error -32601"),
        ({}, "JSON-RPC error "),
        ({"code": 1, "message": "agent exploded", "data": "secret"}, "agent exploded"),
        ("exploded", "invalid JSON-RPC response"),
    ],
)
def test_30_an_rpc_error_without_message(error: Any, output: str) -> None:
    """Then its code is told; its data never."""
    assert read_rpc({"error": error}, ()).error == output


def test_34_metadata_keys() -> None:
    """Five, on every result; the agent's name as it is on the card."""
    outcomes = [finished("echo"), finished("fail"), finished("cancel"), working("hang"), failed("x"), INVALID]
    results = [Played(told).result for told in outcomes]
    for result in results:
        assert list(result.metadata) == METADATA
        assert result.metadata["agent"] == "Demo Bot"
        assert type(result.metadata["polls"]) is type(result.metadata["ms"]) is int


def test_35_polls() -> None:
    """GetTasks that were answered, and those alone."""
    assert Played(task("echo", "submitted"), working("echo"), finished("echo")).metadata["polls"] == 2
    assert Played(working("rpc"), failed("x")).metadata["polls"] == 0
    assert Played(working("hang"), abort=lambda _: True).metadata["polls"] == 0


def test_36_an_end_at_once() -> None:
    """Nothing is asked about a task that has ended."""
    played = Played(finished("echo"))
    assert (played.metadata["polls"], played.line.asked, len(played.line.sent)) == (0, [], 1)


def test_37_a_late_success_is_one() -> None:
    """The limit is looked at between polls; what has been done by then counts."""
    played = Played(working("echo"), finished("echo"), answer_s=0.2)
    assert (played.output, played.metadata["ms"] > 300) == ("line one\nline two", True)


def test_38_a_request_that_takes_too_long() -> None:
    """It is told as what it is, not as the end of the whole time."""
    played = Played(working("slow"), failed("HTTP transport timeout"), answer_s=0.4, timeout=500)
    assert (played.output, played.metadata["state"]) == ("HTTP transport timeout", "working")


def test_39_input_required_with_strict_seed() -> None:
    """As in the seed, the question is lost in a time-out."""
    told = task("ask", "input-required", says="which one?") | {"id": "t1"}
    played = Played(told, timeout=150, poll=20, strict_seed=True)
    assert played.output == "A2A task t1 timed out after 150ms (state=input-required)"
    assert played.metadata["polls"] >= 1


@pytest.mark.parametrize("state", ["rejected", "auth-required", "unknown", "TASK_STATE_COMPLETED", "cancelled"])
def test_40_states_the_seed_does_not_know(state: str) -> None:
    """With strict_seed the call polls on until its time is up."""
    played = Played(task("odd", state, says="words"), strict_seed=True)
    assert played.output == f"A2A task task-odd timed out after 300ms (state={state})"


@pytest.mark.parametrize("state", ["rejected", "input-required", "auth-required"])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_40_what_only_an_answer_could_end_ends_at_once(state: str, dialect: Dialect) -> None:
    """With the agent's words, in every dialect."""
    spelled = {"role": "agent", "parts": [{"kind": "text", "text": "which one?"}]}
    told = {"id": "t1", "status": {"state": state, "message": spelled}}
    if dialect is Dialect.V1_0:
        name = f"TASK_STATE_{state.upper().replace('-', '_')}"
        told = {
            "id": "t1",
            "status": {"state": name, "message": {"role": "ROLE_AGENT", "parts": [{"text": "which one?"}]}},
        }
    played = Played(working("odd"), told, dialect=dialect)
    assert (played.output, played.result.is_error) == (f"A2A task t1 {state}: which one?", True)
    assert (played.metadata["state"], played.metadata["polls"]) == (state, 1)


@pytest.mark.parametrize("state", ["unknown", "TASK_STATE_COMPLETED", "cancelled"])
def test_40_other_states_are_polled_on(state: str) -> None:
    """In the toolnexus dialect a state is compared as it is."""
    assert Played(task("odd", state)).output.endswith(f"timed out after 300ms (state={state})")


def test_what_an_answer_leaves_out_is_as_before() -> None:
    """An answer without a state or an id does not make the task another."""
    played = Played(working("x"), {"status": {}}, {"id": "", "status": {"state": "failed"}})
    assert (played.output, played.line.asked) == ("A2A task task-x failed", ["task-x", "task-x"])


@pytest.mark.parametrize("dialect", [Dialect.V1_0, Dialect.V0_3])
def test_a_message_is_a_completed_answer(dialect: Dialect) -> None:
    """An agent may answer without a task; its text is the output."""
    bare = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "hello"}]}
    wrapped = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}}
    played = Played(wrapped if dialect is Dialect.V1_0 else bare, dialect=dialect)
    assert (played.output, played.result.is_error) == ("hello", False)
    assert (played.metadata["taskId"], played.metadata["state"], played.metadata["polls"]) == ("", "completed", 0)


def test_what_steers_a_terminal_or_hides_does_not_reach_the_model() -> None:
    """The agent's words keep their lines; what nobody would see is gone."""
    played = Played(task("x", "completed", artifacts=[["one\r\ntwo\x1b[31m\u202e\u200b"]]))
    assert played.output == "one\ntwo\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("given", [lambda: 1 / 0, lambda: True], ids=["raises", "true"])
def test_an_abort_predicate_that_raises_has_given_up(given: Any) -> None:
    """The call must neither raise nor go on unwatched."""
    assert Abort(given)() is True
    assert Abort()() is False


_NAMES = st.sampled_from(
    [
        *("id", "status", "state", "message", "parts", "kind", "text", "role", "artifacts", "history", "task"),
        "messageId",
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["completed", "agent", "failed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=6),
    max_leaves=20,
)


@given(dialect=st.sampled_from(list(Dialect)), results=st.lists(_JSON, min_size=1, max_size=3), error=_JSON)
def test_no_answer_is_an_exception(dialect: Dialect, results: list[Any], error: Any) -> None:
    """Whatever JSON an agent sends, a call ends in a result."""
    told: list[Told] = [read_rpc({"result": result}, ()) for result in results]
    assert list(Played(*told, dialect=dialect).result.metadata) == METADATA
    assert isinstance(Played(read_rpc({"error": error}, ()), dialect=dialect).output, str)


def test_the_id_and_the_state_are_shown_in_a_line_of_their_own() -> None:
    """Cut, without what steers a terminal; GetTask is sent the whole id."""
    task_id = "t\x1b[2J\n</x>" + "A" * 1_000_000
    played = Played({"id": task_id, "status": {"state": "odd\x07" + "b" * 1_000_000}})
    assert played.line.asked[0] == task_id
    assert (len(played.metadata["taskId"]), len(played.metadata["state"])) == (200, 200)
    assert played.metadata["taskId"].startswith("t[2J ‹/x›AAA")
    assert played.metadata["state"].startswith("oddbbb")
    assert len(played.output) < 500


def test_no_secret_is_an_id_or_a_state() -> None:
    """An agent may repeat the headers of the request wherever it likes."""
    clock = Clock()
    told: Told = {"id": "id-s3cret-token", "status": {"state": "s3cret-token"}}
    line = ScriptedLine([told], clock, dialect=Dialect.TOOLNEXUS, answer_s=0)
    secrets = ("s3cret-token",)
    call = Call(line=line, agent="a", timeout_ms=50, poll_every_ms=60, secrets=secrets, clock=clock, sleep=clock.sleep)
    result = call.run("x")
    assert (result.metadata["taskId"], result.metadata["state"]) == ("id-***", "***")
    assert result.output == "A2A task id-*** timed out after 50ms (state=***)"
    assert line.asked == ["id-s3cret-token"]


def test_half_a_secret_is_not_told_either() -> None:
    """Neither where a code is cut, nor where many secrets become short ones before an error text is."""
    secret = "s3cret-" * 20
    assert "s3c" not in str(read_rpc({"error": {"code": f"Bearer {secret}"}}, [secret]).error)
    assert "s3c" not in str(read_rpc({"error": {"message": secret * 60}}, [secret]).error)


def test_a_soft_time_limit_that_meets_an_abort_goes_on() -> None:
    """The predicate of a caller runs in the job that the limit is for."""

    class SoftTimeLimitExceeded(Exception):
        """As Celery's is called."""

    def ask() -> bool:
        raise RuntimeError from SoftTimeLimitExceeded()

    with pytest.raises(SoftTimeLimitExceeded):
        Abort(ask)()
