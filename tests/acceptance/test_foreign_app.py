"""Delegations inside somebody else's Celery project: its app, its broker, its queue, its tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from delegation.errors import ConfigurationError
from tests.support.caller import Witness
from tests.support.foreign_app import APP, BROKER_VARIABLE, PREFIX, QUEUE
from tests.support.processes import Deployment, ScriptedAgent, ValkeyProcess, free_port, wait_until
from tests.support.redis_users import Tenant
from workers import install
from workers.celery_settings import TASK_ROUTES
from workers.runtime import reset_runtime

BROKER_DB = 3
TENANT = "shop"
#: Their app leaves remote control on, so its workers listen there; a pattern's channel must be named as it stands.
PIDBOX = f"&{PREFIX}/{BROKER_DB}.celery.pidbox"

#: What each of the user's scripts below begins with.
PROLOGUE = """
import json, sys
from tests.support import foreign_tasks as shop
from tests.support.foreign_app import app
from workers import Workflow, delegate

def goal(artifact, state="COMPLETED", after=0.1):
    return json.dumps({"states": [["WORKING", 0], [state, after]], "artifact": artifact})

def show(value):
    print(json.dumps(value))
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("foreign")
    valkey = ValkeyProcess(directory / "valkey", tenants={TENANT: Tenant(PREFIX, PIDBOX)})
    env = Witness(valkey).environment | {BROKER_VARIABLE: valkey.url(BROKER_DB, user=TENANT)}
    agents = {"a": ScriptedAgent(directory, name="a"), "gone": f"http://127.0.0.1:{free_port()}"}
    config = {"celery": {"app": APP}}
    with Deployment(directory, agents=agents, config=config, env=env, valkey=valkey, workers=0) as deployment:
        deployment.start_worker(app=APP, queues=None)  # as its owner starts it: every queue of the app
        yield deployment


@pytest.fixture
def witness(deployment: Deployment) -> Witness:
    return Witness(deployment.valkey)


def run(deployment: Deployment, script: str) -> Any:
    """What the user's program shows last."""
    done = deployment.python(PROLOGUE + script)
    assert done.returncode == 0, done.stderr + deployment.logs()
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- in the user's project


def test_a_canvas_of_their_tasks_goes_on_in_their_app(deployment: Deployment, witness: Witness) -> None:
    """A link that only their app knows, and a link that says in which app and queue it ran."""
    shown = run(
        deployment,
        """
canvas = delegate.s(agent="a", goal=goal("found")) | shop.keep.s(key="link") | app.tasks["shop.shout"].s()
show(canvas.apply_async().get(timeout=30))
""",
    )
    assert shown == "FOUND"
    [seen] = witness.saw("link")
    assert (seen["app"], seen["queue"], seen["value"]["text"]) == ("shop", QUEUE, "found")


def test_their_chords_and_errbacks_work(deployment: Deployment, witness: Witness) -> None:
    """A chord of delegates with a body of theirs; a failed delegate calls their errback."""
    shown = run(
        deployment,
        """
from celery import chord
header = [delegate.s(agent="a", goal=goal(word)) for word in ("x", "y")]
texts = chord(header)(shop.texts_of.s()).get(timeout=30)
failed = delegate.s(agent="a", goal=goal("", "FAILED")).apply_async(link_error=shop.new_errback.s(key="errback"))
try:
    failed.get(timeout=30)
except Exception as error:
    show([texts, type(error).__name__, error.state])
""",
    )
    assert shown == [["x", "y"], "AgentTaskFailed", "FAILED"]
    assert [seen["error"] for seen in witness.wait_for("errback")] == ["AgentTaskFailed"]


def test_a_workflow_is_resumed_in_their_queue(deployment: Deployment, witness: Witness) -> None:
    """The continuation is a task of theirs, in their default queue, opened and joined from their program."""
    workflow_id = run(
        deployment,
        """
workflow = Workflow.open(name="order")
for word in ("one", "two"):
    workflow.delegate("a", goal(word))
workflow.join(then=shop.keep_call.s("mine", key="resumed"))
show(workflow.id)
""",
    )
    [call] = witness.wait_for("resumed")
    assert (call["app"], call["queue"], call["args"]) == ("shop", QUEUE, ["mine"])
    assert call["kwargs"] == {"workflow_id": workflow_id, "release_id": f"{workflow_id}.release.1", "round": 1}


def test_their_tasks_may_delegate(deployment: Deployment, witness: Witness) -> None:
    """`delegate` and `Workflow` inside a running task of theirs, over several rounds."""
    run(
        deployment,
        """
shop.plan.delay(goal("from their task"), "planned").get(timeout=30)
workflow = Workflow.open()
workflow.join(then=shop.go_on.s([[goal("r2")], [goal("r3")]], "rounds"))
show(None)
""",
    )
    assert [seen["value"]["text"] for seen in witness.wait_for("planned")] == ["from their task"]
    assert witness.wait_for("rounds", 3)[-1]["texts"] == ["r2", "r3"]


