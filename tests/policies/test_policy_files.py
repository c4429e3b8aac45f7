"""Policy files: what they mean, what stands in a log of them, and that every mistake names file, line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine
from detent.config.engines import Config
from detent.config.loading import load_agent, load_config
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.policies import load_policy
from detent.policies.combining import Governance
from detent.policies.documents import as_data, policy_document, read_policy
from detent.policies.verdicts import SPAWN
from policies.calls import call, spec, state

FULL = '''\
version = "2026-01"       # the author's own mark
default = "tiers"

[tiers]
write = "require_approval"
[tiers.tools]
"make_*" = "allow"

[permission]
mode = "allow"
denied_tools = ["rm"]
max_failures = 9

[delegation]
max_children = 2
[delegation.max_budget]
max_tool_calls = 5

# [[rules]] in a comment is none
[[rules]]
id = "reads"
tool = "get_*"
decision = "allow"
reason = """
[[rules]]
is no header inside a text"""

[[rules]]
id = "money"
tool = ["pay", "refund"]
when = """
args.amount > 100.0
  && host.tenant == "acme"   // [[rules]]
"""
decision = "require_approval"
reason = "more than 100"
approvers = 2
expires = "2h"
on_reject = "stop"
'''


def write(folder: Path, text: str, name: str = "policy.toml") -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def said(policy: Any, *args: Any) -> tuple[str, str]:
    """Return decision and rule."""
    verdict = policy.decide(*args)
    return verdict.decision, verdict.rule


def test_a_file_says_rules_and_stages_and_the_strongest_wins(tmp_path: Path) -> None:
    """Tables are stages where they are there; each rule knows file and line."""
    document = read_policy(write(tmp_path, FULL))
    assert [(r.id, r.source) for r in document.rules] == [("reads", "policy.toml:20"), ("money", "policy.toml:28")]
    money = document.rules[1]
    assert (money.tool, money.approvers, money.expires_s, money.on_reject) == (("pay", "refund"), 2, 7200.0, "stop")
    policy = load_policy(tmp_path / "policy.toml")
    assert policy.version.startswith("2026-01-")
    assert said(policy, call("rm"), state()) == ("deny", "tool_explicitly_denied")
    assert said(policy, call("put"), state()) == ("require_approval", "tier:write")
    assert said(policy, call("make_it"), state()) == ("allow", "mode_allows_tool")
    assert said(policy, call("put"), state(failures=9)) == ("stop", "max_failures_reached")
    assert said(policy, call(spec(SPAWN, delegates=True), agent="a"), state()) == ("deny", "delegation_budget_exceeded")


def test_default_says_what_happens_where_nothing_has_a_say(tmp_path: Path) -> None:
    """No matching rule denies, unless the file falls back on the tiers."""
    rules = '[[rules]]\nid = "a"\ntool = "look"\ndecision = "allow"\n'
    assert said(load_policy(write(tmp_path, rules)), call("put"), state()) == ("deny", "no_policy_rule_matched")
    tiers = load_policy(write(tmp_path, 'default = "tiers"\n' + rules))
    assert said(tiers, call("put"), state()) == ("allow", "tier:write")
    assert said(tiers, call(spec("x", "destructive")), state()) == ("require_approval", "tier:destructive")


def test_provenance_as_a_stage_tightens_and_never_allows_by_itself(tmp_path: Path) -> None:
    """`[provenance]` alone leaves the decision to the rest."""
    alone = load_policy(write(tmp_path, "[provenance]\n"))
    assert said(alone, call("put"), state()) == ("deny", "no_policy_rule_matched")
    beside = load_policy(write(tmp_path, 'default = "tiers"\n[provenance]\non_unproven = "deny"\n'))
    assert said(beside, call("put"), state()) == ("allow", "tier:write")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[rules]]\nid = "a"\n\ndecison = "deny"', r":4: rules\[0\]\.decison: unknown key; did you mean 'decision'\?"),
        ('[[rules]]\nid = "a"\ndecision = "alow"', r":3: rules\[0\]\.decision: 'alow' is not a valid value; did you mean 'allow'\?"),
        ('\n[[rules]]\nid = "a"', r":2: rules\[0\]\.decision: missing; a rule needs a decision"),
        ('[[rules]]\ndecision = "deny"', r":1: rules\[0\]\.id: missing; a rule needs an id"),
        ('[[rules]]\nid = 7\ndecision = "deny"', r":2: rules\[0\]\.id: expected `str`, got `int`"),
        ('[[rules]]\nid = "a"\ndecision = "deny"\ntool = 3', r":4: rules\[0\]\.tool: expected"),
        ('[[rules]]\nid = "a"\ndecision = "require_approval"\nexpires = "soon"', r":4: rules\[0\]\.expires is 'soon'; write seconds"),
        ('[[rules]]\nid = "a"\ndecision = "allow"\napprovers = 3', r":1: rule 'a': approvers, expires and on_reject belong to"),
        ('[[rules]]\nid = "a"\ndecision = "deny"\n[[rules]]\nid = "a"\ndecision = "deny"', r":4: rule 'a': id: another rule has this id"),
        ('[[rules]]\nid = "a"\ndecision = "deny"\n\nwhen = "args.n >"', r":1: rule 'a': when: expression `args.n >` is not CEL at line 1"),
        ('[[rules]]\nid = "a"\ndecision = "deny"\nwhen = "argz.n > 1"', r"uses 'argz', which does not exist; did you mean 'args'"),
        ('default = "alow"', r":1: default: 'alow' is not a valid value; did you mean 'allow'|known: deny, tiers"),
        ('[tiers]\n\nreed = "deny"', r":3: tiers\.reed: unknown key; did you mean 'read'\?"),
        ('[tiers]\nread = "denied"', r":2: tiers\.read: 'denied' is not a valid value; did you mean 'deny'\?"),
        ('[tiers.tools]\nx = "denied"', r":1: tiers\.tools: 'denied' is not a valid value; did you mean 'deny'\?"),
        ('[permission]\nmode = "headles"', r":2: permission\.mode: 'headles' is not a valid value; did you mean 'headless'\?"),
        ("[delegation.max_budget]\nmax_steps = 3", r":2: delegation\.max_budget\.max_steps: unknown key"),
        ('[provenance]\non_unproven = "ask"', r":2: provenance\.on_unproven: 'ask' is not a valid value"),
        ("rules = 3", r":1: rules: expected \[\[rules\]\], found 3"),
        ("rules = [3]", r":1: rules\[0\]: expected a table, found 3"),
        ('rulez = "x"', r":1: rulez: unknown key; did you mean 'rules'\?"),
        ("[[rules]\n", r":1: not TOML"),
        ("a = \n\n", r"policy\.toml:\d: not TOML"),
        ("", "the policy is empty and would deny every call"),
    ],
)
def test_a_mistake_names_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    """And the nearest thing that is right."""
    with pytest.raises(ConfigError, match=rf"policy\.toml.*{message}|{message}") as caught:
        load_policy(write(tmp_path, text))
    assert "policy.toml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, and not text."""
    with pytest.raises(ConfigError, match=r"failed to read policy file '.*nope\.toml': No such file"):
        load_policy(tmp_path / "nope.toml")
    (tmp_path / "latin.toml").write_bytes(b'version = "\xe9"')
    with pytest.raises(ConfigError, match=r"latin\.toml' is not UTF-8 text: byte 11"):
        load_policy(tmp_path / "latin.toml")


