from __future__ import annotations

import pytest

from tests.golden.regenerate import COMMANDS, HERE, printed


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_printed_tables_have_not_changed(name):
    assert printed(COMMANDS[name]) == (HERE / name).read_text(encoding="utf-8"), "python -m tests.golden.regenerate"
