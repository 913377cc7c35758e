"""A progress bar for what takes long, where someone is watching."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

_PATIENCE_S = 1.0


class Progress:
    """Told (done, all), draws a bar on stderr once a second has gone by; silent where stderr is no terminal."""

    def __init__(self, label: str) -> None:
        self._label, self._start, self._drawn = label, time.monotonic(), 0
        self._bar: ProgressBar[int] | None = None
        self._finished = False

    def __call__(self, done: int, total: int) -> None:
        """Draw how far it is."""
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._start < _PATIENCE_S:
                return
            self._bar = click.progressbar(length=total, label=self._label, file=sys.stderr)
            if (context := click.get_current_context(silent=True)) is not None:
                context.call_on_close(self.finish)  # where an error ends the work
        self._bar.update(done - self._drawn)
        self._drawn = done
        if done == total:
            self.finish()

    def finish(self) -> None:
        """Leave the line and show the cursor again, however far it came; nothing where no bar is drawn."""
        if self._bar is not None and not self._finished:
            self._finished = True
            self._bar.render_finish()
            self._bar, self._drawn = None, 0  # what is counted anew has a bar of its own
