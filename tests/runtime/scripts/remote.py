"""Runs a library on this machine's device through an RPC server; argument: the library."""

from __future__ import annotations

import json
import sys

import numpy as np
import tvm
from tvm import rpc


def main() -> None:
    server = rpc.Server("127.0.0.1", port=9190, port_end=9990)
    try:
        session = rpc.connect("127.0.0.1", server.port)
        session.upload(sys.argv[1])
        library = session.load_module(sys.argv[1].rpartition("/")[2])
        device = session.device("opencl", 0)
        x = tvm.runtime.tensor(np.arange(100, dtype="float32"), device)
        y = tvm.runtime.empty((100,), "float32", device)
        library["triple"](x, y)
        timed = library.time_evaluator("triple", device, number=3, repeat=2)(x, y)
        right = bool((y.numpy() == 3 * np.arange(100)).all())
        result = {"exists": bool(device.exist), "name": device.device_name, "right": right}
        result["us"] = [1e6 * seconds for seconds in timed.results]
        print(json.dumps(result))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
