"""`delegate` behaves as a Celery task wherever a canvas puts it, with a real worker, web app and agent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TimeoutError
from celery.result import AsyncResult

from delegation.errors import AgentTaskFailed, IdempotencyConflict, InvalidArguments, UnknownAgent
from delegation.store import Store
from tests.support import foreign_tasks as shop
from tests.support.caller import Witness, caller_in
from tests.support.processes import Deployment, ScriptedAgent, wait_until
from workers import DelegationHandle, delegate
from workers.canvas import has_ended

WAIT_S = 20


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("canvas")
    deployment = Deployment(directory, agents={"a": ScriptedAgent(directory, name="a")}, workers=0)
    deployment.env |= Witness(deployment.valkey).environment
    with deployment:
        deployment.start_worker(options=("-I", "tests.support.foreign_tasks"))
        yield deployment


@pytest.fixture(scope="module")
def app(deployment: Deployment) -> Iterator[Celery]:
    with caller_in(deployment) as app:
        yield app


@pytest.fixture
def witness(deployment: Deployment) -> Witness:
    return Witness(deployment.valkey)


@pytest.fixture(scope="module")
def store(deployment: Deployment) -> Store:
    return deployment.store()


@pytest.fixture(autouse=True)
def _use(app: Celery) -> None:
    """Every test here calls from this process."""


def goal(artifact: str = "ok", state: str = "COMPLETED", after: float = 0.1) -> str:
    return json.dumps({"states": [["WORKING", 0], [state, after]], "artifact": artifact})


def ask(artifact: str = "ok", state: str = "COMPLETED", after: float = 0.1, **arguments: Any) -> Any:
    """The signature most tests use."""
    return delegate.s(agent="a", goal=goal(artifact, state, after), **arguments)


def sent_parts(deployment: Deployment, artifact: str) -> list[list[dict[str, Any]]]:
    """The parts of each message about this artifact, the goal's own left out."""
    agent = deployment.agents["a"]
    assert isinstance(agent, ScriptedAgent)
    messages = [message for task in agent.tasks() for message in task.get("history", []) if artifact in str(message)]
    return [message["parts"][1:] for message in messages if message["role"] == "ROLE_USER"]


def delegation_of(store: Store, call_id: str) -> str:
    found = store.id_of_call(call_id) or call_id.removesuffix(".delegate")
    assert found
    return found


# ---------------------------------------------------------------- alone


def test_a_call_returns_the_promise_of_the_outcome() -> None:
    """`delay` gives an AsyncResult whose value is the outcome, with the documented keys."""
    outcome = delegate.delay(agent="a", goal=goal("alone")).get(timeout=WAIT_S)
    assert list(outcome) == [
        "delegation_id", "agent", "state", "text", "truncated", "artifacts", "reason", "agent_task_id", "context_id",
    ]  # fmt: skip
    assert (outcome["agent"], outcome["state"], outcome["text"]) == ("a", "COMPLETED", "alone")


def test_a_call_has_the_id_it_was_given_and_waits_as_pending(deployment: Deployment, store: Store) -> None:
    """`apply_async(task_id=…)` names the result; until the outcome is known Celery shows PENDING, as for any task."""
    endless = json.dumps({"states": [["WORKING", 0]], "artifact": "named"})
    result = delegate.s(agent="a", goal=endless).apply_async(task_id="my-own-id")
    assert result.id == "my-own-id"
    handle = DelegationHandle(delegation_of(store, result.id))
    wait_until(lambda: store.load(handle.id).delegation.parked and handle.describe()["agent_task_id"], what="parked")
    assert result.state == "PENDING"
    with pytest.raises(TimeoutError):
        result.get(timeout=0.1)
    agent = deployment.agents["a"]
    assert isinstance(agent, ScriptedAgent)
    agent.move(handle.describe()["agent_task_id"], "COMPLETED")
    assert result.get(timeout=WAIT_S)["text"] == "named"
    assert result.state == "SUCCESS"


