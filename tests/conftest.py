"""Every test has the embedded profile unless it names one, and leaves signals as they were."""

import os
import signal

import pytest

os.environ["PROFILE"] = "embedded"


@pytest.fixture(autouse=True)
def signals():
    """A command that runs in the process of its test sets handlers."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
