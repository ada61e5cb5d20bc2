"""Files for the smoke test, made by the Python that runs this: opscope and flatbuffers suffice, no runtime is needed.

``python tests/support/smoke_files.py DIRECTORY``
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from aie_published import Clean
from aie_traces import json_text, words_text
from bundle_damage import HashingTarget
from fakes import FakeClock
from kit_files import pair, write_run
from opscope.api import Settings, profile
from programs import write_tiny_program

DATA = Path(__file__).parents[1] / "data"
SETTINGS = Settings(rounds=6, runs=8)
GEMM = "xnn_f32_gemm_minmax_ukernel"


def write_all(directory: Path) -> None:
    """A program, two bundles, traces of a CPU and of NPU cores, a run of the Arm kit and a log."""
    directory.mkdir(parents=True, exist_ok=True)
    program = write_tiny_program(directory)
    for seed, name in enumerate(("bundle", "other")):
        target, clock = HashingTarget(seed=seed), FakeClock()
        profile(str(program), settings=SETTINGS, out=directory / name, target=target, clock=clock)
    shutil.copyfile(DATA / "toy_cnn.etdump", directory / "trace.etdump")
    shutil.copyfile(DATA / "two_methods.pte", directory / "two_methods.pte")
    tiles = [Clean().tile()]
    (directory / "aie.json").write_bytes(b"".join(json_text(tiles)))
    (directory / "aie.txt").write_bytes(words_text(tiles))
    write_run(directory / "kit", pairs=[pair("alpha", "beta")])
    (directory / "kernels.log").write_text(f"Note (XNNPACK): Using gemm microkernel '{GEMM}_1x16__avx2'.\n")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