def test_the_same_call_id_opens_one_delegation(deployment: Deployment) -> None:
    """A call that is published again, as Celery and its users do, finds the delegation it opened before."""
    first = ask("only once").apply_async(task_id="call-1")
    again = ask("only once").apply_async(task_id="call-1")
    assert first.get(timeout=WAIT_S) == again.get(timeout=WAIT_S)
    late = ask("only once").apply_async(task_id="call-1")
    assert late.get(timeout=WAIT_S) == first.get()
    assert len(sent_parts(deployment, "only once")) == 1


@pytest.mark.parametrize("later", ["countdown", "eta"])
def test_a_start_may_be_put_off(store: Store, later: str) -> None:
    """`countdown` and `eta` are kept in the due index: nothing is sent before, and no worker holds a message."""
    wait = {"countdown": 1.0} if later == "countdown" else {"eta": datetime.now(UTC) + timedelta(seconds=1)}
    result = ask(f"put off by {later}").apply_async(**wait)
    outcome = result.get(timeout=WAIT_S)
    opened, sent = store.history(outcome["delegation_id"])[:2]
    assert sent["at"] - opened["at"] > 0.9


def test_a_message_sent_by_name_is_a_call(app: Celery, deployment: Deployment) -> None:
    """A program that knows the broker and the name alone delegates too, and waits under its own id."""
    result = app.send_task("delegation.delegate", kwargs={"agent": "a", "goal": goal("by name")})
    assert result.get(timeout=WAIT_S)["text"] == "by name"
    assert len(sent_parts(deployment, "by name")) == 1


def test_a_message_sent_by_name_keeps_its_tail(app: Celery, witness: Witness) -> None:
    """Links of a signature that was made without the task travel into the record as well."""
    by_name = app.signature("delegation.delegate", kwargs={"agent": "a", "goal": goal("tail by name")})
    by_name.link(shop.keep.s(key="by-name"))
    by_name.apply_async()
    assert witness.wait_for("by-name")[0]["value"]["text"] == "tail by name"


def test_an_ignored_result_is_not_stored(app: Celery, store: Store, witness: Witness) -> None:
    """`ignore_result` leaves nothing in the result backend, and what follows runs all the same."""
    call = ask("ignored").set(ignore_result=True).apply_async(link=shop.keep.s(key="ignored"))
    assert witness.wait_for("ignored")[0]["value"]["text"] == "ignored"
    wait_until(lambda: _phase(store, call.id) == "RELEASED", what="release")
    assert not app.backend.get(app.backend.get_key_for_task(call.id))


def test_messages_carry_ids_and_nothing_else(app: Celery, tmp_path: Path) -> None:
    """Goal, canvas and results stay in the record (law 8); ids name the delegation, so that Flower finds its steps."""
    secret = goal("a secret")
    with (
        Deployment(tmp_path, agents={"a": "http://127.0.0.1:9"}, workers=0, web=False) as idle,
        caller_in(idle),
        idle.valkey.client() as broker,
    ):
        call = (delegate.s(agent="a", goal=secret) | shop.text_of.s("another secret")).apply_async().parent
        [sent] = [json.loads(message) for message in broker.lrange("delegation:celery:delegations", 0, -1)]
        found = idle.store().id_of_call(call.id)
    args, kwargs, embed = json.loads(base64.b64decode(sent["body"]))
    steps = list(reversed(embed["chain"]))
    assert (sent["headers"]["task"], sent["headers"]["id"]) == ("delegation.start_agent_task", f"{found}.start")
    assert [step["task"] for step in steps] == ["delegation.watch", "delegation.finalize"]
    assert [step["options"]["task_id"] for step in steps] == [f"{found}.watch", call.id]
    assert [args, *(step["args"] for step in steps)] == [[found]] * 3
    assert not any([kwargs, *(step["kwargs"] for step in steps), embed["callbacks"], embed["errbacks"], embed["chord"]])
    assert "secret" not in f"{sent} {args} {embed}"


# ---------------------------------------------------------------- in a chain


