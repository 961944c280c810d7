"""Fixtures that any test may ask for, and how Hypothesis goes about its examples."""

import os

from hypothesis import settings

pytest_plugins = ["tests.s3server"]

settings.register_profile("headwater", deadline=None)  # the machine is shared, and some examples sync files
settings.register_profile("soak", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "headwater"))
