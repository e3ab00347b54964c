"""The fixtures of the core's tests, for those of the suites and commands beside it."""

from tests.conftest import *  # noqa: F403
