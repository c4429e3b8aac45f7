"""Rules as data: which match, what their conditions see, which wins, and what becomes of a condition that cannot be evaluated."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import times
from detent.core.agent import Host
from detent.core.errors import ConfigError
from detent.policies.rules import Rule, RulePolicy
from detent.ports import Verdict
from policies.calls import call, spec, state


def rule(decision: Any = "allow", **fields: Any) -> Rule:
    """Return a rule."""
    fields.setdefault("id", "r")
    if isinstance(fields.get("tool"), str):
        fields["tool"] = (fields["tool"],)
    return Rule(decision=decision, **fields)


def holds(when: str, which: Any = None, run: Any = None, **options: Any) -> bool:
    """Whether a condition lets a call pass."""
    policy = RulePolicy([rule(when=when)], **options)
    return policy.decide(which or call(n=1), run or state()).decision == "allow"


@pytest.mark.parametrize(
    ("tool", "name", "matches"),
    [
        ("put", "put", True),
        ("put", "puts", False),
        ("*", "anything", True),
        ("git_*", "git_push", True),
        ("git_*", "legit_push", False),
        ("get_?", "get_a", True),
        ("get_?", "get_ab", False),
        (("a", "b*"), "bc", True),
        (("a", "b*"), "ab", False),
        ("a.c", "abc", False),
        ("files__*", "files__read", True),
    ],
)
def test_a_rule_names_tools_by_pattern(tool: Any, name: str, *, matches: bool) -> None:
    """`*` and `?` as in file names, everything else literally, the whole name."""
    policy = RulePolicy([rule(tool=tool)])
    verdict = policy.decide(call(spec(name)), state())
    assert (verdict.decision, verdict.rule) == (("allow", "r") if matches else ("deny", "no_policy_rule_matched"))
    assert policy.offers(spec(name), state()) == matches


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("args.n == 1", True),
        ("args.n > 1", False),
        ("has(args.m)", False),
        ("!has(args.m) || args.m", True),
        ('args["n"] == 1', True),
        ("size(args) == 1", True),
        ('tool.name == "put" && tool.side_effect == "write" && !tool.read_only', True),
        ('"mail" in tool.scopes', True),
        ("tool.idempotent || tool.volatile", False),
        ('host.tenant == "acme" && host.principal == "ann" && "pay" in host.scopes && host.workspace == ""', True),
        ("usage.tool_calls < 4 && usage.failures == 0 && usage.cost_usd == 0.0 && usage.total_tokens == 30", True),
        ("usage.running_s == 0.0", True),
        ('goal.contains("tidy")', True),
        ('agent == "tidier"', True),
        ('origin == "planner"', True),
        ("variables.mode == 'dry' && !has(variables.nothing)", True),
        ("grep(goal, 'id') == ['tidy up']", True),
        ("true", True),
        ("  ", True),
    ],
)
def test_a_condition_sees_a_small_fixed_projection(when: str, *, expected: bool) -> None:
    """Tool, arguments, host, usage, goal, agent, variables, origin; and the functions that rules of a planner have."""
    host = Host(tenant="acme", principal="ann", scopes=("pay",))
    run = state(host=host, variables={"mode": "dry"}, tool_calls=3, input_tokens=10, output_tokens=20)
    assert holds(when, call(spec("put", "write", scopes=("mail",)), n=1), run) == expected


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("args.n >", r"rules\.toml:7: rule 'r': when: expression `args.n >` is not CEL at line 1, column 9"),
        ("argz.n > 1", r"uses 'argz', which does not exist; did you mean 'args'"),
        ("host.tennant == ''", r"reads host.tennant, which does not exist; did you mean 'tenant'"),
        ("usage.steps > 1", r"reads usage.steps, which does not exist"),
        ("tool.description == ''", r"reads tool.description, which does not exist"),
        ("provenance.argz.x == 'user'", r"reads provenance.argz, which does not exist; did you mean 'args'"),
        ("startswith(args.n, 'a')", r"calls startswith\(\), which does not exist; did you mean 'startsWith'"),
        ("transcript.size() > 1", r"uses 'transcript', which does not exist"),
    ],
)
def test_a_condition_that_cannot_mean_anything_is_refused_when_it_is_compiled(when: str, message: str) -> None:
    """The message names file, line, rule and the nearest valid name."""
    with pytest.raises(ConfigError, match=message):
        RulePolicy([rule(when=when, source="rules.toml:7")]).compile()


@pytest.mark.parametrize(
    ("when", "args", "why"),
    [
        ("args.m == 1", {"n": 1}, "there is no key 'm'"),
        ("args.n > 5", {"n": "text"}, "an operator or a field does not fit the kind of its value"),
        ("args.n", {"n": 1}, "gave an integer, not true or false"),
        ("args.n.x == 1", {"n": None}, "failed"),
        ("int(args.n) > 1", {"n": "text"}, "failed"),
    ],
)
@pytest.mark.parametrize("decision", ["allow", "require_approval", "deny"])
def test_a_condition_that_fails_at_run_time_denies_and_says_where(when: str, args: dict[str, Any], why: str, decision: Any) -> None:
    """File, line, rule and reason; whatever the rule would have decided."""
    verdict = RulePolicy([rule(decision, when=when, source="rules.toml:7")]).decide(call(**args), state())
    assert verdict.decision == "deny" and verdict.rule == "r" and verdict.sources == ("rules.toml:7",)
    assert verdict.reason.startswith("rules.toml:7: rule 'r': when: ") and why in verdict.reason


def test_a_failing_condition_hides_no_stop() -> None:
    """Every rule that names the tool is asked."""
    rules = [rule("allow", id="a", when="args.nothing"), rule("stop", id="b", when="args.n == 1")]
    assert RulePolicy(rules).decide(call(n=1), state()).rule == "b"


def test_the_strongest_rule_wins_and_every_match_is_named() -> None:
    """Order does not matter; the facts say which rules matched."""
    rules = [
        rule("allow", id="all", tool="*"),
        rule("deny", id="large", when="args.n > 100"),
        rule("require_approval", id="mid", when="args.n > 10", approvers=2, expires_s=60.0, on_reject="stop", reason="more than ten"),
    ]
    policy = RulePolicy(rules)
    verdicts = [policy.decide(call(n=n), state()) for n in (1, 11, 101)]
    assert [(v.decision, v.rule) for v in verdicts] == [("allow", "all"), ("require_approval", "mid"), ("deny", "large")]
    assert verdicts[1] == Verdict(
        decision="require_approval",
        rule="mid",
        reason="more than ten",
        approvers=2,
        expires_s=60.0,
        on_reject="stop",
        facts={"matched": ["all", "mid"]},
    )
    assert verdicts[0].facts == {} or verdicts[0].facts == {"matched": ["all"]}


@pytest.mark.parametrize(
    ("rules", "asks", "offers"),
    [
        ([rule("allow")], False, True),
        ([rule("require_approval")], True, True),
        ([rule("allow", id="a"), rule("deny", id="d", when="args.n > 1")], False, True),
        ([rule("require_approval", id="a"), rule("deny", id="d")], False, False),
        ([rule("deny", id="d", when="args.n > 1")], False, False),
        ([rule("require_approval", when="args.n > 1")], True, True),
        ([rule("stop")], False, False),
        ([], False, False),
    ],
)
def test_a_tool_of_which_every_call_would_be_refused_is_not_offered(rules: list[Rule], *, asks: bool, offers: bool) -> None:
    """Offered: no unconditional refusal, and some rule that may let it pass. `may_ask` follows."""
    policy = RulePolicy(rules)
    assert (policy.may_ask(spec()), policy.offers(spec(), state())) == (asks, offers)


def test_provenance_is_worked_out_only_where_a_rule_that_names_the_tool_reads_it() -> None:
    """It looks at everything the run has seen: calls of other tools do not pay for it."""
    asked: list[str] = []

    def trace(which: Any, _: Any) -> dict[str, Any]:
        asked.append(which.tool.name)
        return {"untrusted_in_context": True, "args": {"to": "user"}}

    rules = [rule(id="mail", tool="send", when='provenance.args.to == "user"'), rule(id="rest", tool="put", when="args.n == 1")]
    policy = RulePolicy(rules, trace=trace)
    assert policy.decide(call("put", n=1), state()).decision == "allow" and asked == []
    assert policy.decide(call("send", to="x"), state()).decision == "allow" and asked == ["send"]


def test_provenance_comes_from_the_run_where_nothing_else_is_given() -> None:
    """A value of the goal is the user's, one from nowhere the model's."""
    assert holds('provenance.args.word == "user"', call(word="tidy up"))
    assert holds('provenance.args.word == "model" && !provenance.untrusted_in_context', call(word="something else"))


def test_a_provenance_that_fails_denies() -> None:
    """An exception inside a policy is a denial (the pipeline's and the kernel's rule)."""
    from detent.policies import PolicyPipeline

    def trace(*_: Any) -> Any:
        raise RuntimeError("lost")

    verdict = PolicyPipeline([RulePolicy([rule(when="provenance.untrusted_in_context")], trace=trace)]).decide(call(), state())
    assert verdict.decision == "deny" and "RuntimeError: lost" in verdict.reason


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([rule(id="a"), rule(id="a")], "another rule has this id"),
        ([rule(id=" ")], "every rule needs an id"),
        ([rule("deny", approvers=2)], "approvers, expires and on_reject belong to"),
        ([rule("allow", expires_s=3.0)], "approvers, expires and on_reject belong to"),
        ([rule("allow", on_reject="stop")], "approvers, expires and on_reject belong to"),
        ([rule("require_approval", approvers=0)], "give at least 1"),
        ([rule("require_approval", expires_s=0.0)], "give a time above 0"),
        ([rule(tool=())], "tool: is empty"),
    ],
)
def test_rules_that_contradict_themselves_are_refused(rules: list[Rule], message: str) -> None:
    """When they are made, not when they are needed."""
    with pytest.raises(ConfigError, match=message):
        RulePolicy(rules)


def test_the_version_changes_with_every_rule_and_not_with_its_place() -> None:
    """A log says by which rules was decided; moving a rule in its file decides nothing else."""
    one, same = RulePolicy([rule(source="a:1")]), RulePolicy([rule(source="b:2")])
    assert one.version == same.version != RulePolicy([rule(when="true")]).version != RulePolicy([rule("deny")]).version


def test_conditions_are_compiled_once_and_only_when_they_are_needed() -> None:
    """A policy of rules without conditions does not even load CEL."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from policies.calls import call, state\n"
        "from detent.policies.rules import Rule, RulePolicy\n"
        "p = RulePolicy([Rule(id='a', decision='allow'), Rule(id='b', tool=('x',), when='args.n == 1', decision='deny')])\n"
        "p.decide(call('put', n=1), state()); print('cel' in sys.modules)\n"
        "p.decide(call('x', n=1), state()); print('cel' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


