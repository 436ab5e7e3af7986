"""What holds for all tests: runs go to a temporary folder, and where everything is installed
nothing is skipped.
"""

import gc
import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def runs_in_a_temporary_folder(tmp_path_factory):
    """No test writes into the project's runs/; processes that a test starts inherit this."""
    before = os.environ.get("COMPATKIT_HOME")
    os.environ["COMPATKIT_HOME"] = str(tmp_path_factory.mktemp("runs"))
    yield
    os.environ.pop("COMPATKIT_HOME")
    if before is not None:
        os.environ["COMPATKIT_HOME"] = before


@pytest.fixture(autouse=True, scope="session")
def one_precision_on_every_processor():
    """Where no precision is named, tests train in float32, also where the processor has bfloat16:
    a test must not pass on one machine and fail on another.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "COMPATKIT_PRECISION" not in os.environ:
            patch.setenv("COMPATKIT_PRECISION", "float32")
        yield


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests of a file."""
    from browser import chromium

    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


def pytest_addoption(parser):
    """What tests/test_golden.py understands."""
    parser.addoption("--write-golden", action="store_true", help="write tests/golden.json anew")


SLOWEST = (  # names of files, the longest first
    "site own_case tables gated_fusion muscle cli adapters trainings language_study "
    "papermill_engine packaging page regularizers distillation_studies distillation".split()
)


def pytest_collection_modifyitems(items):
    """The files that take longest begin first, so that no worker is left with one of them at the
    end.
    """
    order = {f"test_{name}": position for position, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_collection_finish():
    """What is loaded by now stays: the collector of garbage need not look at it again.

    Every training of transformers begins with a full collection. Among the objects of torch,
    transformers and all collected tests it takes four times as long as the training of a tiny
    model.
    """
    gc.collect()
    gc.freeze()


def refuse_skip(report):
    """With COMPATKIT_REQUIRE_ALL=1 a skip is a failure, unless its reason begins with 'needs a
    GPU'.
    """
    if (
        os.environ.get("COMPATKIT_REQUIRE_ALL") != "1"
        or not report.skipped
        or hasattr(report, "wasxfail")
    ):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith("needs a GPU"):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped, though COMPATKIT_REQUIRE_ALL=1 allows only 'needs a GPU ...': {reason}"
        )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    refuse_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    outcome = yield
    refuse_skip(outcome.get_result())
