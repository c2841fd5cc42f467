"""Canaries as secrets and as texts, in a whole deployment that delegates in every way; then a look everywhere for them.

Secrets and push tokens are nowhere. Texts are in the records, and where a user's own canvas carries them (rows D-01,
B-06; the places are told in docs/security.md).
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from celery import chain

from tests.acceptance.test_monitoring import OPEN_API, flower_of
from tests.support.caller import Witness, caller_in
from tests.support.child import ChildProcess, wait_until
from tests.support.foreign_tasks import fail, keep, new_errback, say
from tests.support.processes import Deployment, ScriptedAgent
from tests.support.redis_tap import Command, RedisTap, commands_in_aof
from workers import DelegationHandle, Workflow, delegate

WAIT_S = 60


#: Words in the goals to which agents answer with an error that repeats our credential.
ERRORS = ("echo-refusal", "echo-500", "echo-get", "echo-401")


def canary(name: str) -> str:
    """Told from all others, different in each form, and no word that is there anyway."""
    return f"{name}+/c4n4ry={secrets.token_hex(6)}"


#: What nobody may find anywhere.
SECRETS = {
    name: canary(name)
    for name in ("header", "bearer", "file-bearer", "query-key", "forged-token", "token-in-a-query", "forged-body")
}
#: What people and agents say; each is allowed in the places of ALLOWED.
TEXTS = {
    name: canary(name)
    for name in (
        *("goal", "description", "criterion", "name", "piped", "reply", "cancel-reason", "workflow-name"),
        *("status", "artifact", "question", "chunk", "message", "failure", "rejection", "error-message", "error-body"),
        *("card-name", "card-description", "skill", "next-goal", "unknown-argument"),
    )
}

RECORD = r"delegation:(d|h|r|c|w|n|t):.*"
QUEUES = r"delegation:celery:delegations(\.end)?"
#: Where a text may be, by place, and which: a user's own words and an agent's in their record, and in a canvas.
ALLOWED: Mapping[str, tuple[str, str]] = {
    "records": (rf"(redis|aof|command) \w+ ({RECORD})", r".*"),
    "scripts that write records": (r"script (d|h|r|c|w|n|t|u|due|call|idem)\b.*", r".*"),
    "cards": (r"(redis|aof|command) \w+ delegation:card:.*", r"card-.*|skill"),
    "scripts that write cards": (r"script card.*", r"card-.*|skill"),
    "outcomes, as results of delegate, and results of tasks of the user": (
        r"(redis|aof|command) \w+ delegation:celery:celery-task-meta-.*|flower result of delegate",
        r"artifact|message|chunk|status|failure|rejection|piped",
    ),
    "messages of a user's own canvas": (
        rf"(redis|aof|command) \w+ ({QUEUES}|delegation:celery:unacked) (shop\.\w+|delegation\.delegate)",
        r"piped|next-goal|artifact|status|unknown-argument",
    ),
    "events about tasks of the user": (r"event [\w-]+ shop\.\w+", r"piped|artifact|status"),
    "pages of Flower about them": (
        r"flower task shop\.\w+|flower /api/tasks|flower /tasks.*",
        r"piped|artifact|status",
    ),
}


def forms(text: str) -> set[bytes]:
    """As it is, percent-encoded, in JSON, and in base64 of whatever begins before it."""
    raw = text.encode()
    found = {raw, quote(text, safe="").encode(), quote(text).encode(), json.dumps(text)[1:-1].encode()}
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + raw)[(0, 2, 3)[offset] : (offset + len(raw)) * 8 // 6]
        found |= {encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


@dataclass
class Evidence:
    """Everything the run left behind: what was found, by place."""

    places: list[tuple[str, bytes]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=lambda: dict(SECRETS))
    tokens: int = 0
    errors: dict[str, list[int]] = field(default_factory=dict)  #: by agent: how often each error was answered

    def add(self, place: str, content: str | bytes) -> None:
        self.places.append((place, content.encode("utf-8", "replace") if isinstance(content, str) else content))

    def hits(self, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Pairs of a canary's name and a place it is in."""
        for name, word in words.items():
            wanted = forms(word)
            yield from ((name, place) for place, content in self.places if any(form in content for form in wanted))

    def of(self, kind: str) -> str:
        return "".join(content.decode("utf-8", "replace") for place, content in self.places if place.startswith(kind))


