"""Searches lines in a stream. It uses only the standard library, so it also runs as a separate program.

As a program (`python -I -S linesearch.py`) it takes the query as JSON in its first argument and the file as standard input, and prints
the answer as JSON. Regular expressions run there, because one that backtracks for ever blocks the interpreter, and only a process can be stopped.
"""

import json
import re
import sys
from collections import deque
from typing import Any, BinaryIO


def search_lines(stream: BinaryIO, query: dict[str, Any], check: Any = None) -> dict[str, Any]:
    """Return `{"matches": [...], "truncated": bool}`, or `{"problem": code, "line": number}`.

    `query` has `pattern` (a regular expression), `ignore_case`, `max_matches`, `before`, `after`, `line_chars`, `line_bytes`,
    `answer_chars`, `to_the_end`. `truncated` is true only if there is at least one more match than returned. Without `to_the_end` the search
    does not look for that match, and `truncated` is true if the search ended before the file did.
    """
    expression = re.compile(query["pattern"], re.IGNORECASE if query["ignore_case"] else 0)
    matches: list[dict[str, Any]] = []
    earlier: deque[str] = deque(maxlen=query["before"] or None)
    number, chars, truncated = 0, 0, False
    while raw := stream.readline(query["line_bytes"] + 1):
        number += 1
        if check is not None and number % 1000 == 0:
            check()
        if len(raw) > query["line_bytes"] and not raw.endswith(b"\n"):
            return {"problem": "line_too_long", "line": number}
        try:
            line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            return {"problem": "not_text", "line": number}
        found = expression.search(line)
        full = len(matches) == query["max_matches"] or chars > query["answer_chars"]
        truncated = truncated or (full and found is not None)
        shown = line[: query["line_chars"]]
        for match in matches[-query["after"] :] if query["after"] else []:
            if number - match["line"] <= query["after"]:
                match["after"].append(shown)
                chars += len(shown)
        if full and not query["to_the_end"] and number - matches[-1]["line"] >= query["after"]:
            return {"matches": matches, "truncated": True}
        if truncated and number - matches[-1]["line"] >= query["after"]:
            return {"matches": matches, "truncated": True}
        if found is not None and not truncated:
            cut = len(line) > query["line_chars"]
            context = list(earlier) if query["before"] else []
            matches.append({"line": number, "column": found.start() + 1, "text": shown, "cut": cut, "before": context, "after": []})
            chars += len(shown) + sum(map(len, context))
            if len(matches) == query["max_matches"] and not query["to_the_end"] and not query["after"]:
                return {"matches": matches, "truncated": bool(stream.peek(1))}  # type: ignore[attr-defined]
        earlier.append(shown)
    return {"matches": matches, "truncated": truncated}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(search_lines(sys.stdin.buffer, json.loads(sys.argv[1]))))
