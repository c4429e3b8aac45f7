"""Mistakes in rules are found when they are loaded where that is possible, and named with place, key and the nearest valid one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from detent import Agent
from detent.core.errors import ConfigError, PlannerFailed
from detent.planners import RulePlanner, load_rules
from planners.rules.views import Desk, rules

GOOD = "- {name: a, call: {tool: t}, as: log}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: b, wen: true, answer: x}", r"rules\.yaml:2: rule 'b': unknown key 'wen'; did you mean 'when'\?"),
        ("- {name: b, cal: {tool: t}}", r"unknown key 'cal'; did you mean 'call'\?"),
        ("- {name: b, call: {tol: t}}", r"rule 'b': call has no key 'tol'; did you mean 'tool'\?"),
        ("- {name: b, call: {args: {}}}", r"call needs 'tool'"),
        ("- {name: b, call: t}", r"call is a map of tool, args, not 't'"),
        ("- {name: b, when: true}", r"exactly one action, this one has none; actions: call, answer"),
        ("- {name: b, answer: x, stop: y}", r"exactly one action, this one has answer and stop"),
        ("- {when: true, answer: x}", r"rules\.yaml:2: a rule without a name \(its keys: when, answer\)"),
        ("- {name: no, answer: x}", r"rule name False.*put it in quotes"),
        ("- {name: a, answer: x}", r"rule 'a': there is another rule with this name"),
        ("- {name: default, answer: x}", r"is not 'default'"),
        ("- {name: 'b c', answer: x}", r"rule name 'b c'"),
        ("- just text", r"rules\.yaml:2: a rule is a map"),
        (
            "- {name: b, when: '1 +', answer: x}",
            r"rule 'b': when: expression `1 \+` is not CEL at line 1, column 4: mismatched input the end",
        ),
        ("- {name: b, when: 'variabels.x', answer: x}", r"uses 'variabels', which does not exist; did you mean 'variables'\?"),
        ("- {name: b, when: 'results.lgo.ok', answer: x}", r"reads results\.lgo, which does not exist; did you mean 'log'\?"),
        ("- {name: b, when: 'results[\"lgo\"].ok', answer: x}", r"reads results\.lgo, which does not exist"),
        ("- {name: b, when: 'values.x', answer: x}", r"reads values\.x, which does not exist; known: none"),
        ("- {name: b, when: 'host.tenat == \"\"', answer: x}", r"reads host\.tenat, which does not exist; did you mean 'tenant'\?"),
        ("- {name: b, when: 'cuont_by([]) == []', answer: x}", r"calls cuont_by\(\), which does not exist; did you mean 'count_by'\?"),
        ("- {name: b, when: 'now() > 1', answer: x}", r"calls now\(\), which does not exist"),
        (
            "- {name: b, when: 'item == 1', for_each: '[1]', call: {tool: t}}",
            r"uses 'item', which does not exist; it exists only in the action of a rule",
        ),
        ("- {name: b, when: '[1].exists(goal, goal == 1)', answer: x}", r"hides the variable 'goal'"),
        ("- {name: b, when: '${goal == 1}', answer: x}", r"when is an expression already; write it without"),
        ("- {name: b, when: 3, answer: x}", r"when is an expression \(text\), not 3"),
        ("- {name: b, answer: '${goal'}", r"answer\.content: the placeholder `\$\{goal` is not closed"),
        ("- {name: b, answer: 'a ${goal +} b'}", r"answer\.content: expression `goal \+` is not CEL"),
        ("- {name: b, call: {tool: t, args: {x: [1, '${nope}']}}}", r"call\.args\.x\[1\]: expression `nope` uses 'nope'"),
        (
            "- {name: b, call: {tool: t, args: {d: 2025-01-01}}}",
            r"call\.args\.d: .* was read as a date, which JSON does not have; put it in quotes",
        ),
        ("- {name: b, call: {tool: t, args: {1: x}}}", r"the key 1 was read as a int; put it in quotes"),
        ("- {name: b, call: {tool: t, args: {'${goal}': x}}}", r"placeholders are allowed only in values"),
        (
            "- {name: b, spawn: {agent: a, goal: g}}",
            r"rule 'b': 'spawn' is not an action of a rule; call the tool spawn_agent or agent_NAME. Actions: call,",
        ),
        ("- {name: b, join: c1}", r"rule 'b': 'join' is not an action of a rule"),
        ("- default: {cancel: c1}", r"default: 'cancel' is not an action of a rule"),
        ("- {name: b, repeat: 0, call: {tool: t}}", r"repeat is true, false or a number above 0, not 0"),
        ("- {name: b, batch: true, call: {tool: t}}", r"this rule has no for_each with a call"),
        ("- {name: b, for_each: '[1]', batch: -1, call: {tool: t}}", r"batch is true, false or a number above 0"),
        ("- {name: b, for_each: '[1]', repeat: true, call: {tool: t}}", r"for_each and repeat cannot be combined"),
        ("- {name: b, for_each: '[1]', answer: x}", r"answer ends the run"),
        ("- {name: b, on_error: ignore, call: {tool: t}}", r"on_error is continue, stop, retry or .*, not 'ignore'"),
        ("- {name: b, on_error: {retry: 0}, call: {tool: t}}", r"on_error\.retry is .* above 0, not 0"),
        ("- {name: b, on_error: stop, think: x}", r"on_error is for calls"),
        ("- {name: b, as: 'a b', call: {tool: t}}", r"as: 'a b' is not a name for expressions"),
        ("- {name: b, schedule: {}}", r"schedule needs one of 'at'"),
        ("- {name: b, answer: ''}", r"answer needs 'content'"),
        ("- default: {answer: x}\n- {name: b, answer: x}", r"`default` is the last entry"),
        ("- default: {answer: x, when: true}", r"default: 'when' has no effect here"),
        ("- values: {x: 3}", r"value 'x': expected an expression \(text\), not 3"),
        ("- values: {x: values.y, y: '1'}", r"value 'x': expression `values\.y` reads values\.y, which does not exist"),
        ("- {name: b, when: true, when: false, answer: x}", r"rules\.yaml:2: the key 'when' occurs twice"),
        ("- {name: b, answer: 2025-13-45}", r"not YAML: .*quotes"),
        ("- {name: b, answer: [}", r"rules\.yaml:2:22: not YAML"),
    ],
)
def test_a_mistyped_rule_is_refused_when_it_is_loaded(tmp_path: Path, text: str, said: str) -> None:
    """The message names file and line, rule, key or expression, and what is valid; `load_rules` and the planner agree."""
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD + text + "\n")
    with pytest.raises(ConfigError, match=said):
        RulePlanner.from_file(path)
    with pytest.raises(ConfigError, match=said):
        load_rules(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "this one is empty"),
        (b"rules: []", "a list of rules .* this one is a dict"),
        (b"\xff", "not UTF-8"),
        (b"[]", "there are no rules"),
        (b"- &a [*a]", "contains itself"),
    ],
)
def test_a_file_that_is_no_rule_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """So is one that is missing."""
    path = tmp_path / "rules.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        RulePlanner.from_file(path)
    with pytest.raises(ConfigError, match=r"none\.yaml' cannot be read: No such file"):
        RulePlanner.from_file(tmp_path / "none.yaml")


def test_entries_given_as_data_are_checked_alike() -> None:
    """Without a file the entry's place stands for the line."""
    with pytest.raises(ConfigError, match=r"^mine\[1\]: rule 'b': unknown key 'wen'"):
        RulePlanner.from_rules([{"name": "a", "answer": "x"}, {"name": "b", "wen": "true", "answer": "x"}], source="mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "- {name: b, when: 'variables.nope == 1', answer: x}",
            r"rule 'b': when: expression `variables\.nope == 1` failed: there is no key 'nope'",
        ),
        ("- {name: b, when: variables.n, answer: x}", r"rule 'b': when: `variables\.n` gave an integer, not true or false"),
        ("- {name: b, for_each: variables.n, call: {tool: t}}", r"for_each: `variables\.n` gave an integer, not a list"),
        ("- {name: b, answer: '${variables.n + 1.5}'}", r"answer\.content: expression `variables\.n \+ 1\.5` failed: .*CEL"),
        ("- {name: b, answer: '${variables.n / 0}'}", r"failed: division by zero"),
        ("- {name: b, answer: '${text(1.0 / 0.0)}'}", r"failed: inf is not a JSON number"),
        ("- {name: b, answer: '${1.0 / 0.0}'}", r"gave no JSON: inf is not a JSON number"),
        ("- {name: b, answer: '${string(variables.l)}'}", r"string\(\) does not take a value of this kind \(text\(\) takes any\)"),
        ("- {name: b, answer: '${grep(variables.n, \"a\")}'}", r"failed: grep: expected a list, not an integer"),
        ('- {name: b, answer: \'${grep("a", "(")}\'}', r"failed: grep: the pattern '\(' is not a regular expression"),
        ("- {name: b, answer: '${count_by(variables.l, \"k\")}'}", r"count_by: expected maps with the field 'k', found an integer"),
        ("- {name: b, answer: '${variables.nothing}'}", r"rule 'b': the answer is blank"),
        ("- {name: b, answer: ' ${variables.empty} '}", r"rule 'b': the answer is blank"),
        ("- {name: b, call: {tool: '${variables.n}'}}", r"call\.tool is 1, not a text with content"),
        ("- {name: b, call: {tool: t, args: '${variables.n}'}}", r"call\.args is an integer, not a map"),
        ("- {name: b, schedule: {delay_s: '${variables.empty}'}}", r"schedule\.delay_s is ''; write seconds"),
    ],
)
def test_an_expression_without_a_value_fails_the_plan_and_is_named(text: str, said: str) -> None:
    """What cannot be known before is an error of the planner, with rule and expression."""
    desk = Desk(variables={"n": 1, "l": [1], "empty": "", "nothing": None})
    with pytest.raises(PlannerFailed, match=said):
        rules(text).decide(desk.view())


