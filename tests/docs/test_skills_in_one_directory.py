"""The twelve skills one after the other in an empty directory, as an assistant follows them, installation included.

What a skill takes as given is what the one before it left, under the name that its page uses. A real environment, a
real installation, the real commands letter by letter; blocks for a phone, a board or a Mac are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, SHELL, Block, blocks
from documents_given import give_npu_trace
from opscope.core.errors import UntrustedError
from opscope.readers.compressed import inflated

pytestmark = [pytest.mark.nightly, pytest.mark.runtime]
EXPORTED = "exported/toy_cnn_xnnpack_fp32"
TORCH = re.compile(r"pip install torch==")
_OURS = ("PYTHON", "VIRTUAL_ENV", "OPSCOPE", "PIP_NO_INDEX")
INSTALLS = re.compile(r"\bpip install\b")


def given(place: Path, skill: str) -> None:
    """What a skill takes as given, from what is there."""
    if skill == "opscope-native-runners":
        for name in ("my_model", "base", "head"):
            for end in (".pte", ".etrecord"):
                shutil.copyfile(place / f"{EXPORTED}{end}", place / f"{name}{end}")
    elif skill == "opscope-analyse-results":
        trace = min((place / "run/variants/accelerated").glob("round-*/trace.etdump*"))
        (place / "trace.etdump").write_bytes(inflated(trace.read_bytes(), trace))
        shutil.copytree(place / "run", place / "run-2")
    elif skill == "opscope-analyse-npu-trace":
        give_npu_trace(place / "trace.json")


class Assistant:
    """Somebody who does what skills say, in a directory of their own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        python = Path(sys.base_prefix) / "bin"
        self.environment = kept | {"OPSCOPE": str(ROOT), "PATH": f"{python}{os.pathsep}{os.defpath}", "NO_COLOR": "1"}

    def do(self, text: str, codes: set[int] | None = None) -> None:
        """Run a block in the environment, once there is one."""
        enter = ". .venv/bin/activate\n" if (self.place / ".venv").exists() else ""
        command = ["bash", "-euo", "pipefail", "-c", enter + text]
        done = subprocess.run(
            command, cwd=self.place, env=self.environment, capture_output=True, text=True, check=False, timeout=1800
        )
        assert done.returncode in (codes or {0}), f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    def install(self, page: list[Block]) -> None:
        """The blocks that install: an environment, torch before what needs it, as the page says for Linux."""
        asked = [block.text for block in page if INSTALLS.search(block.text)]
        (torch,) = (text for text in asked if TORCH.search(text))
        (opscope,) = (text for text in asked if not TORCH.search(text))
        make, _, rest = opscope.partition("\n")
        self.do(make)
        if (
            "TORCH_INDEX_URL" not in self.environment
        ):  # the index that pip is set to has builds without CUDA, or must do
            torch = torch.replace(' --index-url "$TORCH_INDEX_URL"', "")
        self.do(torch)
        self.do(rest)

    def follow(self, page: list[Block]) -> None:
        """The blocks that run anywhere."""
        for block in page:
            file = block.told("file")
            if file is not None:
                (self.place / file).write_text(block.text)
            elif block.language in SHELL and block.told("check only") is None:
                codes = {int(code) for code in re.findall(r"\d+", block.told("exits") or "0")}
                busy = {UntrustedError.exit_code} if "opscope check" in block.text else set()
                self.do(block.text, codes | busy)


@pytest.mark.timeout(2400)
def test_an_assistant_gets_from_an_empty_directory_to_a_gate(tmp_path: Path) -> None:
    """In the order in which the skills are listed; what is installed lists them and writes them."""
    assistant = Assistant(tmp_path)
    first = ROOT / "src/opscope/skills/opscope-setup-workspace/SKILL.md"
    assistant.install(blocks(first))
    assistant.do("opscope skills install .agents/skills\nopscope skills list > skills.txt")
    names = [line.split()[0] for line in (tmp_path / "skills.txt").read_text().splitlines()]
    assert len(names) == 12
    order = [names[0], "opscope-export-model", *(name for name in names[1:] if name != "opscope-export-model")]
    for name in order:
        given(tmp_path, name)
        assistant.follow(blocks(tmp_path / ".agents/skills" / name / "SKILL.md"))
