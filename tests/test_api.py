"""The Python API: typed, thread-safe, deterministic, quick to import."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace

import numpy
import pytest

import autopar
from autopar import Problem, Ranked, Recompute, SpecError, planner, wire
from conftest import EXAMPLES, heed_ctrl_c

# Long enough to be interrupted: many plans are asked for, so little can be cut.
LONG = (
    "import autopar\n"
    "print('ready', flush=True)\n"
    "autopar.search('llama3.1-405b', 'h100:16384,a800:16384,h800:16384', devices=32768,"
    " global_batch_size=4096, sequence_length=8192, top=100000)\n"
)


def test_every_public_name_is_documented() -> None:
    for name in autopar.__all__:
        if name != "__version__":
            assert getattr(autopar, name).__doc__, name


def test_a_search_returns_plans_that_fit_fastest_first(small: Problem) -> None:
    report = autopar.solve(replace(small, options=replace(small.options, top=20)))
    times = [ranked.estimate.step_ps for ranked in report.ranked]
    assert len(times) == 20
    assert times == sorted(times)
    for ranked in report.ranked:
        plan = ranked.plan
        assert plan.dp * plan.tp * plan.cp * plan.pp == 8
        assert ranked.estimate.violations == ()
        assert all(s.allocated_bytes <= s.capacity_bytes for s in ranked.estimate.stages)


def test_every_plan_of_a_report_costs_what_its_estimate_says(small: Problem) -> None:
    for ranked in autopar.solve(small).ranked:
        assert autopar.estimate(small, ranked.plan) == ranked.estimate


def test_an_estimate_is_the_sum_of_its_items(small: Problem) -> None:
    cost = autopar.estimate(small, autopar.plan(small, tp=2, pp=2, zero=1))
    assert sum(wire.write(cost.time).values()) == cost.step_ps
    for stage in cost.stages:
        items = wire.write(stage.memory)
        # The loss is over before a layer is recomputed: the smaller of the two does not count.
        together = min(items["logits"], items["working_set"])
        assert sum(items.values()) - together == stage.memory_bytes
        assert stage.memory_bytes - items["context"] == stage.reserved_bytes
        assert stage.reserved_bytes - items["cached"] == stage.allocated_bytes
    tokens = small.workload.global_batch_size * small.workload.sequence_length
    assert cost.tokens_per_s == pytest.approx(tokens / cost.step_s)
    assert cost.step_s == pytest.approx(cost.step_ps / 1e12)


def test_no_search_takes_a_run_s_share_of_offloaded_activations(small: Problem) -> None:
    held = replace(small.framework.held, offloaded_share=0.5)
    asked = replace(small, framework=replace(small.framework, held=held))
    assert autopar.estimate(asked, autopar.plan(asked, tp=2, pp=2, zero=1)).step_ps > 0
    with pytest.raises(SpecError, match="offloaded_share"):
        planner.solve(asked)


def test_a_timeline_adds_up_to_the_step(small: Problem) -> None:
    plan = autopar.plan(small, pp=4, zero=1)
    timeline = autopar.timeline(small, plan)
    cost = autopar.estimate(small, plan)
    assert not timeline.truncated
    # Every stage runs each of its 32 micro-batches forward and backward.
    passes = [(e.stage, e.kind, e.micro_batch) for e in timeline.events if "ward" in e.kind]
    assert len(passes) == len(set(passes)) == 4 * 2 * 32
    # Stages but the last send forward, stages but the first backward.
    sends = [e for e in timeline.events if e.kind == "send"]
    assert len(sends) == 2 * 3 * 32
    # The stage with the most work, by whose parts the step is split, is the one that waits least.
    spent = {
        stage: {
            kind: sum(e.duration_ps for e in timeline.events if (e.stage, e.kind) == (stage, kind))
            for kind in ("forward", "backward", "send", "data", "optimizer")
        }
        for stage in range(4)
    }
    busiest = max(spent.values(), key=lambda items: sum(items.values()))
    assert busiest["send"] == cost.time.pipeline_ps
    assert busiest["data"] == cost.time.data_ps > 0
    assert busiest["optimizer"] == cost.time.optimizer_ps > 0
    assert sum(busiest.values()) + cost.time.bubble_ps == cost.step_ps
    assert max(e.start_ps + e.duration_ps for e in timeline.events) == cost.step_ps


def test_parameters_are_those_that_were_published() -> None:
    # Touvron et al. 2023, arXiv:2307.09288: 32,000 x 4,096 twice, 32 layers, a norm.
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert autopar.model_facts("llama2-7b").parameters == 2 * 32000 * 4096 + 32 * layer + 4096


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_answer_does_not_depend_on_the_number_of_threads(small: Problem, threads: int) -> None:
    assert planner.solve_json(small, threads=threads) == planner.solve_json(small, threads=0)


def test_threads_of_python_may_search_at_once(small: Problem) -> None:
    alone = planner.solve_json(small)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: planner.solve_json(small), range(16))) == {alone}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_forked_child_may_search(small: Problem) -> None:
    alone = planner.solve_json(small)
    child = os.fork()
    if child == 0:
        os._exit(0 if planner.solve_json(small) == alone else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_other_threads_run_during_a_search() -> None:
    # The other thread counts while the search holds this one; a lock held throughout would stop it.
    problem = autopar.problem(
        "llama3.1-405b", "h100:16384", global_batch_size=4096, sequence_length=8192, top=100_000
    )
    ticks, done = 0, threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    try:
        autopar.solve(problem, time_limit_s=0.5)
    finally:
        done.set()
        counter.join()
    assert ticks > 10


def test_a_report_answers_its_own_problem_again(small: Problem) -> None:
    report = autopar.solve(small)
    assert report.problem == small
    assert autopar.rerun(report) == report


def test_progress_is_told_and_what_it_raises_ends_the_search() -> None:
    problem = autopar.problem(
        "llama3.1-405b", "h100:16384", global_batch_size=4096, sequence_length=8192, top=100_000
    )
    seen = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        autopar.solve(problem, progress=stop)
    assert seen[0][0] <= seen[0][1]


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent as a POSIX signal")
def test_ctrl_c_ends_a_search_with_a_keyboard_interrupt() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=60)
    assert error.rstrip().endswith("KeyboardInterrupt")


def test_importing_the_package_imports_no_library() -> None:
    script = (
        "import sys, autopar; names = {name.partition('.')[0] for name in sys.modules};"
        " print(*sorted(names & {'numpy', 'highspy', 'rich', 'click', 'tomllib', 'difflib'}))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"


def test_printing_a_table_elsewhere_than_on_a_terminal_imports_no_rich() -> None:
    script = (
        "import sys\nfrom autopar.cli import main\n"
        "main('search --model llama2-7b --cluster a800:8 --global-batch-size 8"
        " --sequence-length 4096'.split())\n"
        "print({'rich', 'numpy', 'highspy'} & {name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("\nset()\n")


def test_names_objects_and_files_ask_the_same(small: Problem) -> None:
    spelled = autopar.problem(
        small.model,
        small.cluster,
        framework=small.framework,
        global_batch_size=64,
        sequence_length=4096,
    )
    assert replace(spelled, catalog=small.catalog) == small


def test_a_file_is_named_by_text_or_path() -> None:
    by_path = autopar.problem(
        EXAMPLES / "model.toml", "a800:8", global_batch_size=8, sequence_length=4096
    )
    by_text = autopar.problem(
        str(EXAMPLES / "model.toml"), "a800:8", global_batch_size=8, sequence_length=4096
    )
    assert by_path == by_text
    assert by_path.model.name == "model"


def test_a_name_is_found_without_regard_to_case_and_dashes() -> None:
    sizes = {"global_batch_size": 8, "sequence_length": 4096}
    plain = autopar.problem("llama2-70b", "ascend_910b:8", **sizes)
    assert autopar.problem("LLaMA2_70B", "Ascend-910B:8", **sizes) == plain


def test_all_devices_within_the_limits_are_used_unless_said_otherwise() -> None:
    sizes = {"global_batch_size": 512, "sequence_length": 4096}
    assert autopar.problem("llama2-7b", "a800:128,h800:160", **sizes).cluster.devices == 288
    assert autopar.problem("llama2-7b", "a800:129", **sizes).cluster.devices == 128
    assert autopar.problem("llama2-7b", "a800:128", devices=64, **sizes).cluster.devices == 64


def test_the_catalog_hash_follows_the_files_that_were_read() -> None:
    sizes = {"global_batch_size": 8, "sequence_length": 4096}
    a800 = autopar.problem("llama2-7b", "a800:8", **sizes).catalog
    assert a800 == autopar.problem("llama2-7b", "a800:16", **sizes).catalog
    assert a800 != autopar.problem("llama2-7b", "h800:8", **sizes).catalog


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"global_batch_size": "64"},
            'workload.global_batch_size: must be a whole number, found "64"',
        ),
        ({"global_batch_size": 0}, "workload.global_batch_size: must be from 1"),
        ({"precision": "bf8"}, "workload.precision: must be one of bf16, "),
        ({"tp": 2}, "options.tp: must be a list, found 2"),
        ({"tpp": [2]}, "options.tpp: unknown key. Nearest: "),
        ({"memory_margin": float("nan")}, "options.memory_margin: must be a finite number"),
    ],
)
def test_wrong_arguments_raise_spec_error(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"global_batch_size": 64, "sequence_length": 4096} | change
    with pytest.raises(SpecError) as error:
        autopar.search("llama2-7b", "a800:8", **arguments)  # type: ignore[arg-type]
    assert str(error.value).startswith(message)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, autopar.AutoparError)


WRONG_TYPES: dict[str, tuple[Callable[[Problem], object], str]] = {
    "a model": (
        lambda p: autopar.search(3, "a800:8", global_batch_size=8, sequence_length=4096),  # type: ignore[arg-type]
        "model: must be a name or a path, found 3.",
    ),
    "a cluster": (
        lambda p: autopar.problem("llama2-7b", {}, global_batch_size=8, sequence_length=4096),  # type: ignore[arg-type]
        "cluster: must be a name or a path, found a table.",
    ),
    "a name that is no file": (
        lambda p: autopar.model_facts("m" * 100_000),
        'model: no model named "mmm',
    ),
    "threads": (
        lambda p: autopar.solve(p, threads=1.5),  # type: ignore[arg-type]
        "threads: must be a whole number from 0 to 1024, found 1.5.",
    ),
    "too many threads": (
        lambda p: autopar.solve(p, threads=10**300),
        "threads: must be a whole number from 0 to 1024, found 1000",
    ),
    "a time limit": (
        lambda p: autopar.solve(p, time_limit_s="x"),  # type: ignore[arg-type]
        "time_limit_s: must be seconds from 0, found 'x'.",
    ),
    "a problem": (
        lambda p: autopar.solve(None),  # type: ignore[arg-type]
        "problem: must be a Problem, found null.",
    ),
    "a plan": (
        lambda p: autopar.estimate(p, {"tp": 2}),  # type: ignore[arg-type]
        "plan: must be a Plan, found a table.",
    ),
    "what sizes are wanted": (
        lambda p: autopar.sizes(p, 3),  # type: ignore[arg-type]
        "wanted: must be one of every, frontier, fastest, cheapest, found 3.",
    ),
    "a degree": (
        lambda p: autopar.plan(p, tp="2"),  # type: ignore[arg-type]
        'tp: must be a whole number, found "2".',
    ),
    "half a stage": (
        lambda p: autopar.plan(p, pp=2.5),  # type: ignore[arg-type]
        "pp: must be a whole number, found 2.5.",
    ),
    "fewer layers than none": (
        lambda p: autopar.plan(p, pp=2, layers=[33, -1]),
        "layers[1]: must be from 0 to 2^64 - 1, found -1.",
    ),
    "what is recomputed": (
        lambda p: autopar.plan(p, recompute=3),  # type: ignore[arg-type]
        "recompute: must be a Recompute, found 3.",
    ),
    "a field of a plan": (
        lambda p: autopar.estimate(p, replace(autopar.plan(p), mbs="1")),  # type: ignore[arg-type]
        'plan.mbs: must be a whole number from 0 to 18446744073709551615, found "1".',
    ),
    "a list of plans": (
        lambda p: autopar.estimate_many(p, [1]),  # type: ignore[arg-type]
        "plans: must be a structured array, found a list of 1.",
    ),
    "a column of lists": (
        lambda p: autopar.estimate_many(p, numpy.ones(2, dtype=[("tp", int, (2,))])),
        "plans.tp: must be one number a plan",
    ),
}


@pytest.mark.parametrize(("ask", "message"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_arguments_of_another_type_raise_spec_error(
    small: Problem, ask: Callable[[Problem], object], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        ask(small)
    assert str(error.value).startswith(message)


def test_numbers_of_numpy_are_numbers(small: Problem) -> None:
    one, two = numpy.int64(1), numpy.array([1, 2], dtype=numpy.int8)
    sizes = {"global_batch_size": numpy.int32(64), "sequence_length": numpy.uint16(4096)}
    asked = autopar.problem(
        "llama2-7b", "a800:8", tp=two, memory_margin=numpy.float32(0.5), **sizes
    )
    plain = autopar.problem(
        "llama2-7b", "a800:8", tp=range(1, 3), memory_margin=0.5,
        global_batch_size=64, sequence_length=4096,
    )  # fmt: skip
    assert asked == plain
    assert autopar.plan(small, mbs=one, tp=two[1]) == autopar.plan(small, mbs=1, tp=2)
    odd = replace(autopar.plan(small), mbs=one)
    assert autopar.estimate(small, odd) == autopar.estimate(small, autopar.plan(small))


def test_documents_cannot_be_changed(small: Problem) -> None:
    with pytest.raises(FrozenInstanceError):
        small.model.layers = 1  # type: ignore[misc]


def test_a_spelled_plan_fills_in_what_is_left_out(small: Problem) -> None:
    plan = autopar.plan(small, tp=2, pp=2, vpp=2, recompute=Recompute("block", 3), zero=1)
    assert (plan.dp, plan.sp, plan.shard_group, plan.schedule) == (2, True, 2, "interleaved")
    assert [stage.layers for stage in plan.stages] == [16, 16]
    assert {stage.recompute for stage in plan.stages} == {Recompute("block", 3)}


def test_recompute_of_each_stage_is_never_slower_and_may_differ_within_a_kind() -> None:
    def best(*, apart: bool) -> Ranked:
        report = autopar.search(
            "llama2-70b",
            "a800:64",
            global_batch_size=64,
            sequence_length=8192,
            pp=(8,),
            tp=(2,),
            cp=(1,),
            zero=(1,),
            mbs=(1,),
            schedules=("1f1b",),
            recompute_per_stage=apart,
            top=1,
        )
        return report.ranked[0]

    alike, apart = best(apart=False), best(apart=True)
    assert apart.estimate.step_s < alike.estimate.step_s
    assert len({stage.recompute for stage in alike.plan.stages}) == 1
    # The first stages hold more micro-batches: they recompute more.
    assert len({stage.recompute for stage in apart.plan.stages}) > 1


def test_kinds_of_chip_may_have_tensor_parallel_degrees_of_their_own() -> None:
    def best(*, mixed: bool) -> Ranked:
        report = autopar.search(
            "llama2-70b",
            "v100:32,h800:16",
            devices=48,
            global_batch_size=96,
            sequence_length=4096,
            precision="fp16",
            mixed_tp=mixed,
            top=1,
        )
        assert report.proved
        return report.ranked[0]

    alike, mixed = best(mixed=False), best(mixed=True)
    assert not alike.plan.tp_of_kind
    # As the README says.
    assert mixed.plan.tp_of_kind == (4, 2)
    assert mixed.estimate.step_s / alike.estimate.step_s == pytest.approx(0.98, abs=0.005)
    assert mixed.plan.devices == alike.plan.devices == 48


@pytest.mark.parametrize(
    ("cluster", "dropout", "told"),
    [("tpu_v5p:16", True, True), ("tpu_v5p:16", False, False), ("a100_80:16", True, False)],
)
def test_a_search_says_on_which_chips_dropout_is_drawn_for_nothing(
    cluster: str, dropout: bool, told: bool
) -> None:
    report = autopar.search(
        "llama2-7b", cluster, global_batch_size=64, sequence_length=2048, dropout=dropout
    )
    assert any("dropout in fused attention is not counted" in note for note in report.notes) == told
