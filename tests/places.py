"""Where things lie that tests read, however deep the test's own folder is."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent  # of the repository
SHARED = ROOT.parent / "shared" / "data"  # real data beside the checkout, where there are any
