"""The fixtures of the core's tests that these use."""

from tests.conftest import nowhere as nowhere
from tests.conftest import rulerkit as rulerkit
from tests.conftest import serve as serve