def test_delegates_may_stand_anywhere_in_a_chain(witness: Witness) -> None:
    """First, in the middle next to each other, last: each `get()` on the way finds its own link's value."""
    result = (ask("first") | shop.text_of.s("!") | ask("second") | ask("third")).apply_async()
    assert result.get(timeout=WAIT_S)["text"] == "third"
    second = result.parent
    assert second.get(timeout=WAIT_S)["text"] == "second"
    assert second.parent.get(timeout=WAIT_S) == "first!"
    assert second.parent.parent.get(timeout=WAIT_S)["text"] == "first"


@pytest.mark.parametrize(
    ("mark", "value", "parts"),
    [
        ("piped text", "words", [{"text": "words"}]),
        ("piped object", {"price": 12, "tags": ["a"]}, [{"data": {"price": 12, "tags": ["a"]}}]),
        ("piped list", [1, "two", None], [{"data": [1, "two", None]}]),
        ("piped number", 7, [{"data": 7}]),
        ("piped nothing", None, []),
    ],
)
def test_a_result_piped_in_arrives_as_a_further_part(deployment: Deployment, mark: str, value: Any, parts: Any) -> None:
    """str → a text part, other JSON → a data part, nothing → no part; read from what the agent received."""
    (shop.say.s(value) | ask(mark)).apply_async().get(timeout=WAIT_S)
    [sent] = sent_parts(deployment, mark)
    assert [{key: part[key] for key in ("text", "data") if key in part} for part in sent] == parts


def test_an_outcome_piped_in_arrives_as_its_text(deployment: Deployment) -> None:
    """The next agent reads what the one before produced, and none of our bookkeeping."""
    (ask("found by the first") | ask("told to the second")).apply_async().get(timeout=WAIT_S)
    [sent] = sent_parts(deployment, "told to the second")
    assert [part["text"] for part in sent] == ["found by the first"]


def test_an_immutable_delegate_takes_nothing_from_the_link_before(deployment: Deployment) -> None:
    """`.si` means what it means in Celery."""
    (shop.say.s("unheard") | delegate.si(agent="a", goal=goal("immutable"))).apply_async().get(timeout=WAIT_S)
    assert sent_parts(deployment, "immutable") == [[]]


# ---------------------------------------------------------------- groups and chords


def test_a_group_of_delegates_gives_the_outcomes_in_order() -> None:
    """Also when the last of it ends first."""
    result = group(ask("slow", after=0.6), ask("quick"), ask("late", after=0.3)).apply_async()
    assert [outcome["text"] for outcome in result.get(timeout=WAIT_S)] == ["slow", "quick", "late"]


def test_a_chord_runs_its_body_after_every_delegate() -> None:
    """Several delegates in a header, plain tasks among them."""
    result = chord([ask("x", after=0.3), ask("y"), shop.say.s("z")])(shop.texts_of.s())
    assert result.get(timeout=WAIT_S) == ["x", "y", "z"]


def test_a_delegate_may_be_a_chords_body(deployment: Deployment) -> None:
    """The header's results arrive at the agent as one data part."""
    result = chord([shop.say.s("one"), shop.say.s("two")])(ask("body of a chord"))
    assert result.get(timeout=WAIT_S)["text"] == "body of a chord"
    [sent] = sent_parts(deployment, "body of a chord")
    assert [part["data"] for part in sent] == [["one", "two"]]


def test_delegates_may_be_header_and_body_of_a_chord_inside_a_chain() -> None:
    """A chain that fans out to delegates, joins in one, and goes on."""
    fan_out = group(ask("left"), ask("right"))
    result = chain(ask("start"), fan_out, ask("joined"), shop.text_of.s(" and done")).apply_async()
    assert result.get(timeout=WAIT_S) == "joined and done"


def test_a_delegate_may_stand_in_the_middle_of_a_chain_inside_a_chord() -> None:
    """Membership of the chord passes on to the link that ends each chain."""
    member = shop.say.s("in") | ask("middle", after=0.3) | shop.text_of.s(" out")
    result = chord([member, ask("single")])(shop.texts_of.s())
    assert result.get(timeout=WAIT_S) == ["middle out", "single"]


