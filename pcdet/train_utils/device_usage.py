"""How busy and how full a run's device is."""

import sys
from collections.abc import Callable
from typing import Any

import torch

from pcdet.utils.logging import get_logger

GIB = 2**30


class DeviceUsage:
    """Reads a GPU's use through NVML (the package ``nvidia-ml-py``) and torch's memory; on a CPU the process's memory.

    NVML answers from the driver in less than a millisecond and without waiting for the GPU.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._nvml = _open_nvml(device) if device.type == "cuda" else None

    def read(self) -> dict[str, float]:
        """Values by tag: ``device/utilisation_percent`` and ``device/memory_gib`` of the whole GPU, and the peak of
        this process (``device/peak_memory_gib``: torch's tensors on a GPU, resident memory on a CPU)."""
        if self.device.type != "cuda":
            return {"device/peak_memory_gib": peak_resident() / GIB}
        values = {"device/peak_memory_gib": torch.cuda.max_memory_allocated(self.device) / GIB}
        return values | (self._nvml() if self._nvml is not None else {})


def _open_nvml(device: torch.device) -> Callable[[], dict[str, float]] | None:
    """What reads this GPU, by its unique name: CUDA's numbers are not NVML's where some GPUs are hidden."""
    try:
        import pynvml
    except ImportError:
        get_logger().info("GPU utilisation is not recorded: that needs pip install 'pcdet[nvml]' (nvidia-ml-py)")
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError as error:
        get_logger().warning("GPU utilisation is not recorded: NVML says %s", error)
        return None
    return lambda: _read_nvml(pynvml, handle)


def _read_nvml(pynvml: Any, handle: Any) -> dict[str, float]:
    return {
        "device/utilisation_percent": float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "device/memory_gib": pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB,
    }


def peak_resident() -> int:
    """Bytes of the largest resident memory of this process so far; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
