"""How a target is held while it answers and teaches: on one device, spread over several, or on the disk. No torch."""

from dataclasses import dataclass
from typing import Literal

Placement = Literal["whole", "spread", "layers"]


@dataclass(frozen=True)
class Holding:
    """Where a target's weights are, how much memory they may take there, and in how many bits.

    Attributes:
        placement: whole: on one device. spread: over the GPUs of this machine, its memory and its disk. layers: on the
            disk, from where each layer is read when its turn comes.
        device_memory_gib: That the target may take on each device that computes; None for what is free.
        bits: 8 or 4, of a weight of the linear layers; None leaves them in the number type.
    """

    placement: Placement = "whole"
    device_memory_gib: float | None = None
    bits: int | None = None

    @property
    def claimed(self) -> dict[str, int]:
        """What makes another model of the target, for whoever records what it made; nothing where nothing does."""
        return {} if self.bits is None else {"bits": self.bits}

    @property
    def mistake(self) -> str | None:
        """Why these do not go together, with the remedy; None where they do."""
        if self.placement == "whole" and self.device_memory_gib is not None:
            return f"device_memory_gib is {self.device_memory_gib:g} with placement: whole, which has no cap. {CHOOSE}"
        if self.placement != "whole" and self.bits is not None:
            return (
                f"bits is {self.bits} with placement: {self.placement}. Packed weights are whole on one device: leave "
                "one of the two out."
            )
        return None


CHOOSE = "Choose spread or layers, or leave the cap out."
WHOLE = Holding()