def test_a_group_of_chains_and_a_nested_group() -> None:
    """What Celery nests, `delegate` lets it nest."""
    chains = group(ask("a1") | ask("a2"), ask("b1") | shop.text_of.s())
    assert [_text(each) for each in chains.apply_async().get(timeout=WAIT_S)] == ["a2", "b1"]
    nested = group(ask("n1"), group(ask("n2"), ask("n3"))).apply_async().get(timeout=WAIT_S)
    assert [_text(each) for each in nested] in (["n1", "n2", "n3"], ["n1", "['n2', 'n3']"])


# ---------------------------------------------------------------- links and errbacks


def test_links_run_once_with_the_outcome(witness: Witness) -> None:
    """One link given to the call, two put on the signature, each in the app that carries the delegation."""
    ask("one link").apply_async(link=shop.keep.s(key="link"))
    two = ask("two links")
    two.link(shop.keep.s(key="link-1"))
    two.link(shop.keep.s(key="link-2"))
    two.apply_async().get(timeout=WAIT_S)
    for key, text in (("link", "one link"), ("link-1", "two links"), ("link-2", "two links")):
        [seen] = witness.wait_for(key)
        assert (seen["value"]["text"], seen["app"]) == (text, "delegation")


def test_a_failed_agent_task_raises_its_own_error() -> None:
    """`get()` raises AgentTaskFailed with its arguments, through the JSON result backend."""
    result = ask("", "FAILED").apply_async()
    with pytest.raises(AgentTaskFailed) as failure:
        result.get(timeout=WAIT_S)
    assert type(failure.value) is AgentTaskFailed
    assert (failure.value.agent, failure.value.state, failure.value.reason) == ("a", "FAILED", None)
    assert DelegationHandle.get(failure.value.delegation_id).describe()["state"] == "FAILED"


def test_a_failure_stays_when_finalize_comes_again(app: Celery, store: Store) -> None:
    """A message delivered twice changes nothing: whoever asks later still hears of the failure."""
    result = ask("", "FAILED").apply_async()
    with pytest.raises(AgentTaskFailed):
        result.get(timeout=WAIT_S)
    wait_until(lambda: _phase(store, result.id) == "RELEASED", what="release")
    finalize = app.tasks["delegation.finalize"]
    finalize.apply_async((delegation_of(store, result.id),), task_id=result.id)
    shop.say.apply_async(("after it",), queue="delegations.end").get(timeout=WAIT_S)
    assert AsyncResult(result.id, app=app).state == "FAILURE"


def test_on_failure_return_hands_the_failed_outcome_on(witness: Witness) -> None:
    """A canvas that would rather see a failure than stop: the next link gets the outcome, state FAILED."""
    (ask("", "FAILED", on_failure="return") | shop.keep.s(key="returned")).apply_async().get(timeout=WAIT_S)
    [seen] = witness.saw("returned")
    assert (seen["value"]["state"], seen["value"]["text"]) == ("FAILED", "")


def test_both_kinds_of_errbacks_hear_of_a_failure_once(witness: Witness) -> None:
    """The older kind gets the call's id, the newer request, exception and traceback."""
    result = ask("", "REJECTED").apply_async(link_error=[shop.old_errback.s("old"), shop.new_errback.s(key="new")])
    with pytest.raises(AgentTaskFailed):
        result.get(timeout=WAIT_S)
    [old], [new] = witness.wait_for("old"), witness.wait_for("new")
    assert old == {"task_id": result.id}
    assert (new["task_id"], new["error"], new["args"][1:]) == (result.id, "AgentTaskFailed", ["a", "REJECTED", None])
    assert "AgentTaskFailed" in new["traceback"]


