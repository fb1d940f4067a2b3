"""What holds for every test."""

import pytest
from hypothesis import settings

# A deadline for each example fails on a busy machine for no fault of the code.
settings.register_profile("smartgw", deadline=None)
settings.load_profile("smartgw")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in four processes, a file in one: most of its time it waits.

    A part that was asked for by name runs here, where it can be debugged; `-n` says otherwise.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    may_part = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")
    if whole and may_part and config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = 4
        config.option.dist = "loadfile"
        # The files with the fewest tests, which would come last, take longest.
        config.option.loadscopereorder = False
