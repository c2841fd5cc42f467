"""Calls to real agents in other processes, and to servers that misbehave."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from delegation.agent_task import (
    AgentMessage,
    AgentTask,
    AgentTaskId,
    ContextId,
    DataPart,
    OutgoingMessage,
    PushConfig,
    TaskState,
)
from delegation.card_fetch import CARD_PATH
from delegation.cards import CheckedCard, allowed_origins
from delegation.client import AgentClient
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentRefused,
    AgentTaskNotCancelable,
    AgentTaskNotFound,
    AgentUnreachable,
    AnswerTooLarge,
    AuthenticationRefused,
    CallAmbiguous,
    MethodNotOffered,
    PushNotAccepted,
)
from delegation.outbound import GuardedTransport
from delegation.settings import AgentSettings
from tests.support.child import free_port
from tests.support.clients import DEADLINE_S, PATIENCE_S, SdkAgent, client_of, fetch_card, message, sdk_agent_process
from tests.support.raw_server import (
    Behaviour,
    RawServer,
    Seen,
    answers,
    closes,
    drips,
    hangs,
    http,
    refuses,
    resets,
    says,
)

TASK = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
T1 = AgentTaskId("t1")
PUSH = PushConfig(id="push-1", url="http://127.0.0.1:9/a2a/push/x?token=no", token="tok-0123456789abcdef")
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def get(client: AgentClient, deadline_s: float = DEADLINE_S) -> AgentTask:
    return client.get_task(T1, deadline_s=deadline_s)


def send(client: AgentClient, text: str = "hi", *, push: PushConfig | None = None, **fields: Any) -> Any:
    return client.send_message(message(text, **fields), push=push, deadline_s=DEADLINE_S)


def failure(client: AgentClient, deadline_s: float = DEADLINE_S) -> AgentError:
    with pytest.raises(AgentError) as raised:
        get(client, deadline_s)
    return raised.value


# --- An agent on the official SDK, both bindings ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["JSONRPC", "HTTP+JSON"])
def sdk_agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkAgent]:
    with sdk_agent_process(request.param, tmp_path_factory.mktemp("sdk") / "agent.log") as agent:
        yield agent


def test_a_card_of_the_sdk_is_accepted(sdk_agent: SdkAgent) -> None:
    """Fetched with A2A-Version on this first request too."""
    assert (sdk_agent.card.name, sdk_agent.card.version) == ("sdk agent", "1.2.3")
    assert sdk_agent.card.can_push
    request = next(entry for entry in sdk_agent.seen() if entry["path"] == CARD_PATH)
    assert request["headers"]["a2a-version"] == "1.0"


def test_a_message_becomes_a_task_that_can_be_followed_to_its_end(sdk_agent: SdkAgent) -> None:
    """The answer comes at once, however long the work takes."""
    began = time.monotonic()
    task = sdk_agent.client.send_message(message("work; wait 2; make 42", 10), push=None, deadline_s=DEADLINE_S)
    assert time.monotonic() - began < 1.5
    assert isinstance(task, AgentTask)
    assert task.state in (TaskState.SUBMITTED, TaskState.WORKING)
    assert task.context_id == "ctx-10"
    done = sdk_agent.until(task, TaskState.COMPLETED)
    assert done.text == "42"
    assert done.status_at.endswith("Z")


def test_a_direct_answer_is_a_message(sdk_agent: SdkAgent) -> None:
    """The agent made no task."""
    answer = sdk_agent.client.send_message(message("say hello", 11), push=None, deadline_s=DEADLINE_S)
    assert isinstance(answer, AgentMessage)
    assert (answer.text, answer.context_id) == ("hello", "ctx-11")


def test_a_question_is_answered_in_the_same_task(sdk_agent: SdkAgent) -> None:
    """A follow-up names both the task and the context."""
    task = sdk_agent.client.send_message(message("ask Which?", 12), push=None, deadline_s=DEADLINE_S)
    assert isinstance(task, AgentTask)
    asking = sdk_agent.until(task, TaskState.INPUT_REQUIRED)
    assert asking.status_text == "Which?"
    reply = OutgoingMessage(message_id="m12b", context_id=ContextId("ctx-12"), text="make blue", agent_task_id=task.id)
    assert isinstance(sdk_agent.client.send_message(reply, push=None, deadline_s=DEADLINE_S), AgentTask)
    assert sdk_agent.until(task, TaskState.COMPLETED).text == "blue"


def test_every_call_says_who_we_are_and_keeps_json_as_it_was(sdk_agent: SdkAgent) -> None:
    """Headers on each request; integers in data are not floats on the wire (case C066)."""
    values = [{"qty": 3, "id": 9007199254740993, "price": 0.5, "none": None, "deep": [{"n": 1}]}, 7]
    data = (DataPart(value=values[0], media_type="application/vnd.x+json"), DataPart(value=values[1]))
    sent = message("work", 13, data=data, extra_texts=("and this",), metadata={"n": 1, "participant_id": "alice"})
    task = sdk_agent.client.send_message(sent, push=PUSH, deadline_s=DEADLINE_S)
    assert isinstance(task, AgentTask)
    sdk_agent.client.get_task(task.id, deadline_s=DEADLINE_S)
    calls = [entry for entry in sdk_agent.seen() if entry["path"] != CARD_PATH]
    for call in calls:
        headers = call["headers"]
        assert (headers["a2a-version"], headers["x-participant-id"], headers["x-team"]) == ("1.0", "us", "travel")
        assert headers["accept-encoding"] == "identity"
        assert "a2a-extensions" not in headers
        assert "cookie" not in headers
    body = next(json.loads(call["body"]) for call in calls if '"m13"' in call.get("body", ""))
    request = body.get("params", body)
    parts = request["message"]["parts"][2:]
    assert json.dumps([part["data"] for part in parts]) == json.dumps(values)
    assert [part.get("mediaType") for part in parts] == ["application/vnd.x+json", None]
    assert [part["text"] for part in request["message"]["parts"][:2]] == ["work", "and this"]
    assert json.dumps(request["message"]["metadata"], sort_keys=True) == '{"n": 1, "participant_id": "alice"}'
    configuration = request["configuration"]
    assert configuration["returnImmediately"] is True
    assert configuration["taskPushNotificationConfig"] == {
        "id": "push-1",
        "url": PUSH.url,
        "token": PUSH.token,
        "authentication": {"scheme": "Bearer", "credentials": PUSH.token},
    }


def test_a_task_is_found_by_its_message(sdk_agent: SdkAgent) -> None:
    """What an ambiguous send is reconciled by; what is found may be settled from, artifacts included."""
    task = sdk_agent.client.send_message(message("make it", 14), push=None, deadline_s=DEADLINE_S)
    assert isinstance(task, AgentTask)
    sdk_agent.until(task, TaskState.COMPLETED)
    found = sdk_agent.client.find_task(ContextId("ctx-14"), "m14", deadline_s=DEADLINE_S)
    assert found is not None
    assert (found.id, found.text) == (task.id, "it")
    assert sdk_agent.client.find_task(ContextId("ctx-14"), "another", deadline_s=DEADLINE_S) is None
    assert sdk_agent.client.find_task(ContextId("nowhere"), "m14", deadline_s=DEADLINE_S) is None


def test_a_task_is_cancelled_once(sdk_agent: SdkAgent) -> None:
    """A second cancel is refused as that."""
    task = sdk_agent.client.send_message(message("work; wait 30", 15), push=None, deadline_s=DEADLINE_S)
    assert isinstance(task, AgentTask)
    assert sdk_agent.client.cancel_task(task.id, deadline_s=DEADLINE_S).state is TaskState.CANCELED
    with pytest.raises(AgentTaskNotCancelable):
        sdk_agent.client.cancel_task(task.id, deadline_s=DEADLINE_S)


def test_the_push_config_of_a_message_is_deleted(sdk_agent: SdkAgent) -> None:
    """Deleting twice is no error."""
    task = sdk_agent.client.send_message(message("ask Which?", 16), push=PUSH, deadline_s=DEADLINE_S)
    assert isinstance(task, AgentTask)
    sdk_agent.client.delete_push_config(task.id, PUSH.id, deadline_s=DEADLINE_S)
    sdk_agent.client.delete_push_config(task.id, PUSH.id, deadline_s=DEADLINE_S)


def test_what_the_agent_does_not_know_is_not_found(sdk_agent: SdkAgent) -> None:
    """In both bindings."""
    with pytest.raises(AgentTaskNotFound):
        sdk_agent.client.get_task(AgentTaskId("nope"), deadline_s=DEADLINE_S)
    with pytest.raises(AgentTaskNotFound):
        sdk_agent.client.cancel_task(AgentTaskId("nope"), deadline_s=DEADLINE_S)


def test_a_failed_task_keeps_its_reason(sdk_agent: SdkAgent) -> None:
    """The status message is the outcome's text."""
    task = sdk_agent.client.send_message(message("fail no money", 17), push=None, deadline_s=DEADLINE_S)
    assert isinstance(task, AgentTask)
    assert sdk_agent.until(task, TaskState.FAILED).text == "no money"


