"""What holds for every test: how many processes run them, and who gets a second try."""

from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

# A deadline for each example fails on a busy machine for no fault of the code.
settings.register_profile("smartgw", deadline=None)
settings.load_profile("smartgw")

RERUN = "rerun"
MOST_SECOND_TRIES = 3
"""Of one process of the suite."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in four processes, a file in one: most of its time it waits.

    A part that was asked for by name runs here, where it can be debugged; `-n` says otherwise.
    """
    if hasattr(config, "workerinput"):
        return
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    may_part = config.pluginmanager.hasplugin("xdist")
    if whole and may_part and config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = 4
        config.option.dist = "loadfile"
        # The files with the fewest tests, which would come last, take longest.
        config.option.loadscopereorder = False
        config.stash[_CROWD] = True


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of the crowd that it is one."""
    node.workerinput[RERUN] = node.config.stash.get(_CROWD, False)


_CROWD = pytest.StashKey[bool]()
_TRIES = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Try what fails in the crowd once more, with every fixture made anew, and name it.

    Forty servers and browsers share the machine there, and now and then one is held up for longer
    than a test can wait. What fails twice has failed, and so has what fails where others did: then
    it is not the crowd. (pytest-rerunfailures does the same, and asks the controller several times
    about each test: that doubles what short ones cost.)
    """
    if not getattr(item.config, "workerinput", {}).get(RERUN):
        return None
    tries = item.config.stash.setdefault(_TRIES, [])
    hook, where = item.ihook, item.location
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=where)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failed = [report for report in reports if report.failed]
    if failed and len(tries) < MOST_SECOND_TRIES and _torn_down(item):
        tries.append(item.nodeid)
        for report in failed:
            report.outcome = RERUN  # type: ignore[assignment]  # a category of our own
            hook.pytest_runtest_logreport(report=report)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=where)
    return True


def _torn_down(item: pytest.Item) -> bool:
    """End every fixture, so that all are made anew; False: one of them does not end as it should,
    which is a failure of its own.
    """
    try:
        item.session._setupstate.teardown_exact(None)
    except Exception:
        return False
    return True


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show a first try that failed as such."""
    return (RERUN, "R", "RERUN") if str(report.outcome) == RERUN else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what needed a second try, with what was wrong the first time."""
    for report in terminalreporter.getreports(RERUN):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}")
        report.toterminal(terminalreporter._tw)
