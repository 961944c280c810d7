"""Property tests run on shared cores: how long one example takes says nothing."""

from hypothesis import settings

settings.register_profile("headwater", deadline=None)
settings.load_profile("headwater")