# ---------------------------------------------------------------- the run


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    directory = tmp_path_factory.mktemp("leaks")
    with ExitStack() as ends:
        deployment = ends.enter_context(a_deployment(directory))
        tap = ends.enter_context(RedisTap(ends.enter_context(deployment.valkey.client())))
        witness = Witness(deployment.valkey)
        tasks = ["-I", "tests.support.foreign_tasks", "-E"]
        deployment.start_worker(options=tasks, env=witness.environment)
        flower = ends.enter_context(flower_of(deployment, env=OPEN_API))
        wait_until(lambda: "Connected to" in log_of_flower(directory), WAIT_S, what="a Flower that hears events")
        evidence = Evidence()
        evidence.secrets["redis-password"] = str(urlsplit(deployment.valkey.url()).password)
        with caller_in(deployment, witness.environment) as app:
            celery_ids = delegate_in_every_way(deployment, app, witness, evidence)
            look_at_pages(deployment, flower, celery_ids, evidence)
        look_at_redis(deployment, tap, evidence)
        look_at_processes(deployment, directory, evidence)
        yield evidence


def log_of_flower(directory: Path) -> str:
    return "".join(log.read_text() for log in directory.glob("flower-*.log"))


def a_deployment(directory: Path) -> Deployment:
    (directory / "bearer").write_text(SECRETS["file-bearer"])
    env = {
        "DELEGATION_LOG_LEVEL": "DEBUG",
        "CANARY_HEADER": SECRETS["header"],
        "CANARY_BEARER": SECRETS["bearer"],
        "CANARY_KEY": SECRETS["query-key"],
    }
    schemes = {
        "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
        "key": {"apiKeySecurityScheme": {"location": "query", "name": "key"}},
    }

    def secured(*names: str) -> dict[str, Any]:
        wanted = [{"schemes": {name: {"list": []} for name in names}}]
        return {"securitySchemes": {name: schemes[name] for name in names}, "securityRequirements": wanted}

    cards = {"pushing": {}, "followed": secured("bearer"), "polled": secured("key"), "filed": secured("bearer")}
    skills = [{"id": "s", "name": TEXTS["skill"], "description": TEXTS["skill"], "tags": ["t"]}]
    agents = {
        name: ScriptedAgent(directory, name=name, push=name == "pushing", streaming=name == "followed")
        for name in cards
    }
    bearer = {"type": "bearer", "token": "env:CANARY_BEARER"}
    settings: dict[str, dict[str, Any]] = {
        "pushing": {"headers": {"X-Team": "${CANARY_HEADER}", "Authorization": "Bearer ${CANARY_HEADER}"}},
        "followed": {"auth": [bearer]},
        "polled": {"auth": [{"type": "api_key", "in": "query", "name": "key", "key": "env:CANARY_KEY"}]},
        "filed": {"auth": [{**bearer, "token": f"file:{directory / 'bearer'}"}]},
    }
    wanted: dict[str, dict[str, Any]] = {
        "pushing": {"headers": {"x-team": SECRETS["header"], "authorization": f"Bearer {SECRETS['header']}"}},
        "followed": {"headers": {"authorization": f"Bearer {SECRETS['bearer']}"}},
        "polled": {"query": {"key": SECRETS["query-key"]}},
        "filed": {"headers": {"authorization": f"Bearer {SECRETS['file-bearer']}"}},
    }
    for name, agent in agents.items():
        agent.start()
        card = {**cards[name], "description": TEXTS["card-description"], "skills": skills}
        # After its start, or the canaries would be on the agent's own command line.
        agent.configure(name=TEXTS["card-name"], card=card, credentials=[wanted[name]])
    made = Deployment(directory, agents=agents, agent_settings=settings, env=env, workers=0, follower=True)
    assert made.web is not None
    made.web.command += ["--access-logfile", "-"]
    return made


