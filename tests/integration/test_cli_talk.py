"""The command line's contract where one talks to delegations: inbox, reply, cancel, notes, and what watching tells."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.state import Delegation
from delegation.store import Store
from tests.support.child import ROOT, ChildProcess, child_environment
from tests.support.processes import Deployment, ScriptedAgent, wait_until

AGENTS: dict[str, dict[str, Any]] = {
    "flights": {},
    "quiet": {"push": False},
    "stubborn": {"cancel": "refuse"},
    "deaf": {"cancel": "ignore"},
}
NEVER = '{"states": [["WORKING", 0]]}'
DONE = '{"artifact": "sunny"}'
CHOICES = {"choices": ["May", "June"]}
WAIT_S = 30.0
DELEGATION = [sys.executable, "-m", "workers.cli"]

Said = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ScriptedAgent]:
    directory = tmp_path_factory.mktemp("agents")
    return {name: ScriptedAgent(directory, name=name, **config) for name, config in AGENTS.items()}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, agents: dict[str, ScriptedAgent]) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("talk")
    with Deployment(
        directory,
        agents=agents,
        timing={"cancel_deadline": 4},
        config={"limits": {"artifact_bytes": 400}},
    ) as it:
        yield it


@pytest.fixture(scope="module")
def store(deployment: Deployment) -> Store:
    return deployment.store()


def asks(*questions: str, part: dict[str, Any] | None = None, then: str = "thanks") -> str:
    """A goal whose agent asks these questions, one after the other, and completes on the last reply."""
    end = {"states": [["WORKING", 0], ["COMPLETED", 0.05]], "artifact": then}
    turns = [*({"states": [["WORKING", 0], _asking(question)]} for question in questions[1:]), end]
    return json.dumps({"states": [["WORKING", 0], _asking(questions[0], part)], "turns": turns})


def _asking(question: str, part: dict[str, Any] | None = None) -> list[Any]:
    return ["INPUT_REQUIRED", 0.05, question, *([part] if part else [])]


def delegated(deployment: Deployment, *arguments: str, agent: str = "flights") -> str:
    said = deployment.command("delegate", agent, *arguments)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def wait_for(store: Store, delegation_id: str, what: str, condition: Any) -> Delegation:
    def found() -> Delegation | None:
        delegation = store.load(delegation_id).delegation
        return delegation if condition(delegation) else None

    return wait_until(found, WAIT_S, what=what)


def wait_for_question(store: Store, delegation_id: str) -> Delegation:
    return wait_for(store, delegation_id, "question", lambda d: d.waits_for_reply and d.id in store.inbox())


def wait_for_work(store: Store, delegation_id: str) -> Delegation:
    return wait_for(store, delegation_id, "agent task", lambda d: d.progress.agent_task_id)


def asked(deployment: Deployment, store: Store, *questions: str, **more: Any) -> str:
    """A delegation whose agent has asked."""
    delegation_id = delegated(deployment, asks(*questions, **more))
    wait_for_question(store, delegation_id)
    return delegation_id


def as_json(said: Said, code: int = 0) -> Any:
    assert said.returncode == code, said.stderr
    return json.loads(said.stdout)


def assert_one_line(said: Said, code: int = 2) -> None:
    assert (said.returncode, said.stdout) == (code, ""), said.stderr
    assert len(said.stderr.splitlines()) == 1, said.stderr
    assert said.stderr.startswith("delegation: ")


def told(agents: dict[str, ScriptedAgent], store: Store, delegation_id: str) -> list[list[dict[str, Any]]]:
    """The parts of what was said to the agent after the brief."""
    agent_task_id = store.load(delegation_id).delegation.progress.agent_task_id
    (task,) = (task for task in agents["flights"].tasks() if task["id"] == agent_task_id)
    said = [message["parts"] for message in task["history"] if message["role"] == "ROLE_USER"]
    return said[1:]


def run_with_stdin(deployment: Deployment, stdin: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    env = child_environment(deployment.env)
    return subprocess.run(
        [*DELEGATION, *arguments], cwd=ROOT, env=env, input=stdin, capture_output=True, timeout=60, check=False
    )


# -------------------------------------------------------------------- questions and replies


def test_a_question_is_answered_from_the_shell(deployment: Deployment, store: Store) -> None:
    """INPUT_REQUIRED is in the inbox and in `show`; `reply --wait` sends the answer and prints the outcome's text."""
    delegation_id = asked(deployment, store, "Which month?")
    listed = as_json(deployment.command("inbox", "--json"))
    (waiting,) = (each for each in listed if each["id"] == delegation_id)
    assert (waiting["state"], waiting["question"]["text"]) == ("INPUT_REQUIRED", "Which month?")
    assert f"answer: delegation reply {delegation_id} TEXT" in deployment.command("show", delegation_id).stdout

    said = deployment.command("reply", delegation_id, "June", "--wait")

    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == ["1", "thanks"]
    assert said.stderr == f"delegation: reply 1 to {delegation_id} is kept, and being sent\n"
    assert delegation_id not in deployment.command("inbox").stdout
    shown = as_json(deployment.command("show", delegation_id, "--json"))
    assert (shown["state"], shown["question"], shown["replies"]) == ("COMPLETED", None, {"sent": 1, "waiting": 0})


