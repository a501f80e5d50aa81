"""Which device: the one named, else this machine's; its file, else what is published, else nothing."""

import stat

import pytest

from architectures.errors import UserError
from distill.expected_time import devices
from distill.expected_time.devices import device_files, find_device, known_slugs, slug_of, this_device_name


@pytest.fixture
def folders(device_file, records):
    return (device_file(records["h100"]).parent,)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """driver(script): an nvidia-smi that does this, and nothing else on PATH."""

    def put(script: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent))

    return put


@pytest.mark.parametrize("wanted", ["NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3", "nvidia h100 80GB hbm3"])
def test_a_name_and_a_slug_find_the_file(wanted, folders):
    found = find_device(wanted, folders)
    assert found.name == "NVIDIA H100 80GB HBM3"
    assert found.figures is not None
    assert found.figures.measured == "2026-12-01"
    assert found.published is not None


def test_a_file_by_its_path(device_file, records, tmp_path):
    file = device_file(records["cores"])
    found = find_device(str(file), (tmp_path / "none",))
    assert (found.name, found.is_processor, found.published) == ("AMD EPYC, 2 cores", True, None)


def test_a_published_gpu_without_a_file(tmp_path):
    found = find_device("nvidia-h200", (tmp_path,))
    assert found.figures is None
    assert found.published is not None
    assert (found.name, found.is_processor) == ("NVIDIA H200", False)


def test_an_unknown_device_is_refused_with_those_there_are(folders):
    with pytest.raises(UserError) as refused:
        find_device("h1000", folders)
    assert str(refused.value) == (
        "--device h1000: is no device that anything is known of. There are nvidia-h100-80gb-hbm3, nvidia-h100-pcie, "
        "nvidia-h200, nvidia-a100-sxm4-80gb; or name a file that `python -m benchmarks.gpu` wrote."
    )


def test_a_file_that_is_not_there_is_refused(folders):
    with pytest.raises(UserError, match=r"absent\.json: cannot be read \(No such file or directory\)"):
        find_device("absent.json", folders)


def test_this_machine_may_be_named_though_nothing_is_known_of_it(folders, monkeypatch):
    monkeypatch.setattr(devices, "this_device_name", lambda: "Some Processor, 4 cores")
    assert find_device("some-processor-4-cores", folders).figures is None


def test_the_gpu_is_this_device_where_the_driver_tells_one(driver, folders):
    driver('test "$1 $2" = "--query-gpu=name --format=csv,noheader" && echo "NVIDIA H100 80GB HBM3" && echo "another"')
    assert this_device_name() == "NVIDIA H100 80GB HBM3"
    found = find_device(None, folders)
    assert found.figures is not None


@pytest.mark.parametrize("script", ["exit 9", "true", "echo no devices; exit 6"])
def test_a_driver_without_a_gpu_leaves_the_processor(script, driver, monkeypatch):
    driver(script)
    monkeypatch.setattr(devices, "hardware", lambda: {"processor": "AMD EPYC", "cores": 2})
    assert this_device_name() == "AMD EPYC, 2 cores"


def test_the_first_folder_that_is_there_counts(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    assert list(device_files((tmp_path / "absent", *folders))) == ["nvidia-h100-80gb-hbm3"]
    assert device_files((tmp_path / "empty", *folders)) == {}
    assert known_slugs((tmp_path / "absent",))[0] == "nvidia-h100-80gb-hbm3"


def test_slugs():
    assert slug_of("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert slug_of("Intel(R) Xeon(R) @ 2.1GHz, 2 cores") == "intel-r-xeon-r-2-1ghz-2-cores"


def test_the_bench_names_files_as_check_looks_for_them(monkeypatch):
    import torch

    from benchmarks.gpu.record import device_name
    from benchmarks.gpu.record import slug_of as slug_of_bench

    monkeypatch.setattr(devices, "gpu_name", lambda: None)
    assert slug_of_bench(device_name(torch.device("cpu"))) == slug_of(this_device_name())
