"""The checks of a validation: their names, what they are about, and what to do when one fails.

In an action ``{bundle}`` stands for the path, ``{written}`` for the version that wrote the manifest and ``{checked}``
for the one that checks.
"""

from __future__ import annotations

from opscope.bundle.validation import Area, Question

_REWRITE = (
    "recompute the files from the traces with `opscope report {bundle}`; if they were not edited, another version "
    "computed them (opscope {written} wrote the bundle, this is {checked})"
)
_RESTORE = "restore the file from a copy of the bundle, or measure again with `opscope profile` into a new directory"
_NOT_TRUSTED = "do not use the bundle until you know what changed it; measure again into a new directory"
_RESUME = "finish the run: repeat its command with --resume"

MANIFEST = Question(
    "manifest",
    Area.MANIFEST,
    "restore manifest.json from a copy of the bundle; if an opscope newer than {checked} wrote it, upgrade opscope",
)
PLAN = Question("plan", Area.MANIFEST, _NOT_TRUSTED)
RECORDS = Question("records", Area.MANIFEST, _NOT_TRUSTED)
COMPLETE = Question("complete", Area.MANIFEST, _RESUME)
PATHS = Question("paths", Area.MANIFEST, "do not open the reports of this bundle; replace links with the linked files")

FILES = Question("files", Area.FILES, f"{_RESTORE}; `opscope report {{bundle}}` rewrites a missing report")
HASHES = Question("hashes", Area.FILES, _RESTORE)
PROGRAM = Question("program", Area.FILES, _RESTORE)
DOCUMENTS = Question(
    "documents",
    Area.FILES,
    "`opscope report {bundle}` rewrites analysis.json and comparison.json (opscope {written} wrote the bundle, this "
    "is {checked}); for ceilings.json delete the file and measure again with --resume",
)
CEILINGS = Question(
    "ceilings",
    Area.FILES,
    "do not trust the ceilings; measure them again with --resume --ceilings",
)
LEFTOVERS = Question("leftovers", Area.FILES, "delete them once no run is using the bundle")

TRACES = Question("traces", Area.TRACES, _RESTORE)
NESTING = Question("nesting", Area.TRACES, _RESTORE)
SELF_TIMES = Question("self_times", Area.TRACES, _RESTORE)
CALLS = Question("calls", Area.TRACES, _NOT_TRUSTED)
THREADS = Question("threads", Area.TRACES, _NOT_TRUSTED)
MASK = Question("mask", Area.TRACES, "do not use this variant as one without the features; measure again")
OUTPUTS = Question(
    "outputs",
    Area.TRACES,
    "find out why the same program gives different outputs on the same inputs, then measure again",
)

ANALYSES = Question("analyses", Area.FIGURES, _REWRITE)
COMPARISONS = Question(
    "comparisons",
    Area.FIGURES,
    f"{_REWRITE}; for comparisons from a configuration, use `opscope run CONFIG --analysis-only`",
)
REPORTS = Question("reports", Area.FIGURES, _REWRITE)

LIKE_FILES = Question("like_files", Area.STRUCTURE, "find out why the two bundles were made differently")
LIKE_FIELDS = Question(
    "like_fields",
    Area.STRUCTURE,
    "write the derived files of both with one opscope: `opscope report` (opscope {written} wrote the bundle, this "
    "is {checked})",
)

OF_TRACES = (TRACES, NESTING, SELF_TIMES, CALLS)
"""What every trace is asked."""
FIGURES = (ANALYSES, COMPARISONS, REPORTS)
"""What is derived from the traces."""
BEHIND_MANIFEST = (
    *(PLAN, RECORDS, COMPLETE, PATHS),
    *(FILES, HASHES, PROGRAM, DOCUMENTS, CEILINGS, LEFTOVERS),
    *(*OF_TRACES, THREADS, MASK, OUTPUTS),
    *FIGURES,
)
"""What can be asked only of a bundle whose manifest can be read, in the order of the answers."""