def test_a_failure_fails_the_rest_of_its_chain(witness: Witness) -> None:
    """Later links never run and are FAILURE, earlier ones stay SUCCESS, and the errback runs once."""
    whole = shop.say.s("before") | ask("", "FAILED") | shop.keep.s(key="never") | ask("never sent")
    result = whole.apply_async(link_error=shop.old_errback.s("failed-chain"))
    with pytest.raises(AgentTaskFailed):
        result.get(timeout=WAIT_S)
    failed = result.parent.parent
    witness.wait_for("failed-chain")
    assert [each.state for each in (result, result.parent, failed)] == ["FAILURE"] * 3
    assert failed.parent.get(timeout=WAIT_S) == "before"
    assert witness.saw("never") == []
    assert {seen["task_id"] for seen in witness.saw("failed-chain")} == {failed.id}
    assert len(witness.saw("failed-chain")) == 1


@pytest.mark.parametrize("member", ["plain task", "delegate"])
def test_a_failure_in_a_header_fails_the_chord(app: Celery, witness: Witness, member: str) -> None:
    """The body is not run: its result is ChordError, its errback hears of it, `get()` raises the member's error.

    Exactly as for a plain task.
    """
    failing, member_error = (
        (shop.fail.si(), ValueError) if member == "plain task" else (ask("", "FAILED"), AgentTaskFailed)
    )
    key = f"chord of a {member}"
    result = chord([ask("fine"), failing])(shop.texts_of.s().on_error(shop.new_errback.s(key=key)))
    with pytest.raises(ChordError):
        AsyncResult(result.id, app=app).get(timeout=WAIT_S)
    with pytest.raises(member_error):
        result.get(timeout=WAIT_S)
    assert [seen["error"] for seen in witness.wait_for(key)] == ["ChordError"]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's own call
@pytest.mark.parametrize(
    ("state", "tail", "is_over"),
    [
        ("PENDING", {}, False),
        ("STARTED", {}, False),
        ("SUCCESS", {}, True),
        ("SUCCESS", {"chord": {"task": "shop.texts_of"}}, False),
        ("FAILURE", {"link_error": [{"task": "shop.old_errback"}]}, False),
        ("REVOKED", {}, True),
    ],
)
def test_only_what_proves_the_tail_stops_a_finalize(
    app: Celery, state: str, tail: dict[str, Any], is_over: bool
) -> None:
    """Celery publishes links before it stores a success, but stores a failure before it calls errbacks.

    So after a death in between, a stored failure is finalized again: an errback may run twice and is never lost.
    """
    call_id = f"stored-{state}-{bool(tail)}"
    app.backend.store_result(call_id, ValueError("x") if state in ("FAILURE", "REVOKED") else None, state)
    assert has_ended(app, call_id, tail) is is_over


# ---------------------------------------------------------------- calls that cannot be made


def test_an_unknown_agent_is_refused_at_the_call(deployment: Deployment) -> None:
    """A caller hears at once, with the ids that would do."""
    with pytest.raises(UnknownAgent, match="valid agents: a"):
        delegate.delay(agent="nobody", goal="x")
    with pytest.raises(InvalidArguments, match="goal"):
        delegate.delay(agent="a", goal=" ")


def test_an_unknown_agent_in_mid_canvas_fails_its_link(witness: Witness) -> None:
    """There is no caller to raise to: the link fails with its errback, the link before stays SUCCESS."""
    unknown = delegate.s(agent="nobody", goal="x")
    result = (shop.say.s("fine") | unknown | shop.keep.s(key="after-unknown")).apply_async(
        link_error=shop.old_errback.s("unknown")
    )
    with pytest.raises(UnknownAgent):
        result.get(timeout=WAIT_S)
    assert result.parent.state == "FAILURE"
    assert result.parent.parent.get(timeout=WAIT_S) == "fine"
    assert len(witness.wait_for("unknown")) == 1
    assert witness.saw("after-unknown") == []


