"""Text files as they are read everywhere: UTF-8, with or without a byte-order mark."""

from __future__ import annotations

from pathlib import Path

from specsim.errors import Fault, InputError


def text_of(path: Path, allowed: str) -> str:
    """A file's text; raises InputError where it cannot be read or is none, with what is `allowed` there."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError([Fault(str(path), "", f"cannot be read ({error.strerror})", "")]) from None
    except UnicodeDecodeError:
        raise InputError([Fault(str(path), "", "is not text in UTF-8", allowed)]) from None
