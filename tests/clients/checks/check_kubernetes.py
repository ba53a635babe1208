"""kubeflow-training 1.9: each PyTorchJob fits the model of its API."""

import json
from pathlib import Path
from types import SimpleNamespace

import yaml
from cases import Case, expect, run
from kubeflow.training import ApiClient, KubeflowOrgV1PyTorchJob


def check(folder: Path, case: Case) -> None:
    plan = case["plan"]
    names = [group["chip"]["name"] for group in case["problem"]["cluster"]["groups"]]
    devices = {}
    client = ApiClient()
    for manifest in yaml.safe_load_all((folder / "kubernetes.yaml").read_text()):
        answer = SimpleNamespace(data=json.dumps(manifest))
        job = client.deserialize(answer, KubeflowOrgV1PyTorchJob)
        # Whatever the model does not know would be lost on the way back.
        expect(client.sanitize_for_serialization(job), manifest, "fields")
        for replicas in job.spec.pytorch_replica_specs.values():
            pod = replicas.template.spec
            [count] = pod.containers[0].resources.limits.values()
            expect(count, job.spec.nproc_per_node, "processes of a node")
            kind = pod.node_selector["chip"]
            devices[kind] = devices.get(kind, 0) + replicas.replicas * int(count)
    of_stage = plan["dp"] * plan["tp"] * plan["cp"]
    wanted: dict[str, int] = {}
    for stage in plan["stages"]:
        name = names[stage["chip"]]
        wanted[name] = wanted.get(name, 0) + of_stage
    expect(devices, wanted, "devices of each kind")


if __name__ == "__main__":
    run(check)
