"""The tools of the site are beside the pages, in docs/sitetools."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
