"""The how-to pages in groups: the order of the menu and of the index. Every page is in exactly one group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {
    "Start here": (
        "install profile-your-own-model read-a-report find-the-slow-layer compare-two-runs stop-a-slower-model-in-ci"
    ),
    "Measure": (
        "run-a-program-from-elsewhere "
        "run-a-program-with-parts-elsewhere profile-a-language-model profile-your-own-language-model "
        "profile-a-litert-model profile-an-onnx-model profile-with-openvino tune-settings "
        "choose-what-to-switch-off run-experiments-from-a-file "
        "resume-an-interrupted-run install-without-cuda run-in-a-container"
    ),
    "Understand": (
        "check-a-model-before-running-it check-a-tflite-or-onnx-model see-which-kernels-ran read-a-trace-without-torch "
        "read-an-onnx-runtime-profile use-the-python-api connect-an-ai-assistant extend-opscope trust-a-bundle"
    ),
    "Open elsewhere": "open-a-trace-elsewhere see-a-trace-as-a-graph export-to-a-spreadsheet",
    "Compare and gate": (
        "find-the-release-that-made-a-model-slower gate-on-work compare-accuracy compare-two-runtimes "
        "report-on-several-platforms limit-layers-in-ci "
        "check-pull-requests-on-github keep-a-history-on-github"
    ),
    "Devices": (
        "profile-a-raspberry-pi profile-a-board-over-ssh profile-an-android-phone steady-an-android-phone "
        "profile-a-mac-with-sme2 check-arm-kernels-under-qemu measure-on-several-devices run-on-more-than-one-machine"
    ),
    "NPU": "analyse-an-npu-trace compare-npu-traces move-from-streams-script",
    "Many runs": "keep-many-runs ask-many-runs report-on-a-fleet watch-a-history gate-on-a-history gate-a-fleet",
    "Coming from Arm's kit": "move-from-the-arm-kit",
}
"""Titles of the groups, and the names of their pages; the pages that most people need come first."""


def grouped_pages(directory: Path) -> dict[str, list[Path]]:
    """The pages of each group.

    Args:
        directory: of the how-to pages.

    Raises:
        ValueError: a page is in no group, in two, or does not exist.
    """
    listed = [name for names in GROUPS.values() for name in names.split()]
    there = {path.stem for path in directory.glob("*.md")}
    wrong = sorted({name for name in listed if listed.count(name) > 1} | (set(listed) ^ there))
    if wrong:
        raise ValueError(f"pages that are not in exactly one group of docs/how_to_groups.py: {', '.join(wrong)}")
    return {title: [directory / f"{name}.md" for name in names.split()] for title, names in GROUPS.items()}


def title_of(page: Path) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].replace("`", "") if found else page.stem