values = st.one_of(st.integers(-2, 9), st.sampled_from(["a", "args.n", ""]), st.booleans(), st.none(), st.just({"x": 1}), st.just([1, 2]))


@settings(max_examples=times(300), deadline=None)
@given(
    st.sampled_from(
        [
            "args.n == 1",
            "args.n > 1 || args.m == 'args.n'",
            "args.n.x == 1 && size(args) > 0",
            "size(args.m) > 1 || args.n == 2",
            "args.m.contains('a') && args . n == 1",
            "args.list.exists(n, n == args.n) || args.n == 'args.m'",
            "[1, 2].exists(i, i == args.n)",
            '"args.n" == args.m',
            "has(args.n) && args.n == 1",
            'args["n"] == 1 || args.m == null',
            "args.a_b == args.a.b",
            "usage.tool_calls < args.n ? args.m == 'a' : host.tenant == ''",
        ]
    ),
    st.dictionaries(st.sampled_from(["n", "m", "list", "a_b", "a"]), values, max_size=5),
)
def test_a_condition_over_paths_gives_what_the_condition_gives(when: str, args: dict[str, Any]) -> None:
    """The quick way and the plain one agree: verdict, and the reason of a failure."""
    quick, plain = RulePolicy([rule(when=when)]), RulePolicy([rule(when=when)])
    ready = plain._prepare("put")
    plain._ready["put"] = type(ready)(ready.rules, ready.reads, ready.calls, (), {})
    assert quick.decide(call(**args), state()) == plain.decide(call(**args), state())


def test_only_the_fields_that_rules_read_are_handed_to_cel() -> None:
    """A call that carries something CEL cannot hold is judged by the fields that are read."""
    assert holds("args.n == 1", call(n=1, body={"huge": 2**200}))
