"""What leaves the inspector: a bundle that proves a run to somebody without Detent, and a link that shows a run to somebody without an account."""

from __future__ import annotations

import asyncio
import io
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from detent.core import events as e
from detent.core.agent import Host
from detent.core.codec import read_log
from detent.core.errors import DetentError
from detent.core.records import Record
from detent.engine import Engine
from detent.ports.stores import intact
from detent.server.pages.reading import Reading
from detent.server.pages.rendering import render
from detent.server.pages.run import head_of, reading_of
from detent.server.pages.visits import HEADERS, Page, Visit, problem_page
from detent.server.problems import Problem, Refused, problem_of
from detent.server.served import Served

HERE = Path(__file__).parent
LONGEST_DAYS, MOST_SHARED = 90, 2_000
_ALGORITHM = "HS256"
_SECRET = secrets.token_bytes(32)


# The bundle ---------------------------------------------------------------------------------------------------------------------------------


async def evidence(visit: Visit) -> Response:
    """Return a zip file: the log, its artifacts, their digests, a page to read, and a program that checks all of it with nothing but Python."""
    engine = visit.served.engine
    run_id = await engine.runtime.visible(visit.path["run_id"], visit.caller.host)
    reading = await reading_of(visit)
    lines = (await engine.store.read(run_id))[: reading.sequence]  # the page and the log end at the same record
    records = list(read_log(run_id, lines))
    values = await head_of(visit, reading)
    style = (HERE / "static" / "style.css").read_text()
    page = render(
        "evidence.html", style=style, turns=list(enumerate(reading.turns)), made=datetime.now(UTC), **{**values, "depth": "engineer"}
    )
    files: dict[str, bytes] = {
        "log.jsonl": b"".join(line + b"\n" for line in lines),
        "page.html": page.encode(),
        "verify.py": (HERE / "verify.py.txt").read_bytes(),
        "README.txt": (HERE / "verify.txt").read_bytes(),
    }
    missing: list[str] = []
    for key in artifacts_of(records):
        data = intact(run_id, key, await engine.store.get_blob(run_id, key))
        if data is None:
            missing.append(key)
        else:
            files[f"artifacts/{key}"] = data
    about = {
        "run": run_id,
        "records": len(records),
        "digest": records[-1].digest,
        "missing_artifacts": missing,
        "files": {name: sha256(data).hexdigest() for name, data in files.items()},
    }
    files["digests.json"] = msgspec.json.format(msgspec.json.encode(about), indent=2)
    packed = await asyncio.to_thread(_zip, files, records[0].envelope.at)
    name = sha256(run_id.encode()).hexdigest()[:12]
    headers = {
        "Content-Disposition": f'attachment; filename="evidence-{name}.zip"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return Response(packed, 200, headers, media_type="application/zip")


def artifacts_of(records: Sequence[Record]) -> list[str]:
    """Return the keys of the artifacts that a log names."""
    keys: dict[str, None] = {}
    for record in records:
        match record.event:
            case e.ToolFinished(artifact=ref) if ref is not None:
                keys[ref.key] = None
            case e.Planned(files=files):
                keys |= {file.key: None for file in files}
            case e.RunStarted(session=session) if session is not None and session.conversation is not None:
                keys[session.conversation.key] = None
            case _:
                pass
    return list(keys)


def _zip(files: Mapping[str, bytes], at: datetime) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(zipfile.ZipInfo(name, max(at.timetuple()[:6], (1980, 1, 1, 0, 0, 0))), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


# The link -----------------------------------------------------------------------------------------------------------------------------------


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What a signed link shows: a run, or its turns `first` to `last` (0: no bound). `bare`: without arguments, results and texts of models."""

    run: str
    tenant: str
    by: str
    exp: int
    first: int = 0
    last: int = 0
    bare: bool = True


def _key(served: Served) -> bytes:
    return sha256(b"links of the inspector\n" + (served.settings.secret.encode() or _SECRET)).digest()


async def share_form(visit: Visit) -> Response:
    """Ask what the link is to show, and for how long."""
    reading = await reading_of(visit)
    lasts = bool(visit.served.settings.secret)
    return visit.page(
        "share.html", run=reading.state, link="", lasts=lasts, fields={"days": "7", "first": "", "last": "", "bare": "yes"}, until=None
    )


async def share(visit: Visit) -> Response:
    """Sign a link to this run."""
    fields = {"days": "7", "first": "", "last": "", "bare": "no"} | await visit.form()
    reading = await reading_of(visit)
    days, first, last = (_whole(fields[name], name) for name in ("days", "first", "last"))
    if not 1 <= days <= LONGEST_DAYS:
        raise Refused(422, "bad_days", f"a link lasts 1 to {LONGEST_DAYS} days; give a number in between")
    until = datetime.now(UTC) + timedelta(days=days)
    said = Shared(
        run=reading.run_id, tenant=visit.caller.tenant, by=visit.caller.principal, exp=int(until.timestamp()), first=first, last=last,
        bare=fields["bare"] == "yes",
    )  # fmt: skip
    token = jwt.encode(msgspec.to_builtins(said), _key(visit.served), algorithm=_ALGORITHM)
    link = str(visit.request.url.replace(path=f"/ui/shared/{token}", query=""))
    return visit.page("share.html", run=reading.state, link=link, lasts=bool(visit.served.settings.secret), fields=fields, until=until)


def _whole(text: str, name: str) -> int:
    if not text.strip():
        return 0
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 10):
        raise Refused(422, "not_a_number", f"{name} is {text[:40]!r}; give a whole number")
    return int(text)


async def shared(served: Served, request: Request) -> Response:
    """Show what a signed link shows, to anybody who has it, until it expires."""
    try:
        known: dict[str, Any] = jwt.decode(
            request.path_params["token"], _key(served), algorithms=[_ALGORITHM], options={"require": ["exp"], "verify_aud": False}
        )
        said = msgspec.convert(known, Shared)
    except (jwt.PyJWTError, msgspec.ValidationError):
        why = "this link is not valid, or has expired; ask whoever gave it to you for another"
        return problem_page(Problem(status=404, code="bad_link", title="not found", detail=why))
    try:
        served.rates.take(f"shared\0{request.client.host if request.client else ''}")
        reading = await _of(served, said)
    except Refused as refused:
        return problem_page(refused.problem, refused.headers)
    except DetentError as error:
        return problem_page(
            problem_of(error, served.engine.store.url) or Problem(status=500, code=error.code, title="internal error", detail=str(error))
        )
    turns = [
        (place, turn)
        for place, turn in enumerate(reading.turns)
        if (not said.first or turn.iteration >= said.first) and (not said.last or turn.iteration <= said.last)
    ]
    values: dict[str, Any] = {
        "run": reading.tracer.trace(), "state": reading.state, "depth": "story", "over": True, "low": frozenset[str](), "repeats": {},
        "gaps": reading.gaps, "turns": turns[:MOST_SHARED], "more": max(0, len(turns) - MOST_SHARED), "shared": said,
        "until": datetime.fromtimestamp(said.exp, UTC),
    }  # fmt: skip
    return HTMLResponse(render("shared.html", **values), 200, {**HEADERS, "X-Robots-Tag": "noindex"})


async def _of(served: Served, said: Shared) -> Reading:
    engine: Engine = served.engine
    return await served.readings.of(engine, said.run, host=Host(tenant=said.tenant, principal=said.by))


PAGES = (
    Page(path="/ui/runs/{run_id}/evidence", handle=evidence),
    Page(path="/ui/runs/{run_id}/share", handle=share_form),
    Page(path="/ui/runs/{run_id}/share", handle=share, role="operate", method="POST"),
)
