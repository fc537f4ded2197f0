"""What pyproject.toml cannot say: which modules the build backend has translated to C."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

import build_backend

setup(ext_modules=build_backend.extensions())