def test_every_part_of_a_question_is_shown(deployment: Deployment, store: Store) -> None:
    """Case C089: text and data in order, in `show`, in the inbox and in JSON."""
    delegation_id = asked(deployment, store, "Pick one:", part={"data": CHOICES})
    shown = deployment.command("show", delegation_id).stdout
    assert re.search(r'^question +Pick one:\n +\{"choices": \["May", "June"\]\}$', shown, re.MULTILINE)
    line = next(each for each in deployment.command("inbox").stdout.splitlines() if each.startswith(delegation_id))
    assert line.endswith('Pick one: {"choices": ["May", "June"]}')
    parts = as_json(deployment.command("show", delegation_id, "--json"))["question"]["parts"]
    assert parts == [{"text": "Pick one:"}, {"data": CHOICES}]


def test_files_in_a_question_are_named_and_not_opened(deployment: Deployment, store: Store) -> None:
    """A URL and a file name are inert text."""
    part = {"url": "http://127.0.0.1:9/x", "filename": "../../plan\x1b.pdf", "mediaType": "application/pdf"}
    delegation_id = asked(deployment, store, "Sign this:", part=part)
    shown = deployment.command("show", delegation_id).stdout
    assert "[file: ../../plan\N{REPLACEMENT CHARACTER}.pdf, application/pdf, http://127.0.0.1:9/x]" in shown


def test_the_oldest_question_comes_first(deployment: Deployment, store: Store) -> None:
    """The inbox is sorted by when a question was first heard, tells its age and the time left, and can be narrowed."""
    workflow = deployment.command("workflow", "open").stdout.strip()
    first = delegated(deployment, asks("first?"), "--workflow", workflow, "--deadline", "PT2H")
    wait_for_question(store, first)
    second = asked(deployment, store, "second?")
    third = delegated(deployment, asks("third?"), "--workflow", workflow)
    wait_for_question(store, third)

    ids = [line.split()[0] for line in deployment.command("inbox").stdout.splitlines()[1:]]
    assert [each for each in ids if each in (first, second, third)] == [first, second, third]
    narrowed = deployment.command("inbox", "--workflow", workflow).stdout.splitlines()
    assert re.fullmatch(
        rf"{re.escape(first)}  flights  INPUT_REQUIRED +[\d.]+ (s|min)  (120 min|2 h)  first\?", narrowed[1]
    )
    assert [line.split()[0] for line in narrowed[1:]] == [first, third]
    (only,) = as_json(deployment.command("inbox", "--workflow", workflow, "--limit", "1", "--json"))
    assert only["id"] == first
    times = [each["question"]["asked_at"] for each in as_json(deployment.command("inbox", "--json"))]
    assert times == sorted(times)


def test_an_empty_inbox_says_so(deployment: Deployment) -> None:
    """On stderr; stdout stays empty, or an empty array."""
    said = deployment.command("inbox", "--agent", "deaf")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "nothing waits for a reply\n")
    assert as_json(deployment.command("inbox", "--agent", "deaf", "--json")) == []