def test_a_policy_as_data_means_the_same(tmp_path: Path) -> None:
    """What stands in a log is read back to the same policy, sources included."""
    document = read_policy(write(tmp_path, FULL))
    assert policy_document(as_data(document)) == document


# Agents and engines --------------------------------------------------------------------------------------------------------------


def spec_of(policy: Any) -> AgentSpec:
    """Return an agent with this policy, as the log has it."""
    return Agent(name="a", policy=policy).spec()


ALLOW_PUT = {"id": "puts", "tool": "put", "decision": "allow"}
DENY_LARGE = {"id": "large", "tool": "put", "when": "args.n > 5", "decision": "deny"}


def test_without_an_engines_policy_the_agents_decides_alone() -> None:
    """Then it may allow what the tiers would ask about; what it does not name is denied."""
    policy = Governance(None)(spec_of([{"id": "wipes", "tool": "wipe", "decision": "allow"}]))
    assert said(policy, call(spec("wipe", "destructive")), state()) == ("allow", "wipes")
    assert said(policy, call("put"), state()) == ("deny", "no_policy_rule_matched")
    assert said(Governance(None)(spec_of(())), call("put"), state()) == ("allow", "tier:write")


def test_beside_an_engines_policy_an_agents_only_tightens() -> None:
    """The strongest wins; its default and its silence change nothing."""
    from detent.policies import Rule, RulePolicy, TieredPolicy

    house = Governance(TieredPolicy())
    loose = house(spec_of([{"id": "wipes", "tool": "*", "decision": "allow"}]))
    assert said(loose, call(spec("wipe", "destructive")), state()) == ("require_approval", "tier:destructive")
    tight = house(spec_of([DENY_LARGE]))
    assert said(tight, call(n=9), state()) == ("deny", "large") and said(tight, call(n=1), state()) == ("allow", "tier:write")
    assert tight.offers(spec("put"), state()) and tight.version != TieredPolicy().version  # type: ignore[attr-defined]
    barred = house(spec_of([{"id": "no", "tool": "put", "decision": "deny"}]))
    assert not barred.offers(spec("put"), state()) and barred.offers(spec("get"), state())  # type: ignore[attr-defined]
    silent = Governance(RulePolicy([Rule(id="reads", tool=("get",), decision="allow")]))
    for decision in (
        "allow",
        "require_approval",
    ):  # what the house does not name it denies: no agent lets it pass, and none has people asked
        own = silent(spec_of([{"id": "own", "tool": "put", "decision": decision}]))
        assert said(own, call("put"), state()) == ("deny", "no_policy_rule_matched")
        assert not own.offers(spec("put"), state()) and not own.may_ask(spec("get"))  # type: ignore[attr-defined]
    assert said(silent(spec_of([{"id": "own", "tool": "put", "decision": "stop"}])), call("put"), state()) == ("stop", "own")


