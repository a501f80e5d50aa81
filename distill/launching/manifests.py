"""A task of SkyPilot, and a job of Kubernetes, as YAML. No torch."""

import json

from distill.launching.launch import Launch
from distill.launching.lines import SAFE_PATH, SHARED, composer_line, indented, setup_lines

OF_SKYPILOT = f"""\
# sky jobs launch FILE, in the folder that recipe, prompts and target are in: it is copied to every node. The run is
# in {SHARED}, which all nodes share. Preempted nodes are replaced and the run continues; a mistake of the recipe ends
# it."""

OF_KUBERNETES = f"""\
# kubectl apply -f FILE. Recipe, prompts, target and run are on the claim, which every pod mounts at {SHARED} (so it
# must be ReadWriteMany) and works in. A pod that was evicted or has failed comes back, and the run continues; a mistake
# of the recipe (exit code 2) ends the job. A job that is there, also one that has ended, is started again by kubectl
# replace --force -f FILE, not by apply. Kubernetes 1.31 or later."""

RESTARTS = 6  # of all pods: when one is lost the others end too

# What is set and mounted is what a headless service and an indexed job have of themselves.
MANIFEST = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    batch.kubernetes.io/job-name: {name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: {restarts}
  podFailurePolicy:
    rules:
    - action: FailJob
      onExitCodes:
        containerName: widedraft
        operator: In
        values: [2]
    - action: Ignore
      onPodConditions:
      - type: DisruptionTarget
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      containers:
      - name: widedraft
        image: {image}
        workingDir: {shared}
        command: [bash, -c]
        args:
        - |
{script}
        resources:
          limits:
            nvidia.com/gpu: {processes}
        volumeMounts:
        - name: shared
          mountPath: {shared}
        - name: shm
          mountPath: /dev/shm
      volumes:
      - name: shared
        persistentVolumeClaim:
          claimName: {claim}
      - name: shm
        emptyDir:
          medium: Memory
"""


def skypilot_task(launch: Launch) -> str:
    """A task whose run folder is on a volume, or on what its setup mounts."""
    volume = [] if launch.volume is None else ["volumes:", f"  {SHARED}: {json.dumps(launch.volume)}"]
    return "\n".join(
        [
            OF_SKYPILOT,
            f"name: {launch.job_name}",
            f"num_nodes: {launch.nodes}",
            "resources:",
            f"  accelerators: {json.dumps(f'{launch.gpu}:{launch.processes}')}",
            "workdir: .",
            *volume,
            "setup: |",
            indented(f"{launch.setup}", 2),
            "run: |",
            indented(skypilot_run(launch), 2),
            "",
        ]
    )


def skypilot_run(launch: Launch) -> str:
    """What every node runs."""
    return "\n".join(
        [
            "set -euo pipefail",
            f'[ "$SKYPILOT_NUM_NODES" -eq {launch.nodes} ] || {or_end(f"num_nodes must be {launch.nodes}")}',
            f"mountpoint -q {SHARED} || {or_end(f'{SHARED} must be a disk that all nodes share')}",
            'export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_ADDR="${SKYPILOT_NODE_IPS%%$\'\\n\'*}"',
            f"export MASTER_PORT={launch.port}",
            SAFE_PATH,
            composer_line(launch),
        ]
    )


def or_end(reason: str) -> str:
    """Shell that says why it ends."""
    return f'{{ echo "{reason}" >&2; exit 2; }}'


def kubernetes_job(launch: Launch) -> str:
    """An indexed job, whose pods find the first by the name that a headless service gives it."""
    script = "\n".join(
        [
            "set -euo pipefail",
            f'export NODE_RANK="$JOB_COMPLETION_INDEX" MASTER_ADDR={launch.job_name}-0.{launch.job_name}',
            f"export MASTER_PORT={launch.port}",
            SAFE_PATH,
            *setup_lines(launch),
            composer_line(launch),
        ]
    )
    filled = MANIFEST.format(
        name=launch.job_name,
        nodes=launch.nodes,
        processes=launch.processes,
        restarts=RESTARTS * launch.nodes,
        image=json.dumps(launch.image),
        claim=json.dumps(launch.volume),
        shared=SHARED,
        script=indented(script, 10),
    )
    return f"{OF_KUBERNETES}\n{filled}"
