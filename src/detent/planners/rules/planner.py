"""`RulePlanner`: the next action from an ordered list of rules; a pure function of the view, without a model.

Theory of operation. Each plan reads from the view which rules fired and with what result (`histories`), then tries the rules from
the top. The first rule that may still fire, and whose `when` is true, gives the next action. The planner remembers nothing, so a run can
continue in a fresh process, be forked and be replayed. Expressions are compiled when the planner is created and see only
the projection that `_Projection` builds.
"""  # DESIGN 7

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec

from detent.core import actions as a
from detent.core.agent import AgentSpec
from detent.core.budget import FIELDS as BUDGET_FIELDS
from detent.core.durations import seconds
from detent.core.errors import ConfigError, PlannerFailed
from detent.core.state import Item
from detent.expressions.functions import kind, text, to_json
from detent.planners.rules.expressions import evaluate
from detent.planners.rules.files import HOST, Rule, RuleSet, build_rules, read_entries
from detent.planners.rules.histories import Firing, read_history, reason_for
from detent.planners.rules.templates import Fixed, Text, render
from detent.ports import Plan, View
from detent.ports.conversing import Message


class RulePlanner:
    """Plans by rules. Create one with `from_file` or `from_rules`. Any number of runs and threads may share it."""

    asks_only_its_own = True
    """See `ports.asks_only_its_own`."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    @classmethod
    def from_file(cls, path: str | Path) -> RulePlanner:
        """Read a YAML rule file. Raise `ConfigError` with file, line, rule and key or expression."""
        entries, lines = read_entries(path)
        return cls(build_rules(entries, source=str(path), lines=lines))

    @classmethod
    def from_rules(cls, rules: Sequence[dict[str, Any]], *, source: str = "rules") -> RulePlanner:
        """Use the entries of a rule file as plain data. Raise `ConfigError` with entry, rule and key or expression."""
        return cls(build_rules(rules, source=source))

    async def plan(self, view: View) -> Plan:
        """Return the action of the first rule that fires. If an expression fails, raise `PlannerFailed` with rule and expression.

        Separately stored results are read whole if an expression needs them.
        """
        whole: dict[str, Any] = {}
        while True:
            try:
                return self._decide(view, whole)
            except _Apart as needed:
                if view.full is None:
                    raise PlannerFailed(_ONLY_PREVIEW.format(needed.items[0].tool, needed.items[0].call_id)) from None
                for item in needed.items:
                    whole[item.call_id] = await view.full(item)

    def models_asked(self, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
        """Return nothing: rules call no model; see `ports.models_asked`."""
        return ()

    def decide(self, view: View) -> Plan:
        """Return the plan for `view`, as `plan` does if no result is stored separately: equal views give equal plans."""
        try:
            return self._decide(view, {})
        except _Apart as needed:
            raise PlannerFailed(_ONLY_PREVIEW.format(needed.items[0].tool, needed.items[0].call_id)) from None

    def _decide(self, view: View, whole: dict[str, Any]) -> Plan:
        projection = _Projection(view, self._rules, read_history(view), whole)
        for rule in self._rules.rules:
            if (failure := _failure_that_stops(rule, projection.fired(rule))) is not None:
                return Plan(actions=(failure,))
        for rule in self._rules.rules:
            if actions := _next(rule, projection):
                return Plan(actions=actions)
        if self._rules.default is not None:
            return Plan(actions=(_action(self._rules.default, projection, {}, None),))
        return Plan(actions=(a.Abstain(reason="no rule fits, and the rules have no default", missing=("a rule for this case",)),))


_ONLY_PREVIEW = "the result of {} (call {}) is stored separately and only its preview is available; rules need whole results"


class _Apart(Exception):
    def __init__(self, items: list[Item]) -> None:
        self.items = items
        super().__init__()


# Which rule ---------------------------------------------------------------------------------------------------------------------


def _next(rule: Rule, projection: _Projection) -> tuple[a.AnyAction, ...]:
    """Return the rule's next actions, none if it has nothing to do now."""
    fired = projection.fired(rule)
    if rule.for_each is None:
        if not _may_fire(rule, fired) or not _holds(rule, projection):
            return ()
        return (_action(rule, projection, {}, None),)
    if not _holds(rule, projection):
        return ()
    items = evaluate(rule.for_each, projection.lookup)
    if not isinstance(items, list):
        _fail(rule, f"for_each: `{rule.for_each.source.strip()}` gave {kind(items)}, not a list")
    listed = cast("list[Any]", items)
    due: list[a.AnyAction] = []
    done = _by_index(fired)
    for index, item in enumerate(listed):
        if not _is_done(rule, done.get(index, [])):
            due.append(_action(rule, projection, {"item": item, "index": index}, index))
            if len(due) >= (rule.batch or 1):
                break
    return tuple(due)


