"""Over how many processes a copy of the student is divided."""

import pytest

from distill.recipe.sections import DistillConfig
from distill.trainer import shard_degree
from tests.rejections import rejects


def divided(asked, processes, of_machine):
    config = DistillConfig(device_train_microbatch_size=1, parallelism="hsdp", shard_degree=asked)
    return shard_degree(config, processes, of_machine)


DEGREES = [("auto", 16, 8, 8), (2, 4, 4, 2), (1, 3, 3, 1)]


@pytest.mark.parametrize(("asked", "processes", "of_machine", "degree"), DEGREES)
def test_auto_takes_those_of_a_machine(asked, processes, of_machine, degree):
    assert divided(asked, processes, of_machine) == degree


@pytest.mark.parametrize(("asked", "named"), [(3, [3, 4]), ("auto", ["auto", 3, 4])])
def test_copies_of_unequal_size_are_refused(asked, named):
    with rejects(*named):
        divided(asked, 4, 3)
