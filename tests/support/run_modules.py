"""Run module files until the input ends: the process of `drivers.Runner`."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback

# Printed text goes to stderr: stdout belongs to the answers.
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

import tvmflow  # noqa: E402

# Hooks are imported as tests import them.
sys.path[0] = os.path.dirname(sys.path[0])

hook = importlib.import_module(sys.argv[1]) if sys.argv[1] else None
if hook is not None:
    hook.install()

while True:
    try:
        path, feeds = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        with tvmflow.load(path) as module:
            values = hook.run(module, feeds) if hook is not None else module(feeds)
            answer = ({info.name: values[info.name] for info in module.outputs}, None)
    except Exception:  # noqa: BLE001 (the test that asked reports it)
        answer = (None, traceback.format_exc())
    pickle.dump(answer, answers)
    answers.flush()