def test_a_combined_policy_is_made_once_for_an_agent() -> None:
    """Runs of one agent share it; another agent's is another."""
    house = Governance(None)
    assert house(spec_of([ALLOW_PUT])) is house(spec_of([ALLOW_PUT])) is not house(spec_of([DENY_LARGE]))


@pytest.mark.parametrize(
    "policy",
    [
        'policy = "policy.toml"\n',
        '[[policy]]\nid = "puts"\ntool = "put"\ndecision = "allow"\n',
        '[[policy.rules]]\nid = "puts"\ntool = "put"\ndecision = "allow"\n',
        'policy = [{id = "puts", tool = "put", decision = "allow"}]\n',
    ],
)
def test_an_agent_file_names_its_policy_or_holds_it(tmp_path: Path, policy: str) -> None:
    """A path beside the file, a list of rules, or a table."""
    write(tmp_path, '[[rules]]\nid = "puts"\ntool = "put"\ndecision = "allow"\n')
    agent = load_agent(write(tmp_path, f'name = "a"\nguards = ["duplicate"]\n{policy}', "agent.toml"))
    spec_ = agent.spec()
    assert spec_.guards == ("duplicate",) and spec_.policy["rules"][0]["id"] == "puts"
    assert said(Governance(None)(spec_), call("put"), state()) == ("allow", "puts")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('guards = ["dupplicate"]', r"agent\.toml: guards: unknown guard 'dupplicate'; did you mean 'duplicate'\?"),
        ('[[policy]]\nid = "a"\ndecison = "deny"', r"agent\.toml:4: rules\[0\]\.decison: unknown key"),
        ('[[policy]]\nid = "a"\ndecision = "deny"\nwhen = "argz"', r"agent\.toml:2: rule 'a': when: .*uses 'argz'"),
        ('[policy]\ndefalt = "tiers"', r"agent\.toml:3: defalt: unknown key; did you mean 'default'\?"),
        ("[policy.tiers]\nreed = 1", r"agent\.toml:3: tiers\.reed: unknown key"),
        ('policy = "nope.toml"', r"failed to read policy file '.*nope\.toml'"),
        ("policy = 3", r"agent\.toml: policy: expected"),
    ],
)
def test_a_mistake_in_an_agents_policy_is_found_when_the_file_is_read(tmp_path: Path, text: str, message: str) -> None:
    """Before anything is recorded; with file, line and key."""
    with pytest.raises(ConfigError, match=message):
        load_agent(write(tmp_path, f'name = "a"\n{text}\n', "agent.toml"))


def test_a_mistake_in_an_agent_made_in_a_program_is_found_before_its_run_begins() -> None:
    """Nothing is recorded."""
    with pytest.raises(ConfigError, match=r"agent 'a': policy: rules\[0\]\.decision: missing"):
        Agent(name="a", policy=[{"id": "x"}]).spec()
    engine = Engine(approver="caller")
    with pytest.raises(ConfigError, match="uses 'argz'"):
        engine.run_sync(Agent(name="a", policy=[{**ALLOW_PUT, "when": "argz"}]), "go")
    with pytest.raises(ConfigError, match="unknown guard 'nope'"):
        engine.run_sync(Agent(name="a", guards=["nope"]), "go")
    assert engine.call_sync(engine.list_runs) == []


@pytest.mark.parametrize(
    "policy", ['policy = "rules/policy.toml"', '[[policy]]\nid = "puts"\ntool = "put"\ndecision = "allow"', '[policy]\ndefault = "tiers"']
)
def test_detent_toml_names_the_engines_policy_or_holds_it(tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the file, from wherever it is read."""
    (tmp_path / "rules").mkdir()
    write(tmp_path / "rules", '[[rules]]\nid = "puts"\ntool = "put"\ndecision = "allow"\n')
    file = write(tmp_path, f'store = "ram:"\n{policy}\n', "detent.toml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    engine = Engine.from_config(load_config(file))
    assert said(engine.runtime.parts.policy, call("put"), state())[0] == "allow"


def test_a_wrong_policy_of_an_engine_is_named(tmp_path: Path) -> None:
    """The part that could not be made, then file, line and key."""
    bad = write(tmp_path, '[[rules]]\nid = "a"\ndecision = "deny"\nwhen = "1 +"')
    with pytest.raises(ConfigError, match=r"failed to create policy: policy\.toml:1: rule 'a': when: .* is not CEL"):
        Engine.from_config(Config(policy=str(bad)))
    with pytest.raises(ConfigError, match=r"policy\.toml:1: rule 'a'"):
        Engine(policy=bad)
    with pytest.raises(ConfigError, match=r"detent\.toml:2: rules\[0\]\.decison: unknown key"):
        load_config(write(tmp_path, '[[policy]]\ndecison = "deny"\nid = "a"', "detent.toml"))
