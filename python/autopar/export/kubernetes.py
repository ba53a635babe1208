"""Kubernetes: a Kubeflow PyTorchJob for each kind of chip, or an MSJob of MindSpore's ms-operator.

One pod takes one node with all its devices. The pods run a script, which is the file of another
launcher, from a ConfigMap; it finds NODE_RANK, MASTER_ADDR and MASTER_PORT in its environment. With
several kinds of chip each has a job of its own, and node ranks follow the order of the stages. An
MSJob has one template for its workers and one scheduler, and its operator tells the workers of one
job how many there are (mindspore-ai/ms-operator, pkg/apis/v1 and controllers), so that several
kinds are refused, and a worker of parameter servers is one pod of one device.
"""

import re
from typing import Any

from autopar.errors import SpecError
from autopar.export.job import File, Job, commented, header, yaml_text
from autopar.placement import Servers
from autopar.render.placement import NAMES
from autopar.render.text import GIB, PS_PER_S

PORT = 29500
# What a node offers, by how the names of its chips begin: the resource of the vendor's plugin.
RESOURCES = {
    **dict.fromkeys(
        ("a100", "a800", "b200", "b300", "gb200", "gh200", "h100", "h20", "h200", "h800", "l40s",
         "rtx4090", "t4", "v100"),
        "nvidia.com/gpu",
    ),
    "ascend_910": "huawei.com/Ascend910",
    "cambricon": "cambricon.com/mlu",
    "gaudi": "habana.ai/gaudi",
    "iluvatar": "iluvatar.com/gpu",
    "kunlun": "kunlunxin.com/xpu",
    "metax": "metax-tech.com/gpu",
    "mi": "amd.com/gpu",
    "mthreads": "mthreads.com/gpu",
    "tpu": "google.com/tpu",
}  # fmt: skip

LIMITS: tuple[dict[str, Any], ...] = ({},)


def supports(job: Job) -> list[str]:
    """Returns what the jobs cannot say of a plan's place; what runs in them is the script's."""
    reasons = []
    for kind, devices in _devices(job):
        chip = job.problem.cluster.groups[kind].chip
        if devices > chip.devices_per_node and devices % chip.devices_per_node:
            reasons.append(f"{devices} {chip.name} on nodes of {chip.devices_per_node}")
        if _resource(chip.name) is None:
            reasons.append(f"the chip {chip.name}, of no device plugin that is known")
    if len(job.kinds) > 1 and _is_mindspore(job):
        reasons.append("several kinds of chip in one MSJob, whose workers share one pod template")
    return reasons


def files(job: Job) -> list[File]:
    """Returns the manifest.

    Raises:
        SpecError: No container image is given.
    """
    if job.image is None:
        hint = "Name the container image that holds the launcher."
        raise SpecError("--image", "missing", hint)
    name = _name(job.problem.model.name)
    lines = [
        *header(job),
        f"The script of the pods: kubectl create configmap {name}-run --from-file=run.sh=FILE",
        *(f"Label the nodes: kubectl label node NODE chip={chip}" for chip in _chips(job)),
    ]
    manifests = [_nodes_job(job)] if _is_mindspore(job) else _torch_jobs(job)
    return [File("kubernetes.yaml", commented(lines) + "---\n".join(map(yaml_text, manifests)))]


def _torch_jobs(job: Job) -> list[dict[str, Any]]:
    name, jobs, offset = _name(job.problem.model.name), [], 0
    first = f"{name}-{_label(_chips(job)[0])}-master-0"
    for (kind, devices), chip in zip(_devices(job), _chips(job), strict=True):
        node = min(job.problem.cluster.groups[kind].chip.devices_per_node, devices)
        nodes = devices // node
        command = (
            f"export NODE_RANK=$(({offset} + RANK)) MASTER_ADDR={first} MASTER_PORT={PORT};"
            " exec bash /autopar/run.sh"
        )
        pod = _pod(name, job.image, chip, node, "pytorch", command)
        roles = {"Master": 1, "Worker": nodes - 1}
        jobs.append(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": f"{name}-{_label(chip)}"},
                "spec": {
                    "nprocPerNode": str(node),
                    "runPolicy": {"cleanPodPolicy": "None"},
                    "pytorchReplicaSpecs": {
                        role: {"replicas": count, "restartPolicy": "Never", "template": pod}
                        for role, count in roles.items()
                        if count
                    },
                },
            }
        )
        offset += nodes
    return jobs


