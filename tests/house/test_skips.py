"""What the end of a test run says of skipped tests."""

from __future__ import annotations

import pytest

from skips import describe_skips


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        ((), ""),
        (("only root may",), "1 skipped tests need: another machine (1)"),
        (
            (
                "Skipped: needs adb, mksh: apt install adb mksh",
                "needs sshd (Debian: apt install openssh-server)",
                "needs adb: apt install adb",
                "needs QEMU 11.1 (.ci/devices): not installed",
                "needs torch: pip install 'opscope[executorch]'",
                "make test-arm64 prepares what this needs",
                "the trap is Linux's",
            ),
            (
                "7 skipped tests need: apt install adb mksh openssh-server (3); pip install 'opscope[executorch]' (1); "
                ".ci/devices (1); make test-arm64 (1); another machine (1)"
            ),
        ),
    ],
)
def test_one_line_says_what_to_install(reasons: tuple[str, ...], line: str) -> None:
    """Each package once, and how many tests each step would run."""
    assert describe_skips(reasons) == line
