"""Options of sessions and runs, with ONNX Runtime's names.

They are taken, and change nothing: networks are compiled with all optimizations, and use as many
threads as `tvmflow.load` says.
"""

from __future__ import annotations

from enum import IntEnum


class GraphOptimizationLevel(IntEnum):
    """Levels of optimization, which make no difference here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Modes of execution, which make no difference here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions:
    """Options of a session."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self._entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Note an entry, which `get_session_config_entry` returns."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry; raises `KeyError` if it was not added."""
        return self._entries[key]


class RunOptions:
    """Options of a run."""

    def __init__(self) -> None:
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: Python's `logging` decides what is shown of the logger ``tvmflow``."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing, as `set_default_logger_severity`."""


def enable_telemetry_events() -> None:
    """Do nothing: tvmflow has no telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: tvmflow has no telemetry."""