def test_delegating_from_a_thread_of_theirs_uses_their_app(deployment: Deployment) -> None:
    """A new thread has no current Celery app, and a program may have made another one since; the settings name it."""
    shown = run(
        deployment,
        """
import threading
from celery import Celery
Celery("another", broker="redis://127.0.0.1:1/0")  # becomes the current app
found = []
call = lambda: found.append(delegate.delay(agent="a", goal=goal("threaded")).get(timeout=30)["text"])
thread = threading.Thread(target=call)
thread.start(); thread.join()
call()
show(found)
""",
    )
    assert shown == ["threaded", "threaded"]


def test_their_own_tasks_are_left_alone(deployment: Deployment, witness: Witness) -> None:
    """A task that has nothing to do with us runs in their queue as before."""
    assert run(deployment, 'show(shop.keep.delay("as before", key="theirs").get(timeout=30))') == "as before"
    assert [seen["queue"] for seen in witness.saw("theirs")] == [QUEUE]


# ---------------------------------------------------------------- web and command line


def test_a_push_reaches_their_worker(deployment: Deployment) -> None:
    """web sends its wake to the broker of the app that the settings name, not to the one where records are kept."""
    delegation_id = run(
        deployment,
        """
print(delegate.delay(agent="a", goal=goal("pushed", after=0.5)).get(timeout=30)["text"])
show(delegate.delay(agent="a", goal=goal("pushed", after=0.5)).get(timeout=30)["delegation_id"])
""",
    )
    # A wake that web sent has eight hex digits at its end; the sweeper's have a time in milliseconds.
    assert deployment.workers[0].wait_for_output(rf"delegation\.wake\[{delegation_id}\.wake\.[0-9a-f]{{8}}\] received")


def test_the_command_line_delegates_in_their_app(deployment: Deployment) -> None:
    """`[celery] app` is all it needs to be told."""
    done = deployment.command("delegate", "a", json.dumps({"artifact": "by command"}), "--wait")
    assert done.returncode == 0, done.stderr
    assert "by command" in done.stdout


# ---------------------------------------------------------------- what is where


def test_messages_are_in_their_broker_and_records_in_ours(deployment: Deployment) -> None:
    """Two databases, two prefixes: nothing of Celery's beside the records, nothing outside the prefix beside theirs."""
    run(deployment, 'show(delegate.delay(agent="a", goal=goal("where")).get(timeout=30)["text"])')
    with deployment.valkey.client(0) as records, deployment.valkey.client(BROKER_DB) as broker:
        kept, sent = records.keys("*"), broker.keys("*")
    assert all(key.startswith("delegation:") and not key.startswith("delegation:celery:") for key in kept)
    assert any(key.startswith(f"{PREFIX}celery-task-meta-") for key in sent)
    assert all(key.startswith(PREFIX) for key in sent)


def test_what_agents_say_is_not_in_the_workers_log(deployment: Deployment) -> None:
    """Their worker logs every task's result as Celery does by default; of our steps that is ids (law 8)."""
    call_id = run(
        deployment,
        """
result = delegate.delay(agent="a", goal=goal("a private answer"))
assert result.get(timeout=30)["text"] == "a private answer"
show(result.id)
""",
    )
    deployment.workers[0].wait_for_output(rf"delegation\.finalize\[{call_id}\] succeeded")
    assert "a private answer" not in deployment.workers[0].output()


def test_an_agent_that_is_away_is_one_warning(deployment: Deployment) -> None:
    """In their worker's log, at that level, when it begins; what is tried again and again is not told again."""
    delegation_id = run(
        deployment,
        """
workflow = Workflow.open()
show(workflow.delegate("gone", "x").id)
""",
    )
    store = deployment.store()
    wait_until(lambda: store.load(delegation_id).delegation.progress.failures >= 2, 30, what="second failure")
    [line] = [each for each in deployment.workers[0].output().splitlines() if "agent_unavailable" in each]
    workflow_id = delegation_id.partition(".")[0]
    assert re.search(
        rf": WARNING/\w+\] delegation\.agent_unavailable delegation_id={delegation_id} workflow_id={workflow_id} "
        r"agent=gone code=agent\.unavailable$",
        line,
    )
    assert "HTTP Request" not in deployment.workers[0].output()
    assert deployment.command("workflow", "cancel", workflow_id).returncode == 0


# ---------------------------------------------------------------- revoked calls


def test_a_revoked_call_leaves_nothing_due(deployment: Deployment, witness: Witness) -> None:
    """Celery's `revoke` withdraws the promise: the result is REVOKED, its canvas stops, and we stop asking for it."""
    state, call_id = run(
        deployment,
        """
call = delegate.s(agent="a", goal=goal("revoked", after=0.5)) | shop.keep.s(key="after a revoked call")
last = call.apply_async()
last.parent.revoke()
try:
    last.parent.get(timeout=30)
except Exception:
    pass
show([last.parent.state, last.parent.id])
""",
    )
    assert state == "REVOKED"
    assert witness.saw("after a revoked call") == []
    store = deployment.store()
    found = store.id_of_call(call_id)
    assert found is not None
    wait_until(lambda: store.load(found).delegation.phase == "RELEASED", 30, what="record that is finished with")
    wait_until(lambda: store.client.zscore(store.key("due"), f"delegation:{found}") is None, 30, what="peace")


