"""Interrupt a run after a round, as Ctrl-C does, and go on from its checkpoint."""

from __future__ import annotations

import pytest

import fedfuse as ff
from fedfuse.training import loop


def interrupted_and_resumed(federation, method, stop, out, **settings):
    """The result of a run that was interrupted when round ``stop`` was saved, and then resumed."""
    save = loop.Run.save

    def interrupt(run):
        save(run)
        if run.k == stop:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Run, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ff.fit(federation, method, out=out, **settings)
    return ff.resume(out, federation)
