"""Which trainings a law is fitted to, and which ones it foretells. Pure."""

from distill.budget.law import Budget


def given(answer_tokens: int, epochs: float, layers: int = 1, ids: int = 4096, text_tokens: int = 0) -> Budget:
    """A budget, what most trainings share left out."""
    return Budget(answer_tokens, epochs, text_tokens, layers, ids)


# each thing is varied while others stand still, and most of them at two depths or two sizes
FITTED: tuple[Budget, ...] = (
    given(20_000, 1),
    given(20_000, 4),
    given(60_000, 1),
    given(60_000, 4),
    given(200_000, 1),
    given(200_000, 2),
    given(60_000, 2, layers=2),
    given(200_000, 1, layers=2),
    given(20_000, 1, layers=4),
    given(60_000, 1, layers=4),
    given(60_000, 2, layers=4),
    given(200_000, 1, layers=4),
    given(60_000, 2, ids=1024),
    given(60_000, 2, ids=16_384),
    given(20_000, 1, text_tokens=100_000),
    given(60_000, 1, text_tokens=200_000),
)

# foretold before they are made: between what was fitted, and beyond it
CONFIRMED: tuple[Budget, ...] = (
    given(120_000, 2, layers=2),
    given(300_000, 1, layers=4),
)
