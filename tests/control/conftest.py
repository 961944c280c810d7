"""Examples may take their time: the machine is shared, and some of them sync files."""

from hypothesis import settings

settings.register_profile("headwater", deadline=None)
settings.load_profile("headwater")