def _may_fire(rule: Rule, fired: list[Firing]) -> bool:
    if rule.limit is None:
        return True
    if rule.limit == 1:
        return not _is_done(rule, fired)
    return len([f for f in fired if not f.void]) < rule.limit


def _is_done(rule: Rule, attempts: list[Firing]) -> bool:
    """Whether one item (or a rule that fires once) needs no further attempt."""
    counted = [f for f in attempts if not f.void]
    if not counted:
        return False
    return not (counted[-1].again and len(counted) <= rule.retries)


def _failure_that_stops(rule: Rule, fired: list[Firing]) -> a.Stop | None:
    if rule.then != "stop":
        return None
    for attempts in _by_index(fired).values():
        last = attempts[-1]
        if last.failed and not last.void and (rule.limit != 1 or _is_done(rule, attempts)):
            error = last.error or {"code": "unknown", "message": ""}
            return a.Stop(reason=reason_for(rule.name, None, f"call of {last.action.tool} failed: {error['code']}: {error['message']}"))
    return None


def _holds(rule: Rule, projection: _Projection) -> bool:
    if rule.when is None:
        return True
    value = evaluate(rule.when, projection.lookup)
    if not isinstance(value, bool):
        _fail(rule, f"when: `{rule.when.source.strip()}` gave {kind(value)}, not true or false")
    return value


def _by_index(fired: list[Firing]) -> dict[int, list[Firing]]:
    grouped: dict[int, list[Firing]] = {}
    for firing in fired:
        grouped.setdefault(firing.index, []).append(firing)
    return grouped


def _fail(rule: Rule, why: str) -> NoReturn:
    raise PlannerFailed(f"{rule.where}: {why}")


# Which action -------------------------------------------------------------------------------------------------------------------


def _action(rule: Rule, projection: _Projection, extra: dict[str, Any], index: int | None) -> a.AnyAction:
    """Return the action from the rule's template."""

    def lookup(name: str, members: frozenset[str] | None) -> Any:
        return extra[name] if name in extra else projection.lookup(name, members)

    fields = {key: render(template, lookup) for key, template in rule.template.items()}
    why = text(render(rule.why, lookup)) if rule.why is not None else ""
    reason = reason_for(rule.name, index, why)
    match rule.action:
        case "call":
            return a.ToolCall(tool=_said(rule, fields, "tool"), args=_map(rule, fields, "args") or {}, reason=reason)
        case "answer":
            content = fields["content"]
            if content is not None and not isinstance(content, str) and projection.view.output_schema is None:
                content = text(content)
            if content is None or (isinstance(content, str) and not content.strip()):
                _fail(rule, "the answer is blank; give it a text (`stop` and `abstain` end a run without one)")
            return a.FinalAnswer(content=content, reason=reason)
        case "stop":
            return a.Stop(reason=reason_for(rule.name, index, _said(rule, fields, "reason")))
        case "abstain":
            missing: Any = fields.get("missing") or []
            listed = cast("list[Any]", missing) if isinstance(missing, list) else [missing]
            return a.Abstain(reason=reason_for(rule.name, index, _said(rule, fields, "reason")), missing=tuple(text(m) for m in listed))
        case _:
            return _rarer_action(rule, fields, reason)


def _rarer_action(rule: Rule, fields: dict[str, Any], reason: str) -> a.AnyAction:
    match rule.action:
        case "ask":
            return a.AskUser(question=_said(rule, fields, "question"), expected=_map(rule, fields, "expected"), reason=reason)
        case "think":
            content = fields["content"]
            return a.Thought(content=to_json(content) if _typed(rule) else content, reason=reason)
        case "schedule":
            if "at" in fields:
                return a.Schedule(at=_said(rule, fields, "at"), reason=reason)
            delay = fields["delay_s"]
            try:
                delay = seconds(delay, "schedule.delay_s")
            except ConfigError as error:
                _fail(rule, str(error))
            if not isinstance(delay, int | float) or isinstance(delay, bool) or delay < 0:
                _fail(rule, f"schedule.delay_s is {text(delay)}, not a number of seconds")
            return a.Schedule(delay_s=float(delay), reason=reason)
        case "push_goal":
            return a.PushGoal(goal=_said(rule, fields, "goal"), reason=reason)
        case "complete_goal":
            return a.CompleteGoal(goal_id=text(fields.get("goal_id", "")), outcome=text(fields.get("outcome", "")), reason=reason)
        case _:
            raise AssertionError(f"files has an action {rule.action!r} that is not handled here")