def test_nothing_is_printed_when_a_function_fails(capfd: pytest.CaptureFixture[str]) -> None:
    """The failure is raised; nothing is written beside it."""
    with pytest.raises(PlannerFailed):
        rules("- {name: b, answer: '${join(1)}'}").decide(Desk().view())
    assert capfd.readouterr() == ("", "")


def test_yaml_tags_that_make_objects_are_refused(tmp_path: Path) -> None:
    """A rule file is data."""
    path = tmp_path / "rules.yaml"
    path.write_text("- {name: a, answer: !!python/object/apply:os.getcwd []}\n")
    with pytest.raises(ConfigError, match="not YAML"):
        RulePlanner.from_file(path)
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"name": "b", "spawn": {"agent": "x"}},
            r"agent 'a': rules\[0\]: rule 'b': 'spawn' is not an action of a rule.*agent_NAME\. Actions: call,",
        ),
        ({"name": "b", "cal": {"tool": "t"}}, r"agent 'a': rules\[0\]: rule 'b': unknown key 'cal'; did you mean 'call'\?"),
        ({"name": "b", "when": "1 +", "answer": "x"}, r"agent 'a': rules\[0\]: rule 'b': when: expression `1 \+` is not CEL"),
    ],
)
def test_a_mistake_in_the_rules_of_a_program_is_refused_where_the_agent_is_made(rule: dict[str, object], said: str) -> None:
    """It was found when the agent was first run, maybe by a worker, and far from the line that has it."""
    with pytest.raises(ConfigError, match=said):
        Agent(name="a", rules=[rule])
