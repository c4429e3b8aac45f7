"""The guide to rules says what is: its rule files load, and its functions give what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from detent.expressions.functions import FUNCTIONS
from detent.planners import RulePlanner
from detent.planners.rules.files import FORMS, OPTIONS
from planners.rules.views import value

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "howto" / "agents" / "rules.md").read_text()
FILES = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
ROWS = [
    (e, g) for e, g in re.findall(r"^\|[^|`]*(?:`[^`]+`[^|`]*)*\| `([^`]+)` \| `([^`]+)` \|$", GUIDE.split("## Functions")[1], re.MULTILINE)
]


@pytest.mark.parametrize("text", FILES)
def test_every_rule_file_of_the_guide_loads(text: str) -> None:
    """No example is stale."""
    RulePlanner.from_rules(yaml.safe_load(text))


@pytest.mark.parametrize(("expression", "gives"), ROWS)
def test_every_function_gives_what_the_guide_says(expression: str, gives: str) -> None:
    """Examples are evaluated as the placeholder of an argument."""
    assert json.dumps(value(expression), sort_keys=True) == json.dumps(json.loads(gives), sort_keys=True)


def test_the_guide_names_every_function_key_and_action() -> None:
    """What exists is documented, and nothing else is."""
    table = GUIDE.split("## Functions")[1].split("## When something")[0]
    assert set(re.findall(r"^\| `(\w+)\(|, `(\w+)\((?:list|text)\)`", table, re.MULTILINE)) and len(ROWS) >= 30
    named = {name for pair in re.findall(r"^\| `(\w+)\(|, `(\w+)\((?:list|text)\)`", table, re.MULTILINE) for name in pair if name}
    assert named == set(FUNCTIONS)
    assert all(f"`{key}`" in GUIDE for key in (*OPTIONS, *FORMS))
