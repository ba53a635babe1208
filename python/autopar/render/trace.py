"""A time line in the Chrome trace format, which Perfetto (ui.perfetto.dev) opens.

Format: "Trace Event Format", Google, 2016; times are microseconds.

Perfetto reads it more strictly than it is written: it takes the thread 0 of a process for its main
thread, whose number is the process's, and drops an event that overlaps another of its thread after
both were rounded to nanoseconds. So threads bear numbers that no process and no other thread has,
but for a main thread; and events begin and end at whole nanoseconds.
"""

import json

from autopar.report import Event, Timeline
from autopar.spec import Problem

PS_PER_NS = 1_000
NS_PER_US = 1_000

# What runs on links, not on the device's processors.
COMMUNICATION = ("send", "data")


def chrome_trace(timeline: Timeline, problem: Problem, stage_chips: list[str]) -> str:
    """Returns the JSON text of a trace: a process for each pipeline stage.

    Its main thread holds passes and the optimizer step. Sends and the reduction of gradients are
    on further threads, as many as run at a time, since events of one thread must nest. Each of the
    timeline's events is one event of the trace, at its times rounded down to nanoseconds.

    Args:
        timeline: The events.
        problem: What was asked; its names go into the trace's metadata.
        stage_chips: The kind of chip of each stage.
    """
    events: list[dict[str, object]] = []
    lanes = _lanes(timeline)
    stages = len(stage_chips)
    for stage, chip in enumerate(stage_chips):
        name = f"stage {stage} ({chip})"
        used = {lane for event, lane in lanes if event.stage == stage}
        events += [
            _named("process_name", stage, stage, {"name": name}),
            _named("process_sort_index", stage, stage, {"sort_index": stage}),
            *(
                _named("thread_name", stage, _thread(stage, lane, stages), {"name": _track(lane)})
                for lane in sorted({0, *used})
            ),
        ]
    events += [
        {
            "name": _name(event),
            "cat": event.kind,
            "ph": "X",
            "pid": event.stage,
            "tid": _thread(event.stage, lane, stages),
            **_times(event),
            "args": {"micro_batch": event.micro_batch, "chunk": event.chunk},
        }
        for event, lane in lanes
    ]
    document = {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"model": problem.model.name, "truncated": timeline.truncated},
    }
    return json.dumps(document, separators=(",", ":"))


def _lanes(timeline: Timeline) -> list[tuple[Event, int]]:
    """Returns each event with its lane: 0, or the first of communication that is free by then."""
    busy: dict[int, list[int]] = {}
    found = []
    for event in sorted(timeline.events, key=lambda event: (event.start_ps, event.stage)):
        lane = 0
        if event.kind in COMMUNICATION:
            ends = busy.setdefault(event.stage, [])
            lane = next((n for n, end in enumerate(ends) if end <= event.start_ps), len(ends))
            ends[lane : lane + 1] = [event.start_ps + event.duration_ps]
            lane += 1
        found.append((event, lane))
    return found


def _thread(stage: int, lane: int, stages: int) -> int:
    """Returns the number of a thread: its stage's for lane 0, and one of its own for others."""
    return stage + lane * stages


def _times(event: Event) -> dict[str, float]:
    """Returns begin and duration in microseconds, of which three decimals are exact."""
    start = event.start_ps // PS_PER_NS
    end = (event.start_ps + event.duration_ps) // PS_PER_NS
    return {"ts": start / NS_PER_US, "dur": (end - start) / NS_PER_US}


def _named(kind: str, stage: int, thread: int, args: dict[str, object]) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": stage, "tid": thread, "args": args}


def _track(lane: int) -> str:
    if lane == 0:
        return "passes"
    return "communication" if lane == 1 else f"communication {lane}"


def _name(event: Event) -> str:
    if event.kind == "data":
        return "reduce gradients, gather parameters"
    return event.kind if event.kind == "optimizer" else f"{event.kind} {event.micro_batch}"
