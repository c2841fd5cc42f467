"""What Redis keeps of workflows: one method per fact. Part of the store (see store.py for the keys)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegation.errors import UnknownWorkflow, UnresolvedChildren, WorkflowConflict, WorkflowTooDeep
from delegation.join_policy import ALL, JoinPolicy
from delegation.record import dump_json
from delegation.redis_access import RedisAccess, flag, flatten, new_operation_id
from delegation.state import Phase, Reason, WorkflowId
from delegation.texts import clean
from delegation.workflow import Workflow, WorkflowState

_WHY_NO_JOIN = {
    "JOINING": "a join is waiting already",
    "PUBLISHING": "the continuation of its last release has not run yet",
}


#: How much of a child workflow's name its parent is told.
LABEL_CHARS = 80
#: Records read at once, so that no call to Redis takes long.
PAGE = 500
#: A joining workflow outlives its deadline until its children have expired.
EXPIRE_AGAIN_S = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class UntoldNote:
    """A note somebody is to be told of."""

    number: int
    delegation_id: str
    line: str  #: as it is kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Untold:
    """Notes to tell of now; those up to ``last_told`` were told before and not seen to run, ``in_vain`` times."""

    notes: tuple[UntoldNote, ...]
    last_told: int = 0
    in_vain: int = 0


class WorkflowFacts(RedisAccess):
    """Open, join, release, end."""

    def open_workflow(
        self,
        workflow_id: WorkflowId,
        *,
        name: str,
        deadline_s: float | None,
        on_note: Mapping[str, Any] | None = None,
        parent: str | None = None,
    ) -> None:
        """A new workflow without children, or the same again; with a ``parent`` it blocks that one until it ends.

        Raises UnknownWorkflow, WorkflowConflict, WorkflowTooDeep.
        """
        fields = {
            "name": name,
            "label": clean(name, LABEL_CHARS) if parent else "",
            "on_note": dump_json(dict(on_note)) if on_note else "",
        }
        keys = [self.key("w", workflow_id), self.key("due"), self.key("roots")]
        verdict, *detail = self.run(
            "open_workflow",
            [*keys, *(self.key(kind, parent or "-") for kind in ("w", "u", "k"))],
            [
                workflow_id,
                min(deadline_s or self.limits.max_deadline_s, self.limits.max_deadline_s),
                parent or "",
                self.limits.depth,
                len(fields),
                *flatten(fields),
            ],
        )
        if verdict == "unknown":
            raise UnknownWorkflow(f"unknown workflow {(parent or '')[:128]}")
        if verdict == "refused":
            raise WorkflowConflict(f"workflow {parent} is {detail[0]}: it takes no further children now")
        if verdict == "too deep":
            raise WorkflowTooDeep(f"workflow {parent} has {self.limits.depth - 1} ancestors: limits.depth is reached")

    def load_workflow(self, workflow_id: str) -> Workflow:
        """Raises UnknownWorkflow."""
        with self.seam():
            pipe = self.client.pipeline(transaction=False)
            pipe.hgetall(self.key("w", workflow_id))
            pipe.scard(self.key("u", workflow_id))
            raw, unresolved = pipe.execute()
        if not raw:
            raise UnknownWorkflow(f"unknown workflow {workflow_id[:128]}")
        return _decode(workflow_id, raw, unresolved)

    def child_workflows(self, workflow_id: str) -> list[Workflow]:
        """Those that exist, in the order they were opened."""
        with self.seam():
            ids: Any = self.client.lrange(self.key("k", workflow_id), 0, -1)
        found: list[Workflow] = []
        for page in (ids[start : start + PAGE] for start in range(0, len(ids), PAGE)):
            with self.seam():
                pipe = self.client.pipeline(transaction=False)
                for one in page:
                    pipe.hgetall(self.key("w", one))
                    pipe.scard(self.key("u", one))
                rows = pipe.execute()
            pairs = zip(page, rows[::2], rows[1::2], strict=True)
            found += [_decode(one, raw, unresolved) for one, raw, unresolved in pairs if raw]
        return found

    def keys_of_line(self, ids: Iterable[str]) -> list[str]:
        """Of each workflow: record, unresolved, notes, untold."""
        return [self.key(kind, one) for one in ids for kind in ("w", "u", "n", "t")]

    def _line_of(self, workflow_id: str) -> list[str]:
        """Its own id and those of its ancestors, which never change."""
        with self.seam():
            line: Any = self.client.hget(self.key("w", workflow_id), "line")
        return [workflow_id, *(line or "").split()]

    def count_children(self, workflow: Workflow) -> int:
        """Those that exist: a number that was given out may never have been used. Workflows are children too."""
        with self.seam():
            nested: Any = self.client.llen(self.key("k", workflow.id))
            counts = [self.client.exists(*(self.key("d", child) for child in page)) for page in _pages(workflow)]
        return int(nested) + sum(int(count) for count in counts)

    def next_child_number(self, workflow_id: WorkflowId) -> int:
        """Reserve a child's number; one that is never used leaves a gap and nothing else. Raises UnknownWorkflow."""
        number = int(self.run("number", [self.key("w", workflow_id)], []))
        if number == 0:
            raise UnknownWorkflow(f"unknown workflow {workflow_id[:128]}")
        return number

    def join_workflow(
        self, workflow_id: WorkflowId, continuation: Mapping[str, Any] | None, policy: JoinPolicy = ALL
    ) -> str | None:
        """Ask to be resumed when the policy says so; the release id if that is now. Raises WorkflowConflict."""
        verdict, detail = self.run(
            "join",
            [
                self.key("w", workflow_id),
                self.key("due"),
                self.key("counters"),
                self.key("u", workflow_id),
                self.key("roots"),
            ],
            [
                new_operation_id(),
                workflow_id,
                dump_json(continuation) if continuation else "",
                self.rules.hint_patience_s,
                policy.kept,
            ],
        )
        if verdict == "unknown":
            raise UnknownWorkflow(f"unknown workflow {workflow_id[:128]}")
        if verdict == "refused":
            waiting = _WHY_NO_JOIN.get(detail, f"the workflow is {detail}")
            raise WorkflowConflict(f"workflow {workflow_id} cannot be joined: {waiting}")
        return detail or None

    def continuation_published(self, workflow_id: str, release_id: str) -> int:
        """Count a publication and set when to publish again; -1 when the release is over."""
        return self._continuation(workflow_id, release_id, "published")

    def continuation_seen(self, workflow_id: str, release_id: str) -> None:
        """The continuation runs, or ran: nothing is left to publish."""
        self._continuation(workflow_id, release_id, "seen")

    def continuation_poisoned(self, workflow_id: str, release_id: str) -> None:
        """It was published again and again and never seen to run: no more of it, and visible as such."""
        self._continuation(workflow_id, release_id, "poisoned")

    def _continuation(self, workflow_id: str, release_id: str, what: str) -> int:
        keys = [self.key("w", workflow_id), self.key("due"), self.key("counters")]
        args = [workflow_id, release_id, what, self.rules.hint_patience_s]
        return int(self.run("continuation", keys, args))

    def end_workflow(self, workflow_id: str, state: WorkflowState, result: Any = None, *, reason: str = "") -> None:
        """COMPLETED, FAILED or CANCELED, once; the latter two cancel the children, for ``reason``.

        Raises UnresolvedChildren (for COMPLETED), WorkflowConflict.
        """
        line = self._line_of(workflow_id)
        kept = dump_json(result) if result is not None else ""
        verdict, *detail = self.run(
            "end_workflow",
            self._keys_of_end(line),
            [new_operation_id(), " ".join(line), state.value, kept, 20, reason, self.limits.notes],
        )
        if verdict == "unknown":
            raise UnknownWorkflow(f"unknown workflow {workflow_id[:128]}")
        if verdict == "unresolved":
            raise UnresolvedChildren(int(detail[0]), sorted(detail[1:]))
        if verdict == "refused":
            is_ending = detail[0] == WorkflowState.CANCELING
            why = "is being cancelled" if is_ending else f"has ended already: {detail[0]}"
            raise WorkflowConflict(f"workflow {workflow_id} {why}")

    def expire_workflow(self, workflow_id: str) -> bool:
        """The deadline has passed: an open workflow ends FAILED. True when it did now."""
        line = self._line_of(workflow_id)
        reason = Reason.DEADLINE_EXCEEDED.value
        args = [" ".join(line), dump_json({"reason": reason}), reason, EXPIRE_AGAIN_S, self.limits.notes]
        return bool(self.run("expire_workflow", self._keys_of_end(line), args) == "ended")

    def _keys_of_end(self, line: Sequence[str]) -> list[str]:
        return [self.key("due"), self.key("counters"), self.key("roots"), *self.keys_of_line(line)]

    def unresolved_children(self, workflow_id: str) -> Iterator[str]:
        """Their ids, in no order; those that are resolved meanwhile may come or not."""
        with self.seam():
            yield from self.client.sscan_iter(self.key("u", workflow_id), count=500)

    def drop_timer(self, workflow_id: str, timer: str, *, cancels: int | None = None) -> None:
        """A step of the workflow is done; with ``cancels``, unless it had children cancelled once more meanwhile."""
        heard = "" if cancels is None else cancels
        self.run("drop_timer", [self.key("w", workflow_id), self.key("due")], [workflow_id, timer, heard])

    def drain_notes(self, workflow_id: str) -> tuple[int, list[dict[str, Any]]]:
        """How many older ones were dropped, and the notes nobody read yet, oldest first: those of Note, ``at number``.

        They are gone from here even when the answer is lost. Raises UnknownWorkflow.
        """
        answer = self.run("drain_notes", [self.key("w", workflow_id), self.key("n", workflow_id)], [])
        if not answer:
            raise UnknownWorkflow(f"unknown workflow {workflow_id[:128]}")
        return int(answer[0]), [_read_note(line) for line in answer[1:]]

    def take_untold_notes(self, workflow_id: str, *, again: bool = False, limit: int = 100) -> Untold:
        """The notes that no message told of yet, in order, ``again`` with those told and not seen to run: the caller
        tells of them now. Empty while somebody else does; whoever dies doing it is followed by another."""
        answer = self.run(
            "untold", self._keys_of_notes(workflow_id), [workflow_id, limit, self.rules.hint_patience_s, flag(again)]
        )
        if not answer:
            return Untold(notes=())
        lines = ((*line.split(" ", 1), line) for line in answer[2:])
        notes = tuple(UntoldNote(number=int(number), delegation_id=id_, line=line) for number, id_, line in lines)
        return Untold(notes=notes, last_told=int(answer[0]), in_vain=int(answer[1]))

    def notes_told(self, workflow_id: str, last: int, done: Iterable[UntoldNote], *, again: bool = False) -> int:
        """Messages for the notes up to this number were published, and for those ``done`` nothing is left to do: how
        many nobody has told of yet."""
        lines = [note.line for note in done]
        args = [workflow_id, last, self.rules.hint_patience_s, flag(again), *lines]
        return int(self.run("told", self._keys_of_notes(workflow_id), args))

    def _keys_of_notes(self, workflow_id: str) -> list[str]:
        return [self.key("w", workflow_id), self.key("t", workflow_id), self.key("due")]

    def repair_workflow(self, workflow: Workflow) -> tuple[int, str | None]:
        """Recompute the unresolved set from the children: how many differed (none should), and a release it led to."""
        line = [workflow.id, *workflow.line]
        with self.seam():
            nested: Any = self.client.lrange(self.key("k", workflow.id), 0, -1)
        pages = _pages(workflow, {*nested, *self.unresolved_children(workflow.id)})
        repaired, release = 0, ""
        for number, page in enumerate(pages, start=1):
            records = [self.key("d" if "." in child else "w", child) for child in page]
            last = flag(number == len(pages))
            found, release = self.run(
                "repair",
                [*self._keys_of_end(line), *records],
                [" ".join(line), self.rules.hint_patience_s, last, self.limits.notes, *page],
            )
            repaired += int(found)
        return repaired, release or None

    def some_workflows(self, count: int) -> list[str]:
        """Ids drawn at random from what is listed, for a look at each in turn; few of them may be workflows."""
        with self.seam():
            ids: Any = self.client.zrandmember(self.key("roots"), count)
            return [root for root in ids or () if self.client.exists(self.key("w", root))]

    def retire_workflow(self, workflow: Workflow) -> None:
        """Start the retention of an ended workflow and of its children that ended too; safe to run again.

        A child that outlives a failed workflow starts its own when it ends (finish.lua).
        """
        for page in _pages(workflow):
            self._expire_ended(page)
        for nested in self.child_workflows(workflow.id):
            self.run("retire_child", [self.key("w", nested.id), self.key("due")], [nested.id])
        with self.seam():
            pipe = self.client.pipeline(transaction=False)
            for kind in ("w", "u", "k", "n", "t"):
                pipe.expire(self.key(kind, workflow.id), self.limits.retention_s)
            pipe.execute()
        self.drop_timer(workflow.id, "cleanup_at")

    def _expire_ended(self, children: list[str]) -> None:
        with self.seam():
            pipe = self.client.pipeline(transaction=False)
            for child in children:
                pipe.hmget(self.key("d", child), "phase", "fixed")
            found = pipe.execute()
            pipe = self.client.pipeline(transaction=False)
            for child, (phase, fixed) in zip(children, found, strict=True):
                if phase == Phase.RELEASED:
                    for key in self._keys_of(child, json.loads(fixed)):
                        pipe.expire(key, self.limits.retention_s)
            pipe.execute()

    def _keys_of(self, child: str, fixed: Mapping[str, str]) -> list[str]:
        keys = [self.key(kind, child) for kind in ("d", "h", "c", "r")]
        keys.append(self.key("call", fixed["call_id"]))
        if "idempotency" in fixed:
            keys += [self.key("idem", fixed["idempotency"]), self.key("shares", fixed["idempotency"])]
        return keys