def delegate_in_every_way(deployment: Deployment, app: Any, witness: Witness, evidence: Evidence) -> list[str]:
    """COMPLETED by push, stream and poll, after a question, as a message; FAILED, REJECTED, refused, cancelled; in
    canvases that go on, fail, and cannot be run. Returns the Celery ids of the calls."""
    texts = TEXTS
    brief = {
        "name": texts["name"],
        "description": texts["description"],
        "acceptance_criteria": [texts["criterion"]],
    }
    returned = {"on_failure": "return"}
    works = {"states": [["WORKING", 0, texts["status"]]], "artifact": texts["artifact"]}
    ids = []

    def call(agent: str, script: Mapping[str, Any], **more: Any) -> DelegationHandle:
        result = delegate.delay(agent=agent, goal=f"{texts['goal']} {json.dumps(script)}", **brief, **more)
        ids.append(result.id)
        return DelegationHandle.get(result.id)

    ends = {**works, "states": [["WORKING", 0, texts["status"]], ["COMPLETED", 0.5, texts["status"]]]}
    running = [call(agent, ends) for agent in ("pushing", "followed", "polled", "filed")]
    running += [call("followed", {**ends, "chunks": [[texts["chunk"], 0.2]]})]
    running += [call("polled", {"message": texts["message"]})]
    running += [
        call(agent, {"states": [["FAILED", 0.1, texts["failure"]]]}, **returned) for agent in ("pushing", "polled")
    ]
    running += [call("followed", {"states": [["REJECTED", 0.1, texts["rejection"]]]}, **returned)]
    running += errors_of_agents(deployment, call)
    answered = call("followed", {"states": [["INPUT_REQUIRED", 0, texts["question"]]], "turns": [ends]})
    wait_until(lambda: answered.describe()["state"] == "INPUT_REQUIRED", WAIT_S, what="question")
    answered.reply(texts["reply"], data={"more": texts["reply"]})
    pushed = call("pushing", works)
    abused(deployment, pushed, evidence)
    cancelled = call("followed", works)
    wait_until(lambda: cancelled.describe()["agent_task_id"], WAIT_S, what="agent task")
    cancelled.cancel(texts["cancel-reason"])
    running += [answered, pushed, cancelled, workflow_of(ends)]
    ids += canvases(app, witness, json.dumps(ends))
    for each in running:
        wait_until(lambda it=each: it.describe()["outcome"], WAIT_S, what=f"the end of {each.describe()}")
    for name, agent in deployment.agents.items():
        assert isinstance(agent, ScriptedAgent)
        rules = [call.get("rule") for call in agent.calls()]
        assert not [call for call in agent.calls() if call["refused"]], f"{name} was not shown its credential"
        evidence.errors[name] = [rules.count(number) for number in range(len(ERRORS))]
    return ids


def errors_of_agents(deployment: Deployment, call: Any) -> Iterator[DelegationHandle]:
    """Agents whose errors repeat what they were sent, credentials included."""
    for name, secret in {
        "pushing": "header",
        "followed": "bearer",
        "polled": "query-key",
        "filed": "file-bearer",
    }.items():
        agent = deployment.agents[name]
        assert isinstance(agent, ScriptedAgent)
        echo = f"{SECRETS[secret]} Bearer {SECRETS[secret]}"
        body = f"Traceback: {TEXTS['error-body']} key={echo} Authorization: {echo}"
        refusal = {"code": -32602, "message": f"{TEXTS['error-message']} {echo}", "data": [{"reason": echo}]}
        send = "SendStreamingMessage" if name == "followed" else "SendMessage"
        agent.script(
            [
                {"on": send, "match": ERRORS[0], "error": refusal},
                {"on": send, "match": ERRORS[1], "http": {"status": 500, "body": body}, "times": 2},
                {"on": "GetTask", "match": ERRORS[2], "http": {"status": 503, "body": body}, "times": 2},
                {"on": send, "match": ERRORS[3], "http": {"status": 401, "body": body}},
            ]
        )
        for word in ERRORS:
            yield call(name, {"states": [["WORKING", 0], ["COMPLETED", 0.5]], "artifact": word, "push": False})


