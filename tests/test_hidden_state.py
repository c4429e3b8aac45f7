"""Hidden state, as docs/learn/decisions/0007-hidden-state.md lists it: context variables, and what modules keep outside of objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amounts import in_check
from source_code import PACKAGE, ROOT, dotted, modules, tree

PAGE = ROOT / "docs" / "learn" / "decisions" / "0007-hidden-state.md"
HOLDS = {
    *("ContextVar", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "dict", "list", "set", "bytearray", "deque", "count"),
    *("Counter", "defaultdict", "OrderedDict", "SimpleNamespace", "local"),
}
"""What makes an object that is there to be changed, or that differs from task to task."""
WRITES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft", "remove"),
    *("setdefault", "update"),
}


def hidden_state(module: ast.Module) -> set[str]:
    """Return the module's names that hold state: context variables, empty or weak tables, and tables and names that functions write to."""
    top = dict(_assigned(module.body))
    found = {name for name, value in top.items() if _holds(value)}
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            found |= {dotted(node.func.value)} & top.keys()
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found |= {dotted(node.value)} & top.keys()
    return found


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    for node in body:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []:
            if isinstance(target, ast.Name):
                yield target.id, node.value  # type: ignore[union-attr]


def _holds(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return dotted(made).split(".")[-1] in HOLDS and (not value.args or dotted(made).split(".")[-1] == "ContextVar")
    return (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.List) and not value.elts)


@in_check
def test_every_piece_of_hidden_state_is_on_the_page_with_its_reason() -> None:
    """By its room and its name; and the page has no row for what is gone."""
    there: set[tuple[str, str]] = set()
    for path in modules():
        names = hidden_state(tree(path))
        there |= {(path.relative_to(PACKAGE).with_suffix("").parts[0], name) for name in names}
    rows = re.findall(r"^\| (\w+) \| (`[^|]+`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {(room, name) for room, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert there - listed == set(), f"make it an argument or an attribute, or give its reason in {PAGE.relative_to(ROOT)}"
    assert listed - there == set(), f"{PAGE.relative_to(ROOT)} lists what is gone"


def test_state_is_seen_in_whatever_form_a_module_keeps_it() -> None:
    """And constants are none."""
    source = """
WHO: ContextVar[str] = ContextVar("who", default="")
HELD: WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
SEEN = set()
OPEN = Counter[str]()
LATER: dict[str, int] = {}
FILLED = {"a": 1}
TOLD = ["a"]
last = None
CONSTANT = {"a": 1}
NAMES = set(["a"])
OTHERS = frozenset()

def remember(name):
    global last
    last = name
    FILLED[name] = 2
    TOLD.append(name)
    kept = []
    kept.append(CONSTANT["a"])
"""
    assert hidden_state(ast.parse(source)) == {"WHO", "HELD", "SEEN", "OPEN", "LATER", "FILLED", "TOLD", "last"}
