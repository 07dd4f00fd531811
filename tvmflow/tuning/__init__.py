"""Tuning: the knobs of a network's primary functions, found by measuring, kept in journals.

:mod:`.tasks` says what there is to tune, :mod:`.search` proposes knobs, :mod:`.building` makes
modules of them in worker processes, :mod:`.measure` measures these on a device, and
:mod:`.tuner` brings them together.
"""
