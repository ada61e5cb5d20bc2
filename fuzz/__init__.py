"""Fuzzing of the readers: whatever a file holds, reading it ends in a value or in a TraceFormatError."""

import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"

if str(SUPPORT) not in sys.path:
    sys.path.append(str(SUPPORT))
