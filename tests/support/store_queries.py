"""Generated statements for a store: queries, and whatever DuckDB has that writes, reads other files or sets something.

Each comes with whether it must be refused. What is refused must be so whatever comes around it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_READS = (
    "SELECT 1",
    "SELECT count(*) AS n FROM runs",
    "FROM runs SELECT model, latency_ns LIMIT 3",
    "VALUES (1), (2)",
    "TABLE findings",
    "SUMMARIZE runs",
    "DESCRIBE operators",
    "SHOW TABLES",
    "WITH a AS (SELECT model FROM runs) SELECT count(*) FROM a",
    "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a WHERE n < 4) SELECT * FROM a",
    "SELECT model FROM runs UNION ALL SELECT rule FROM findings LIMIT 5",
    "SELECT * FROM (PIVOT runs ON role IN ('accelerated', 'baseline') USING count(*) GROUP BY model)",
    "SELECT r.model, k.kernel FROM runs r LEFT JOIN kernels k USING (bundle, variant) LIMIT 2",
)
_WRITES = (
    "COPY (SELECT 1) TO '{file}'",
    "COPY (SELECT 1) TO '{file}' (FORMAT {form})",
    "COPY runs TO '{file}'",
    "COPY (SELECT 1 AS a) TO '{folder}' (FORMAT parquet, PARTITION_BY (a), OVERWRITE_OR_IGNORE)",
    "EXPORT DATABASE '{folder}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{file}' AS other",
    "ATTACH '{file}' AS other (READ_ONLY)",
    "CREATE TABLE t AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE OR REPLACE VIEW runs AS SELECT 1",
    "CREATE SECRET s (TYPE http)",
    "CREATE MACRO m() AS 1",
    "DROP VIEW runs",
    "INSERT INTO runs VALUES (1)",
    "UPDATE runs SET model = 'x'",
    "DELETE FROM runs",
    "TRUNCATE runs",
    "ALTER VIEW runs RENAME TO other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{file}'",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "SET temp_directory = '{folder}'",
    "SET profile_output = '{file}'",
    "RESET lock_configuration",
    "CALL enable_logging()",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "USE memory",
    "PREPARE p AS COPY (SELECT 1) TO '{file}'",
    "EXECUTE p",
    "SELECT 1; COPY (SELECT 1) TO '{file}'",
    "COPY (SELECT 1) TO '{file}'; SELECT 1",
    "WITH a AS (COPY (SELECT 1) TO '{file}') SELECT 1",
    "WITH a AS MATERIALIZED (COPY runs TO '{file}') SELECT * FROM a",
    "WITH a AS (INSERT INTO runs VALUES (1) RETURNING *) SELECT * FROM a",
    "WITH a AS (DELETE FROM runs RETURNING *) SELECT * FROM a",
    "SELECT * FROM (WITH a AS (COPY (SELECT 1) TO '{file}') SELECT * FROM a)",
    "SELECT (WITH a AS (COPY (SELECT 1) TO '{file}') SELECT count(*) FROM a)",
    "SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''{file}'') SELECT 1')",
    "FROM query('SELECT 1')",
)
_OTHER_FILES = (
    "SELECT * FROM read_text('{there}')",
    "SELECT * FROM read_blob('{there}')",
    "SELECT * FROM read_csv('{there}')",
    "SELECT * FROM read_json('{there}')",
    "SELECT * FROM read_parquet('{there}')",
    "SELECT * FROM sniff_csv('{there}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{there}'",
    "FROM '{there}'",
    "SELECT * FROM parquet_metadata('{there}')",
    "SELECT * FROM read_text('store://_delta_log/00000000000000000001.json')",
    "SELECT getenv('HOME')",
    "SELECT count(*) FROM runs, read_text('{there}')",
    "WITH a AS (FROM read_text('{there}')) SELECT * FROM a",
)
_AROUND = ("{}", "{}", "{};", "/* a query */ {}", "-- a query\n{}", "  \n\t{}  ")
_EXPLAINED = (
    "EXPLAIN {}",
    "EXPLAIN ANALYZE {}",
    "explain /**/ analyze\n{}",
    "EXPLAIN (ANALYZE) {}",
    "Explain Analyze {}",
)


class Statement(NamedTuple):
    """A text for `store query`, and whether it must be refused."""

    sql: str
    refused: bool


def statements(rng: random.Random, store: Path, beside: Path) -> Iterator[Statement]:
    """Statements without end: about one in six only reads.

    Args:
        rng: decides.
        store: whose files some of them name.
        beside: a directory next to it, likewise.
    """
    there = sorted(path for root in (store, beside) for path in root.rglob("*") if path.is_file())
    while True:
        refused = rng.random() < 5 / 6
        text = rng.choice((_WRITES if rng.random() < 2 / 3 else _OTHER_FILES) if refused else _READS)
        kept = rng.choice(there)
        new = [root / f"new{rng.randrange(100)}" for root in (store, store / "_delta_log", beside)]
        file = rng.choice([kept, *new, f"store://{kept.name}", ".tmp/new"])
        words = {"file": file, "there": kept, "folder": rng.choice([store, beside]), "form": rng.choice(_FORMS)}
        text = rng.choice(_AROUND).format(_filled(text, words))
        explained = rng.random() < 1 / 4
        if explained:
            around = rng.choice(_EXPLAINED)
            refused = refused or "(" in around  # options of EXPLAIN are not taken
            text = around.format(text)
        if not refused and explained and any(word in text for word in ("SHOW ", "DESCRIBE ", "SUMMARIZE ")):
            continue  # whether these can be explained is DuckDB's affair
        yield Statement(text if rng.random() < 2 / 3 else _shouted(text), refused)


_FORMS = ("csv", "json", "parquet")


def _filled(text: str, words: dict[str, object]) -> str:
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", str(value).replace("'", "''"))
    return text


def _shouted(text: str) -> str:
    """The same in other letters, where it names no file."""
    return text.swapcase() if "'" not in text else text


def tree_hash(*roots: Path) -> str:
    """Hash of every file below some directories: names, modes, times of change and contents."""
    digest = hashlib.sha256()
    for path in sorted(one for root in roots for one in (root, *root.rglob("*"))):
        state = path.lstat()
        digest.update(f"{path}\0{state.st_mode}\0{state.st_mtime_ns}\0".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