def test_an_authorization_is_asked_for_in_the_inbox(
    deployment: Deployment, store: Store, agents: dict[str, ScriptedAgent]
) -> None:
    """AUTH_REQUIRED tells what is asked, and that a reply may not be needed: it goes on by itself."""
    goal = json.dumps({"states": [["WORKING", 0], ["AUTH_REQUIRED", 0.05, "Log in at http://127.0.0.1:9/"]]})
    delegation_id = delegated(deployment, goal)
    agent_task_id = wait_for_question(store, delegation_id).progress.agent_task_id
    assert re.search(
        rf"^{delegation_id} +flights +AUTH_REQUIRED .*Log in at", deployment.command("inbox").stdout, re.MULTILINE
    )
    assert "authorize it as asked; if it does not go on by itself:" in deployment.command("show", delegation_id).stdout
    agents["flights"].move(str(agent_task_id), "COMPLETED", artifact="in")
    wait_for(store, delegation_id, "end", lambda d: d.outcome)
    assert delegation_id not in store.inbox()


def test_waiting_after_a_reply_ends_at_the_next_question(deployment: Deployment, store: Store) -> None:
    """It is printed like an outcome, with 0; stderr says how to go on; `--json` is the delegation instead."""
    delegation_id = asked(deployment, store, "Which month?", "Which year?")
    said = deployment.command("reply", delegation_id, "June", "--wait")
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == ["1", "Which year?"]
    assert said.stderr.splitlines()[1] == (
        f"delegation: {delegation_id} is INPUT_REQUIRED: Which year?; answer: delegation reply {delegation_id} TEXT"
    )
    after = as_json(deployment.command("reply", delegation_id, "2027", "--wait", "--json"))
    assert (after["outcome"]["text"], after["replies"]["sent"]) == ("thanks", 2)


def test_a_reply_ahead_of_its_question_waits(deployment: Deployment, store: Store) -> None:
    """It is kept, counted as waiting, and sent in its turn."""
    delegation_id = asked(deployment, store, "Which month?", "Which year?")
    assert deployment.command("reply", delegation_id, "June").stdout == "1\n"
    ahead = deployment.command("reply", delegation_id, "2027", "--wait")
    assert ahead.stdout.splitlines() == ["2", "thanks"], ahead.stderr


def test_the_same_reply_twice_is_one(deployment: Deployment, store: Store, agents: dict[str, ScriptedAgent]) -> None:
    """Said again to the same question, a reply has the same number, and says so."""
    goal = json.dumps({"states": [["WORKING", 0]]})
    delegation_id = delegated(deployment, goal)
    wait_for_work(store, delegation_id)
    assert deployment.command("reply", delegation_id, "June").stdout == "1\n"
    again = deployment.command("reply", delegation_id, "June")
    assert (again.stdout, again.returncode) == ("1\n", 0)
    assert "was given before; nothing is sent again" in again.stderr
    assert re.search(r"^replies +0 sent, 1 waiting$", deployment.command("show", delegation_id).stdout, re.MULTILINE)
    assert told(agents, store, delegation_id) == []


def test_data_goes_with_a_text_or_alone(deployment: Deployment, store: Store, agents: dict[str, ScriptedAgent]) -> None:
    """`--data` is a data part, null as well; numbers stay what they are."""
    delegation_id = asked(deployment, store, "one?", "two?", "three?")
    assert deployment.command("reply", delegation_id, "--data", '{"n": 9007199254740993}', "--wait").returncode == 0
    assert deployment.command("reply", delegation_id, "take it", "--data", "null", "--wait").returncode == 0
    assert deployment.command("reply", delegation_id, "done", "--wait").stdout.splitlines() == ["3", "thanks"]
    assert [
        [{k: v for k, v in part.items() if k in ("text", "data")} for part in parts]
        for parts in told(agents, store, delegation_id)
    ] == [
        [{"data": {"n": 9007199254740993}}],
        [{"text": "take it"}, {"data": None}],
        [{"text": "done"}],
    ]