def abused(deployment: Deployment, pushed: DelegationHandle, evidence: Evidence) -> None:
    """Pushes with wrong tokens, in wrong places, with bodies that lie; then true ones until the end."""
    agent = deployment.agents["pushing"]
    assert isinstance(agent, ScriptedAgent)
    wait_until(lambda: pushed.describe()["agent_task_id"] and agent.tasks()[-1]["push_configs"], WAIT_S, what="config")
    task_id = pushed.describe()["agent_task_id"]
    configs = [config for task in agent.tasks() for config in task["push_configs"]]
    evidence.tokens = len(configs)
    evidence.secrets |= {f"token-{number}": config["token"] for number, config in enumerate(configs)}
    (config,) = [config for config in configs if pushed.id in config["url"]]
    lie = {"statusUpdate": {"taskId": SECRETS["forged-body"], "status": {"state": "TASK_STATE_FAILED"}}}
    query = quote(SECRETS["token-in-a-query"], safe="")
    with httpx.Client(trust_env=False, timeout=20) as client:
        for url, token in {
            config["url"]: SECRETS["forged-token"],
            f"{config['url']}?token={query}": "none",
            f"{config['url']}/none": "none",
        }.items():
            assert client.post(url, json=lie, headers={"Authorization": f"Bearer {token}"}).status_code == 404
        good = {"Authorization": f"Bearer {config['token']}"}
        assert client.post(config["url"], json=lie, headers=good).status_code == 202
        raw = b"{" + SECRETS["forged-body"].encode()
        assert client.post(config["url"], content=raw, headers=good).status_code == 202
    agent.move(task_id, "COMPLETED", TEXTS["status"], artifact=TEXTS["artifact"])


def workflow_of(script: Mapping[str, Any]) -> DelegationHandle:
    trip = Workflow.open(TEXTS["workflow-name"])
    return trip.delegate("polled", f"{TEXTS['goal']} {json.dumps(script)}")


def canvases(app: Any, witness: Witness, script: str) -> list[str]:
    """A chain whose middle is a delegation; a next link that fails; a task that no worker has."""
    goal = f"{TEXTS['next-goal']} {script}"
    chained = chain(say.s(TEXTS["piped"]), delegate.s(agent="polled", goal=goal), keep.s(key="kept")).delay()
    failing = (delegate.s(agent="polled", goal=script) | fail.s().on_error(new_errback.s(key="errback"))).delay()
    app.send_task("shop.unknown", args=[TEXTS["unknown-argument"]], kwargs={"a": TEXTS["unknown-argument"]})
    witness.wait_for("kept", timeout_s=WAIT_S)
    witness.wait_for("errback", timeout_s=WAIT_S)
    return [chained.id, failing.id]


# ---------------------------------------------------------------- the look


def look_at_pages(deployment: Deployment, flower: httpx.Client, ids: list[str], evidence: Evidence) -> None:
    def known() -> bool:
        names = [task["name"] for task in flower.get("/api/tasks").json().values()]
        return {"shop.keep", "shop.fail", "delegation.finalize"} <= set(names)

    wait_until(known, WAIT_S, what="tasks in Flower")
    tasks = flower.get("/api/tasks?limit=100000").json()
    datatable = "/tasks/datatable?draw=1&start=0&length=10000&search[value]=&order[0][column]=0&order[0][dir]=asc"
    datatable += "&columns[0][data]=name"
    for path in ("/", "/workers", "/workers?json=1", "/worker/w1@test", "/tasks", "/broker", "/metrics", datatable):
        evidence.add(f"flower {path}", flower.get(path).text)
    for path in ("/api/workers", "/api/queues/length", "/api/task/types"):
        evidence.add(f"flower {path}", flower.get(path).text)
    for celery_task_id, told in tasks.items():
        evidence.add(f"flower task {told['name']}", json.dumps(told))
        for path in (f"/task/{celery_task_id}", f"/api/task/info/{celery_task_id}"):
            evidence.add(f"flower task {told['name']}", flower.get(path).text)
    for celery_id in ids:
        evidence.add("flower result of delegate", flower.get(f"/api/task/result/{celery_id}").text)
    assert deployment.web is not None
    for path in ("metrics", "readyz", "healthz"):
        evidence.add(f"web /{path}", httpx.get(f"{deployment.web.url}/{path}", trust_env=False).text)


def look_at_redis(deployment: Deployment, tap: RedisTap, evidence: Evidence) -> None:
    commands = tap.commands()
    look_at_events([command[2] for command in commands if is_event(command)], evidence)
    for command in commands:
        if not is_event(command):
            evidence.add(place_of(command, "command"), b"\0".join(command))
    for command in commands_in_aof(deployment.directory / "valkey"):
        evidence.add(place_of(command, "aof"), b"\0".join(command))
    with deployment.valkey.client() as client:
        readers: dict[str, Any] = {
            "string": client.get,
            "hash": client.hgetall,
            "list": lambda key: client.lrange(key, 0, -1),
            "set": client.smembers,
            "zset": lambda key: client.zrange(key, 0, -1),
        }
        for key in client.scan_iter():
            kind = client.type(key)
            evidence.add(f"redis {kind} {key}{told_by(str(readers[kind](key)))}", f"{key} {readers[kind](key)}")


