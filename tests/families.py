"""The families by what they are, for laws that hold of some alone."""

from architectures.families import FAMILIES

DECODER_ONLY = {name: family for name, family in FAMILIES.items() if family.encoder is None}
ENCODER_DECODER = {name: family for name, family in FAMILIES.items() if family.encoder is not None}
