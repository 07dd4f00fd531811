"""Facts about the values of a graph that the walk of :mod:`.propagate` collects."""

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
    """Facts about values besides types and constants, which the graph has."""

    graph: Graph
    #: Names of values by others that they have.
    aliases: dict[str, str] = field(default_factory=dict)
    #: Sequences as their tensors' names; ``None`` for an optional value that is none.
    sequences: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    #: All names that something reads.
    used: set[str] = field(default_factory=set)
    #: All names of values.
    taken: set[str] = field(default_factory=set)
    #: Conditions, computed at run time, of the branches that the walk is in.
    conditions: list[str] = field(default_factory=list)
    #: Nodes that loops have become so far.
    unrolled: int = 0
    #: What the walk knows of sizes that are known only at run time.
    sizes: RunTimeSizes | None = None
    #: Whether loops may be the virtual machine's (:mod:`.expanders.vm_loops`).
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
        """Tell whether a value has a type, or is a sequence."""
        known = (self.graph.types, self.graph.constants, self.sequences)
        return any(name in names for names in known)
