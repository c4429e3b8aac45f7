"""Healing: a call is put into the form that its tool declares before it is checked, each repair is recorded, and no meaning is changed."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, FinalAnswer, ToolCall, tool
from detent.core import events as e
from detent.ports import ToolSpec
from detent.running.healing import Healed, mended
from kernel.runs import END, Decide, call, ran

TEXT: dict[str, Any] = {"type": "string"}


@tool(side_effect="read")
async def search_notes(query: str, limit: int = 3, tags: list[str] | None = None, exact: bool = False) -> dict[str, Any]:
    """Search."""
    return {"query": query, "limit": limit, "tags": tags, "exact": exact}


@tool(side_effect="write")
async def write_note(path: str, content: str) -> str:
    """Write."""
    return f"{path}: {content}"


@tool(side_effect="destructive")
async def delete_note(path: str) -> str:
    """Delete."""
    return path


@tool(side_effect="destructive")
async def transfer(to: str, amount: int, contract_id: int = 0, maximum_price: float = 0.0) -> str:
    """Pay."""
    return f"{amount} to {to}"


@tool(side_effect="write", sensitive=["password"])
async def log_in(user: str, password: str) -> str:
    """Log in."""
    return user


TOOLS = {t.name: t.spec for t in (search_notes, write_note, delete_note, transfer, log_in)}


def spec(
    name: str = "pay", side_effect: Any = "write", *, closed: bool = True, required: list[str] | None = None, **properties: Any
) -> ToolSpec:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(properties) if required is None else required}
    return ToolSpec(name=name, side_effect=side_effect, input_schema={**schema, "additionalProperties": False} if closed else schema)


def args_of(given: Any, one: ToolSpec) -> Any:
    """Return the arguments healed; that they stay as they are, and so does what was recorded, where there is no repair."""
    found = mended(one.name, given, {one.name: one})
    assert (found.args == given) == (not found.repairs), found
    return found.args


@pytest.mark.parametrize(
    ("said", "args", "tool", "healed", "repairs"),
    [
        ("Search-Notes", {"query": "a"}, "search_notes", {"query": "a"}, ["name: Search-Notes → search_notes"]),
        ("Delete Note", {"path": "a"}, "delete_note", {"path": "a"}, ["name: Delete Note → delete_note"]),
        ("deleteNote", {"path": "a"}, "delete_note", {"path": "a"}, ["name: deleteNote → delete_note"]),
        ("functions.search_notes", {"query": "a"}, "search_notes", {"query": "a"}, ["name: functions.search_notes → search_notes"]),
        ("search_notes()", {"query": "a"}, "search_notes", {"query": "a"}, ["name: search_notes() → search_notes"]),
        ("search_notes", {"input": {"query": "a"}}, "search_notes", {"query": "a"}, ["wrapper: input"]),
        ("search_notes", {"arguments": '{"query": "a"}'}, "search_notes", {"query": "a"}, ["wrapper: arguments"]),
        ("delete_note", {"Args": {"Path": "a"}}, "delete_note", {"path": "a"}, ["wrapper: Args", "parameter: Path → path"]),
        ("search_notes", '```json\n{"query": "a"}\n```', "search_notes", {"query": "a"}, ["wrapper: text around the arguments"]),
        ("search_notes", '```{"query": "a"}```', "search_notes", {"query": "a"}, ["wrapper: text around the arguments"]),
        ("search_notes", ' ```json{"query": "a"}``` ', "search_notes", {"query": "a"}, ["wrapper: text around the arguments"]),
        ("search_notes", '```\n{"query": "a"}\n```', "search_notes", {"query": "a"}, ["wrapper: text around the arguments"]),
        ("search_notes", '"{\\"query\\": \\"a\\"}"', "search_notes", {"query": "a"}, ["wrapper: text around the arguments"]),
        (
            "transfer",
            {"To": "bob", "AMOUNT": 5, "contractId": 7, "maximum-price": 2.5},
            "transfer",
            {"to": "bob", "amount": 5, "contract_id": 7, "maximum_price": 2.5},
            [
                "parameter: To → to",
                "parameter: AMOUNT → amount",
                "parameter: contractId → contract_id",
                "parameter: maximum-price → maximum_price",
            ],
        ),
        (
            "search_notes",
            {"query": 7, "limit": "5"},
            "search_notes",
            {"query": "7", "limit": 5},
            ["type: query from integer to string", "type: limit from string to integer"],
        ),
        ("search_notes", {"query": "a", "limit": 5.0}, "search_notes", {"query": "a", "limit": 5}, ["type: limit from number to integer"]),
        (
            "search_notes",
            {"query": "a", "tags": '["x"]'},
            "search_notes",
            {"query": "a", "tags": ["x"]},
            ["type: tags from string to array"],
        ),
        (
            "search_notes",
            {"query": "a", "exact": "True"},
            "search_notes",
            {"query": "a", "exact": True},
            ["type: exact from string to boolean"],
        ),
        (
            "searchNotes",
            {"params": {"Query": "a", "limit": "2"}},
            "search_notes",
            {"query": "a", "limit": 2},
            ["name: searchNotes → search_notes", "wrapper: params", "parameter: Query → query", "type: limit from string to integer"],
        ),
    ],
)
def test_what_is_meant_is_clear(said: str, args: Any, tool: str, healed: Any, repairs: list[str]) -> None:
    """Name, wrapper, parameters, types, in this order, each by a repair of its own; once healed, nothing is left to repair."""
    found = mended(said, args, TOOLS)
    assert (found.tool, found.args, list(found.repairs)) == (tool, healed, repairs)
    assert [type(v) for v in found.args.values()] == [type(v) for v in healed.values()]
    assert mended(found.tool, found.args, TOOLS).repairs == ()


@pytest.mark.parametrize(
    ("said", "args"),
    [
        ("delete_notes", {"path": "a"}),  # another letter
        ("serach_notes", {"query": "a"}),  # also of a tool that only reads
        ("find_notes", {"query": "a"}),
        ("undelete_note", {"path": "a"}),
        ("transfer", {"to": "bob", "fee": 5}),
        ("transfer", {"from": "bob", "amount": 5}),
        ("transfer", {"to": "bob", "amount": 5, "minimum_price": 2.5}),
        ("transfer", {"to": "bob", "amount": 5, "contact_id": 7}),
        ("transfer", {"to": "bob", "amounts": 5}),
        ("transfer", {"to": "bob", "amount_": 5, "AMOUNT": 6}),  # two names for one parameter
        ("transfer", {"to": "bob", "amount": 5, "Amount": 6}),
        ("transfer", {"to": "bob", "amount": True}),
        ("transfer", {"to": "bob", "amount": 5.5}),
        ("search_notes", {"qeury": "a"}),
        ("search_notes", {"query": "a", "limits": 2}),
        ("search_notes", {"query": "a", "limit": "five"}),
        ("write_note", {"path": "a", "body": "b"}),  # the one that is missing, perhaps
        ("write_note", {"input": {"path": "a", "body": "b"}}),
        ("write_note", {"input": {"path": "a"}, "content": "b"}),
        ("write_note", {"path": "/etc/passwd", "content": "b"}),
        ("log_in", {"user": "a", "Password": "b"}),  # its values are hidden by name
        ("log_in", {"args": {"user": "a", "password": "b"}}),
        ("Log-In", {"user": "a", "password": "b"}),
        ("search_notes", {"query": ["a"]}),  # a list, and yes, say nothing in words
        ("search_notes", {"query": True}),
        ("search_notes", {"query": 1.5}),  # it may have been 1.50
        ("search_notes", "not json"),
        ("search_notes", '{"query": "a", "query": "b"}'),
        ("search_notes", [1]),
        ("search_notes", {"query": "a"}),
    ],
)
def test_what_is_not_clear_stays_as_it_is(said: str, args: Any) -> None:
    """It is then refused with its own error, or runs as it was asked for."""
    found = mended(said, args, TOOLS)
    assert (found.tool, found.args, found.repairs) == (said, args, ())


# Names --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side_effect", ["write", "destructive"])
@pytest.mark.parametrize("prefix", ["default_api", "function", "functions", "multi_tool_use", "tool", "tools"])
def test_what_models_put_before_any_name_is_dropped_for_a_tool_that_only_reads(side_effect: Any, prefix: str) -> None:
    """For others the name must be the whole name: what stands before it is more than case and separators."""
    for said in (f"{prefix}.get_user", f"{prefix.upper()}:get_user", f"{prefix}/getUser"):
        for reading in ("read", "none"):
            assert mended(said, {}, {"get_user": spec("get_user", reading)}).tool == "get_user"
        assert mended(said, {}, {"get_user": spec("get_user", side_effect)}).tool == said
    assert mended(f"{prefix}.x.get_user", {}, {"get_user": spec("get_user", "read")}).repairs == ()


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("get-user", ["get_user", "getUser"]),
        ("functions.get-user", ["get_user", "getUser"]),
        ("v12", ["v1_2"]),
        ("v1_2", ["v12"]),
        ("v1__2", ["v12"]),
        ("getuserß", ["getuser"]),
        ("get_userß", ["getuser"]),
        ("get user!", ["get_user"]),
        ("get_user(1)", ["get_user"]),
        ("", ["_", "a"]),
        ("-", ["_", "a"]),
        ("()", ["_", "a"]),
    ],
)
def test_only_case_and_separators_may_differ_and_one_tool_must_be_meant(said: str, names: list[str]) -> None:
    """Letters and digits all count, and between two digits a separator does."""
    assert mended(said, {}, {name: spec(name, "read") for name in names}).tool == said


def test_a_separator_beside_a_letter_may_be_missing() -> None:
    """On either side of a digit: only between two digits does it tell names apart."""
    assert mended("step1run", {}, {"step_1_run": spec("step_1_run")}).tool == "step_1_run"
    assert mended("v1a", {}, {"v1_a": spec("v1_a")}).tool == "v1_a"


def test_a_separator_between_digits_may_be_another_one() -> None:
    """`v1-2` is `v1_2`, however many there are."""
    assert mended("V1--2", {}, {"v1_2": spec("v1_2"), "v12": spec("v12")}).tool == "v1_2"


def test_a_name_of_a_tool_that_reads_and_of_one_that_does_not_is_neither() -> None:
    """Also where only one of them could take a prefix."""
    both = {"get_user": spec("get_user", "read"), "getUser": spec("getUser", "destructive")}
    assert mended("Get-User", {}, both).tool == "Get-User"
    assert mended("tools.Get-User", {}, both).tool == "tools.Get-User"


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ({"userid": 1}, {"user_id": TEXT, "userId": TEXT}),  # two parameters that it can mean
        ({"user-id": 1, "userId": 2}, {"user_id": TEXT, "userId": TEXT}),  # also where one is given
        ({"UserId": 1, "user-id": 2}, {"user_id": TEXT}),  # two arguments for one
        ({"user_id": 1, "userId": 2}, {"user_id": TEXT}),
        ({"": 1}, {"user_id": TEXT}),
        ({"_": 1}, {"-": TEXT}),
    ],
)
def test_a_parameter_is_named_only_where_one_can_be_meant(given: dict[str, Any], properties: dict[str, Any]) -> None:
    """Else the call stays, and is refused with the names."""
    one = spec(**{name: {} for name in properties})
    assert mended("pay", given, {"pay": one}).repairs == ()


def test_an_unknown_argument_of_a_tool_that_takes_others_is_only_taken_for_a_required_one() -> None:
    """Any other may be one of those that the schema does not name."""
    assert args_of({"Amount": 5}, spec(closed=False, amount={})) == {"amount": 5}
    assert args_of({"Amount": 5}, spec(closed=False, required=[], amount={})) == {"Amount": 5}


@pytest.mark.parametrize("word", ["$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas"])
def test_nothing_is_renamed_where_the_schema_says_more_elsewhere(word: str) -> None:
    """An argument that is unknown here may be known there."""
    one = spec(amount={})
    one.input_schema[word] = {}
    assert args_of({"Amount": 5}, one) == {"Amount": 5}
    assert args_of({"args": {"amount": 5}}, one) == {"args": {"amount": 5}}


@pytest.mark.parametrize("key", ["input", "args", "arguments", "params", "parameters", "kwargs"])
def test_a_wrapper_holds_the_arguments_of_the_tool_and_nothing_else(key: str) -> None:
    """It is the only argument, no parameter of the tool, and what is in it are parameters of the tool."""
    one = spec(amount={}, to={})
    assert args_of({key: {"amount": 5, "To": "x"}}, one) == {"amount": 5, "to": "x"}
    assert args_of({key.title(): {"amount": 5}}, one) == {"amount": 5}
    for given in ({key: {}}, {key: 5}, {key: "amount"}, {key: {"amount": 5, "fee": 1}}, {key: {"amount": 5}, "to": "x"}, {key: [5]}):
        assert args_of(given, one) == given
    for other in (spec(closed=False, amount={}), spec(**{key: {}, "amount": {}}), spec(**{key.upper(): {}, "amount": {}}, required=[])):
        assert "wrapper" not in str(mended("pay", {key: {"amount": 5}}, {"pay": other}).repairs)
    assert args_of({"x": {"amount": 5}}, one) == {"x": {"amount": 5}}


# Paths --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("/work/a.md", "a.md"),
        ("/work//a.md", "a.md"),
        ("/work/sub/", "sub/"),
        ("/work/", "."),
        ("/work", "."),
        ("/workshop/a.md", ""),
        ("/etc/passwd", ""),
        ("/work/../etc/x", ""),
        ("file:///work/a%20b", ""),
        ("a.md", ""),
    ],
)
def test_a_path_is_healed_in_the_directory_of_its_tool(said: str, meant: str) -> None:
    """It is the same file, seen from the directory that the tool is confined to; for a tool without one, and a value that is no path, it stays."""
    confined = ToolSpec(name="pay", input_schema=spec(path=TEXT, to=TEXT).input_schema, writes_in="/work/")
    assert args_of({"path": said, "to": said}, confined) == {"path": meant or said, "to": said}
    assert args_of({"path": said}, spec(path=TEXT)) == {"path": said}
    assert args_of({"dir": said}, confined) == {"dir": said}
    assert args_of({"path": [said]}, confined) == {"path": [said]}


@pytest.mark.parametrize("name", ["path", "file", "filename", "file_path", "filepath", "directory", "dir", "folder"])
def test_every_usual_name_of_a_path_is_one(name: str) -> None:
    """Where the tool declares it; a tool confined to everything sees its paths from there."""
    for root, meant in (("/work", "a"), ("/", "work/a")):
        one = ToolSpec(name="pay", input_schema=spec(**{name: TEXT}).input_schema, writes_in=root)
        assert mended("pay", {name: "/work/a"}, {"pay": one}).repairs == (f"path: {name} as seen from the tool's directory",)
        assert args_of({name: "/work/a"}, one) == {name: meant}


# Values -------------------------------------------------------------------------------------------------------------------------


BOTH: dict[str, Any] = {"type": ["integer", "null"]}
KEPT = object()


@pytest.mark.parametrize(
    ("schema", "said", "meant"),
    [
        (BOTH, "null", None),
        (BOTH, "None", None),
        (BOTH, "5", 5),
        (BOTH, "", KEPT),
        (BOTH, "none", KEPT),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Amount"}]}, "5", KEPT),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", KEPT),
        ({"type": ["number", "string"]}, 5, KEPT),
        ({}, "5", KEPT),
        ({"enum": [5]}, "5", KEPT),
        (True, "5", KEPT),
        *[({"type": "integer"}, said, int(said)) for said in ("5", "-5", "0", "10", "123456789012345678")],
        *[
            ({"type": "integer"}, said, KEPT)
            for said in (
                "five", "", " 5 ", "5 ", "+5", "05", "-0", "5.0", "5.5", "1e3", "1_000", "1,000", "10 000", "0x10", "\u0665", "5\n",
                "5 km", "NaN", "null", "true", "1234567890123456789", "--5", "[5]", True, False, None, 5.5, [5], {"a": 5}, 2.0**53, 1e22, -1e300,
            )
        ],
        *[({"type": "integer"}, said, int(said)) for said in (5.0, -5.0, 0.0, 2.0**53 - 1, 1.0 - 2.0**53)],
        *[({"type": "number"}, said, meant) for said, meant in (("5", 5), ("-2.5", -2.5), ("0.10", 0.1), ("-0.5", -0.5), ("0", 0))],
        *[
            ({"type": "number"}, said, KEPT)
            for said in (
                "many", "", " 2.5", "2.5\n", ".5", "5.", "+2.5", "02.5", "1e3", "1e999", "-1e400", "NaN", "Infinity", "-inf", "2,5", "\u0662.\u0665", "-0",
                "3.14159265358979323846", "9007199254740993", "100000000000000000.5", "1_0.0", "50%", "$5", True, None, 5, 5.0,
            )
        ],
        *[({"type": "boolean"}, said, said in ("true", "True")) for said in ("true", "True", "false", "False")],
        *[({"type": "boolean"}, said, KEPT) for said in (1, 0, 1.0, "yes", "no", "1", "0", "on", "TRUE", "true ", "t", "", None, [True])],
        *[({"type": "string"}, said, str(said)) for said in (7, 0, -7, 2**70)],
        *[({"type": "string"}, said, KEPT) for said in (7.0, 1.1, True, False, None, ["a"], {"a": 1})],
        *[({"type": "null"}, said, KEPT) for said in (0, False, "", "nil")],
        ({"type": "array"}, '["x", 1]', ["x", 1]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        *[({"type": "array"}, said, KEPT) for said in ("x", "x, y", '{"a": 1}', "['x']", "[1,]", "[1", '"[1]"', "\ud800", 5, {"a": 1}, '[{"a": 1, "a": 2}]')],
        *[({"type": "object"}, said, KEPT) for said in ("[1]", '{"a": 1, "a": 2}', "{" * 100_000, '{"a": 4.99999999999999999999}', [1])],
    ],
)  # fmt: skip
def test_a_value_is_converted_only_where_nothing_is_lost(schema: Any, said: Any, meant: Any) -> None:
    """Where that is in doubt it stays as it was said, for the schema to refuse; what is converted has the type that the schema says."""
    found = mended("pay", {"sum": said}, {"pay": spec(sum=schema)})
    wanted = said if meant is KEPT else meant
    assert (found.args, type(found.args["sum"])) == ({"sum": wanted}, type(wanted))
    assert len(found.repairs) == (meant is not KEPT)


def test_integers_are_converted_wherever_they_are() -> None:
    """In lists and objects, too; each place is named, and numbers with a fraction stay."""
    schema = {
        "type": "object",
        "properties": {"lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}},
    }
    given = {"lines": [{"n": 1.0}, {"n": 2.5}, {"n": 3}, {"m": 4.0}]}
    found = mended("pay", given, {"pay": ToolSpec(name="pay", input_schema=schema)})
    assert str(found.args) == "{'lines': [{'n': 1}, {'n': 2.5}, {'n': 3}, {'m': 4.0}]}"
    assert found.repairs == ("type: lines.0.n from number to integer",)


def test_nothing_is_converted_for_an_argument_that_the_tool_does_not_name() -> None:
    """Nor for one of a tool without any."""
    assert args_of({"other": "5", "sum": 1}, spec(closed=False, sum={"type": "integer"})) == {"other": "5", "sum": 1}
    assert mended("pay", {"a": "5"}, {"pay": ToolSpec(name="pay")}).repairs == ()
    for nothing in (None, "", {}):
        assert mended("Pay", nothing, {"pay": spec(required=[])}).tool == "pay"
    assert mended("pay", None, {"pay": spec(required=[])}).args == {}
    assert mended("pay", "", {"pay": spec(required=[])}).repairs == ()


# Runs ---------------------------------------------------------------------------------------------------------------------------


def test_a_run_heals_and_records_each_repair() -> None:
    """The call runs under the name and arguments that were meant; the log says what was written and what was repaired, and replays."""
    script = [ToolCall(tool="Search_Notes", args={"input": {"Query": "a", "limit": "2"}}), END]
    done = ran(script, search_notes, agent={"healing": True})
    assert done.items[0].content == {"query": "a", "limit": 2, "tags": None, "exact": False}
    (healed,), planned = done.all(e.CallHealed), done.all(e.Planned)[0]
    assert [r.partition(":")[0] for r in healed.repairs] == ["name", "wrapper", "parameter", "type"] and healed.tool == "search_notes"
    assert planned.actions[0] == script[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"to": "bob", "fee": 5}, "unknown argument 'fee'"),
        ({"from": "bob", "amount": 5}, "unknown argument 'from'"),
        ({"to": "bob", "amount": 5, "Amount": 6}, "unknown argument 'Amount'; did you mean 'amount'?"),
        ({"to": "bob", "AMOUNT": 5, "Amount": 6}, "unknown argument 'AMOUNT'; known: to, amount"),
        ({"to": "bob", "amount": 5.5}, "argument 'amount'"),
        ({"to": "bob", "amount": True}, "argument 'amount'"),
        ('{"to": "bob", "amount": 5, "amount": 500}', "'amount' is given twice in one object"),
        ('{"to": "bob", "amount": 4.9999999999999999999}', "a number is too large, too small or too long"),
    ],
)
def test_a_call_that_may_mean_something_else_pays_nothing(args: Any, said: str) -> None:
    """The issue's examples: it is a failed observation that names the problem, with healing and without."""
    for healing in (True, False):
        done = ran([ToolCall(tool="transfer", args=args), END], transfer, agent={"healing": healing})
        (item,) = done.items
        assert item.error is not None
        assert (item.error.code, said in item.error.message) == ("schema_validation_failed", True), item.error.message
        assert not done.all(e.ToolStarted) and not done.all(e.CallHealed)


