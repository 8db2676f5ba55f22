"""The image tower through OpenVINO, on a CPU: `load_model(…, runtime="openvino")`.

The tower is converted once, in memory, when the model is loaded, and computes in the model's dtype:
float32, or bfloat16 where the processor has it (AMX, AVX512-BF16). It uses as many threads as torch
is set to, and torch's own stay idle meanwhile, so that cores are not shared by two pools.

The weights are a copy: a tower that was changed or moved afterwards goes to the library's forward.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from adte.core.errors import InputError
from adte.models._torchvision import import_late
from adte.models.base import Model

__all__ = ["OpenVino", "convert"]

_HINT = {torch.float32: "f32", torch.bfloat16: "bf16"}


def convert(model: Model) -> Model:
    """The same model, weights shared, with OpenVINO's image tower where gradients are off."""
    tower = model._visual
    if tower is None:
        raise InputError(
            f"model {model.name!r} has no image tower that OpenVINO could take; use it as it is, "
            "with runtime='torch'"
        )
    if model.device.type != "cpu" or model.dtype not in _HINT:
        raise InputError(
            f"OpenVINO runs here on a CPU in float32 or bfloat16, and the model is on "
            f"{model.device} in {model.dtype}; choose runtime='auto'"
        )
    new = copy.copy(model)
    new.runner = OpenVino(model)
    return new


class _Pixels(nn.Module):
    """Pixels to features, as one module that can be traced."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels)


class OpenVino:
    """Pixels (N, 3, S, S) to features (N, D), by a network that OpenVINO compiled."""

    name = "openvino"

    def __init__(self, model: Model) -> None:
        self.tower = model._visual
        self.dtype, self.side = model.dtype, model.preprocess.size
        self._held = [(p, p.data_ptr(), p._version) for p in self.tower.parameters()]
        self._network: Any = _network(model, self.side)
        self._threads = 0
        self._request: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a model under OpenVINO cannot be copied or sent; load it there by name")

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of the model has weights of its own, which this network does not hold."""

    def takes(self, tower: Any, pixels: Tensor) -> bool:
        if tower is not self.tower or tower.training or torch.is_grad_enabled():
            return False
        same = all(p.data_ptr() == at and p._version == v for p, at, v in self._held)
        return same and pixels.dtype == self.dtype and pixels.shape[2:] == (self.side, self.side)

    def __call__(self, pixels: Tensor) -> Tensor:
        if self._threads != (now := torch.get_num_threads()):
            self._threads, self._request = now, self._compile(now)
        out = self._request.infer([pixels.float().contiguous().numpy()])
        return torch.from_numpy(next(iter(out.values())).copy())

    def _compile(self, threads: int) -> Any:
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": _HINT[self.dtype],
            "PERFORMANCE_HINT": "LATENCY",  # all threads on one pass
        }
        core = import_openvino().Core()
        return core.compile_model(self._network, "CPU", settings).create_infer_request()


def import_openvino() -> Any:
    """The package openvino, or the sentence that says how to install it."""
    return import_late("openvino", "openvino", "openvino", "runtime='openvino'")


@torch.no_grad()
def _network(model: Model, side: int) -> Any:
    openvino = import_openvino()
    plain = copy.copy(model)
    plain.runner = None
    plain = copy.deepcopy(plain).float()  # traced in float32; OpenVINO rounds by itself
    pixels = torch.zeros(1, 3, side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracer names every branch it cannot follow
        try:
            return openvino.convert_model(
                _Pixels(plain), example_input=pixels, input=[("pixels", [-1, 3, side, side])]
            )
        except Exception as error:  # whatever the converter does not know
            raise InputError(
                f"OpenVINO cannot convert the image tower of {model.name!r} "
                f"({str(error).splitlines()[0]}); use runtime='torch'"
            ) from error
