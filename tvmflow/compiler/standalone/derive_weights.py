"""Choice of the arrays that a library stores, from which kernels' weights are derived.

A weight is stored once, even if kernels read it in several blocks of channels, and in fewer bits if
these represent it exactly.  An instance derives the other forms when it is created.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial

import numpy as np

from ...devices.choices import WINOGRAD
from ...ir import blocked
from ...module.standalone.plan import DerivedWeight, Plan
from ...module.standalone.small_weights import SmallWeight, smaller
from ...module.weights import content_digest
from ...schedules.winograd import TAPS, matrix_of_weights, transformed_weight


def derive_weights(plan: Plan, fallback: Plan | None, kind: str | None) -> dict[str, np.ndarray]:
    """Return the arrays to store by name, and record in the plans how weights are derived.

    ``kind`` is the type that large weights are stored in, ``None`` for their own; see
    `CompileOptions.weights`.
    """
    usual = {n: array for n, array in plan.weights.items() if n not in plan.alternative_weights}
    small = _small(usual, kind)
    arrays = dict(usual)
    if plan.alternative_weights:
        others = Plan(weights={n: plan.weights[n] for n in plan.alternative_weights})
        added = _share(usual, others, small, "choice")
        small |= _small(added, kind)
        # Windows are smaller than their transforms, of which other weights may be derived.
        kept = {*small, *others.stored_names.values()}
        windows = {name: array for name, array in added.items() if name not in small}
        arrays = _transformed(plan, arrays, windows, kept) | added
        plan.derived |= others.derived
        plan.stored_names |= others.stored_names
    if fallback is not None:
        added = _share(arrays, fallback, small, "cpu")
        small |= _small(added, kind)
        arrays |= added
        _derive_from_small(fallback, small)
    _derive_from_small(plan, small)
    stored: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        stored[name] = small[name].stored if name in small else array
        if name in small and (steps := small[name].steps) is not None:
            stored[_steps_of(name)] = steps
    return stored


def _small(weights: Mapping[str, np.ndarray], kind: str | None) -> dict[str, SmallWeight]:
    """Return those weights that can be stored as ``kind``."""
    return {n: found for n, array in weights.items() if (found := smaller(array, kind))}


def _derive_from_small(plan: Plan, small: Mapping[str, SmallWeight]) -> None:
    """Record how a plan's weights are derived from arrays of fewer bits."""
    for name in plan.weights:
        stored = plan.stored_names.get(name, name)
        if (found := small.get(stored)) is None:
            continue
        # The blocks are those of the stored array, also where a weight of the same content has
        # another shape.
        known = plan.derived.get(name)
        plan.derived[name] = DerivedWeight(
            found.stored, found.stored.shape[-1] if known is None else known.lanes,
            form=found.form, axes=found.axes,
            steps="" if found.steps is None else _steps_of(stored),
        )  # fmt: skip


def _steps_of(name: str) -> str:
    return f"{name}:steps"


def _share(
    arrays: Mapping[str, np.ndarray],
    fallback: Plan,
    small: Mapping[str, SmallWeight],
    prefix: str,
) -> dict[str, np.ndarray]:
    """Derive weights of the fallback from the other plan's ``arrays``; return the rest of them.

    The names of the rest begin with ``prefix``.

    A weight of equal content is shared, as is one that differs only in its blocks, or is the
    Winograd transform of another.  From a ``small`` weight only other blocks are derived: a
    transformed weight is then stored as well.
    """
    stored = {(array.dtype, content_digest(array)): name for name, array in arrays.items()}
    alike, windows = defaultdict(list), defaultdict(list)
    for name, array in arrays.items():
        # Steps belong to the blocks and lanes of the array itself.
        for view in [array] if name in small else _views(array):
            alike[_unblocked_shape(view)].append((name, view))
        if name not in small and array.ndim == 5 and array.shape[2:4] == (TAPS, TAPS):
            windows[array.dtype, array.shape[1]].append(name)
    added: dict[str, np.ndarray] = {}
    for name, array in fallback.weights.items():
        # Equal bytes of another dtype may become other values in fewer bits.
        digest = array.dtype, content_digest(array)
        found = stored.get(digest)
        if found is None:
            pairs = (
                (n, v, view) for view in _views(array) for n, v in alike[_unblocked_shape(view)]
            )
            same = next(((n, v) for n, v, view in pairs if _same(v, view)), None)
            if same is not None:
                found, fallback.derived[name] = same[0], DerivedWeight(same[1], array.shape[-1])
        if found is None and array.ndim == 4 and (outputs := _TILES.get(array.shape[0])):
            of_windows = windows[array.dtype, array.shape[2]]
            found = next((n for n in of_windows if _is_transform(arrays[n], array, outputs)), None)
            if found is not None:
                matrix = matrix_of_weights(outputs)
                fallback.derived[name] = DerivedWeight(arrays[found], array.shape[-1], matrix)
        if found is None:
            found = stored[digest] = f"{prefix}:{name}"
            added[found] = array
        fallback.stored_names[name] = found
    return added


