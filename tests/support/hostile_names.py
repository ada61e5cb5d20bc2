"""Names that a trace could hold to do harm in a report, and content that is made of them."""

from __future__ import annotations

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a|b`c*d_e[f](javascript:alert(1))",
    "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe",
    "{{ 7 * 7 }}",
    "x" * 10_000,
    "quote \" and ' and & and </td></table>",
    "line\nbreak\x07",
)
