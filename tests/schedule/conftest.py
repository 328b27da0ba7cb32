"""Makes the plans of this folder importable: importlib mode leaves the test folders off the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
