"""Find the purpose of programs that were not made for XNNPACK: another processor, or training.

Names of backends: the files of ``backends`` in executorch 1.5.1 that define a ``BackendDetails``. Operators of
Cortex-M and Cadence: ``backends/cortex_m/ops/operators.py`` and ``backends/cadence/aot/ops_registrations.py``.
Training: ``exir/emit/_emit_program.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_BACKENDS = {
    "QnnBackend": "Qualcomm's Hexagon NPUs and Adreno GPUs",
    "EthosUBackend": "Arm's Ethos-U NPUs",
    "VgfBackend": "GPUs with Vulkan's ML extensions for Arm",
    "TOSABackend": "TOSA, which is not run but looked at",
    "VulkanBackend": "GPUs with Vulkan",
    "CoreMLBackend": "Apple's Core ML",
    "CoreAIBackend": "Apple's Core AI",
    "MPSBackend": "Apple's GPUs",
    "MetalBackend": "Apple's GPUs",
    "MLXBackend": "Apple's MLX",
    "NeuropilotBackend": "MediaTek's NPUs",
    "EnnBackend": "Samsung's Exynos NPUs",
    "NeutronBackend": "NXP's eIQ Neutron NPUs",
    "OpenvinoBackend": "OpenVINO",
    "CudaBackend": "NVIDIA's GPUs",
    "TensorRTBackend": "NVIDIA's GPUs",
    "CadenceExecutorchBackend": "Cadence's DSPs",
}
_NAMESPACES = {"cortex_m": "Arm's Cortex-M microcontrollers", "cadence": "Cadence's DSPs"}
_TRAINING = "__et_training_"


def backend_purpose(name: str) -> str:
    """Return the hardware that a backend of ExecuTorch runs on; the backend's name if it is not known."""
    return _BACKENDS.get(name, name)


def program_purpose(methods: Iterable[str], operators: Iterable[str]) -> str | None:
    """Return the purpose of a program, by its methods and portable operators; None if they do not tell.

    A program that trains has methods that state where gradients and parameters stand among its outputs.
    """
    if any(method.startswith(_TRAINING) for method in methods):
        return "training on the device"
    namespaces = (name.partition("::")[0] for name in operators)
    return next((_NAMESPACES[namespace] for namespace in namespaces if namespace in _NAMESPACES), None)
