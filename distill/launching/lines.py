"""Lines of shell that every script has. They want NODE_RANK, MASTER_ADDR and MASTER_PORT set. No torch."""

from distill.launching.launch import Launch, quoted

CONTINUED = " \\\n  "
SAFE_PATH = "export PYTHONSAFEPATH=1  # files of the working folder hide no package"
SHARED = "/shared"  # where volumes are mounted


def composer_line(launch: Launch) -> str:
    """Composer's launcher, which gives its processes every variable that Composer reads."""
    return CONTINUED.join(
        [
            "exec python -m composer",
            f"--nproc {launch.processes} --world_size {launch.all_processes}",
            f'--node_rank "$NODE_RANK" --base_rank "$((NODE_RANK * {launch.processes}))"',
            '--master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"',
            f"-m widedraft {quoted(launch.words)}",
        ]
    )


def torchrun_line(launch: Launch) -> str:
    """torchrun, whose processes inherit NODE_RANK: it sets none, and Composer asks for it where it names files."""
    return CONTINUED.join(
        [
            "exec python -m torch.distributed.run",
            f'--nnodes {launch.nodes} --nproc-per-node {launch.processes} --node-rank "$NODE_RANK"',
            '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"',
            f"-m widedraft {quoted(launch.words)}",
        ]
    )


def store_line() -> str:
    """Torchrun keeps the store in which processes meet, by libuv unless told otherwise (distill/ranks/joining.py)."""
    return "export USE_LIBUV=0"


def threads_line(launch: Launch) -> str:
    """What torchrun would set to 1: each process its share of the cores."""
    share = f"$(nproc) / {launch.processes}"
    return f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$(({share} > 0 ? {share} : 1))}}"'


def setup_lines(launch: Launch) -> list[str]:
    """Without the shell's refusal of variables that nobody set, which what activates an environment may read."""
    return [] if launch.setup is None else ["set +u", launch.setup, "set -u"]


def indented(text: str, spaces: int) -> str:
    """A block of YAML's text."""
    return "\n".join(" " * spaces + line if line else "" for line in text.splitlines())
