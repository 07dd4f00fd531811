"""Quantities as people read them."""

from __future__ import annotations


def bytes_text(count: int) -> str:
    """Return a size with a decimal unit: ``13.9 MB``."""
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 4)
    value = count / 1000**power
    if value >= 999.95 and power < 4:  # it would be printed as 1000.0
        value, power = value / 1000, power + 1
    return f"{value:.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio in per cent, or as a factor where that has more digits than it is worth."""
    if ratio is None:
        return ""
    return f"{100 * ratio:.0f} %" if ratio < 10 else f"{ratio:.0f} ×"