def test_threads_share_a_client_and_few_connections(sdk_agent: SdkAgent) -> None:
    """32 threads, one transport; answers go to whoever asked."""
    tasks = [
        sdk_agent.client.send_message(message(f"make {number}", number), push=None, deadline_s=DEADLINE_S)
        for number in range(100, 108)
    ]
    for task in tasks:
        assert isinstance(task, AgentTask)
        sdk_agent.until(task, TaskState.COMPLETED)

    def ask(number: int) -> bool:
        task = tasks[number % 8]
        assert isinstance(task, AgentTask)
        return sdk_agent.client.get_task(task.id, deadline_s=30).text == str(100 + number % 8)

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(ask, range(320)))
    assert sdk_agent.transport.connections <= 33


# --- Answers that lie, drip, explode or never come --------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer(answers(TASK)) as server:
        yield server


HOSTILE: dict[str, tuple[Behaviour, type[AgentError]]] = {
    "another id": (answers(TASK, id="other"), CallAmbiguous),
    "no id": (answers(TASK, id=None), CallAmbiguous),
    "another task": (answers({**TASK, "id": "t2"}), CallAmbiguous),
    "no task": (answers({}), CallAmbiguous),
    "null": (says(200, b"null"), CallAmbiguous),
    "batch": (says(200, b"[]"), CallAmbiguous),
    "html": (says(200, b"<html>login</html>", {"Content-Type": "text/html"}), CallAmbiguous),
    "empty": (says(200), CallAmbiguous),
    "bad utf-8": (says(200, b'{"id":"\xff\xfe"}'), CallAmbiguous),
    "deep": (says(200, b"[" * 90_000), CallAmbiguous),
    "endless integer": (says(200, b'{"result":' + b"9" * 5000 + b"}"), CallAmbiguous),
    "redirect": (says(302, headers={"Location": "http://127.0.0.1:1/steal"}), CallAmbiguous),
    "redirect to itself": (says(307, headers={"Location": "/rpc"}), CallAmbiguous),
    "switch": (closes(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), CallAmbiguous),
    "not http": (closes(b"SSH-2.0-OpenSSH_9.6\r\n"), CallAmbiguous),
    "endless header": (closes(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000), CallAmbiguous),
    "reset at once": (resets(), CallAmbiguous),
    "closed at once": (closes(), CallAmbiguous),
    "reset in the body": (resets(JSON_HEAD + b"Content-Length: 100\r\n\r\n{"), CallAmbiguous),
    "closed in the body": (closes(JSON_HEAD + b"Content-Length: 100\r\n\r\n{"), CallAmbiguous),
    "closed in a chunk": (closes(JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"), CallAmbiguous),
    "gzip": (says(200, b"\x1f\x8b" + b"\0" * 50, {"Content-Encoding": "gzip"}), CallAmbiguous),
    "nested encodings": (says(200, b"{}", {"Content-Encoding": "identity, br"}), CallAmbiguous),
    "claims to be huge": (closes(JSON_HEAD + b"Content-Length: 999999999999\r\n\r\n{"), AnswerTooLarge),
    "is huge": (closes(JSON_HEAD + b"\r\n" + b" " * 3_000_000), AnswerTooLarge),
    "500": (says(500, b"Internal Server Error"), CallAmbiguous),
    "502 page": (says(502, b"<h1>Bad gateway</h1>"), CallAmbiguous),
    "503": (says(503), CallAmbiguous),
    "503 with Retry-After": (says(503, headers={"Retry-After": "3"}), AgentBusy),
    "429": (says(429), AgentBusy),
    "401": (says(401, b"no", {"WWW-Authenticate": "Bearer"}), AuthenticationRefused),
    "404": (says(404), AgentRefused),
    "internal error": (refuses(-32603), CallAmbiguous),
    "unknown code": (refuses(-32099), CallAmbiguous),
    "code as text": (refuses("-32001"), CallAmbiguous),
    "not found": (refuses(-32001), AgentTaskNotFound),
    "not found with HTTP 404": (refuses(-32001, status=404), AgentTaskNotFound),
    "not offered": (refuses(-32601), MethodNotOffered),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_answer_is_classified_and_frees_its_connection(server: RawServer, name: str) -> None:
    """One of our errors, the right one, in time; the next call works; nothing stays open."""
    server.behaviour, kind = HOSTILE[name]
    client, transport = client_of(server.url)
    began = time.monotonic()
    error = failure(client)
    assert time.monotonic() - began < PATIENCE_S
    assert type(error) is kind
    assert "\n" not in error.detail
    assert len(error.detail) <= 300
    server.behaviour = answers(TASK)
    assert get(client).state is TaskState.WORKING
    assert transport.connections == 1
    transport.close()
    assert server.wait_until_open(0)


def test_a_redirect_is_not_followed_anywhere(server: RawServer) -> None:
    """Case C022: the decoy is never spoken to, and neither is the server a second time."""
    with RawServer(answers(TASK)) as decoy:
        for status in (301, 302, 303, 307, 308):
            server.behaviour = says(status, headers={"Location": f"{decoy.url}/steal"})
            client, transport = client_of(server.url, headers={"X-API-Key": "hunter2"})
            assert type(failure(client)) is CallAmbiguous
            transport.close()
        assert decoy.connections == 0
    assert len(server.seen) == 5


@pytest.mark.parametrize(
    "head",
    [None, b"HTTP/1.1 200 OK\r\nX-Slow: ", JSON_HEAD + b"Content-Length: 5000\r\n\r\n", JSON_HEAD + b"\r\n"],
    ids=["silence", "in the headers", "in the body", "in a body without end"],
)
def test_a_deadline_holds_against_an_answer_that_drips(server: RawServer, head: bytes | None) -> None:
    """The whole call is bounded, not each read."""
    server.behaviour = hangs() if head is None else drips(lambda: server, head, 0.05)
    client, transport = client_of(server.url)
    began = time.monotonic()
    error = failure(client, deadline_s=0.5)
    assert 0.4 < time.monotonic() - began < 0.5 + PATIENCE_S
    assert type(error) is CallAmbiguous
    assert transport.connections == 0
    assert server.wait_until_open(0)


def test_a_deadline_holds_while_a_large_message_is_not_read(server: RawServer) -> None:
    """The agent takes the headers and then nothing more; perhaps sent, since part of it left."""
    release = threading.Event()
    with socket_that_never_reads(release) as url:
        client, transport = client_of(url)
        began = time.monotonic()
        with pytest.raises(CallAmbiguous):
            client.send_message(message("x" * 30_000_000), push=None, deadline_s=3.0)  # building it takes some of them
        assert time.monotonic() - began < 3.0 + PATIENCE_S
        assert transport.connections == 0
        release.set()


class socket_that_never_reads:  # noqa: N801  reads as a block
    def __init__(self, release: threading.Event) -> None:
        self._release = release

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # nobody came
            return
        self._release.wait(10)
        connection.close()

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize("behaviour", [says(200), hangs()], ids=["plain http", "silence"])
def test_a_failed_tls_handshake_is_certainly_not_sent(server: RawServer, behaviour: Behaviour) -> None:
    """It may be sent again; and it is bounded like every other wait."""
    server.behaviour = behaviour
    agent = AgentSettings(id="agent", url=server.url.replace("http:", "https:"))
    transport = GuardedTransport(allowed_origins(agent))
    began = time.monotonic()
    with pytest.raises(AgentUnreachable):
        fetch_card(agent, transport, max_bytes=100, deadline_s=0.5)
    assert time.monotonic() - began < 0.5 + PATIENCE_S
    assert transport.connections == 0
    assert server.wait_until_open(0)


def test_nobody_listening_is_certainly_not_sent() -> None:
    """The one thing that is certain about an agent that is down."""
    client, transport = client_of(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(AgentUnreachable):
        send(client)
    assert transport.connections == 0


def test_a_connection_that_broke_after_the_message_left_is_ambiguous(server: RawServer) -> None:
    """Fresh or kept alive: the agent has read it all, so it is never called unsent."""
    client, transport = client_of(server.url)
    for warm in (False, True):
        if warm:
            server.behaviour = answers(TASK)
            get(client)
        server.behaviour = resets()
        with pytest.raises(CallAmbiguous):
            send(client)
        assert '"SendMessage"' in server.seen[-1].body.decode()
    transport.close()


def test_a_connection_the_agent_closed_meanwhile_is_not_used(server: RawServer) -> None:
    """The pool notices the end that arrived while it was idle and opens another: no false ambiguity."""
    client, transport = client_of(server.url)

    def answer_and_close(request: Seen, connection: Any) -> bool:
        answers(TASK)(request, connection)
        return False

    server.behaviour = answer_and_close
    for _ in range(5):
        assert get(client).id == T1
        assert server.wait_until_open(0)
    assert server.connections == 5
    transport.close()


def test_what_could_not_be_written_is_certainly_not_sent(server: RawServer) -> None:
    """A kept connection that fails at the first byte: nothing left, so the message may go again."""
    client, transport = client_of(server.url)
    get(client)
    wire = transport._pool().connections[0]._connection._network_stream  # type: ignore[attr-defined]
    import socket

    wire._sock.shutdown(socket.SHUT_WR)  # writes fail at once, and nothing to read gives it away
    seen = len(server.seen)
    wire.get_extra_info = lambda name: False if name == "is_readable" else None
    with pytest.raises(AgentUnreachable):
        send(client)
    assert len(server.seen) == seen
    assert transport.connections == 0


def test_an_early_answer_counts_though_the_rest_was_not_read(server: RawServer) -> None:
    """A server may refuse a large message before it has read it all."""

    def refuse_early(connection: Any) -> None:
        connection.sendall(http(413))

    with early_server(refuse_early) as url:
        client, transport = client_of(url)
        with pytest.raises(AgentRefused, match="413"):
            client.send_message(message("x" * 20_000_000), push=None, deadline_s=DEADLINE_S)
        transport.close()


class early_server:  # noqa: N801  reads as a block
    """Answers as soon as it sees the head of a request, then stops reading but keeps the connection a while."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        import socket

        connection, _ = self._listener.accept()
        connection.recv(1000)
        self._answer(connection)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass
        connection.close()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()


def test_busy_says_how_long(server: RawServer) -> None:
    """Retry-After in seconds or as a date."""
    server.behaviour = says(429, headers={"Retry-After": "17"})
    client, transport = client_of(server.url)
    error = failure(client)
    assert isinstance(error, AgentBusy)
    assert error.retry_after_s == 17
    transport.close()


def test_a_zone_less_time_or_an_unknown_state_loses_no_answer(server: RawServer) -> None:
    """The SDK's own parser raises, or says nothing, for these (cases C011, C012)."""
    task = {**TASK, "status": {"state": "TASK_STATE_PAUSED", "timestamp": "2026-03-01T10:00:02"}}
    server.behaviour = answers({"task": task})
    client, transport = client_of(server.url)
    answer = send(client)
    assert (answer.state, answer.raw_state) == (None, "TASK_STATE_PAUSED")
    assert answer.status_at == "2026-03-01T10:00:02.000000Z"
    transport.close()


def test_http_json_needs_no_envelope(server: RawServer) -> None:
    """Case C084: paths below the interface's URL, no `/v1`, no double slash."""
    server.behaviour = says(200, json.dumps({"task": TASK}).encode())
    client, transport = client_of(server.url, "HTTP+JSON")
    assert send(client).id == T1
    server.behaviour = says(200, json.dumps(TASK).encode())
    assert get(client).id == T1
    server.behaviour = says(204)
    client.delete_push_config(T1, "push-1", deadline_s=DEADLINE_S)
    lines = [seen.line.rpartition(" ")[0] for seen in server.seen]
    assert lines == [
        "POST /rpc/message:send",
        "GET /rpc/tasks/t1?historyLength=2",
        "DELETE /rpc/tasks/t1/pushNotificationConfigs/push-1",
    ]
    transport.close()


def test_cookies_are_neither_kept_nor_sent(server: RawServer) -> None:
    """What one call was given must not name us in another."""

    def with_cookie(request: Seen, connection: Any) -> bool:
        body = json.dumps({"jsonrpc": "2.0", "id": request.rpc["id"], "result": TASK}).encode()
        connection.sendall(http(200, body, {"Set-Cookie": "session=abc; Path=/"}))
        return True

    server.behaviour = with_cookie
    client, transport = client_of(server.url)
    get(client)
    get(client)
    assert [seen.headers.get("cookie") for seen in server.seen] == [None, None]
    transport.close()


def test_the_environment_names_no_proxy_for_us(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would see every header and goal, and would decide where they go."""
    with RawServer(says(500)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        client, transport = client_of(server.url)
        assert get(client).id == T1
        transport.close()
        assert proxy.connections == 0


def test_the_token_is_not_repeated_in_an_error(server: RawServer) -> None:
    """Agents echo URLs and tokens in their messages."""
    server.behaviour = refuses(-32602, f"bad config {PUSH.url} {PUSH.token}")
    client, transport = client_of(server.url)
    with pytest.raises(PushNotAccepted) as refusal:
        send(client, push=PUSH)
    assert PUSH.token not in str(refusal.value)
    assert "?token" not in str(refusal.value)
    transport.close()


@pytest.mark.parametrize(
    ("tasks", "found"),
    [
        ([], None),
        ([{**TASK, "contextId": "ctx-1"}], "t1"),
        ([{**TASK, "contextId": "ctx-1"}, {**TASK, "id": "t2", "contextId": "ctx-1"}], None),
        ([{**TASK, "contextId": "other"}], None),
        ([{**TASK, "contextId": "ctx-1", "history": [{"messageId": "other"}]}], None),
        ([{**TASK, "contextId": "other", "history": [{"messageId": "m1"}]}], "t1"),
        ([None, {**TASK, "id": "t2"}, {**TASK, "history": [{"messageId": "m1"}]}], "t1"),
    ],
)
def test_finding_a_task_needs_proof(server: RawServer, tasks: list[Any], found: str | None) -> None:
    """Our message id in its history, or its being the only one in our context where the agent shows no history."""
    server.behaviour = answers({"tasks": tasks})
    client, transport = client_of(server.url)
    task = client.find_task(ContextId("ctx-1"), "m1", deadline_s=DEADLINE_S)
    assert (task.id if task else None) == found
    transport.close()


def test_finding_a_task_ends_though_the_list_does_not(server: RawServer) -> None:
    """Pages are bounded."""
    server.behaviour = answers({"tasks": [], "nextPageToken": "again"})
    client, transport = client_of(server.url)
    assert client.find_task(ContextId("ctx-1"), "m1", deadline_s=DEADLINE_S) is None
    assert 1 < len(server.seen) < 10
    transport.close()


def test_what_the_sdk_cannot_even_send_is_refused_before_it_leaves(server: RawServer) -> None:
    """A lone surrogate is no text; nothing was started."""
    client, transport = client_of(server.url)
    with pytest.raises(AgentRefused):
        send(client, "\ud800")
    with pytest.raises(AgentRefused):
        send(client, data=(DataPart(value={"x": float("nan")}),))
    assert server.seen == []
    assert transport.connections == 0


def test_calls_leave_nothing_behind(server: RawServer) -> None:
    """After a hundred failed and successful calls from eight threads: at most eight idle connections, no garbage."""
    behaviours = [answers(TASK), resets(), says(500), answers(TASK, id="x"), closes(JSON_HEAD + b"\r\n" + b" " * 10)]

    def mixed(request: Seen, connection: Any) -> bool:
        return behaviours[hash(request.rpc["id"]) % len(behaviours)](request, connection)

    server.behaviour = mixed
    client, transport = client_of(server.url)

    def call(_: int) -> None:
        try:
            get(client)
        except AgentError:
            return

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(call, range(100)))
    gc.collect()
    pool = transport._pool()
    assert all(connection.is_idle() for connection in pool.connections)
    assert len(pool.connections) <= 8
    assert pool._requests == []
    transport.close()
    assert server.wait_until_open(0)


# --- Cards over the wire ----------------------------------------------------------------------------------------------


def card_at(url: str, **fields: Any) -> bytes:
    card = {
        "name": "raw",
        "description": "raw",
        "version": "1",
        "supportedInterfaces": [{"url": f"{url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        **fields,
    }
    return json.dumps(card).encode()


def fetch(url: str, **settings: Any) -> CheckedCard:
    agent = AgentSettings(id="agent", url=url, **settings)
    transport = GuardedTransport(allowed_origins(agent))
    try:
        return fetch_card(agent, transport, max_bytes=10_000, deadline_s=1.0)
    finally:
        transport.close()


def test_a_card_is_fetched_below_the_configured_path(server: RawServer) -> None:
    """Case C032: with the protocol version, our id and the operator's headers, unpacked only."""
    server.behaviour = says(200, card_at(server.url))
    assert fetch(f"{server.url}/agents/alpha/", headers={"X-Team": "travel"}).name == "raw"
    (request,) = server.seen
    assert request.line == "GET /agents/alpha/.well-known/agent-card.json HTTP/1.1"
    assert request.headers["a2a-version"] == "1.0"
    assert request.headers["x-participant-id"] == "us"
    assert request.headers["x-team"] == "travel"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (says(401, b"no"), AuthenticationRefused),
        (says(403), AuthenticationRefused),
        (says(302, headers={"Location": "/elsewhere"}), AgentRefused),
        (says(200, b"<html>"), AgentRefused),
        (says(200, b"[" * 9000), AgentRefused),
        (says(200, b" " * 20_000), AgentRefused),
        (says(500), CallAmbiguous),
        (says(503), CallAmbiguous),
        (says(204), CallAmbiguous),
        (says(429, headers={"Retry-After": "5"}), AgentBusy),
        (resets(), CallAmbiguous),
        (says(200, b"x", {"Content-Encoding": "gzip"}), CallAmbiguous),
    ],
)
def test_a_card_that_is_refused_differs_from_one_that_may_come_later(
    server: RawServer, behaviour: Behaviour, kind: type[AgentError]
) -> None:
    """The class says whether trying again can help; one request each, none to other paths (case C045)."""
    server.behaviour = behaviour
    with pytest.raises(AgentError) as raised:
        fetch(server.url)
    assert type(raised.value) is kind
    assert len(server.seen) == 1


def test_a_card_that_drips_is_given_up_in_time(server: RawServer) -> None:
    """As every other call: by its whole time, not by each read."""
    server.behaviour = drips(lambda: server, JSON_HEAD + b"\r\n", 0.05)
    began = time.monotonic()
    with pytest.raises(CallAmbiguous):
        fetch(server.url)
    assert time.monotonic() - began < 1.0 + PATIENCE_S


def test_an_agent_that_is_down_is_unreachable() -> None:
    """Not refused: it may be up in a minute."""
    with pytest.raises(AgentUnreachable):
        fetch(f"http://127.0.0.1:{free_port()}")
