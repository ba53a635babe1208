"""kubeflow-training 1.9: each PyTorchJob fits the model of its API, and each MSJob that of its own.

An MSJob is made of the same types (mindspore-ai/ms-operator, pkg/apis/v1/msjob_types.go: RunPolicy
and ReplicaSpec are kubeflow's), so that their models read its parts. Its own fields, roles and
rules are those of msjob_types.go, common.go and of `validateV1ReplicaSpecs` in
pkg/controllers/v1/utils.go; its published schema, config/crd/bases/mindspore.gitee.com_msjobs.yaml,
is generated from these types.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from cases import Case, expect, run
from kubeflow.training import (
    ApiClient,
    KubeflowOrgV1PyTorchJob,
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
)

CLIENT = ApiClient()
# The fields of a job and of its specification, and the only values of two of them.
JOB = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {"runPolicy", "successPolicy", "msReplicaSpecs", "enableDynamicWorker"}
ROLES = {"Scheduler", "PS", "Worker"}
SUCCESS = {"", "AllWorkers"}
RESTART = {"Always", "OnFailure", "Never", "ExitCode"}


def read(value: dict[str, Any], kind: type) -> Any:
    """Returns what a model makes of a value, none of which may be lost on the way back."""
    found = CLIENT.deserialize(SimpleNamespace(data=json.dumps(value)), kind)
    expect(CLIENT.sanitize_for_serialization(found), value, f"fields of {kind.__name__}")
    return found


def pytorch_job(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the replicas that take devices, by role."""
    job = read(manifest, KubeflowOrgV1PyTorchJob)
    for replicas in job.spec.pytorch_replica_specs.values():
        pod = replicas.template.spec
        [count] = pod.containers[0].resources.limits.values()
        expect(count, job.spec.nproc_per_node, "processes of a node")
    return dict(job.spec.pytorch_replica_specs)


def ms_job(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the replicas that take devices, by role."""
    expect(manifest["apiVersion"], "mindspore.gitee.com/v1", "API")
    expect(manifest["kind"], "MSJob", "kind")
    expect(set(manifest) - JOB, set(), "fields of an MSJob")
    spec = manifest["spec"]
    expect(set(spec) - SPEC, set(), "fields of its specification")
    expect(spec.get("successPolicy", "") in SUCCESS, True, "success policy")
    read(spec["runPolicy"], KubeflowOrgV1RunPolicy)
    roles = spec["msReplicaSpecs"]
    expect(set(roles) - ROLES, set(), "roles")
    replicas = {role: read(said, KubeflowOrgV1ReplicaSpec) for role, said in roles.items()}
    for role, said in replicas.items():
        expect(said.restart_policy in RESTART, True, "restart policy")
        named = [each for each in said.template.spec.containers if each.name == "mindspore"]
        expect(len(named), 1, f"containers named mindspore of {role}")
        for container in said.template.spec.containers:
            expect(bool(container.image), True, f"image of {role}")
    # One scheduler joins workers and servers, and takes no devices.
    expect(replicas["Scheduler"].replicas, 1, "schedulers")
    return {
        role: said
        for role, said in replicas.items()
        if said.template.spec.containers[0].resources is not None
    }


def check(folder: Path, case: Case) -> None:
    plan = case["plan"]
    names = [group["chip"]["name"] for group in case["problem"]["cluster"]["groups"]]
    devices: dict[str, int] = {}
    for manifest in yaml.safe_load_all((folder / "kubernetes.yaml").read_text()):
        kinds = {"PyTorchJob": pytorch_job, "MSJob": ms_job}
        for replicas in kinds[manifest["kind"]](manifest).values():
            pod = replicas.template.spec
            [count] = pod.containers[0].resources.limits.values()
            kind = pod.node_selector["chip"]
            devices[kind] = devices.get(kind, 0) + replicas.replicas * int(count)
    # Kinds may have a tensor-parallel degree each.
    degrees = plan["tp_of_kind"] or [plan["tp"]] * len(names)
    wanted: dict[str, int] = {}
    for stage in plan["stages"]:
        name = names[stage["chip"]]
        of_stage = plan["dp"] * degrees[stage["chip"]] * plan["cp"]
        wanted[name] = wanted.get(name, 0) + of_stage
    expect(devices, wanted, "devices of each kind")


if __name__ == "__main__":
    run(check)
