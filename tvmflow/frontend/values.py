"""Facts about a graph's values that the walk of :mod:`.propagate` collects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .graph import Graph
from .nested import all_nodes, names_of, nested_graphs

if TYPE_CHECKING:
    from .dynamic import RunTimeSizes
    from .dynamic.rewriter import Bounded


@dataclass
class Values:
    """Facts about values in addition to the types and constants in the graph."""

    graph: Graph
    #: Name under which a value is known, by each other name that it has.
    aliases: dict[str, str] = field(default_factory=dict)
    #: Names of the tensors of each sequence; ``None`` for an empty optional.
    sequences: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    #: Names of all values that are read.
    used: set[str] = field(default_factory=set)
    #: Names of all values.
    taken: set[str] = field(default_factory=set)
    #: Run-time conditions of the branches around the walk's position.
    conditions: list[str] = field(default_factory=list)
    #: Number of nodes that loops have been unrolled to so far.
    unrolled: int = 0
    #: Facts about sizes that are known only at run time.
    sizes: RunTimeSizes | None = None
    #: Whether TVM's virtual machine may run loops (:mod:`.expanders.vm_loops`).
    has_machine: bool = True

    def __post_init__(self) -> None:
        self.used.update(self.graph.consumers())
        self.taken.update(self.graph.constants, self.graph.types)
        for node in all_nodes(self.graph.nodes):
            self.used.update(node.input)
            self.taken.update(node.output)
            for inner in nested_graphs(node):
                self.used.update(names_of(inner.output))
                self.taken.update(names_of(inner.input))

    def resolve(self, name: str) -> str:
        """Return the name under which a value is known."""
        return self.aliases.get(name, name)

    def bounded(self, name: str) -> Bounded | None:
        """Return the axis of a value whose extent is known only at run time, if it has one."""
        return None if self.sizes is None else self.sizes.bounded.get(self.resolve(name))

    def is_known(self, name: str) -> bool:
        """Return whether a value has a type, or is a sequence."""
        known = (self.graph.types, self.graph.constants, self.sequences)
        return any(name in names for names in known)
