"""What holds for every test."""

from typing import Any

import pytest
from hypothesis import settings

# A deadline for each example fails on a busy machine for no fault of the code.
settings.register_profile("smartgw", deadline=None)
settings.load_profile("smartgw")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in four processes, a file in one: most of its time it waits.

    Forty servers and browsers share the machine then, and now and then one is held up for longer
    than a test can wait. What fails in the crowd is tried once more and named at the end; what
    fails twice has failed. A part that was asked for by name runs here, once, where it can be
    debugged; `-n` and `--reruns` say otherwise.
    """
    if hasattr(config, "workerinput"):
        config.option.reruns = config.workerinput["reruns"]
        return
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    may_part = config.pluginmanager.hasplugin("xdist")
    if whole and may_part and config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = 4
        config.option.dist = "loadfile"
        # The files with the fewest tests, which would come last, take longest.
        config.option.loadscopereorder = False
        if config.option.reruns is None:
            config.option.reruns = 1
            config.option.reportchars = "fER"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of the crowd what it does not see: it is given the command line as it was."""
    node.workerinput["reruns"] = node.config.option.reruns