def test_a_reply_comes_from_a_file_or_stdin(
    deployment: Deployment, store: Store, agents: dict[str, ScriptedAgent], tmp_path: Path
) -> None:
    """`--file PATH`, `--file -` and TEXT `-`; newlines at the end are left out, others stay."""
    delegation_id = asked(deployment, store, "one?", "two?", "three?")
    path = tmp_path / "reply.txt"
    path.write_text("Grüße\naus Wien\n\n", encoding="utf-8")
    assert deployment.command("reply", delegation_id, "--file", str(path), "--wait").returncode == 0
    assert run_with_stdin(deployment, b"from stdin\n", "reply", delegation_id, "--file", "-", "--wait").returncode == 0
    assert run_with_stdin(deployment, b"again\r\n", "reply", delegation_id, "-", "--wait").returncode == 0
    texts = [parts[0]["text"] for parts in told(agents, store, delegation_id)]
    assert texts == ["Grüße\naus Wien", "from stdin", "again"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give a text, or data"),
        (("",), "give a text, or data"),
        (("yes", "--file", __file__), "TEXT and --file"),
        (("--data", "{"), "--data: must be JSON"),
        (("--data", "NaN"), "plain JSON"),
        (("--data", "[" * 100_000), "--data: must be JSON"),
        (("--file", "/nowhere/at-all"), "No such file"),
        (("--file", "/"), "directory"),
    ],
)
def test_a_reply_that_cannot_be_used_is_refused(deployment: Deployment, arguments: tuple[str, ...], says: str) -> None:
    """Exit code 2, one line, nothing kept."""
    delegation_id = delegated(deployment, NEVER)
    said = deployment.command("reply", delegation_id, *arguments)
    assert_one_line(said)
    assert says in said.stderr
    assert as_json(deployment.command("show", delegation_id, "--json"))["replies"] == {"sent": 0, "waiting": 0}


def test_a_reply_to_what_has_ended_is_refused(deployment: Deployment, store: Store) -> None:
    """One line that says so, exit code 2; an unknown id and a workflow's likewise."""
    delegation_id = delegated(deployment, DONE)
    wait_for(store, delegation_id, "end", lambda d: d.outcome)
    said = deployment.command("reply", delegation_id, "too late")
    assert_one_line(said)
    assert "has ended" in said.stderr
    assert_one_line(deployment.command("reply", "nobody", "x"))
    workflow = deployment.command("workflow", "open").stdout.strip()
    said = deployment.command("reply", workflow, "x")
    assert_one_line(said)
    assert f"delegation inbox --workflow {workflow}" in said.stderr


def test_a_refused_reply_leaves_the_question_open(
    deployment: Deployment, store: Store, agents: dict[str, ScriptedAgent]
) -> None:
    """`reply --wait` then ends with 1 and says that the agent refused it; the history says why."""
    delegation_id = delegated(deployment, json.dumps({**json.loads(asks("Which month?")), "id": "t-refuses"}))
    wait_for_question(store, delegation_id)
    refusal = {"on": "SendMessage with taskId='t-refuses'", "times": 1, "error": {"code": -32602, "message": "no"}}
    agents["flights"].script([refusal])
    said = deployment.command("reply", delegation_id, "Juni", "--wait")
    assert (said.returncode, said.stdout.splitlines()) == (1, ["1", "Which month?"]), said.stderr
    assert "; reply 1 refused: SendMessage: error -32602" in said.stderr
    assert re.search(r"reply +WATCHING .*reply 1 refused", deployment.command("show", delegation_id).stdout)
    assert deployment.command("reply", delegation_id, "June", "--wait").stdout.splitlines() == ["2", "thanks"]


def test_a_celery_id_is_as_good_as_a_delegations(deployment: Deployment, store: Store) -> None:
    """`reply` and `cancel` find a delegation by the id of its call, too."""
    delegation_id = asked(deployment, store, "Which month?")
    said = deployment.command("reply", f"{delegation_id}.delegate", "June", "--wait")
    assert said.stdout.splitlines() == ["1", "thanks"], said.stderr
    assert deployment.command("cancel", f"{delegation_id}.delegate").stdout == "already ended\n"


def test_waiting_for_the_outcome_tells_how_to_answer(deployment: Deployment, store: Store, tmp_path: Path) -> None:
    """`delegate --wait` says what is asked and which command answers, once for each question, and goes on."""
    wait = [*DELEGATION, "delegate", "flights", asks("Which month?", "Which year?"), "--wait"]
    with ChildProcess(wait, log=tmp_path / "wait.log", env=deployment.env) as child:
        child.start()
        told = child.wait_for_output(
            r"INPUT_REQUIRED: Which month\?; still waiting; answer: delegation reply (\S+) TEXT"
        )
        delegation_id = told.group(1)
        assert deployment.command("reply", delegation_id, "June").returncode == 0
        child.wait_for_output(r"INPUT_REQUIRED: Which year\?; still waiting")
        assert deployment.command("reply", delegation_id, "2027").returncode == 0
        assert child.wait() == 0
        assert child.output().splitlines()[-1] == "thanks"
        assert child.output().count("still waiting") == 2