def _pages(workflow: Workflow, others: Iterable[str] = ()) -> list[list[str]]:
    """Its children's ids and any ``others``, a page at a time."""
    names = [f"{workflow.id}.{number}" for number in range(1, workflow.children + 1)]
    names += sorted(set(others) - set(names))
    return [names[start : start + PAGE] for start in range(0, len(names), PAGE)]


def _decode(workflow_id: str, raw: Mapping[str, str], unresolved: int) -> Workflow:
    return Workflow(
        id=WorkflowId(workflow_id),
        name=raw.get("name", ""),
        state=WorkflowState(raw["state"]),
        round=int(raw.get("round", 0)),
        children=int(raw.get("children", 0)),
        unresolved=unresolved,
        created_at=float(raw["created_at"]),
        deadline_at=float(raw["deadline_at"]) if "deadline_at" in raw else None,
        continuation=json.loads(raw["then"]) if "then" in raw else None,
        release_id=raw.get("release_id"),
        is_publishing="publish_at" in raw,
        publishes=int(raw.get("publishes", 0)),
        is_poisoned=raw.get("poisoned") == "1",
        result=json.loads(raw["result"]) if "result" in raw else None,
        on_note=json.loads(raw["on_note"]) if "on_note" in raw else None,
        cancel_reason=raw.get("cancel_reason", ""),
        notes=int(raw.get("notes", 0)),
        policy=JoinPolicy.of(raw.get("policy", "all")),
        is_satisfied=raw["satisfied"] == "1" if "satisfied" in raw else None,
        cancel_round=int(raw["cancel_round"]) if "cancel_round" in raw else None,
        cancels=int(raw.get("cancels", 0)),
        line=tuple(WorkflowId(one) for one in raw.get("line", "").split()),
        in_round=int(raw.get("in_round", 0)),
        is_late=raw.get("late_child") == "1",
    )


def _read_note(line: str) -> dict[str, Any]:
    at, number, note = line.split(" ", 2)
    return {"at": float(at), "number": int(number), **json.loads(note)}
