from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, settings

from specsim import fit, load_campaign
from specsim.cli.main import main

# Laws are tried on the same examples everywhere, so that a failure is a change's own; new ones are looked for with
# --hypothesis-profile search. No law is about speed.
settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def campaign():
    return load_campaign()


@pytest.fixture(scope="session")
def campaign_fit(campaign):
    return fit(campaign)


@pytest.fixture(scope="session")
def campaign_model(campaign_fit):
    return campaign_fit.model


@pytest.fixture
def run_cli():
    """Run a command as the shell would; unexpected exceptions come out as themselves."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


@pytest.fixture
def csv(tmp_path):
    """Write lines to a CSV file and return its path."""

    def write(*lines: str, name: str = "runs.csv"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write