# -------------------------------------------------------------------- cancel


def test_cancel_prints_its_receipt(deployment: Deployment, store: Store) -> None:
    """`pending` or `cancelled` at once, `cancelled` when waited for; the reason is in the history."""
    delegation_id = delegated(deployment, NEVER)
    wait_for_work(store, delegation_id)
    said = deployment.command("cancel", delegation_id, "--reason", "no longer needed")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout in ("pending\n", "cancelled\n")
    said = deployment.command("cancel", delegation_id, "--wait")
    assert (said.returncode, said.stdout) == (0, "cancelled\n"), said.stderr
    shown = deployment.command("show", delegation_id).stdout
    assert re.search(r"^cancel +cancelled$", shown, re.MULTILINE)
    assert re.search(r" cancel +WATCHING +WORKING +wanted: no longer needed$", shown, re.MULTILINE)
    after = as_json(deployment.command("cancel", delegation_id, "--json"))
    assert (after["state"], after["cancel"]) == ("CANCELED", "cancelled")
    assert after["cancel_reason"] == "no longer needed"


def test_what_had_ended_is_not_cancelled(deployment: Deployment, store: Store) -> None:
    """`already ended` is no failure; the outcome stays."""
    delegation_id = delegated(deployment, DONE)
    wait_for(store, delegation_id, "end", lambda d: d.outcome)
    for arguments in ((), ("--wait",)):
        said = deployment.command("cancel", delegation_id, *arguments)
        assert (said.returncode, said.stdout) == (0, "already ended\n"), said.stderr
        assert as_json(deployment.command("cancel", delegation_id, "--json", *arguments))["cancel"] == "already ended"
    assert as_json(deployment.command("show", delegation_id, "--json"))["state"] == "COMPLETED"


def test_an_agent_that_does_not_confirm_is_told(deployment: Deployment, store: Store) -> None:
    """CANCELED here after the cancel deadline, `unreachable` and exit code 1: it may still be at work."""
    delegation_id = delegated(deployment, NEVER, agent="deaf")
    wait_for_work(store, delegation_id)
    said = deployment.command("cancel", delegation_id, "--wait")
    assert (said.returncode, said.stdout) == (1, "unreachable\n"), said.stderr
    assert as_json(deployment.command("show", delegation_id, "--json"))["reason"] == "cancel.unconfirmed"


def test_a_refused_cancel_is_told_while_it_is_watched_on(
    deployment: Deployment, store: Store, agents: dict[str, ScriptedAgent], tmp_path: Path
) -> None:
    """`--wait` says so and waits for the end; without it the receipt is `refused` and the exit code 1."""
    delegation_id = delegated(deployment, NEVER, agent="stubborn")
    agent_task_id = wait_for_work(store, delegation_id).progress.agent_task_id
    cancel = [*DELEGATION, "cancel", delegation_id, "--wait"]
    with ChildProcess(cancel, log=tmp_path / "cancel.log", env=deployment.env) as child:
        child.start()
        child.wait_for_output("refused to cancel")
        assert re.search(r"^cancel +refused$", deployment.command("show", delegation_id).stdout, re.MULTILINE)
        agents["stubborn"].move(str(agent_task_id), "COMPLETED", artifact="done all the same")
        assert child.wait() == 0
        assert child.output().splitlines()[-1] == "already ended"


def test_a_workflow_is_cancelled_by_its_own_command(deployment: Deployment) -> None:
    """`cancel` of a workflow's id names it, changes nothing, and ends with 2."""
    workflow = deployment.command("workflow", "open").stdout.strip()
    said = deployment.command("cancel", workflow)
    assert_one_line(said)
    assert f"delegation workflow cancel {workflow}" in said.stderr
    assert as_json(deployment.command("workflow", "show", workflow, "--json"))["state"] == "OPEN"