def test_a_revoked_call_in_a_chord_fails_the_chord(deployment: Deployment) -> None:
    """The chord learns of it, as it does of a revoked task of any other kind; it would wait for ever otherwise."""
    shown = run(
        deployment,
        """
from celery import chord
header = [delegate.s(agent="a", goal=goal("x", after=0.5)), delegate.s(agent="a", goal=goal("y"))]
body = chord(header)(shop.texts_of.s())
body.parent[0].revoke()
try:
    app.AsyncResult(body.id).get(timeout=30)
except Exception as error:
    show(type(error).__name__)
""",
    )
    assert shown == "ChordError"


def test_nothing_is_left_due(deployment: Deployment) -> None:
    """After all of the above their workers are driven by nothing any more."""
    store = deployment.store()
    soon = store.now() + 86400  # later than that is only what the deadlines of open workflows lead to
    wait_until(lambda: store.client.zcount(store.key("due"), "-inf", soon) == 0, 30, what="empty due index")
    assert store.metrics()["due"] == 0


# ---------------------------------------------------------------- install


@pytest.fixture
def their_app() -> Iterator[Celery]:
    with Celery("theirs", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/0", set_as_current=False) as app:
        yield app


def test_install_adds_to_an_app_and_takes_nothing_away(their_app: Celery) -> None:
    """Their default queue and routes stay; ours come beside them, and results live longer than any delegation."""
    their_app.conf.task_default_queue = "shop"
    their_app.conf.task_routes = {"shop.*": {"queue": "shop"}}
    their_app.conf.result_expires = 60
    assert install(their_app) is their_app
    assert [queue.name for queue in their_app.conf.task_queues] == ["shop", "delegations", "delegations.end"]
    assert their_app.conf.task_routes == [TASK_ROUTES, {"shop.*": {"queue": "shop"}}]
    assert their_app.conf.result_expires >= timedelta(days=8).total_seconds()
    assert their_app.conf.task_track_started


@pytest.mark.parametrize(
    ("key", "value"),
    [("task_always_eager", True), ("accept_content", ["pickle"]), ("result_backend", None)],
)
def test_install_refuses_an_app_that_could_not_work(their_app: Celery, key: str, value: Any) -> None:
    """The error names the setting, at the start rather than at the first delegation."""
    their_app.conf[key] = value
    with pytest.raises(ConfigurationError, match=f"^{key}: "):
        install(their_app)


def test_an_app_without_results_is_named_with_what_to_write(their_app: Celery) -> None:
    """It has a broker of its own, so where its results belong is for its owner to say."""
    their_app.conf["result_backend"] = None
    with pytest.raises(ConfigurationError, match=r"'theirs' .*write Celery\('theirs', broker=…, backend=…\)"):
        install(their_app)


@pytest.fixture
def our_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    url = "redis://:secret@127.0.0.1:1/5"
    monkeypatch.setenv("DELEGATION_REDIS__URL", url)
    monkeypatch.setenv("DELEGATION_REDIS__KEY_PREFIX", "trips:")
    reset_runtime()
    yield url
    monkeypatch.undo()
    reset_runtime()


def test_an_app_that_names_no_broker_gets_ours(our_redis: str) -> None:
    """Broker, results and prefix are those of the settings; what the app says of transports stays."""
    with Celery("bare", set_as_current=False) as app:
        app.conf.broker_transport_options = {"visibility_timeout": 7200}
        install(app)
        assert app.conf.broker_url == app.conf.result_backend == our_redis
        assert app.conf.broker_transport_options["visibility_timeout"] == 7200
        assert app.conf.broker_transport_options["global_keyprefix"] == "trips:celery:"
        assert app.conf.result_backend_transport_options == {"global_keyprefix": "trips:celery:"}


def test_the_transport_of_an_app_that_has_one_is_left_alone(our_redis: str, their_app: Celery) -> None:
    """A broker and a backend of its own, with the options it has."""
    before = {key: their_app.conf[key] for key in ("broker_url", "result_backend", "broker_transport_options")}
    install(their_app)
    assert {key: their_app.conf[key] for key in before} == before
    assert our_redis not in before.values()


@pytest.mark.parametrize("named", ["no.such.module:app", "tests.support.foreign_tasks:app", "tests.support:caller"])
def test_an_app_that_cannot_carry_is_named_in_the_error(deployment: Deployment, named: str) -> None:
    """One line that begins with the key; web and callers refuse alike."""
    code = "from web.server import load_app; load_app(2)"
    done = deployment.python(f"import os; os.environ['DELEGATION_CELERY__APP'] = {named!r}; {code}")
    assert done.returncode == 2
    assert done.stderr.startswith("configuration error: celery.app: ")
    assert "Traceback" not in done.stderr
