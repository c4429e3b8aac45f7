"""Prints what Inspect's own API reads in its logs, as JSON; tests/evals/test_inspect.py runs it where Inspect is installed."""

import json
import sys
from typing import Any

from inspect_ai.log import list_eval_logs, read_eval_log

found: dict[str, Any] = {}
for info in list_eval_logs(sys.argv[1]):
    log: Any = read_eval_log(info, resolve_attachments=True)
    sample = log.samples[0]
    events = [event for event in sample.events if event.event in ("model", "tool", "info")]
    found[log.eval.task] = {
        "status": log.status,
        "tokens": {name: usage.total_tokens for name, usage in log.stats.model_usage.items()},
        "score": {name: score.value for name, score in (sample.scores or {}).items()},
        "run": sample.store.get("detent_run_id"),
        "error": sample.error.message if sample.error else "",
        "limit": sample.limit.type if sample.limit else "",
        "messages": [[m.role, m.text, [call.id for call in getattr(m, "tool_calls", None) or ()]] for m in sample.messages],
        "events": [
            ["tool", e.id, e.function, e.arguments, e.result, e.error.type if e.error else ""]
            if e.event == "tool"
            else ["model", e.output.completion, [tool.name for tool in e.tools], e.input[0].text.partition("\n")[0]]
            if e.event == "model"
            else ["info", e.source, e.data["run_id"]]
            for e in events
        ],
    }
print(json.dumps(found))