def test_a_cancelled_workflow_gives_a_receipt_for_each_child(deployment: Deployment, store: Store) -> None:
    """A line for each, or an array; `--wait` until the last has ended; the reason shows; a second cancel is refused."""
    workflow = deployment.command("workflow", "open", "--name", "trip").stdout.strip()
    ended = delegated(deployment, DONE, "--workflow", workflow)
    asking = delegated(deployment, asks("Which month?"), "--workflow", workflow)
    deaf = delegated(deployment, NEVER, "--workflow", workflow, agent="deaf")
    wait_for(store, ended, "end", lambda d: d.outcome)
    wait_for_question(store, asking)
    wait_for_work(store, deaf)

    said = deployment.command("workflow", "cancel", workflow, "--reason", "plans changed", "--wait")

    assert said.returncode == 1, said.stderr
    rows = [line.split(maxsplit=3) for line in said.stdout.splitlines()[1:]]
    assert rows == [
        [ended, "flights", "COMPLETED", "already ended"],
        [asking, "flights", "CANCELED", "cancelled"],
        [deaf, "deaf", "CANCELED", "unreachable"],
    ]
    assert store.inbox().count(asking) == 0
    shown = deployment.command("workflow", "show", workflow).stdout
    assert re.search(r"^trip +CANCELED .*0 of 3 unresolved\n +plans changed$", shown, re.MULTILINE)
    assert_one_line(deployment.command("workflow", "cancel", workflow))


def test_a_workflows_receipts_are_one_array(deployment: Deployment) -> None:
    """`--json`: `id agent state cancel` of each child; none without children, with 0."""
    workflow = deployment.command("workflow", "open").stdout.strip()
    child = delegated(deployment, NEVER, "--workflow", workflow)
    (receipt,) = as_json(deployment.command("workflow", "cancel", workflow, "--wait", "--json"))
    assert receipt == {"id": child, "agent": "flights", "state": "CANCELED", "cancel": "cancelled"}
    empty = deployment.command("workflow", "open").stdout.strip()
    said = deployment.command("workflow", "cancel", empty)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "no children\n")


# -------------------------------------------------------------------- workflows


def test_a_failed_workflow_cancels_its_children(deployment: Deployment, tmp_path: Path) -> None:
    """`workflow fail` ends it at once; `watch` tells why, and goes on until the last child has ended."""
    workflow = deployment.command("workflow", "open", "--name", "trip").stdout.strip()
    child_id = delegated(deployment, NEVER, "--workflow", workflow, "--name", "seats")
    with ChildProcess([*DELEGATION, "watch", workflow], log=tmp_path / "watch.log", env=deployment.env) as child:
        child.start()
        child.wait_for_output(r"seats +flights +push +WORKING")
        said = deployment.command("workflow", "fail", workflow, "--reason", "over budget")
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
        assert child.wait() == 0
        lines = child.output().splitlines()
    assert re.search(r"  trip +- +- +FAILED +over budget$", "\n".join(lines), re.MULTILINE)
    assert re.search(r"seats +flights +push +CANCELED", lines[-1])
    shown = as_json(deployment.command("workflow", "show", workflow, "--json"))
    assert (shown["state"], shown["reason"], shown["children"][0]["id"]) == ("FAILED", "over budget", child_id)


def test_notes_are_printed_once(deployment: Deployment, store: Store) -> None:
    """`workflow notes` drains: a question and an end, in order, and then nothing."""
    workflow = deployment.command("workflow", "open").stdout.strip()
    child = delegated(deployment, asks("Which\nmonth\x1b?"), "--workflow", workflow)
    wait_for_question(store, child)
    said = deployment.command("workflow", "notes", workflow)
    assert re.search(
        rf"^\S+Z  flights  Sub-task {re.escape(child)} is INPUT_REQUIRED: Which month ?\?$", said.stdout, re.MULTILINE
    )
    assert deployment.command("reply", child, "June", "--wait").returncode == 0
    (note,) = as_json(deployment.command("workflow", "notes", workflow, "--json"))
    assert list(note) == ["at", "number", "delegation_id", "agent", "state", "text", "source"]
    assert (note["delegation_id"], note["state"], note["number"]) == (child, "COMPLETED", 2)
    empty = deployment.command("workflow", "notes", workflow)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "no notes\n")
    assert as_json(deployment.command("workflow", "notes", workflow, "--json")) == []


def test_a_task_may_be_named_that_is_told_of_notes(deployment: Deployment, store: Store) -> None:
    """`workflow open --on-note TASK --queue Q` keeps that signature; a queue without a task is a mistake."""
    workflow = deployment.command("workflow", "open", "--on-note", "my.task", "--queue", "mine").stdout.strip()
    on_note = store.load_workflow(workflow).on_note
    assert on_note is not None
    assert (on_note["task"], on_note["options"]["queue"]) == ("my.task", "mine")
    assert_one_line(deployment.command("workflow", "open", "--queue", "mine"))