def _said(rule: Rule, fields: dict[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str) or not value.strip():
        _fail(rule, f"{rule.action}.{key} is {text(value) if value is not None and value != '' else 'blank'}, not a text with content")
    return value


def _map(rule: Rule, fields: dict[str, Any], key: str) -> dict[str, Any] | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, dict):
        _fail(rule, f"{rule.action}.{key} is {kind(value)}, not a map")
    return cast("dict[str, Any] | None", value)


# What expressions see -----------------------------------------------------------------------------------------------------------


def _entry(message: Message) -> dict[str, Any]:
    """Return an earlier message of the session as data for expressions."""
    fields = {"kind": message.kind, "text": message.text, "number": message.number}
    return (
        fields
        if message.kind != "tool"
        else {**fields, "tool": message.tool, "args": message.args, "ok": message.ok, "content": message.content}
    )


class _Projection:
    """The few names that expressions may read, taken from one view for one plan."""

    def __init__(self, view: View, rules: RuleSet, history: list[Firing], whole: dict[str, Any]) -> None:
        self.view, self._rules, self._whole = view, rules, whole
        self._fired: dict[str, list[Firing]] = {}
        self._order = {id(firing): i for i, firing in enumerate(history)}
        for firing in history:
            if not isinstance(firing.action, a.Stop):
                self._fired.setdefault(firing.rule, []).append(firing)
        self._values: dict[str, Any] = {}
        self._results: dict[str, dict[str, Any]] = {}

    def fired(self, rule: Rule) -> list[Firing]:
        """Return the rule's actions so far."""
        return self._fired.get(rule.name, [])

    def lookup(self, name: str, members: frozenset[str] | None) -> Any:
        """Return the value of a variable; of `results` and `values` only `members`."""
        match name:
            case "goal":
                return self.view.goal
            case "variables":
                return self.view.variables
            case "iteration":
                return self.view.iteration
            case "host":
                return {field: _plain(getattr(self.view.host, field)) for field in HOST}
            case "budget":
                left = {field: getattr(self.view.budget_remaining, field) for field in BUDGET_FIELDS}
                return {field.removeprefix("max_"): value for field, value in left.items() if value is not None}
            case "conversation":
                return [_entry(message) for message in self.view.conversation]
            case "results":
                known = dict.fromkeys(rule.result for rule in self._rules.rules if rule.result)
                return {result: self._result(result) for result in (known if members is None else members)}
            case "values":
                return {value: self._value(value) for value in (self._rules.values if members is None else members)}
            case _:
                raise AssertionError(f"expressions are checked against known names, and {name!r} is not one")

    def _value(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = evaluate(self._rules.values[name], self.lookup)
        return self._values[name]

    def _result(self, name: str) -> dict[str, Any]:
        if name not in self._results:
            self._results[name] = self._outcome(name)
        return self._results[name]

    def _outcome(self, name: str) -> dict[str, Any]:
        """Return the value of a result name: of the rules that share it, the one that fired last."""
        sharing = [rule for rule in self._rules.rules if rule.result == name]
        rule = max(sharing, key=lambda r: max((self._order[id(f)] for f in self.fired(r)), default=-1))
        fired = self.fired(rule)
        latest = (
            [attempts[-1] for _, attempts in sorted(_by_index(fired).items())] if rule.for_each is not None or rule.limit == 1 else fired
        )
        if apart := [f.item for f in latest if f.apart and f.item is not None and f.item.call_id not in self._whole]:
            raise _Apart(apart)
        each = [{"ok": f.ok, "value": self._content(rule, f), "error": f.error, "index": f.index} for f in latest]
        errors = [outcome["error"] for outcome in each if outcome["error"] is not None]
        several = rule.for_each is not None
        return {
            "ok": bool(each) and (all(o["ok"] for o in each) if several else bool(each[-1]["ok"])),
            "value": [o["value"] for o in each] if several else (each[-1]["value"] if each else None),
            "error": (errors[0] if errors else None) if several else (each[-1]["error"] if each else None),
            "count": len(fired),
            "each": each,
        }

    def _content(self, rule: Rule, firing: Firing) -> Any:
        value = firing.value(self._whole)
        return _recorded(value) if rule.action == "think" and _typed(rule) else value


def _typed(rule: Rule) -> bool:
    """Whether a `think` rule's template is not text; then the log has JSON, which is decoded again."""
    content = rule.template["content"]
    return not (isinstance(content, Text) or (isinstance(content, Fixed) and isinstance(content.value, str)))


def _recorded(value: str) -> Any:
    """Return the value of a recorded thought; unchanged if a rule recorded plain text."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def _plain(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
