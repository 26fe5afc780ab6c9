"""What every test shares: fixed seeds, and a run without a test counts as failed."""

import sys

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.helpers")

# The first call of an op compiles it, so a deadline would fail at random.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def fixed_seed():
    """Seed python, numpy and the backend, if the test module imports Keras."""
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(0)


def pytest_sessionfinish(session, exitstatus):
    """Report a run that skipped all its tests as one that found none."""
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if exitstatus == pytest.ExitCode.OK and not stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
