"""A plan on its way to a launcher: the question, the answer, and the files that say it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from autopar import report
from autopar.render.text import GIB, estimate_summary
from autopar.report import Estimate, Plan, Recompute
from autopar.spec import Problem


@dataclass(frozen=True, slots=True)
class Job:
    """A plan with the problem that it answers and what it is expected to cost.

    Attributes:
        problem: What is trained, on what.
        plan: How.
        estimate: What a step costs.
        image: Container image, for launchers of containers.
    """

    problem: Problem
    plan: Plan
    estimate: Estimate
    image: str | None = None

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one replica runs in a step."""
        return self.problem.workload.global_batch_size // (self.plan.mbs * self.plan.dp)

    @property
    def kinds(self) -> list[int]:
        """The kinds of chip that hold stages, in the order of the stages."""
        return list(dict.fromkeys(stage.chip for stage in self.plan.stages))

    @property
    def devices_per_node(self) -> int:
        """Devices that one node gives the job; those of the first stage's kind."""
        chip = self.problem.cluster.groups[self.plan.stages[0].chip].chip
        return min(chip.devices_per_node, self.problem.cluster.devices)

    @property
    def nodes(self) -> int:
        """Nodes of the job, the last one perhaps not full."""
        return -(-self.problem.cluster.devices // self.devices_per_node)

    @property
    def whole_recompute(self) -> bool:
        """Whether every layer of every stage is recomputed from its own input."""
        return all(
            stage.recompute == Recompute("uniform", 1)
            or (
                stage.recompute.granularity == "block"
                and (stage.recompute.layers or 0) >= max(chunk_layers(self.plan, index))
            )
            or (
                stage.recompute.granularity == "parts"
                and (stage.recompute.layers or 0)
                >= self.plan.vpp * max(chunk_layers(self.plan, index))
            )
            for index, stage in enumerate(self.plan.stages)
        )


def chunk_layers(plan: Plan, index: int) -> list[int]:
    """Returns the layers of each chunk of a stage of a plan."""
    return report.chunk_layers([stage.layers for stage in plan.stages], plan.vpp, index)


@dataclass(frozen=True, slots=True)
class File:
    """A file of a launcher.

    Attributes:
        name: Its name, without a folder.
        text: What it holds.
    """

    name: str
    text: str


def when(*reasons: tuple[bool, str]) -> list[str]:
    """Returns the texts whose conditions hold.

    Example:
        >>> when((True, "offload"), (False, "recompute"))
        ['offload']
    """
    return [text for holds, text in reasons if holds]


def unsaid_everywhere(job: Job) -> list[str]:
    """Returns what no launcher that starts equal nodes can say: several kinds, a broken node."""
    devices, node = job.problem.cluster.devices, job.devices_per_node
    return when(
        (len(job.kinds) > 1, "several kinds of chip"),
        (devices % node != 0, f"{devices} devices on nodes of {node}"),
    )


def unsaid_host(plan: Plan) -> list[str]:
    """Returns what stages hold that few launchers can say: activations in host memory, no layer."""
    return when(
        (any(stage.offload for stage in plan.stages), "activation offload"),
        (not all(stage.layers for stage in plan.stages), "a stage without a layer"),
    )


def unsaid_selective(job: Job) -> list[str]:
    """Returns whether selective recompute is other than Megatron-LM's of the core of attention."""
    kinds = {stage.recompute.granularity for stage in job.plan.stages}
    other = job.problem.framework.selective != "attention"
    return when(("selective" in kinds and other, "recompute of single operators"))


def unsaid_optimizer(job: Job) -> list[str]:
    """Returns whether the optimizer is other than Adam, which few launchers name."""
    return when((job.problem.framework.orthogonal.iterations > 0, "updates made orthogonal"))


# Chips that only JAX and torch_xla's own launchers drive, by how their names begin.
XLA_CHIPS = ("tpu", "trainium")


def unsaid_framework(job: Job) -> list[str]:
    """Returns what no launcher of PyTorch can be told: chips of XLA, what MindSpore does beside."""
    framework, plan = job.problem.framework, job.plan
    chips = {job.problem.cluster.groups[kind].chip.name for kind in job.kinds}
    again = any(stage.recompute.granularity != "none" for stage in plan.stages)
    cut = plan.tp > 1
    return when(
        *((name.startswith(XLA_CHIPS), f"the chip {name}") for name in sorted(chips)),
        (plan.zero > 0 and framework.whole_below_bytes > 0, "small parameters that stay whole"),
        (cut and framework.sums_in_fp32, "sums of activations in 32 bits"),
        (cut and framework.whole_vocabulary, "a whole vocabulary on each tensor-parallel rank"),
        (cut and framework.gathered_logits, "logits gathered over tensor-parallel ranks"),
        (
            cut and again and not plan.sp and framework.slices_kept_inputs,
            "inputs of recomputed layers kept in slices",
        ),
        (
            cut and again and framework.keeps_tensor_results,
            "recompute that does not repeat communication",
        ),
        (
            plan.zero == 3 and again and framework.recompute_gathers,
            "recompute that gathers sharded parameters for itself",
        ),
        (
            any(stage.recompute.granularity == "parts" for stage in plan.stages),
            "recompute of layers and operators that are counted one by one",
        ),
    )


def header(job: Job) -> list[str]:
    """Returns the lines that open a file: what it is for and what a step is expected to cost.

    Each figure is the estimate's; nothing is added up here.
    """
    peak = max(cost.memory_bytes for cost in job.estimate.stages) / GIB
    return [
        f"{estimate_summary(job.problem, job.plan)}",
        f"Expected: {job.estimate.step_s:.6g} s a step, {job.estimate.tokens_per_s:,.0f} tokens/s,"
        f" {peak:.1f} GiB on the fullest device.",
        f"Written by autopar {job.problem.version}, catalog {job.problem.catalog}.",
    ]


def commented(lines: Iterable[str]) -> str:
    """Returns lines as a comment of shell, YAML, TOML or Python.

    Example:
        >>> commented(["one", "two"])
        '# one\\n# two\\n'
    """
    return "".join(f"# {line}\n" for line in lines)


def yaml_text(value: dict[str, Any]) -> str:
    """Returns a table as YAML, keys in their order, short lists on one line.

    Example:
        >>> yaml_text({"parallel": {"stages": [1, 2], "full": True}})
        'parallel:\\n  stages: [1, 2]\\n  full: true\\n'
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=10_000)


class _Dumper(yaml.SafeDumper):
    """Writes tables over several lines, lists without tables on one, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        node.flow_style = not mapping
        return node
