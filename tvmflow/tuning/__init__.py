"""Tuning: knobs that were measured, kept in binary journals.

What a journal holds is in :mod:`.records`, how it is read and written in :mod:`.journal`.
"""

from __future__ import annotations
