"""The names of OpenTelemetry's conventions for generative AI, as literals: version 1.41.0 of the conventions.

The installed package marks them all as moved to another repository, so they are kept here, with the address of the schema that they are of.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from detent.core.errors import UnknownName

Version = Literal["1.41.0", "1.36.0"]
"""The conventions that spans can follow. 1.36.0 is for back ends that do not know `gen_ai.provider.name` yet."""
VERSION: Version = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{VERSION}"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
AGENT_VERSION = "gen_ai.agent.version"
WORKFLOW_NAME = "gen_ai.workflow.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
DATA_SOURCE = "gen_ai.data_source.id"
QUERY = "gen_ai.retrieval.query.text"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ERROR_TYPE = "error.type"
EVALUATION = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_LABEL = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION = "gen_ai.evaluation.explanation"
EXCEPTION = "gen_ai.client.operation.exception"

TOKEN_USAGE = "gen_ai.client.token.usage"
DURATION = "gen_ai.client.operation.duration"

TOKEN_BOUNDS = tuple(4**n for n in range(14))
LATENCY_BOUNDS = tuple(0.0001 * 2**n for n in range(16))
DURATION_BOUNDS = tuple(round(0.01 * 2**n, 2) for n in range(14))

RUN = "detent.run.id"
GOAL = "detent.goal.id"
TENANT = "detent.tenant"
STATUS = "detent.status"
REASON = "detent.reason"
COST = "detent.cost_usd"
PASS = "detent.pass"
SEQUENCE = "detent.sequence"
DECISION = "detent.policy.decision"
RULE = "detent.policy.rule"
WAIT = "detent.wait"
BY = "detent.by"
BUDGET = "detent.budget.dimension"
BUDGET_USED = "detent.budget.used"

OLDER: dict[str, dict[str, str]] = {"1.41.0": {}, "1.36.0": {PROVIDER: "gen_ai.system"}}
"""By version: the names that were other ones then."""


def named(attributes: dict[str, Any], version: str) -> dict[str, Any]:
    """Return attributes under the names of an earlier version."""
    older = OLDER[version]
    return {older.get(name, name): value for name, value in attributes.items()} if older else attributes


def checked(version: str) -> str:
    """Return a version; raise `UnknownName` for one that there is no table of."""
    if version not in OLDER:
        raise UnknownName("conventions", version, get_args(Version))
    return version
