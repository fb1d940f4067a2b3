"""What holds for every test."""

from hypothesis import settings

# A deadline for each example fails on a busy machine for no fault of the code.
settings.register_profile("smartgw", deadline=None)
settings.load_profile("smartgw")
