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
TERMINAL = (
    "[/x]",
    "[f32]",
    "[link=http://x]y[/link]",
    ":smile:",
    "\x1b[31m",
    "\x9b2J",
    "\N{RIGHT-TO-LEFT OVERRIDE}",
    "=cmd|' /C calc'!A0",
    "<script>",
    "up\nerror: all is lost",
    "y" * 10_000,
)
"""Names that want to be markup, a link, a colour, another line, a formula or a picture where they are printed."""
