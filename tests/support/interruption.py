"""Resume runs from the checkpoints that an interruption would leave."""

from __future__ import annotations

import shutil

import pytest

import fedfuse as ff
from fedfuse.training import loop


def resumed_at(stops, federation, method, out, **settings):
    """The results of one run that is resumed from its checkpoint after each of these rounds; no others are saved."""
    save = loop.Run.save

    def save_and_copy(run):
        if run.k in stops and run.directory.path == out:
            save(run)
            shutil.copytree(out, f"{out}-{run.k}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Run, "save", save_and_copy)
        ff.fit(federation, method, out=out, **{**settings, "checkpoint_every": 1})
        for stop in stops:
            yield ff.resume(f"{out}-{stop}", federation)
