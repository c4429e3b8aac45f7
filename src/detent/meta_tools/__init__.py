"""Meta-tools: calls that the kernel answers from the run's own state; off unless an agent lists them (`ports.MetaTool`).

Rule: an answer is a pure function of arguments and state, because a resumed or replayed turn answers again.
Start with `declaring`, which makes a meta-tool. `recalling` and `keeping` are notes and results, `looking` reports on the run, `ending` ends it.
"""

from __future__ import annotations

from collections.abc import Mapping

from detent.meta_tools.ending import abstain, ask_parent, ask_user, final_answer
from detent.meta_tools.keeping import todo
from detent.meta_tools.looking import brief, discover_tools, pulse
from detent.meta_tools.recalling import find, recall, recall_turn
from detent.ports import MetaTool

BUILT_IN: Mapping[str, MetaTool] = {
    tool.name: tool for tool in (brief, pulse, recall, recall_turn, find, todo, discover_tools, final_answer, abstain, ask_user, ask_parent)
}
"""The meta-tools by name. They hold no state: the log of the run has everything they keep."""