@pytest.mark.parametrize("healing", [True, False])
def test_a_whole_number_arrives_as_an_integer(healing: bool) -> None:
    """5.0 is 5, with healing and without; the log says that it was converted."""
    done = ran([call("transfer", to="bob", amount=5.0), END], transfer, agent={"healing": healing}, policy=Decide(lambda _: "allow"))
    assert done.items[0].content == "5 to bob"
    (healed,) = done.all(e.CallHealed)
    assert str(healed.args) == "{'to': 'bob', 'amount': 5}"
    assert healed.repairs == (("type: amount from number to integer",) if healing else ("sanitised",))


def test_a_call_that_was_found_in_an_answer_is_not_healed() -> None:
    """It runs as it is written there; that 5.0 is an integer is the tool's own matter."""
    done = ran([FinalAnswer(content='search_notes({"query": "a", "limit": 5.0})'), END], search_notes, agent={"healing": True})
    assert done.items[0].content["limit"] == 5 and [h.repairs for h in done.all(e.CallHealed)] == [("sanitised",)]


def test_the_policy_decides_about_what_was_healed() -> None:
    """Not about what was said."""
    seen: list[Any] = []

    def decide(asked: Any) -> str:
        seen.append((asked.tool.name, asked.args))
        return "deny"

    ran([ToolCall(tool="Delete-Note", args={"Path": "a"}), END], delete_note, agent={"healing": True}, policy=Decide(decide))
    assert seen[0] == ("delete_note", {"path": "a"})


def test_each_call_of_a_batch_is_healed() -> None:
    """Single calls and batches alike."""
    batch = (ToolCall(tool="searchNotes", args={"query": "a"}), ToolCall(tool="search-notes", args={"query": "b"}))
    done = ran([batch, END], search_notes, agent={"healing": True})
    assert done.codes == ["", ""] and len(done.all(e.CallHealed)) == 2


def test_without_healing_a_wrong_call_is_a_failed_observation() -> None:
    """Off for scripts and rules unless asked for; on for agents with a model; either can be said."""
    assert ran([call("Search_Notes", query="a"), END], search_notes).codes == ["tool_not_found"]
    scripted, asked = Agent(name="a"), Agent(name="a", model="test:m")
    assert (scripted.spec().healing, asked.spec().healing) == (False, True)
    assert Agent(name="a", model="test:m", healing=False).spec().healing is False


def test_what_was_healed_stays_so() -> None:
    """It is what guards and people decide about."""
    assert Healed.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        Healed("tool", {})  # type: ignore[misc]
