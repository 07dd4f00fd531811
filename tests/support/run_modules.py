"""Runs module files until its input ends: the other side of `drivers.Runner`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback

# What is printed goes to stderr: stdout belongs to the answers.
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

import tvmflow  # noqa: E402

while True:
    try:
        path, feeds = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        with tvmflow.load(path) as module:
            values = module(feeds)
            answer = ({info.name: values[info.name] for info in module.outputs}, None)
    except Exception:  # noqa: BLE001 (the test that asked reports it)
        answer = (None, traceback.format_exc())
    pickle.dump(answer, answers)
    answers.flush()