def _nodes_job(job: Job) -> dict[str, Any]:
    """Returns the MSJob of a plan: a worker a node, and no servers."""
    [(kind, devices)], [chip] = _devices(job), _chips(job)
    node = min(job.problem.cluster.groups[kind].chip.devices_per_node, devices)
    name = _name(job.problem.model.name)
    return _ms_job(name, job.image, chip, workers=devices // node, devices=node)


def servers_job(found: Servers, image: str) -> File:
    """Returns the manifest of a job with parameter servers: an MSJob, of one device a worker.

    Args:
        found: Workers and servers.
        image: Container image.

    Raises:
        SpecError: The chip has no device plugin that is known.
    """
    [group], options = found.problem.cluster.groups, found.problem.options
    chip, workers = group.chip.name, found.problem.cluster.devices
    if _resource(chip) is None:
        what = f"the chip {chip}, of no device plugin that is known"
        raise SpecError("--chip", what, "Choose another.")
    name = _name(found.problem.graph.name)
    servers = f"{options.servers} server{'' if options.servers == 1 else 's'}"
    lines = [
        f"{found.problem.graph.name} on {workers} x {chip} and {servers}.",
        *(
            f"Expected, {NAMES[each.parameters]}:"
            f" {each.synchronous.step_ps / PS_PER_S:.6g} s a step,"
            f" {each.worker_bytes / GIB:.1f} GiB a worker, {each.server_bytes / GIB:.1f} a server."
            for each in found.placements
            if each.lost_server_s is not None
        ),
        f"Written by autopar {found.problem.version}, catalog {found.problem.catalog}.",
        f"The script of the pods: kubectl create configmap {name}-run --from-file=run.sh=FILE",
        f"Label the nodes: kubectl label node NODE chip={chip}",
    ]
    manifest = _ms_job(name, image, chip, workers=workers, devices=1, servers=options.servers)
    if options.dynamic_workers:
        manifest["spec"]["enableDynamicWorker"] = True
    return File("kubernetes.yaml", commented(lines) + yaml_text(manifest))


def _ms_job(
    name: str, image: str | None, chip: str, *, workers: int, devices: int, servers: int = 0
) -> dict[str, Any]:
    """Returns an MSJob of a scheduler, servers, and workers that take so many devices each."""
    command = "exec bash /autopar/run.sh"
    idle = _pod(name, image, chip, 0, "mindspore", command)
    roles = {
        "Scheduler": (1, idle),
        "PS": (servers, idle),
        "Worker": (workers, _pod(name, image, chip, devices, "mindspore", command)),
    }
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},
            "successPolicy": "AllWorkers",
            "msReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "Never", "template": pod}
                for role, (count, pod) in roles.items()
                if count
            },
        },
    }


def _pod(
    name: str, image: str | None, chip: str, devices: int, container: str, command: str
) -> dict[str, Any]:
    """Returns the template of a pod that takes so many devices of a node, or none of them."""
    spec: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    if devices:
        spec["nodeSelector"] = {"chip": chip}
        resources = {"resources": {"limits": {_resource(chip): str(devices)}}}
    spec["containers"] = [
        {
            "name": container,
            "image": image,
            "command": ["bash", "-c", command],
            **resources,
            "volumeMounts": [
                {"name": "run", "mountPath": "/autopar"},
                {"name": "shared-memory", "mountPath": "/dev/shm"},
            ],
        }
    ]
    spec["volumes"] = [
        {"name": "run", "configMap": {"name": f"{name}-run"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": spec}


def _devices(job: Job) -> list[tuple[int, int]]:
    """Returns each kind of chip with the devices that it gives, in the order of the stages."""
    plan = job.plan
    return [
        (kind, plan.devices_per_stage(kind) * sum(stage.chip == kind for stage in plan.stages))
        for kind in job.kinds
    ]


def _chips(job: Job) -> list[str]:
    return [job.problem.cluster.groups[kind].chip.name for kind in job.kinds]


def _is_mindspore(job: Job) -> bool:
    return job.problem.framework.name.startswith(("mindformers", "mindspore"))


def _resource(chip: str) -> str | None:
    return next((name for prefix, name in RESOURCES.items() if chip.startswith(prefix)), None)


def _name(model: str) -> str:
    return f"train-{_label(model)}"[:40].strip("-")


def _label(text: str) -> str:
    """Returns a text as a part of a name in Kubernetes: small letters, digits and hyphens."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
