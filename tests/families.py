"""The families by what they are, for laws that hold of some alone."""

from architectures.families import FAMILIES

DECODER_ONLY = {name: family for name, family in FAMILIES.items() if family.encoder is None}
WIDE = [name for name, family in FAMILIES.items() if family.width]
WITH_EXPERTS = [name for name, family in FAMILIES.items() if "experts" in family.keys]
WITH_NEURONS = [name for name in WIDE if name not in WITH_EXPERTS]
ENCODER_DECODER = {name: family for name, family in FAMILIES.items() if family.encoder is not None}
