"""Benchmarks of opscope's own claims, run by ``python -m bench``; what they need of the tests is on the path."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = ROOT / "tests" / "support"

if str(SUPPORT) not in sys.path:
    sys.path.append(str(SUPPORT))
