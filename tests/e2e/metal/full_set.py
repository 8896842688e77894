"""What `make e2e` runs, and `make test` leaves out."""

import os

import pytest

__all__ = ["full_set"]

full_set = pytest.mark.skipif(
    os.environ.get("RACKWRIGHT_E2E") != "full", reason="takes minutes: `make e2e` runs it (RACKWRIGHT_E2E=full)"
)
