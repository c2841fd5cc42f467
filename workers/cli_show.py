"""How delegations, workflows and agents look on a terminal, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from delegation.agent_task import TaskState
from delegation.endings import receipt
from delegation.errors import AgentPaused, AuthenticationRefused, CredentialUnavailable
from delegation.state import Delegation, Phase
from delegation.texts import NAME_CHARS, clean, printable
from delegation.workflow import Workflow, WorkflowState
from workers.cli_question import how_to_answer, question_line, question_text, size_text
from workers.descriptions import CANCELLED, away_since, describe_continuation, is_asking
from workers.printable import json_text, one_line

_STYLES = {
    "COMPLETED": "green",
    "RELEASED": "green",
    "FAILED": "red",
    "REJECTED": "red",
    "CANCELED": "yellow",
    "CANCELING": "yellow",
    "INPUT_REQUIRED": "magenta",
    "AUTH_REQUIRED": "magenta",
    "WORKING": "cyan",
    "JOINING": "cyan",
}
#: Where nobody looks, nothing is folded or cut; so a line is a record, for grep and awk.
_UNBOUNDED = 100_000
_TEXT_LIMIT = 200
_NOTE_LIMIT = 1000
#: Artifacts that `show` describes; `show --artifacts` has them all.
_MOST_ARTIFACTS = 20


def print_json(value: Any) -> None:
    click.echo(json_text(value, indent=2))


def make_console() -> Console:
    """For stdout: coloured and as wide as the terminal, or plain and unbounded."""
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else _UNBOUNDED)


def print_table(console: Console, table: Table) -> None:
    if console.is_terminal:
        console.print(fitted(table))
        return
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())


def fitted(table: Table) -> Table:
    """As wide as the terminal; the last column gives way, the others stay whole."""
    table.expand = True
    table.columns[-1].ratio = 1
    return table


def delegations_table(delegations: Sequence[Delegation], now: float) -> Table:
    table = plain_table("ID", "AGENT", "STATE", "WATCH", "TIME", "TEXT")
    for each in delegations:
        watch = each.progress.watch.value if each.progress.watch else "-"
        table.add_row(each.id, each.agent, state_text(each), watch, time_taken(each, now), _news(each))
    return table


def workflow_table(workflow: Workflow, children: Sequence[Delegation], now: float) -> Table:
    """The workflow, and its children as branches, their columns aligned."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(*_workflow_row(workflow, len(children), now))
    for says in filter(None, (workflow_reason(workflow), continuation_news(workflow))):
        table.add_row("", "", "", "", "", Text(says, style="yellow", no_wrap=False, overflow="fold"))
    for each in children:
        branch = "└─ " if each is children[-1] else "├─ "
        step = f" [{one_line(each.step, 16)}]" if each.step else ""
        name = Text(branch, style="dim") + Text(label(each, 28)) + Text(step, style="dim")
        watch = each.progress.watch.value if each.progress.watch else ""
        table.add_row(name, each.agent, watch, state_text(each), time_taken(each, now), _news(each))
    return table


def inbox_table(delegations: Sequence[Delegation], now: float) -> Table:
    """``ASKED`` is the age of the question, ``LEFT`` the time to the deadline."""
    table = plain_table("ID", "AGENT", "STATE", "ASKED", "LEFT", "QUESTION")
    for each in delegations:
        asked = duration(now - each.progress.question.asked_at) if each.progress.question else "-"
        question = question_line(each, _TEXT_LIMIT)
        table.add_row(each.id, each.agent, state_text(each), asked, _time_left(each, now) or "-", question)
    return table


def receipts_table(children: Sequence[Mapping[str, Any]]) -> Table:
    """``id agent state cancel`` of each child of a workflow that was cancelled."""
    table = plain_table("ID", "AGENT", "STATE", "CANCEL")
    for each in children:
        table.add_row(each["id"], each["agent"], _coloured(each["state"]), each["cancel"] or "-")
    return table