# -------------------------------------------------------------------- watch and show


def test_watch_tells_questions_replies_and_artifacts(
    deployment: Deployment, agents: dict[str, ScriptedAgent], store: Store, tmp_path: Path
) -> None:
    """In a pipe one line for each change: the agent's words, what it asks and how to answer, what it made."""
    question = ["INPUT_REQUIRED", 0.05, "Which month?", {"data": CHOICES}]
    turn = {"states": [["WORKING", 0, "writing"]], "chunks": [["half", 0.1]], "artifact": "whole"}
    goal = json.dumps({"states": [["WORKING", 0, "reading"], question], "turns": [turn]})
    delegation_id = delegated(deployment, goal, "--name", "trip", agent="quiet")
    agent_task_id = wait_for_work(store, delegation_id).progress.agent_task_id
    with ChildProcess([*DELEGATION, "watch", delegation_id], log=tmp_path / "watch.log", env=deployment.env) as child:
        child.start()
        answer = f"– answer: delegation reply {delegation_id} TEXT"
        child.wait_for_output(rf'INPUT_REQUIRED +Which month\? \{{"choices": \["May", "June"\]\}} {answer}\n')
        assert deployment.command("reply", delegation_id, "June").returncode == 0
        child.wait_for_output("WORKING .*artifacts: chunks\n")
        agents["quiet"].move(str(agent_task_id), "COMPLETED")
        assert child.wait() == 0
        said = child.output()
    assert all(re.match(r"\d\d:\d\d:\d\d  trip +quiet +poll +[A-Z_]+", line) for line in said.splitlines()), said
    assert "writing" in said
    assert (said.count("chunks"), said.count("Which month?")) == (1, 1)
    assert re.search(r"COMPLETED +half whole – artifacts: result$", said.splitlines()[-1])


def test_watch_as_json_has_the_question(deployment: Deployment, store: Store, tmp_path: Path) -> None:
    """One object a line; the question comes and goes."""
    delegation_id = asked(deployment, store, "Which month?")
    watch = [*DELEGATION, "watch", delegation_id, "--json"]
    with ChildProcess(watch, log=tmp_path / "watch.log", env=deployment.env) as child:
        child.start()
        child.wait_for_output(r'"question": \{"number": 1')
        assert deployment.command("reply", delegation_id, "June").returncode == 0
        assert child.wait() == 0
        seen = [json.loads(line) for line in child.output().splitlines()]
    assert seen[0]["question"]["text"] == "Which month?"
    assert (seen[-1]["question"], seen[-1]["replies"], seen[-1]["state"]) == (
        None,
        {"sent": 1, "waiting": 0},
        "COMPLETED",
    )


