"""torchtitan 0.2: `ConfigManager`, `ParallelDims` and its table of schedules take the file."""

from pathlib import Path

from cases import Case, expect, layers_of, run
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims


def check(folder: Path, case: Case) -> None:
    plan, batch = case["plan"], case["problem"]["workload"]["global_batch_size"]
    config = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    said = config.parallelism
    dims = ParallelDims(
        dp_replicate=said.data_parallel_replicate_degree,
        dp_shard=said.data_parallel_shard_degree,
        cp=said.context_parallel_degree,
        tp=said.tensor_parallel_degree,
        pp=said.pipeline_parallel_degree,
        ep=said.expert_parallel_degree,
        etp=said.expert_tensor_parallel_degree,
        world_size=case["problem"]["cluster"]["devices"],
    )
    expect(dims.dp_replicate * dims.dp_shard, plan["dp"], "dp")
    expect((dims.tp, dims.cp, dims.pp, dims.ep), tuple(plan[k] for k in ("tp", "cp", "pp", "ep")),
           "tp, cp, pp, ep")  # fmt: skip
    kinds = {stage["recompute"]["granularity"] for stage in plan["stages"]}
    wanted = {"none": "none", "selective": "selective"}
    checkpoint = config.activation_checkpoint
    expect({checkpoint.mode}, {wanted.get(kind, "full") for kind in kinds}, "recompute")
    if checkpoint.mode == "selective":
        expect(checkpoint.selective_ac_option, "op", "recomputed operators")
    if plan["ep"] > 1:
        expect(said.expert_parallel_comm_backend, "standard", "exchange of the experts")
    if plan["zero"]:
        expect(dims.dp_shard * dims.cp, plan["shard_group"], "shard group")
    # As torchtitan/train.py works out the accumulation.
    local = config.training.local_batch_size
    steps, rest = divmod(config.training.global_batch_size, local * plan["dp"])
    expect(rest, 0, "rest of the batch")
    if plan["pp"] == 1:
        expect(steps * plan["mbs"] * plan["dp"], batch, "global batch")
        expect(local, plan["mbs"], "micro-batch")
        return
    expect(steps, 1, "accumulation beside the pipeline")
    expect(
        local // said.pipeline_parallel_microbatch_size * plan["mbs"] * plan["dp"], batch, "batch"
    )
    schedule = get_schedule_class(said.pipeline_parallel_schedule)
    expect(issubclass(schedule, PipelineScheduleMulti), plan["vpp"] > 1, "chunks of the schedule")
    chunks = [
        sum(name.startswith("layers.") for name in part) for part in said.module_fqns_per_model_part
    ]
    pp = plan["pp"]
    if said.pipeline_parallel_schedule == "ZBVZeroBubble":
        stages = [chunks[stage] + chunks[-1 - stage] for stage in range(pp)]
    else:
        stages = [sum(chunks[stage::pp]) for stage in range(pp)]
    expect(stages, layers_of(case), "layers of the stages")


if __name__ == "__main__":
    run(check)
