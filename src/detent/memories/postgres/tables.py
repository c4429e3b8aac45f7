"""The tables of a memory in PostgreSQL, and its statements. Names are compared as bytes, so no character of a scope is a pattern.

Words are stemmed here (`ranking.stems`), so the index does not depend on the dictionaries of a server. Vectors are arrays of numbers; where the
extension pgvector is available it compares them.
"""

from __future__ import annotations

from detent.memories.ranking import DIGITS

VERSION = 1
TABLES = (
    "CREATE TABLE IF NOT EXISTS memory_version (version integer NOT NULL)",
    """CREATE TABLE IF NOT EXISTS memory_items (
        id text COLLATE "C" NOT NULL, scope text COLLATE "C" NOT NULL, tenant text COLLATE "C" NOT NULL, state smallint NOT NULL,
        begins bigint NOT NULL, ends bigint, created bigint NOT NULL, kind text NOT NULL, words tsvector, model text, vector real[],
        data text NOT NULL, PRIMARY KEY (id, scope))""",
    "CREATE INDEX IF NOT EXISTS memory_items_by_scope ON memory_items (scope, id)",
    "CREATE INDEX IF NOT EXISTS memory_items_by_age ON memory_items (tenant, created) WHERE state > 0",
    "CREATE INDEX IF NOT EXISTS memory_items_hidden ON memory_items (scope, id) WHERE state = 0",
    "CREATE INDEX IF NOT EXISTS memory_items_by_word ON memory_items USING gin (words)",
    "INSERT INTO memory_version SELECT 1 WHERE NOT EXISTS (SELECT FROM memory_version)",
)
LOCK = "SELECT pg_advisory_xact_lock(5264716, hashtext(current_schema()))"
"""One change after another: what one reads before it writes stays true."""
LOAD = "SELECT data FROM memory_items WHERE id = ANY(%s) ORDER BY id, scope"
SAVE = """
INSERT INTO memory_items (id, scope, tenant, state, begins, ends, created, kind, data, words, model, vector)
VALUES (%(id)s, %(scope)s, %(tenant)s, %(state)s, %(begins)s, %(ends)s, %(created)s, %(kind)s, %(data)s,
    setweight(to_tsvector('simple', %(content)s), 'A') || setweight(to_tsvector('simple', %(context)s), 'D'), %(model)s, %(vector)s)
ON CONFLICT (id, scope) DO UPDATE SET state = excluded.state, begins = excluded.begins, ends = excluded.ends, kind = excluded.kind,
    data = excluded.data, words = excluded.words,
    model = CASE WHEN excluded.state = 0 THEN NULL ELSE coalesce(excluded.model, memory_items.model) END,
    vector = CASE WHEN excluded.state = 0 THEN NULL ELSE coalesce(excluded.vector, memory_items.vector) END"""
CURRENT = "state > 0 AND (ends > %(at)s OR (ends IS NULL AND state = 1)) AND (begins <= %(at)s OR begins = created)"
"""Whether an item is current at a time; one that does not say since when it holds is current as soon as it is there."""
HELD = "state > 0 AND (ends > %(at)s OR ends IS NULL) AND begins <= %(at)s"
"""Whether an item held at a time."""
IN_SCOPE = "(scope = %(prefix)s OR (scope > %(prefix)s || '/' AND scope < %(prefix)s || '0'))"
BY_WORDS = """
SELECT data FROM memory_items WHERE words @@ to_tsquery('simple', %(query)s) AND {where}
ORDER BY ts_rank('{{0.4, 0.4, 0.4, 1.0}}', words, to_tsquery('simple', %(query)s)) DESC, created DESC, id DESC LIMIT %(most)s"""
PGVECTOR = "SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector'"
BY_MEANING = f"""
SELECT data, near FROM (SELECT data, created, id, round(({{near}})::numeric, {DIGITS})::float8 AS near FROM memory_items
    WHERE vector IS NOT NULL AND model = %(model)s AND cardinality(vector) = %(size)s AND {{where}}) AS compared
WHERE near > 0 ORDER BY near DESC, created DESC, id DESC LIMIT %(most)s"""
NEWEST = "SELECT data FROM memory_items WHERE {where} ORDER BY created DESC, scope DESC, id DESC LIMIT %(most)s"
PAGE = "SELECT data FROM memory_items WHERE {where} AND (scope, id) > (%(scope)s, %(id)s) ORDER BY scope, id LIMIT %(most)s"


def near(pgvector: str) -> str:
    """Return the expression for the cosine of two vectors of length 1. `pgvector` is the quoted schema that has the extension, "" without it.

    The extension may be in any schema, and no search path is relied on.
    """
    if not pgvector:
        return "(SELECT sum(a * b) FROM unnest(vector, %(vector)s::real[]) AS pair (a, b))"
    schema = pgvector.replace("%", "%%")
    return f"-(vector::{schema}.vector OPERATOR({schema}.<#>) %(vector)s::real[]::{schema}.vector)"  # its cosine of zeros would be NaN
