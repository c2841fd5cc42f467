"""The command line's contract: what is on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.state import WorkflowId
from tests.support.child import ROOT, ChildProcess, child_environment
from tests.support.processes import Deployment, ScriptedAgent, free_port, wait_until

DELEGATION_NAMES = [
    "id",
    "workflow_id",
    "round",
    "ancestor",
    "agent",
    "name",
    "goal",
    "step",
    "phase",
    "state",
    "watch",
    "agent_task_id",
    "context_id",
    "status_text",
    "unavailable",
    "question",
    "artifact_names",
    "replies",
    "cancel",
    "cancel_reason",
    "reason",
    "outcome",
    "created_at",
    "updated_at",
    "deadline_at",
]
WORKFLOW_NAMES = [
    "id",
    "parent_id",
    "name",
    "state",
    "round",
    "policy",
    "satisfied",
    "unresolved",
    "children",
    "workflows",
    "created_at",
    "deadline_at",
    "reason",
    "result",
    "continuation",
]
LISTED_WORKFLOW_NAMES = ["id", "name", "state", "unresolved", "child_count", "created_at", "deadline_at"]
OUTCOME_NAMES = [
    "delegation_id",
    "agent",
    "state",
    "text",
    "truncated",
    "artifacts",
    "reason",
    "agent_task_id",
    "context_id",
]
AGENT_NAMES = [
    *("id", "name", "version", "accepted", "paused", "reason", "watch", "skills"),
    *("auth", "signed", "fingerprint", "card_fetched_at", "stale"),
]
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
ID = re.compile(r"[0-9a-f]{32}(\.\d+)?")

DONE = '{"artifact": "sunny"}'
FAILED = '{"states": [["WORKING", 0], ["FAILED", 0.1, "no seats"]]}'
NEVER = '{"states": [["WORKING", 0]]}'
ASKS = '{"states": [["WORKING", 0], ["INPUT_REQUIRED", 0.1, "which day?"], ["COMPLETED", 2]]}'

Said = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("cli")
    with Deployment(directory, agents={"flights": ScriptedAgent(directory, name="flights")}) as it:
        yield it


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Redis alone: what is kept stays as it was kept."""
    agents = {"flights": "http://127.0.0.1:9", "much-longer-name": "http://127.0.0.1:9"}
    with Deployment(tmp_path_factory.mktemp("idle"), agents=agents, web=False, workers=0) as it:
        yield it


def command(env: dict[str, str], *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "workers.cli", *arguments],
        cwd=ROOT,
        env=child_environment(env),
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


def printed_id(said: Said) -> str:
    assert said.returncode == 0, said.stderr
    assert ID.fullmatch(said.stdout.strip())
    return said.stdout.strip()


def as_json(said: Said) -> Any:
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def assert_one_line(stderr: str, code: int, expected: int) -> None:
    assert code == expected, stderr
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith("delegation: ")


def test_delegate_prints_the_id_alone_and_show_has_the_public_shape(deployment: Deployment) -> None:
    """`delegate` says an id and nothing else; `show --json` of it is one object with the documented names."""
    said = deployment.command("delegate", "flights", NEVER, "--name", "trip", "--deadline", "PT10M")
    delegation_id = printed_id(said)
    assert said.stdout == f"{delegation_id}\n"
    assert said.stderr == ""
    shown = as_json(deployment.command("show", delegation_id, "--json"))
    assert list(shown) == DELEGATION_NAMES
    assert shown["outcome"] is None
    assert (shown["name"], shown["goal"]) == ("trip", NEVER)
    assert (shown["unavailable"], shown["cancel_reason"]) == (None, None)
    assert all(RFC_3339.fullmatch(shown[name]) for name in ("created_at", "updated_at", "deadline_at"))


def test_waiting_prints_the_id_and_then_the_text(deployment: Deployment) -> None:
    """`--wait` ends with 0 for COMPLETED and prints the outcome's text below the id."""
    said = deployment.command("delegate", "flights", DONE, "--wait")
    assert said.returncode == 0, said.stderr
    delegation_id, text = said.stdout.splitlines()
    assert text == "sunny"
    shown = as_json(deployment.command("show", delegation_id, "--json"))
    assert list(shown["outcome"]) == OUTCOME_NAMES
    assert shown["outcome"]["text"] == "sunny"
    assert "sunny" in deployment.command("show", delegation_id).stdout