def notes_table(notes: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table("AT", "AGENT", "NOTE")
    for each in notes:
        table.add_row(each["at"] or "-", each["agent"] or "-", Text(clean(each["text"], _NOTE_LIMIT)))
    return table


def continuation_news(workflow: Workflow) -> str:
    """Of a continuation that was published and not seen to run; empty when there is no such."""
    continuation = describe_continuation(workflow)
    says = {"given up": " and never seen to run", "published": ", not seen to run yet"}
    if continuation is None or continuation["state"] not in says:
        return ""
    task, publishes = one_line(continuation["task"], 100), continuation["publishes"]
    return f"then: {task}, published {_times(publishes)}{says[continuation['state']]}"


def workflow_reason(workflow: Workflow) -> str:
    """Why it failed or was cancelled; empty when it was not, or nobody said."""
    if workflow.state not in CANCELLED:
        return ""
    reason = workflow.result.get("reason") if isinstance(workflow.result, dict) else None
    return one_line(str(reason or workflow.cancel_reason), _TEXT_LIMIT)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _workflow_row(workflow: Workflow, children: int, now: float) -> list[Text | str]:
    name = Text(one_line(workflow.name, 31) or workflow.id, style="bold")
    state = Text(workflow.state.value, style=_STYLES.get(workflow.state.value, ""))
    time = duration(now - workflow.created_at)
    left = workflow_time_left(workflow, now)
    news = f"{workflow.unresolved} of {children} unresolved" + (f", {left} left" if left else "")
    return [name, "", "", state, time, news]


def workflows_table(workflows: Sequence[tuple[Workflow, int]], now: float) -> Table:
    """Each with the number of its children; ``LEFT`` is the time to the deadline."""
    table = plain_table("ID", "STATE", "UNRESOLVED", "AGE", "LEFT", "NAME")
    for each, children in workflows:
        unresolved = f"{each.unresolved} of {children}"
        age, left = duration(now - each.created_at), workflow_time_left(each, now) or "-"
        table.add_row(each.id, _coloured(each.state.value), unresolved, age, left, Text(one_line(each.name, 80)))
    return table


def workflow_time_left(workflow: Workflow, now: float) -> str:
    """To its deadline; empty where it has ended, or has none."""
    is_over = workflow.state.is_ended or workflow.state is WorkflowState.CANCELING
    return "" if is_over or workflow.deadline_at is None else duration(workflow.deadline_at - now)


def print_delegation(console: Console, each: Delegation, history: Sequence[dict[str, Any]], now: float) -> None:
    """Everything a person wants to know of one."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in _facts(each, now):
        grid.add_row(label, value)
    print_table(console, grid)
    click.echo()
    print_table(console, history_table(history))
    if each.outcome is not None and each.outcome.text:
        click.echo()
        click.echo(printable(each.outcome.text))


def _facts(each: Delegation, now: float) -> list[tuple[str, Text]]:
    progress, outcome = each.progress, each.outcome
    asks = is_asking(each)
    facts = {
        "id": each.id,
        "workflow": each.workflow_id,
        "agent": each.agent,
        "name": each.brief.name,
        "goal": each.brief.goal,
        "step": each.step,
        "state": state_text(each),
        "phase": each.phase.value,
        "watch": progress.watch.value if progress.watch else None,
        "agent task": progress.agent_task_id,
        "status": clean(progress.status_text, 500) if outcome else "" if asks else words(each),
        "reason": outcome.reason if outcome else None,
        "time": time_taken(each, now),
        "time left": _time_left(each, now),
    }
    told = [(k, v if isinstance(v, Text) else Text(one_line(str(v), 500))) for k, v in facts.items() if v]
    return [*told, *((k, Text(v)) for k, v in _talk(each, now).items() if v)]


def _talk(each: Delegation, now: float) -> dict[str, str]:
    """What was asked, answered and made so far; fit to print, some of it in several lines."""
    progress, question = each.progress, each.progress.question
    waiting = each.replies - progress.turn
    facts = {
        "replies": ", ".join(filter(None, (f"{progress.turn} sent", f"{waiting} waiting" if waiting > 0 else "")))
        if each.replies
        else "",
        "cancel": receipt(each) or "",
        "artifacts": "\n".join(_artifact_lines(each)),
    }
    if not is_asking(each) or question is None:
        return facts
    asked = {
        "question": question_text(each),
        "asked": f"{duration(now - question.asked_at)} ago, as question {question.number}",
    }
    return {**facts, **asked, "to go on": how_to_answer(each)}


def _artifact_lines(each: Delegation) -> list[str]:
    """By name; one that was too large to keep, with how to get it all the same."""
    if each.outcome is None:
        return [artifact_names(each.progress.artifact_names)]
    artifacts = each.outcome.artifacts
    lines = [_artifact_line(each, artifact) for artifact in artifacts[:_MOST_ARTIFACTS]]
    more = len(artifacts) - _MOST_ARTIFACTS
    return [*lines, f"… and {more} more: `delegation show {each.id} --artifacts`"] if more > 0 else lines


def _artifact_line(each: Delegation, artifact: Mapping[str, Any]) -> str:
    named = artifact.get("name") or artifact.get("id") or "(no name)"
    facts = (clean(artifact.get("media_type"), NAME_CHARS), size_text(artifact.get("size") or 0))
    line = f"{clean(named, NAME_CHARS)} ({', '.join(filter(None, facts))})"
    if not artifact.get("omitted"):
        return line
    return f"{line}: too large to keep; ask {each.agent} again: GetTask {one_line(str(each.progress.agent_task_id))}"


def artifact_names(names: Sequence[str]) -> str:
    return ", ".join(clean(name, NAME_CHARS) for name in names)


def history_table(history: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("AT", "CAUSE", "PHASE", "STATE", "TEXT")
    for entry in history:
        text = Text(clean(entry["text"], _TEXT_LIMIT))
        table.add_row(str(entry["at"]), entry["cause"], entry["phase"], _coloured(entry["state"]), text)
    return table


def state_text(each: Delegation) -> Text:
    return _coloured(each.state.value)


def label(each: Delegation, most: int = 40) -> str:
    """What a person calls it: its name; one without is told from its siblings by its number."""
    return one_line(each.brief.name, most) or each.id.rpartition(".")[2]


def plain_columns(workflow: Workflow | None, delegations: Sequence[Delegation]) -> tuple[int, int]:
    """How wide names and agents are in plain lines, so that the columns are aligned."""
    names = [label(each) for each in delegations] + ([_workflow_label(workflow)] if workflow is not None else [])
    return max(map(len, names), default=0), max((len(each.agent) for each in delegations), default=1)


def plain_line(each: Delegation, news: str, columns: tuple[int, int]) -> str:
    """One change of a delegation, for a log or a pipe."""
    watch = each.progress.watch.value if each.progress.watch else "-"
    return _plain(label(each), each.agent, watch, each.state.value, news, columns)


def plain_workflow_line(workflow: Workflow, columns: tuple[int, int]) -> str:
    name, reason = _workflow_label(workflow), workflow_reason(workflow)
    return _plain(name, "-", "-", workflow.state.value, reason, columns)


def _workflow_label(workflow: Workflow) -> str:
    return one_line(workflow.name, 40) or "workflow"


def _plain(name: str, agent: str, watch: str, state: str, news: str, columns: tuple[int, int]) -> str:
    at, (names, agents) = datetime.now(UTC).strftime("%H:%M:%S"), columns
    return f"{at}  {name:<{names}}  {agent:<{agents}}  {watch:<6}  {state:<14}  {news}".rstrip()


def time_taken(each: Delegation, now: float) -> str:
    return duration((each.progress.updated_at if each.outcome else now) - each.created_at)


def duration(seconds: float) -> str:
    """Short: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, size, below in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def has_ended(workflow: Workflow) -> bool:
    """Released, or ended for good and its children as well: nothing is left to watch for."""
    return workflow.state is WorkflowState.RELEASED or (workflow.state.is_ended and workflow.unresolved == 0)


def exit_code_of(each: Delegation) -> int:
    """1 unless COMPLETED."""
    return 0 if each.outcome is not None and each.outcome.state is TaskState.COMPLETED else 1


def _news(each: Delegation) -> Text:
    """What there is to say of it in half a line."""
    if each.outcome is not None:
        return Text(words(each))
    made = artifact_names(each.progress.artifact_names)
    pieces = (words(each), turn_text(each), f"artifacts: {made}" if made else "", cancel_text(each))
    return Text(" – ".join(filter(None, pieces)), style="yellow" if _unavailable(each) else "dim")


def words(each: Delegation) -> str:
    """What its agent says, in one line, or why it says nothing."""
    if each.outcome is not None:
        reason = f"{each.outcome.reason}: " if each.outcome.reason else ""
        return clean(reason + each.outcome.text, _TEXT_LIMIT)
    if unavailable := _unavailable(each):
        return unavailable
    if is_asking(each):
        return question_line(each, _TEXT_LIMIT)
    waiting = "waiting for a worker" if each.phase is Phase.OPENED else ""
    return clean(each.progress.status_text, _TEXT_LIMIT) or waiting


def turn_text(each: Delegation) -> str:
    """Why what still looks like a question waits for nobody here."""
    if each.outcome is not None or not each.state.is_interrupted:
        return ""
    if each.waits_for_agent:
        return f"reply {each.progress.turn} sent"
    return f"reply {each.progress.turn + 1} given" if each.has_reply_waiting else ""


def cancel_text(each: Delegation) -> str:
    """What became so far of a wish to cancel it."""
    return f"cancel {receipt(each)}" if each.outcome is None and each.cancel_until is not None else ""


def _time_left(each: Delegation, now: float) -> str:
    deadline_at = each.timers.deadline_at
    return duration(deadline_at - now) if deadline_at and each.outcome is None else ""


#: By the code of the last failure; all others are "agent unavailable".
_ABSENCES = {
    AuthenticationRefused.code: "agent refuses our credentials",
    CredentialUnavailable.code: "our credentials for the agent cannot be had",
    AgentPaused.code: "agent paused for its changed card",
}


def _unavailable(each: Delegation) -> str:
    """Since when calls to its agent fail; empty while they do not, or nobody waits for the agent."""
    since = away_since(each)
    if since is None:
        return ""
    at = datetime.fromtimestamp(since, UTC).strftime("%H:%M:%S")
    what = _ABSENCES.get(each.progress.failing_code, "agent unavailable")
    return f"{what} since {at}, tried {_times(each.progress.failures)}"


def _coloured(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def plain_table(*headings: str) -> Table:
    """The last column is cut where the terminal ends, no other."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], no_wrap=True, overflow="ellipsis")
    return table
