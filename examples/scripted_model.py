"""A model's loop, with a script in place of the model: `python -m examples.scripted_model [AGENT AGENT AGENT]`.

It gives out three sub-tasks, one of them to an agent that does not exist; corrects itself; answers before its sub-tasks
are done, which is refused; reads the notes, answers a question, and completes. Needs three agents: the first two do
the work, the third asks a question back (`examples.sample_agent`, kinds instant, quiet and asking).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from delegation import UnresolvedChildren
from workers import Workflow, agents_section, subtask_tools

PATIENCE_S = 120.0

#: What a model does in a turn: it calls tools, or answers. What it then gets to read: a text for each call, or for each
#: thing that happened.
Turn = list[dict[str, str]] | str
Script = Generator[Turn, list[str], None]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.scripted_model", description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="*", default=["instant", "quiet", "asking"], help="ids of three agents")
    options = parser.parse_args(argv)
    if len(options.agents) != 3:
        parser.error("give the ids of three agents, or none")
    print(f"completed: {Loop().run(scripted_model(*options.agents))}")


# ---------------------------------------------------------------- the loop, as around any model


@dataclass
class Loop:
    """What stands between a model and its sub-tasks."""

    patience_s: float = PATIENCE_S
    turns: int = 0

    def run(self, model: Script) -> str:
        """Until the workflow completes; its result."""
        workflow = Workflow.open(name="trip to Lisbon")
        tools = subtask_tools(workflow)
        _show("context", agents_section())
        turn = next(model)
        while True:
            self.turns += 1
            if isinstance(turn, str):
                _show("model", turn)
                try:
                    workflow.complete(turn)
                    return turn
                except UnresolvedChildren as refusal:
                    told = [f"not complete yet: {refusal}", self._wait_for_notes(tools)]
            else:
                told = [self._call(tools, call) for call in turn]
            for text in told:
                _show("told", text)
            turn = model.send(told)

    def _call(self, tools: Any, call: dict[str, str]) -> str:
        _show("model", f"{call['name']} {call['arguments']}")
        result = tools.call(call["name"], call["arguments"], call_id=call["id"])
        return str(result.text)

    def _wait_for_notes(self, tools: Any) -> str:
        """A program of yours would return here, and be called again by `Workflow.open(on_note=…)`."""
        give_up_at = time.monotonic() + self.patience_s
        while not (notes := tools.notes()):
            if time.monotonic() > give_up_at:
                raise TimeoutError("no sub-task has said anything")
            time.sleep(0.1)
        return str(notes)


def _show(who: str, text: str) -> None:
    for line in text.splitlines():
        print(f"{who:>8} | {line}", flush=True)


# ---------------------------------------------------------------- the script


def scripted_model(weather: str, hotels: str, booking: str) -> Script:
    """What a model might well do, a turn at each yield."""
    told = yield [
        _spawn("weather", weather, "Tell me the weather in Lisbon on Friday", "1"),
        _spawn("hotel", "hotels-and-more", "Find a hotel near the river for three nights", "2"),
        _spawn("day", booking, "Which day suits best?", "3"),
    ]
    if any(text.startswith("agent.unknown") for text in told):
        refused = next(text for text in told if text.startswith("agent.unknown"))
        valid = refused.rpartition("valid agents: ")[2].split(", ")
        agent = hotels if hotels in valid else valid[0]
        told = yield [_spawn("hotel", agent, "Find a hotel near the river for three nights", "2")]
    while True:
        told = yield "The trip is planned."
        if "_REQUIRED" in "\n".join(told):
            told = yield [_call("list_subtasks", {})]
            asking = re.search(r"- id: (\S+)\n(?:  .*\n)*?  question: ", told[0])
            if asking:
                yield [_call("reply_subtask", {"id": asking[1], "text": "Friday"})]


def _spawn(name: str, agent: str, goal: str, step: str) -> dict[str, str]:
    return _call("spawn_subtask", {"name": name, "agent": agent, "goal": goal, "step": step}, f"{name}-{agent}")


def _call(name: str, arguments: dict[str, str], call_id: str = "") -> dict[str, str]:
    """As a provider hands it over: the arguments in JSON, and an id."""
    return {"id": call_id, "name": name, "arguments": json.dumps(arguments)}


if __name__ == "__main__":
    main()