def test_a_live_view_shows_the_question_below_its_table(deployment: Deployment, store: Store) -> None:
    """On a terminal what is asked is shown whole, with the command; what an agent writes does not steer it."""
    question = "Pick a seat \x1b[31m\x9b2J: " + "window or aisle, " * 8 + "please"
    delegation_id = asked(deployment, store, question)
    leader, follower = pty.openpty()
    env = {**child_environment(deployment.env), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    watch = subprocess.Popen(
        [*DELEGATION, "watch", delegation_id], cwd=ROOT, env=env, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    screen = _Screen(leader)
    try:
        wait_until(lambda: f"answer: delegation reply {delegation_id} TEXT" in screen.text(), WAIT_S, what="command")
        assert "please" in screen.text()
        assert "\x1b[31m" not in screen.text()
        assert "\x9b" not in screen.text()
        assert deployment.command("reply", delegation_id, "aisle").returncode == 0
        assert watch.wait(WAIT_S) == 0
    finally:
        watch.kill()
        watch.wait()
        screen.close()
    assert "COMPLETED" in screen.text()


class _Screen:
    """What a terminal was sent so far; read all the time, or its writer would stop."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._sent = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def text(self) -> str:
        return bytes(self._sent).decode("utf-8", "replace")

    def close(self) -> None:
        self._reader.join(WAIT_S)
        os.close(self._leader)

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._leader, 65536)
            except OSError:  # Linux: every follower is closed
                return
            if not chunk:
                return
            self._sent += chunk


def test_json_cannot_steer_a_terminal_either(deployment: Deployment, store: Store) -> None:
    """Characters that JSON may leave as they are (C1, DEL, turns of direction) are escaped, and read back the same."""
    question = "red \x9b31m \x7f \u202e turned \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")
    delegation_id = asked(deployment, store, question)
    said = deployment.command("show", delegation_id, "--json")
    assert not set(said.stdout) & {"\x9b", "\x7f", "\u202e"}
    assert as_json(said)["question"]["text"] == question


def test_no_command_prints_what_steers_or_hides(deployment: Deployment, store: Store) -> None:
    """Terminal sequences, turns, zero width and tag characters in questions, files, results and notes: whole texts
    keep their lines and brackets, lines of ours hold neither, JSON reads back what the agent sent."""
    hostile = "a\x1b[2J\x9b1m\u202e\u2066\u061cb\u200b\u2060\ufeff\U000e0041\ufe0fc\u2028d\x85e\r\nf <g> ＜h＞"
    unseen = set(hostile) - set("a[2J1mbcdef <g>＜h＞\n")
    first, second, line = "a�[2J�1m���bc d e", "f <g> ＜h＞", "a[2J1mbc d e f ‹g› ‹h›"
    workflow = deployment.command("workflow", "open").stdout.strip()
    part = {"url": "http://127.0.0.1:9/x", "filename": hostile}
    delegation_id = delegated(deployment, asks(hostile, part=part, then=hostile), "--workflow", workflow)
    wait_for_question(store, delegation_id)
    inbox = deployment.command("inbox", "--workflow", workflow)
    in_lines = [deployment.command("list"), deployment.command("workflow", "show", workflow)]
    whole = [deployment.command("show", delegation_id)]
    whole += [deployment.command("reply", delegation_id, "yes", "--wait"), deployment.command("show", delegation_id)]
    in_lines += [deployment.command("watch", delegation_id), deployment.command("show", delegation_id, "--history")]
    in_lines.append(deployment.command("workflow", "notes", workflow))
    as_it_is = deployment.command("show", delegation_id, "--json")
    for said in [inbox, *in_lines, *whole, as_it_is]:
        assert said.returncode == 0, said.stderr
        assert not set(said.stdout + said.stderr) & unseen
    assert all(line in said.stdout for said in in_lines)
    assert all(first in said.stdout and second in said.stdout for said in whole)
    assert len(inbox.stdout.splitlines()) == 2
    assert as_json(as_it_is)["outcome"]["text"] == hostile


def test_an_artifact_that_was_too_large_is_marked(deployment: Deployment, store: Store) -> None:
    """`show` tells every artifact's size, and how to get one that was not kept; `--artifacts` has them as sent."""
    delegation_id = delegated(deployment, json.dumps({"artifact": ["small", "x" * 1000]}))
    outcome = wait_for(store, delegation_id, "end", lambda d: d.outcome).outcome
    assert outcome is not None
    shown = deployment.command("show", delegation_id).stdout
    assert re.search(r"^artifacts +result \(\d+ bytes\)$", shown, re.MULTILINE)
    again = f"too large to keep; ask flights again: GetTask {outcome.agent_task_id}"
    assert re.search(rf"^ +result \(1\.0 KiB\): {re.escape(again)}$", shown, re.MULTILINE)
    small, large = as_json(deployment.command("show", delegation_id, "--artifacts"))
    assert small["parts"] == [{"text": "small"}]
    assert (large["parts"], large["omitted"], large["fetch_again"]["method"]) == ([], True, "GetTask")


def test_the_history_names_replies_and_cancels(deployment: Deployment, store: Store) -> None:
    """The causes `reply` and `cancel` are in the story, in order, beside those of the looks."""
    delegation_id = asked(deployment, store, "Which month?", "Which year?")
    assert deployment.command("reply", delegation_id, "June", "--wait").returncode == 0
    assert deployment.command("cancel", delegation_id, "--wait").stdout == "cancelled\n"
    causes = [each["cause"] for each in as_json(deployment.command("show", delegation_id, "--history", "--json"))]
    assert causes[0] == "opened"
    assert [cause for cause in causes if cause in ("reply", "cancel")][:3] == ["reply", "reply", "cancel"]
    rows = deployment.command("show", delegation_id, "--history").stdout
    assert re.search(r"Z +reply +WATCHING", rows)
    assert re.search(r"Z +cancel +SETTLED +CANCELED", rows)