def _transformed(
    plan: Plan,
    arrays: Mapping[str, np.ndarray],
    windows: Mapping[str, np.ndarray],
    kept: Collection[str],
) -> dict[str, np.ndarray]:
    """Derive weights of a plan that are Winograd transforms of windows; return the rest of them.

    Those that are ``kept`` stay as they are.
    """
    known = {n: w for n, w in windows.items() if w.ndim == 5 and w.shape[2:4] == (TAPS, TAPS)}
    left = dict(arrays)
    for name, array in arrays.items():
        if name in kept or array.ndim != 4 or (outputs := _TILES.get(array.shape[0])) is None:
            continue
        same = (n for n, w in known.items() if w.shape[1] == array.shape[2])
        found = next((n for n in same if _is_transform(known[n], array, outputs)), None)
        if found is not None:
            matrix = matrix_of_weights(outputs)
            plan.derived[name] = DerivedWeight(known[found], array.shape[-1], matrix)
            plan.stored_names[name] = found
            del left[name]
    return left


#: Outputs of a Winograd tile, by the number of planes of its weights.
_TILES = {(outputs + TAPS - 1) ** 2: outputs for outputs in WINOGRAD.values()}


def _views(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield views ``[N', ..., c]`` of a tensor, Winograd's planes also as blocks of it."""
    yield array
    if array.ndim == 4:
        yield array.reshape(-1, *array.shape[2:])


def _is_transform(windows: np.ndarray, wanted: np.ndarray, outputs: int) -> bool:
    """Return whether ``wanted[a * a, O', I, c]`` is Winograd's transform of ``OIHWo`` windows."""
    lanes = wanted.shape[-1]
    plain = np.moveaxis(windows, -1, 1).reshape(-1, *windows.shape[1:-1])
    rows = min(len(plain), wanted.shape[1] * lanes)
    close = partial(np.allclose, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())
    # Most weights that are no transform differ in the first row, which is quick to compare.
    first = transformed_weight(plain[:1], outputs).reshape(len(wanted), -1)
    if not close(first, wanted[:, 0, :, 0]):
        return False
    made = blocked.winograd_weight(transformed_weight(plain[:rows], outputs), lanes)
    blocks = made.shape[1]
    return close(made, wanted[:, :blocks]) and not (plain[rows:].any() or wanted[:, blocks:].any())


def _unblocked_shape(array: np.ndarray) -> tuple[object, ...]:
    """Return the dtype and extents that tensors ``[N', ..., c]`` have in common in any blocks."""
    return array.dtype.str, array.ndim, *array.shape[1:-1]


def _same(source: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether two such tensors are equal, but for zeros after the last common channel."""
    if min(source.ndim, wanted.ndim) < 2:
        return False
    rows = [np.moveaxis(a, -1, 1).reshape(-1, *a.shape[1:-1]) for a in (source, wanted)]
    common = min(map(len, rows))
    return (
        np.array_equal(rows[0][0], rows[1][0])
        and np.array_equal(rows[0][:common], rows[1][:common])
        and not any(each[common:].any() for each in rows)
    )
