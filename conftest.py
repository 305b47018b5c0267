"""Lets a checkout that is not installed be tested: kernels that notebooks start find the packages here."""

import os
from pathlib import Path

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
