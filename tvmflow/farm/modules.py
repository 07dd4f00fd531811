"""Modules that run on servers of the farm but are called like local ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FarmError, TvmflowError
from ..module.blocked_layout import to_blocked
from ..module.load import load
from ..module.module import Module
from ..module.shapes import warn_default_shape
from ..module.values import Outputs, as_array, put
from ..runtime.secret import Address
from .connect import last_line

if TYPE_CHECKING:
    import tvm
    from tvm.rpc import RPCSession

    from ..module.kernel_time import KernelTime

#: Functions of a tvmflow server.  `open`: a file's name, JSON of all files' sizes by name, and a
#: device's index → JSON; `tensor`: a number → the host tensor of that input or, after the inputs,
#: output; `run` and `close` have no arguments.
OPEN_FUNCTION = "tvmflow.farm.open_module"
TENSOR_FUNCTION = "tvmflow.farm.tensor_of_module"
RUN_FUNCTION = "tvmflow.farm.run_module"
CLOSE_FUNCTION = "tvmflow.farm.close_module"


class RemoteModule(Module):
    """A module on a device of a server.

    Calls send the inputs and fetch the outputs.  A server has one module open at a time.  The local
    `module` is not opened; `remote` is TVM's session with a tvmflow server, and `address` is the
    server's, for messages.
    """

    def __init__(self, module: Module, remote: RPCSession, address: Address, device_index: int):
        warn_default_shape(module.variants, module.path, "a server of the farm")
        described = module.metadata, module.inputs, module.network_outputs
        super().__init__(module.path, module._file, *described, device_index, module.weights_path)
        self._module, self._remote, self._address = module, remote, address

    def close(self) -> None:
        """Close the module on the server."""
        with suppress(AttributeError, RuntimeError):
            # A server that has ended holds nothing.
            self._remote.get_function(CLOSE_FUNCTION)()
        super().close()

    def _open(self) -> _RemoteRunning:
        return _RemoteRunning(self._module, self._remote, self._address, self.device_index)


class _RemoteRunning:
    """The module opened on the server, with tensors there for its inputs and outputs."""

    upload_ms: float | None = None

    def __init__(self, module: Module, remote: RPCSession, address: Address, device_index: int):
        self._module, self._address = module, address
        with self._errors("Opening"):
            files = [path for path in (module.path, module.weights_path) if path is not None]
            for path in files:
                remote.upload(str(path))
            # TVM's server does not report a full disk.
            sizes = json.dumps({path.name: path.stat().st_size for path in files})
            open_there = remote.get_function(OPEN_FUNCTION)
            answer = json.loads(open_there(module.path.name, sizes, device_index))
            if "error" in answer:
                raise FarmError(
                    f"Opening {module.path} on the server at {address} failed: {answer['error']}",
                    remedy=answer["remedy"],
                )
            self._run = remote.get_function(RUN_FUNCTION)
            # Allocated by the server: a client's tensors arrive as views that Python cannot keep.
            tensor = remote.get_function(TENSOR_FUNCTION)
            count = len(module.inputs)
            tensors = [tensor(number) for number in range(count + len(module.network_outputs))]
            self._inputs, self._outputs = tensors[:count], tensors[count:]

    def run(
        self, values: Sequence[Any], *, on_device: bool, into: Sequence[np.ndarray | None] = ()
    ) -> Outputs:
        """Run the network once; outputs are always copied to this machine."""
        arrays = [
            as_array(info, to_blocked(info, value))
            for info, value in zip(self._module.inputs, values, strict=True)
        ]
        with self._errors("Running"):
            for tensor, array in zip(self._inputs, arrays, strict=True):
                tensor.copyfrom(array)
            self._run()
            names = [info.name for info in self._module.network_outputs]
            arrays = [tensor.numpy() for tensor in self._outputs]
        given = into or (None,) * len(arrays)
        return Outputs(names, map(put, names, arrays, given))

    def profile(self, values: Sequence[Any], runs: int) -> list[KernelTime]:
        """Raise `FarmError`: kernels of other machines are not measured."""
        raise FarmError(
            f"Profiling {self._module.path} on the server at {self._address} is not possible.",
            remedy="Run `tvmflow profile` on that machine.",
        )

    @contextmanager
    def _errors(self, attempt: str) -> Iterator[None]:
        """Turn any error into a `FarmError` that names the server."""
        try:
            yield
        except TvmflowError:
            raise
        except Exception as error:
            raise FarmError(
                f"{attempt} {self._module.path} on the server at {self._address} failed: "
                f"{last_line(error)}",
                remedy="`tvmflow farm status` shows which servers there are.",
            ) from error


# -- in the process of a session on the server -----------------------------------------------


#: The module of this session, and tensors for its inputs and outputs.
_opened: tuple[Module, Sequence[tvm.runtime.Tensor]] | None = None


def register() -> None:
    """Register the functions for the sessions of this process."""
    import tvm_ffi

    tvm_ffi.register_global_func(OPEN_FUNCTION, _open_module)
    tvm_ffi.register_global_func(TENSOR_FUNCTION, lambda number: _here()[1][number])
    tvm_ffi.register_global_func(RUN_FUNCTION, _run_module)
    tvm_ffi.register_global_func(CLOSE_FUNCTION, _close_module)


def _here() -> tuple[Module, Sequence[tvm.runtime.Tensor]]:
    assert _opened is not None, "no module is open"
    return _opened


def _open_module(name: str, sizes: str, device_index: int) -> str:
    import tvm
    import tvm_ffi

    global _opened
    _close_module()
    folder = Path(tvm_ffi.get_global_func("tvm.rpc.server.workpath")("."))
    files = {folder / file: size for file, size in json.loads(sizes).items()}
    try:
        for path, size in files.items():
            if (got := path.stat().st_size) != size:
                raise FarmError(
                    f"{got} of the {size} bytes of {path.name} were kept in {folder}.",
                    remedy="Free space on the server's disk.",
                )
        module = load(folder / name, device=device_index).open()
    except TvmflowError as error:
        return json.dumps({"error": error.message, "remedy": error.remedy})
    finally:
        # Free the disk at once; another file of that name may arrive while this one is in use.
        for path in files:
            path.unlink(missing_ok=True)
    infos = (*module.inputs, *module.network_outputs)
    _opened = module, [tvm.runtime.empty(info.shape, info.dtype) for info in infos]
    return "{}"


def _run_module() -> None:
    module, tensors = _here()
    arrays = [np.from_dlpack(tensor) for tensor in tensors]
    count = len(module.inputs)
    for array, result in zip(arrays[count:], module.run_network(arrays[:count]), strict=True):
        np.copyto(array, result)


def _close_module() -> None:
    global _opened
    if _opened is not None:
        _opened[0].close()
        _opened = None