def test_delegating_prints_the_delegation_as_json(deployment: Deployment) -> None:
    """`--json` is one object instead of the id; with `--wait` as it ended, its text nowhere else; the codes stay."""
    opened = as_json(deployment.command("delegate", "flights", NEVER, "--json"))
    assert list(opened) == DELEGATION_NAMES
    ended = as_json(deployment.command("delegate", "flights", DONE, "--wait", "--json"))
    assert (list(ended), ended["outcome"]["text"]) == (DELEGATION_NAMES, "sunny")
    failed = deployment.command("delegate", "flights", FAILED, "--wait", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["state"] == "FAILED"
    assert "ended FAILED" in failed.stderr


def test_waiting_for_a_failure_ends_with_one(deployment: Deployment) -> None:
    """Any end but COMPLETED is exit code 1 and one line on stderr."""
    said = deployment.command("delegate", "flights", FAILED, "--wait")
    assert_one_line(said.stderr, said.returncode, 1)
    assert "ended FAILED" in said.stderr


def test_waiting_goes_on_over_a_question(deployment: Deployment) -> None:
    """A question does not end the wait; stderr tells that it was asked."""
    said = deployment.command("delegate", "flights", ASKS, "--wait")
    assert said.returncode == 0, said.stderr
    assert "INPUT_REQUIRED: which day?" in said.stderr


def test_a_goal_comes_from_stdin(deployment: Deployment) -> None:
    """GOAL - reads stdin; bytes that are no UTF-8 are an error in one line."""
    said = command(deployment.env, "delegate", "flights", "-", "--wait", stdin=DONE.encode())
    assert said.stdout.decode().splitlines()[1:] == ["sunny"]
    refused = command(deployment.env, "delegate", "flights", "-", stdin=b"\xff\xfe")
    assert_one_line(refused.stderr.decode(), refused.returncode, 2)


def test_an_idempotency_key_gives_the_same_delegation(deployment: Deployment) -> None:
    """The same key and arguments: the same id; other arguments: refused, nothing opened."""
    first = printed_id(deployment.command("delegate", "flights", NEVER, "--idempotency-key", "k1"))
    assert printed_id(deployment.command("delegate", "flights", NEVER, "--idempotency-key", "k1")) == first
    said = deployment.command("delegate", "flights", DONE, "--idempotency-key", "k1")
    assert_one_line(said.stderr, said.returncode, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("delegate", "nobody", "x"),
        ("delegate", "flights", ""),
        ("delegate", "flights", "x", "--deadline", "soon"),
        ("delegate", "flights", "x", "--workflow", "0" * 32),
        ("delegate", "flights"),
        ("show", "no\nbody\x1b[31m"),
        ("watch", "nobody"),
        ("workflow", "show", "nobody"),
        ("workflow", "join", "nobody"),
        ("workflow", "join", "nobody", "--queue", "q"),
        ("workflow", "complete", "nobody", "--result", "{"),
        ("workflow", "cancel", "nobody"),
        ("workflow", "fail", "nobody"),
        ("workflow", "notes", "nobody"),
        ("inbox", "--workflow", "nobody"),
        ("reply", "nobody"),
        ("cancel", "nobody"),
        ("cancel", "nobody", "--reason", "x" * 501),
        ("show", "nobody", "--history", "--artifacts"),
        ("list", "--limit", "0"),
        ("nonsense",),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_two(deployment: Deployment, arguments: tuple[str, ...]) -> None:
    """Unknown agents, ids, commands and unusable arguments: exit code 2, one line on stderr, nothing on stdout."""
    said = deployment.command(*arguments)
    assert_one_line(said.stderr, said.returncode, 2)
    assert said.stdout == ""
    assert "\x1b" not in said.stderr


def test_an_unknown_agent_is_answered_with_the_known_ones(deployment: Deployment) -> None:
    """The error lists the ids that may be used."""
    assert "valid agents: flights" in deployment.command("delegate", "nobody", "x").stderr


def test_a_workflow_is_refused_its_end_while_a_child_is_unresolved(deployment: Deployment) -> None:
    """`complete` with unresolved children is exit code 1 and names them; a second join is 2; nothing has changed."""
    workflow = printed_id(deployment.command("workflow", "open", "--name", "trip"))
    child = printed_id(deployment.command("delegate", "flights", NEVER, "--workflow", workflow))
    assert child == f"{workflow}.1"
    said = deployment.command("workflow", "complete", workflow)
    assert_one_line(said.stderr, said.returncode, 1)
    assert child in said.stderr
    assert deployment.command("workflow", "join", workflow, "--then", "some.task", "--queue", "some").returncode == 0
    again = deployment.command("workflow", "join", workflow)
    assert_one_line(again.stderr, again.returncode, 2)
    assert f"to run some.task then; `delegation watch {workflow}` follows it" in again.stderr
    shown = as_json(deployment.command("workflow", "show", workflow, "--json"))
    assert list(shown) == WORKFLOW_NAMES
    assert (shown["state"], shown["unresolved"]) == ("JOINING", 1)
    assert shown["continuation"] == {"task": "some.task", "publishes": 0, "state": "waiting"}
    assert list(shown["children"][0]) == DELEGATION_NAMES
    hint = deployment.command("show", workflow)
    assert "delegation workflow show" in hint.stderr


def test_join_without_a_task_waits_for_the_children(deployment: Deployment) -> None:
    """`workflow join ID` returns when the last child is resolved; then the workflow can be completed."""
    workflow = printed_id(deployment.command("workflow", "open", "--name", "trip"))
    for goal in (DONE, FAILED):
        printed_id(deployment.command("delegate", "flights", goal, "--workflow", workflow))
    joined = deployment.command("workflow", "join", workflow)
    assert joined.returncode == 0, joined.stderr
    assert re.search(r"COMPLETED .*sunny", joined.stdout)
    assert re.search(r"FAILED .*no seats", joined.stdout)
    assert deployment.command("workflow", "complete", workflow, "--result", '{"ok": true}').returncode == 0
    shown = as_json(deployment.command("workflow", "show", workflow, "--json"))
    assert (shown["state"], shown["result"], shown["continuation"]) == ("COMPLETED", {"ok": True}, None)


def test_several_may_wait_for_one_join(deployment: Deployment, tmp_path: Path) -> None:
    """A second plain `workflow join` waits with the first; Ctrl-C ends its waiting, says how to go on, and undoes
    nothing."""
    workflow = printed_id(deployment.command("workflow", "open"))
    child = printed_id(deployment.command("delegate", "flights", NEVER, "--workflow", workflow))
    join = [sys.executable, "-m", "workers.cli", "workflow", "join", workflow]
    store = deployment.store()
    with (
        ChildProcess(join, log=tmp_path / "first.log", env=deployment.env) as first,
        ChildProcess(join, log=tmp_path / "second.log", env=deployment.env) as second,
    ):
        first.start()
        wait_until(lambda: store.load_workflow(workflow).state == "JOINING", 30, what="join")
        second.start()
        wait_until(lambda: listeners(deployment, store.key("roots", workflow)) == 2, 30, what="two that wait")
        refused = deployment.command("workflow", "join", workflow, "--then", "some.task")
        assert_one_line(refused.stderr, refused.returncode, 2)
        assert f"`delegation watch {workflow}` follows it" in refused.stderr
        second.send(signal.SIGINT)
        assert second.wait() == 130
        assert second.output() == f"delegation: still running; delegation watch {workflow}\n"
        assert deployment.command("cancel", child).returncode == 0
        assert first.wait() == 0
        assert "RELEASED" in first.output()


def listeners(deployment: Deployment, channel: str) -> int:
    """How many wait for a change of what the channel is about."""
    with deployment.valkey.client() as client:
        ((_, count),) = client.pubsub_numsub(channel)
    return int(count)


def test_workflows_are_listed(idle: Deployment) -> None:
    """Newest first, those without children included; ended ones are left out by `--open`; one array as JSON."""
    empty = printed_id(idle.command("workflow", "open", "--name", "empty", "--deadline", "PT3H"))
    workflow = printed_id(idle.command("workflow", "open", "--name", "trip"))
    child = printed_id(idle.command("delegate", "flights", "x", "--workflow", workflow))
    ended = printed_id(idle.command("workflow", "open"))
    assert idle.command("workflow", "complete", ended).returncode == 0
    lines = idle.command("workflow", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [ended, workflow, empty]
    assert re.fullmatch(rf"{workflow} +OPEN +1 of 1 +[\d.]+ s +\d+ d +trip", lines[2])
    assert re.fullmatch(rf"{empty} +OPEN +0 of 0 +[\d.]+ (s|min) +3 h +empty", lines[3])
    listed = as_json(idle.command("workflow", "list", "--open", "--limit", "1", "--json"))
    assert [list(each) for each in listed] == [LISTED_WORKFLOW_NAMES]
    assert (listed[0]["id"], listed[0]["unresolved"], listed[0]["child_count"]) == (workflow, 1, 1)
    assert re.search(
        r"OPEN .*0 of 0 unresolved, 3 h left$", idle.command("workflow", "show", empty).stdout, re.MULTILINE
    )
    unknown = idle.command("workflow", "show", "nobody")
    assert_one_line(unknown.stderr, unknown.returncode, 2)
    assert "`delegation workflow list`" in unknown.stderr
    assert "waiting for a worker" in idle.command("show", child).stdout


@pytest.mark.parametrize("name", ["show", "join", "complete", "cancel", "fail", "notes"])
def test_a_delegations_id_is_no_workflows(idle: Deployment, name: str) -> None:
    """Every workflow command says so, and names the command for delegations."""
    workflow = printed_id(idle.command("workflow", "open"))
    child = printed_id(idle.command("delegate", "flights", "x", "--workflow", workflow))
    said = idle.command("workflow", name, child)
    assert_one_line(said.stderr, said.returncode, 2)
    assert f"{child} is a delegation, not a workflow; use `delegation " in said.stderr
    assert child in said.stderr.partition("use `")[2]


def test_a_cancelled_workflows_receipts_are_pending_at_once(idle: Deployment) -> None:
    """Before any worker has told a child: in the table, in JSON, and of one that fails as well."""
    for end in ("cancel", "fail"):
        workflow = printed_id(idle.command("workflow", "open"))
        child = printed_id(idle.command("delegate", "flights", "x", "--workflow", workflow))
        said = idle.command("workflow", end, workflow, "--reason", "plans changed")
        assert said.returncode == 0, said.stderr
        assert end == "fail" or re.search(rf"^{re.escape(child)} .* pending$", said.stdout, re.MULTILINE)
        (shown,) = as_json(idle.command("workflow", "show", workflow, "--json"))["children"]
        assert (shown["outcome"], shown["cancel"]) == (None, "pending")


def test_a_task_that_the_app_does_not_know_is_warned_of(idle: Deployment) -> None:
    """One line on stderr with the nearest known name; done all the same, another app may have it."""
    opened = idle.command("workflow", "open", "--on-note", "delegation.delegat")
    workflow = printed_id(opened)
    assert_one_line(opened.stderr, opened.returncode, 0)
    assert "--on-note: the app 'delegation' knows no task 'delegation.delegat'" in opened.stderr
    assert "did you mean 'delegation.delegate'?" in opened.stderr
    printed_id(idle.command("delegate", "flights", "x", "--workflow", workflow))
    joined = idle.command("workflow", "join", workflow, "--then", "no.such.task")
    assert_one_line(joined.stderr, joined.returncode, 0)
    assert idle.store().load_workflow(workflow).state == "JOINING"
    known = printed_id(idle.command("workflow", "open"))
    joined = idle.command("workflow", "join", known, "--then", "celery.accumulate")
    assert (joined.returncode, joined.stderr) == (0, "")


def test_an_unknown_command_suggests_the_nearest(idle: Deployment) -> None:
    """At the top and below `workflow`."""
    for arguments, near in ((("lst",), "list"), (("workflow", "opne"), "open")):
        said = idle.command(*arguments)
        assert_one_line(said.stderr, said.returncode, 2)
        assert f"no such command '{arguments[-1]}'; did you mean '{near}'?" in said.stderr


def test_watching_in_a_pipe_has_aligned_columns(idle: Deployment, tmp_path: Path) -> None:
    """Every column begins below the one before, whatever names are long; a child without a name has its number."""
    workflow = printed_id(idle.command("workflow", "open"))
    for agent, name in (("flights", ""), ("much-longer-name", "seats at the window")):
        printed_id(idle.command("delegate", agent, "x", "--workflow", workflow, "--name", name))
    watch = [sys.executable, "-m", "workers.cli", "watch", workflow]
    with ChildProcess(watch, log=tmp_path / "watch.log", env=idle.env) as child:
        child.start()
        child.wait_for_output("much-longer-name .*\n")
        lines = child.output().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  1 +flights +- +SUBMITTED +waiting for a worker", lines[0])
    assert len({line.index("SUBMITTED") for line in lines}) == 1
    assert lines[0].index("flights") == lines[1].index("much-longer-name")


def test_lists_are_one_array(deployment: Deployment) -> None:
    """`list`, `agents` and `show --history` print one array of objects with the documented names."""
    delegation_id = printed_id(deployment.command("delegate", "flights", DONE))
    listed = as_json(deployment.command("list", "--json"))
    assert listed[0]["id"] == delegation_id
    assert all(list(each) == DELEGATION_NAMES for each in listed)
    assert deployment.command("list").stdout.splitlines()[1].startswith(delegation_id)
    (agent,) = as_json(deployment.command("agents", "--json"))
    assert sorted(agent) == sorted(AGENT_NAMES)
    assert agent["accepted"] is True
    assert RFC_3339.fullmatch(agent["card_fetched_at"])
    history = as_json(deployment.command("show", delegation_id, "--history", "--json"))
    assert list(history[0]) == ["at", "cause", "phase", "state", "text"]
    assert history[0]["cause"] == "opened"


def test_a_filtered_list_looks_behind_the_newest(deployment: Deployment) -> None:
    """`--limit` counts what is shown: newer delegations that ended hide none that is open."""
    workflow = printed_id(deployment.command("workflow", "open"))
    child = printed_id(deployment.command("delegate", "flights", NEVER, "--workflow", workflow))
    for _ in range(2):
        assert deployment.command("delegate", "flights", DONE, "--wait").returncode == 0
    assert [each["id"] for each in as_json(deployment.command("list", "--open", "--limit", "1", "--json"))] == [child]
    assert as_json(deployment.command("list", "--agent", "nobody", "--limit", "1", "--json")) == []


def test_a_celery_id_is_as_good_as_a_delegations(deployment: Deployment) -> None:
    """`show` and `watch` find a delegation by the id that Flower and a task's caller know."""
    call = (
        "import sys; from workers import delegate; from workers.runtime import runtime;"
        " delegate.apply_async(kwargs={'agent': 'flights', 'goal': sys.argv[1]}, task_id='my-call');"
        " print(runtime().store.id_of_call('my-call'))"
    )
    given = printed_id(deployment.python(call, DONE))
    made_up = printed_id(deployment.command("delegate", "flights", DONE))
    for call_id, delegation_id in (("my-call", given), (f"{made_up}.delegate", made_up)):
        watched = deployment.command("watch", call_id, "--json")
        assert json.loads(watched.stdout.splitlines()[-1])["id"] == delegation_id, watched.stderr
        assert as_json(deployment.command("show", call_id, "--json"))["id"] == delegation_id
        assert as_json(deployment.command("show", call_id, "--history", "--json"))


def test_watching_what_nobody_joined_says_so(deployment: Deployment, tmp_path: Path) -> None:
    """When all children have ended and no join waits, one line on stderr names the command; the watch goes on."""
    workflow = printed_id(deployment.command("workflow", "open"))
    printed_id(deployment.command("delegate", "flights", DONE, "--workflow", workflow))
    watch = [sys.executable, "-m", "workers.cli", "watch", workflow]
    with ChildProcess(watch, log=tmp_path / "watch.log", env=deployment.env) as child:
        child.start()
        child.wait_for_output("COMPLETED")
        child.wait_for_output(f"nobody has joined: delegation workflow join {workflow}")
        assert deployment.command("workflow", "join", workflow).returncode == 0
        assert child.wait() == 0
        assert child.output().count("nobody has joined") == 1


def test_a_continuation_that_never_runs_is_shown(tmp_path: Path) -> None:
    """`workflow show` tells how often it was published; given up, `watch` and `doctor` tell it as well; JSON too."""
    with Deployment(tmp_path, agents={}, web=False, workers=0) as it:
        store = it.store()
        workflow = printed_id(it.command("workflow", "open", "--name", "trip"))
        joined = it.command("workflow", "join", workflow, "--then", "no.task", "--queue", "nobody-listens")
        assert joined.returncode == 0, joined.stderr
        release_id = store.load_workflow(workflow).release_id
        assert release_id is not None
        said = it.command("workflow", "show", workflow).stdout
        assert re.search(r"then: no\.task, published once, not seen to run yet$", said, re.MULTILINE)
        published = {"task": "no.task", "publishes": 1, "state": "published"}
        assert as_json(it.command("workflow", "show", workflow, "--json"))["continuation"] == published
        store.continuation_poisoned(workflow, release_id)
        given_up = {**published, "state": "given up"}
        assert as_json(it.command("workflow", "show", workflow, "--json"))["continuation"] == given_up
        for command_line in (("workflow", "show"), ("watch",)):
            said = it.command(*command_line, workflow).stdout
            assert re.search(r"then: no\.task, published once and never seen to run$", said, re.MULTILINE)
        doctor = it.command("doctor", "--no-agents").stdout
        assert re.search(r"^continuations +warning +1 given up", doctor, re.MULTILINE)


def test_only_children_that_exist_are_counted(deployment: Deployment) -> None:
    """A number given out and never used is no child."""
    workflow = printed_id(deployment.command("workflow", "open"))
    deployment.store().next_child_number(WorkflowId(workflow))
    child = printed_id(deployment.command("delegate", "flights", NEVER, "--workflow", workflow))
    assert child == f"{workflow}.2"
    assert "1 of 1 unresolved" in deployment.command("workflow", "show", workflow).stdout


def test_doctor_finds_nothing_wrong_with_a_whole_deployment(deployment: Deployment) -> None:
    """Every check is ok, with a line each."""
    findings = as_json(deployment.command("doctor", "--json"))
    assert {each["verdict"] for each in findings} == {"ok"}
    names = [each["check"] for each in findings]
    assert names == [
        "configuration",
        "redis",
        "durability",
        "state",
        "worker",
        "due",
        "continuations",
        "queues",
        "web",
        "agent flights",
    ]


def test_watch_tells_each_change_in_a_line_where_nobody_looks(deployment: Deployment) -> None:
    """Not on a terminal, `watch` prints plain lines until the end, whose kind is the exit code."""
    delegation_id = printed_id(deployment.command("delegate", "flights", FAILED, "--name", "seats"))
    said = deployment.command("watch", delegation_id)
    assert said.returncode == 1
    assert re.search(r"seats +flights .*FAILED +no seats", said.stdout.splitlines()[-1])
    last = json.loads(deployment.command("watch", delegation_id, "--json").stdout.splitlines()[-1])
    assert last["state"] == "FAILED"


def test_ctrl_c_is_quiet(deployment: Deployment, tmp_path: Path) -> None:
    """SIGINT ends a watch with 130 and no traceback."""
    delegation_id = printed_id(deployment.command("delegate", "flights", NEVER, "--name", "long"))
    watch = [sys.executable, "-m", "workers.cli", "watch", delegation_id]
    with ChildProcess(watch, log=tmp_path / "watch.log", env=deployment.env) as child:
        child.start()
        child.wait_for_output("long")
        child.send(signal.SIGINT)
        assert child.wait() == 130
        assert "Traceback" not in child.output()


def test_ctrl_c_while_waiting_says_how_to_go_on(deployment: Deployment, tmp_path: Path) -> None:
    """The work goes on: one line names the command that watches it, and the exit code is 130."""
    wait = [sys.executable, "-m", "workers.cli", "delegate", "flights", NEVER, "--wait"]
    with ChildProcess(wait, log=tmp_path / "wait.log", env={**deployment.env, "PYTHONUNBUFFERED": "1"}) as child:
        child.start()
        delegation_id = child.wait_for_output(r"^([0-9a-f]{32})$").group(1)
        child.send(signal.SIGINT)
        assert child.wait() == 130
        assert child.output().splitlines()[1:] == [f"delegation: still running; delegation watch {delegation_id}"]


def test_an_agent_that_is_away_is_named_as_the_cause(tmp_path: Path) -> None:
    """Until it is given up, `list`, `watch` and `show` tell since when an agent does not answer."""
    away = re.compile(r"agent unavailable since \d\d:\d\d:\d\d, tried (once|\d+ times)$", re.MULTILINE)
    agents = {"flights": f"http://127.0.0.1:{free_port()}"}
    with Deployment(tmp_path, agents=agents, web=False, timing={"unavailable_after": 60}) as it:
        delegation_id = printed_id(it.command("delegate", "flights", DONE))
        watch = [sys.executable, "-m", "workers.cli", "watch", delegation_id]
        with ChildProcess(watch, log=tmp_path / "watch.log", env=it.env) as child:
            child.start()
            child.wait_for_output("agent unavailable since")
        assert away.search(it.command("list").stdout)
        assert away.search(it.command("show", delegation_id).stdout)
        unavailable = as_json(it.command("show", delegation_id, "--json"))["unavailable"]
        assert RFC_3339.fullmatch(unavailable["since"])
        assert unavailable["tries"] >= 1


def test_a_reader_that_goes_away_is_no_error_to_tell(deployment: Deployment) -> None:
    """A broken pipe ends the command without a word, and with the code that shells give SIGPIPE."""
    printed_id(deployment.command("delegate", "flights", DONE))
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        said = subprocess.run(
            [sys.executable, "-m", "workers.cli", "list", "--json"],
            cwd=ROOT,
            env=child_environment(deployment.env),
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (said.returncode, said.stderr) == (141, b"")


def test_an_agents_text_cannot_steer_the_terminal(deployment: Deployment) -> None:
    """Control characters in what an agent says are shown as replacement characters."""
    goal = json.dumps({"artifact": "red \x1b[31m and \x9b2J and \u202e turned"})
    said = deployment.command("delegate", "flights", goal, "--wait")
    shown = deployment.command("show", said.stdout.splitlines()[0])
    for text in (said.stdout, shown.stdout):
        assert "red \N{REPLACEMENT CHARACTER}[31m" in text
        assert not set(text) & {"\x1b", "\x9b", "\u202e"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("inbox",),
        ("reply", "nobody", "x"),
        ("cancel", "nobody"),
        ("workflow", "open"),
        ("workflow", "cancel", "nobody"),
        ("watch", "nobody"),
        ("doctor", "--no-agents"),
    ],
)
def test_commands_that_call_no_agent_do_not_load_a2a(deployment: Deployment, arguments: tuple[str, ...]) -> None:
    """What keeps them fast: the SDK costs a quarter of a second to import."""
    code = "import sys; from workers.cli import run; run(sys.argv[1:]); print('a2a' in sys.modules)"
    assert deployment.python(code, *arguments).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("show", "x"),
        ("delegate", "flights", "x"),
        ("inbox",),
        ("reply", "x", "yes"),
        ("cancel", "x"),
        ("workflow", "open"),
        ("workflow", "notes", "x"),
        ("watch", "x"),
        ("agents",),
    ],
)
def test_redis_away_is_three(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A Redis that does not answer is one line that says so, and exit code 3."""
    env = config(tmp_path, f'[redis]\nurl = "redis://127.0.0.1:{free_port()}/0"\n')
    said = command(env, *arguments)
    assert_one_line(said.stderr.decode(), said.returncode, 3)
    assert b"Redis does not answer" in said.stderr


def test_doctor_says_what_is_away(tmp_path: Path) -> None:
    """Without Redis the doctor ends with 3 and names it, and goes on to what can be checked without."""
    env = config(tmp_path, f'[redis]\nurl = "redis://127.0.0.1:{free_port()}/0"\n')
    said = command(env, "doctor")
    assert said.returncode == 3
    assert re.search(rb"^redis +failed +.*does not answer", said.stdout, re.MULTILINE)
    assert re.search(rb"^web +warning", said.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [("list",), ("up",)])
def test_a_wrong_configuration_names_the_key(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Exit code 2 and the dotted key, before anything is done."""
    said = command(config(tmp_path, "[limits]\nhistory = -1\n"), *arguments)
    assert_one_line(said.stderr.decode(), said.returncode, 2)
    assert b"limits.history" in said.stderr
    doctor = command(config(tmp_path, "[limits]\nhistory = -1\n"), "doctor")
    assert doctor.returncode == 2
    assert b"limits.history" in doctor.stdout


def config(directory: Path, sections: str) -> dict[str, str]:
    """A configuration with one agent that nobody calls."""
    path = directory / "delegation.toml"
    path.write_text(f'{sections}\n[[agents]]\nid = "flights"\nurl = "http://127.0.0.1:9"\n', encoding="utf-8")
    return {"DELEGATION_CONFIG": str(path)}