def test_an_unknown_agent_in_a_chord_inside_a_canvas_fails_the_chord(app: Celery) -> None:
    """The chord's count is kept although one member was never delegated, so nothing hangs."""
    header = group(ask("fine"), delegate.s(agent="nobody", goal="x"))
    result = chain(shop.say.s("begin"), header, shop.texts_of.s()).apply_async()
    with pytest.raises(ChordError, match="nobody"):
        AsyncResult(result.id, app=app).get(timeout=WAIT_S)


# ---------------------------------------------------------------- idempotency keys


def test_one_idempotency_key_is_one_delegation(deployment: Deployment) -> None:
    """Two calls with one key and the same arguments give the same outcome, before and after its end."""
    first, second = (ask("one key", idempotency_key="k1").delay() for _ in range(2))
    assert first.get(timeout=WAIT_S) == second.get(timeout=WAIT_S)
    assert ask("one key", idempotency_key="k1").delay().get(timeout=WAIT_S) == first.get()
    assert len(sent_parts(deployment, "one key")) == 1


def test_other_arguments_under_a_used_key_are_refused() -> None:
    """A key names one piece of work; giving it to another one is a caller's mistake."""
    ask("k2", idempotency_key="k2").delay()
    with pytest.raises(IdempotencyConflict):
        ask("something else", idempotency_key="k2").delay()


def test_every_canvas_that_shares_a_delegation_goes_on(deployment: Deployment, witness: Witness) -> None:
    """A second canvas with the same key, before or after the end, gets the outcome and its own tail runs."""
    canvases = [ask("shared", after=0.6, idempotency_key="k3") | shop.keep.s(key=f"tail-{n}") for n in range(3)]
    first, second = canvases[0].apply_async(), canvases[1].apply_async()
    outcomes = [first.get(timeout=WAIT_S), second.get(timeout=WAIT_S), canvases[2].apply_async().get(timeout=WAIT_S)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [len(witness.saw(f"tail-{n}")) for n in range(3)] == [1, 1, 1]
    assert len(sent_parts(deployment, "shared")) == 1


def test_every_canvas_that_shares_a_failure_hears_of_it(witness: Witness) -> None:
    """Also the errback of the second one."""
    calls = [
        ask("", "FAILED", after=0.5, idempotency_key="k4").apply_async(link_error=shop.old_errback.s(f"shared-{n}"))
        for n in range(2)
    ]
    for n, call in enumerate(calls):
        with pytest.raises(AgentTaskFailed):
            call.get(timeout=WAIT_S)
        assert witness.wait_for(f"shared-{n}") == [{"task_id": call.id}]
    assert calls[0].id != calls[1].id


# ---------------------------------------------------------------- inside a user's task, and revoked


def test_a_users_task_may_delegate(app: Celery, witness: Witness) -> None:
    """As an agent loop would: a canvas started from within a running task."""
    last = AsyncResult(shop.plan.delay(goal("from within"), "planned").get(timeout=WAIT_S), app=app)
    assert last.get(timeout=WAIT_S)["text"] == "from within"
    assert len(witness.saw("planned")) == 1


def test_a_revoked_call_ends_and_leaves_nothing_due(app: Celery, store: Store) -> None:
    """Our app does not listen to `revoke` (remote control is off), so the call goes on to its outcome."""
    result = ask("revoked", after=0.5).apply_async()
    result.revoke()
    assert result.get(timeout=WAIT_S)["text"] == "revoked"
    wait_until(lambda: _phase(store, result.id) == "RELEASED", what="release")


def test_nothing_is_left_due_when_every_canvas_has_ended(store: Store) -> None:
    """Whatever the canvas, the due index is empty in the end: no call of this module is driven any further."""
    soon = store.now() + 86400  # later than that is only what the deadlines of open workflows lead to
    wait_until(lambda: store.client.zcount(store.key("due"), "-inf", soon) == 0, WAIT_S, what="empty due index")
    assert store.metrics()["due"] == 0


def _phase(store: Store, call_id: str) -> str:
    return store.load(delegation_of(store, call_id)).delegation.phase.value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return str([_text(each) for each in value])
    return str(value["text"]) if isinstance(value, dict) else str(value)
