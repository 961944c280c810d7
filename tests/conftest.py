"""Fixtures that any test may ask for, and how Hypothesis goes about its examples."""

from hypothesis import settings

pytest_plugins = ["tests.s3server"]

settings.register_profile("headwater", deadline=None)  # the machine is shared, and some examples sync files
settings.load_profile("headwater")