def place_of(command: Command, source: str) -> str:
    name, *arguments = (argument.decode("utf-8", "replace") for argument in command)
    if name.upper() in ("EVALSHA", "EVAL"):
        keys = arguments[2 : 2 + int(arguments[1])]
        return "script " + " ".join(key.removeprefix("delegation:").partition(":")[0] for key in keys)
    return f"{source} {name.upper()} {arguments[0] if arguments else ''}{told_by(' '.join(arguments))}"


def listed(hits: set[tuple[str, str]]) -> str:
    return "\n".join(f"{name}: {place}" for name, place in sorted(hits))


def told_by(message: str) -> str:
    """The name of the task that a message is for."""
    found = re.search(r'\\*"task\\*": ?\\*"([\w.]+)', message)
    return f" {found[1]}" if found else ""


def is_event(command: Command) -> bool:
    return command[0].upper() == b"PUBLISH" and b"celeryev" in command[1]


def look_at_events(published: list[bytes], evidence: Evidence) -> None:
    """Each under its type and the name of its task, which only the first event about one tells."""
    events: list[dict[str, Any]] = []
    for message in published:
        body = json.loads(base64.b64decode(json.loads(message)["body"]))
        events += body if isinstance(body, list) else [body]
    names = {event["uuid"]: event["name"] for event in events if event.get("name")}
    for event in events:
        evidence.add(f"event {event['type']} {names.get(event.get('uuid'), '?')}", json.dumps(event))


def look_at_processes(deployment: Deployment, directory: Path, evidence: Evidence) -> None:
    agents = {agent.log for agent in deployment.agents.values() if isinstance(agent, ChildProcess)}
    for log in directory.rglob("*.log"):
        if log not in agents:
            evidence.add(f"log {log.name}", log.read_bytes())
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            evidence.add("command line", file.read_bytes())
        except OSError:
            continue  # it has ended


# ---------------------------------------------------------------- what must be so


def test_the_look_was_thorough(evidence: Evidence) -> None:
    """Each place was looked at, and each text canary was somewhere: else its absence elsewhere means nothing."""
    found = {name for name, _ in evidence.hits(TEXTS)}
    assert set(TEXTS) - found == {"error-body"}
    assert all(all(counts) for counts in evidence.errors.values()), evidence.errors
    assert evidence.tokens >= 2
    kinds = {place.partition(" ")[0] for place, _ in evidence.places}
    assert kinds == {"flower", "web", "command", "script", "event", "aof", "redis", "log"}
    assert "Received unregistered task of type shop.unknown" in evidence.of("log w1.log")
    assert '"POST /a2a/push/' in evidence.of("log web.log")
    assert "follower.started" in evidence.of("log follower1.log")
    assert "Connected to" in evidence.of("log flower-")
    assert "web.server" in evidence.of("command line")
    assert "delegation_opened_total" in evidence.of("web /metrics")


def test_no_secret_and_no_push_token_is_anywhere(evidence: Evidence) -> None:
    """Not in Redis, its AOF, messages, events, results, logs, Flower, metrics or command lines, in no form."""
    found = set(evidence.hits(evidence.secrets))
    assert not found, listed(found)


def test_texts_are_only_where_they_belong(evidence: Evidence) -> None:
    """Records, and what a user's own canvas carries."""
    allowed = [(re.compile(places), re.compile(names)) for places, names in ALLOWED.values()]
    elsewhere = {
        (name, place)
        for name, place in evidence.hits(TEXTS)
        if not any(places.fullmatch(place) and names.fullmatch(name) for places, names in allowed)
    }
    assert not elsewhere, listed(elsewhere)


@pytest.mark.parametrize("place", ["log", "web", "command line"])
def test_no_text_is_in_a_log_a_metric_or_a_command_line(evidence: Evidence, place: str) -> None:
    """Whatever the list above says."""
    assert [hit for hit in evidence.hits(TEXTS) if hit[1].startswith(place)] == []


def test_our_steps_carry_ids_alone(evidence: Evidence) -> None:
    """Neither arguments nor results of our own tasks hold a text, in Flower and in events."""
    steps = re.compile(r"(event [\w-]+|flower task) (delegation\..*|\?)")
    assert [hit for hit in evidence.hits(TEXTS) if steps.fullmatch(hit[1])] == []
