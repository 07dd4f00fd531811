"""Tuning: measuring knobs for a network's primary functions, with results in journals.

:mod:`.tasks` finds what can be tuned, :mod:`.search` proposes knobs, :mod:`.building` builds
modules for them in worker processes, :mod:`.measure` measures these on a device, and
:mod:`.tuner` combines them.
"""
