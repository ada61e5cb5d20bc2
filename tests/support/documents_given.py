"""What the pages take as given, made for real: programs, traces, bundles, a run of the Arm kit, an NPU trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import kit_files
from opscope.readers.compressed import inflated

GIVEN = {
    "README.md": (
        "my_model.pte my_model.tflite my_model.onnx my_net.py trace.json trace.etdump "
        "activate before/ after/ new=bundle old=other"
    ),
    "docs/tutorial.md": "activate",
    "docs/how-to/check-a-model-before-running-it.md": "my_model.pte",
    "docs/how-to/check-a-tflite-or-onnx-model.md": "my_model.tflite my_model.onnx",
    "docs/how-to/choose-what-to-switch-off.md": "my_model.pte",
    "docs/how-to/compare-two-runs.md": "mb=bundle mb-int8=other before/ after/",
    "docs/how-to/compare-two-runtimes.md": "mobilenet_v3_small.pte mobilenet_v3_small.tflite",
    "docs/how-to/find-the-slow-layer.md": "model.pte trace.etdump",
    "docs/how-to/keep-many-runs.md": "opscope-out=bundle",
    "docs/how-to/move-from-the-arm-kit.md": "kit examples BUNDLE=bundle",
    "docs/how-to/open-a-trace-elsewhere.md": "trace.etdump BUNDLE=bundle",
    "docs/how-to/see-a-trace-as-a-graph.md": "trace.etdump BUNDLE=bundle",
    "docs/how-to/export-to-a-spreadsheet.md": "trace.etdump BUNDLE=bundle",
    "docs/how-to/report-on-a-fleet.md": "opscope-out=bundle",
    "docs/how-to/limit-layers-in-ci.md": "head.pte base.pte",
    "docs/how-to/steady-an-android-phone.md": "my_model.pte",
    "docs/how-to/measure-on-several-devices.md": "my_model.pte",
    "docs/how-to/profile-an-android-phone.md": "my_model.pte",
    "docs/how-to/profile-a-raspberry-pi.md": "my_model.pte",
    "docs/how-to/profile-a-mac-with-sme2.md": "my_model.pte",
    "docs/how-to/profile-your-own-model.md": "my_model.pte",
    "docs/how-to/read-a-report.md": "run=bundle",
    "docs/how-to/analyse-an-npu-trace.md": "trace.json",
    "docs/how-to/read-a-trace-without-torch.md": "trace.etdump",
    "docs/how-to/report-on-several-platforms.md": "mac=bundle android=other linux=bundle before=bundle after=other",
    "docs/how-to/resume-an-interrupted-run.md": "mb=unfinished",
    "docs/how-to/run-experiments-from-a-file.md": "my_model.pte",
    "docs/how-to/see-which-kernels-ran.md": "my_model.pte BUNDLE=bundle",
    "docs/how-to/stop-a-slower-model-in-ci.md": "head.pte base.pte new=bundle old=other",
    "docs/how-to/trust-a-bundle.md": "mb=bundle new=bundle good=other",
    "docs/how-to/use-the-python-api.md": "trace.etdump model.pte trace.json out=bundle",
    "src/opscope/skills/opscope-native-runners/SKILL.md": "my_model.pte",
    "src/opscope/skills/opscope-run-profiling/SKILL.md": "my_model.pte",
    "src/opscope/skills/opscope-analyse-results/SKILL.md": "run=bundle trace.etdump my_model.pte",
    "src/opscope/skills/opscope-generate-report/SKILL.md": "run=bundle run-2=other",
    "src/opscope/skills/opscope-analyse-npu-trace/SKILL.md": "trace.json",
    "src/opscope/skills/opscope-gate-in-ci/SKILL.md": "base.pte head.pte",
}
"""Files and directories that a page expects, by page. ``NAME=KIND`` is a bundle; see ``_MAKERS`` for the others."""


class Store(NamedTuple):
    """What was made once: a program with its record, two finished bundles and one that was interrupted."""

    program: Path
    bundle: Path
    other: Path
    unfinished: Path

    def traces(self) -> list[Path]:
        """Traces of the accelerated variant, one a process."""
        return sorted((self.bundle / "variants" / "accelerated").glob("round-*/trace.etdump.zst"))


def give(store: Store, words: str, place: Path) -> None:
    """Put what a page takes as given into its directory."""
    for word in words.split():
        name, _, kind = word.partition("=")
        if kind:
            shutil.copytree(getattr(store, kind), place / name)
        else:
            _MAKERS.get(name, _MAKERS.get(Path(name).suffix, _traces))(store, place / name)


def _program(store: Store, path: Path) -> None:
    shutil.copyfile(store.program, path)
    shutil.copyfile(store.program.with_suffix(".etrecord"), path.with_suffix(".etrecord"))


def _tflite(_store: Store, path: Path) -> None:
    shutil.copyfile(Path(__file__).parents[1] / "data" / "tflite" / "cnn.tflite", path)


def _onnx(_store: Store, path: Path) -> None:
    shutil.copyfile(Path(__file__).parents[1] / "data" / "onnx" / "cnn.onnx", path)


def _paired(_store: Store, path: Path) -> None:
    from exports import program

    shutil.copyfile(program("paired_cnn-fp32"), path)


def _paired_tflite(_store: Store, path: Path) -> None:
    shutil.copyfile(Path(__file__).parents[1] / "data" / "tflite" / "images.tflite", path)


def _inflate(trace: Path, path: Path) -> None:
    """A trace as its process wrote it."""
    path.write_bytes(inflated(trace.read_bytes(), trace))


def _trace(store: Store, path: Path) -> None:
    _inflate(store.traces()[0], path)


def _traces(store: Store, directory: Path) -> None:
    directory.mkdir()
    for number, trace in enumerate(store.traces()):
        _inflate(trace, directory / f"{number:02}.etdump")


def _network(_store: Store, path: Path) -> None:
    path.write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Conv2d(3, 8, 3).eval(), (torch.ones(1, 3, 32, 32),)\n"
    )


def _activate(_store: Store, path: Path) -> None:
    script = path.parent / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()


def _kit(_store: Store, path: Path) -> None:
    directory = path.parent / "out_model" / "runs" / "mac"
    medians = {"mac_sme2_off": (kit_files.BASELINE, 4.0), "mac_sme2_on": (kit_files.CANDIDATE, 2.0)}
    for name, (text, _) in medians.items():
        kit_files.write_experiment(directory, name, text, nested=True)
    results = [kit_files.result(name, median) for name, (_, median) in medians.items()]
    manifest = {"generated_at": "2025-12-20T00:00:00Z", "model": kit_files.MODEL, "results": results}
    kit_files.write_json(directory / "manifest.json", manifest)
    kit_files.write_json(directory / "metrics.json", {"results": results})


def _examples(_store: Store, path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "examples", path)


def _npu_trace(_store: Store, path: Path) -> None:
    give_npu_trace(path)


def give_npu_trace(path: Path) -> None:
    """A trace of four cores of an NPU."""
    from aie_gemm import Gemm
    from aie_traces import json_text

    cores = [Gemm(outputs=3, rest=90, row=row, column=column, begin=1 + 9 * row) for row in (2, 3) for column in (0, 1)]
    path.write_bytes(b"".join(json_text([core.tile() for core in cores])))


_MAKERS: dict[str, Callable[[Store, Path], None]] = {
    "mobilenet_v3_small.pte": _paired,
    "mobilenet_v3_small.tflite": _paired_tflite,
    ".pte": _program,
    ".tflite": _tflite,
    ".onnx": _onnx,
    ".etdump": _trace,
    "activate": _activate,
    "kit": _kit,
    "examples": _examples,
    "my_net.py": _network,
    "trace.json": _npu_trace,
}
