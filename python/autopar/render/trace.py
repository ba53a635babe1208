"""A time line in the Chrome trace format, which Perfetto (ui.perfetto.dev) opens.

Format: "Trace Event Format", Google, 2016; times are microseconds.
"""

import json

from autopar.report import Event, Timeline
from autopar.spec import Problem

PS_PER_US = 1_000_000


# What runs on links, not on the device's processors.
COMMUNICATION = ("send", "data")


def chrome_trace(timeline: Timeline, problem: Problem, stage_chips: list[str]) -> str:
    """Returns the JSON text of a trace: a process for each pipeline stage.

    Its first thread holds passes and the optimizer step. Sends and the reduction of gradients are
    on the threads that follow, as many as run at a time, since events of one thread must nest.

    Args:
        timeline: The events.
        problem: What was asked; its names go into the trace's metadata.
        stage_chips: The kind of chip of each stage.
    """
    events: list[dict[str, object]] = []
    threads = _threads(timeline)
    for stage, chip in enumerate(stage_chips):
        name = f"stage {stage} ({chip})"
        used = {thread for event, thread in threads if event.stage == stage}
        events += [
            _named("process_name", stage, 0, {"name": name}),
            _named("process_sort_index", stage, 0, {"sort_index": stage}),
            *(
                _named("thread_name", stage, thread, {"name": _track(thread)})
                for thread in sorted({0, *used})
            ),
        ]
    events += [
        {
            "name": _name(event),
            "cat": event.kind,
            "ph": "X",
            "pid": event.stage,
            "tid": thread,
            "ts": event.start_ps / PS_PER_US,
            "dur": event.duration_ps / PS_PER_US,
            "args": {"micro_batch": event.micro_batch, "chunk": event.chunk},
        }
        for event, thread in threads
    ]
    document = {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"model": problem.model.name, "truncated": timeline.truncated},
    }
    return json.dumps(document, separators=(",", ":"))


def _threads(timeline: Timeline) -> list[tuple[Event, int]]:
    """Returns each event with its thread: 0, or the first of communication that is free by then."""
    busy: dict[int, list[int]] = {}
    found = []
    for event in sorted(timeline.events, key=lambda event: (event.start_ps, event.stage)):
        thread = 0
        if event.kind in COMMUNICATION:
            ends = busy.setdefault(event.stage, [])
            thread = next((n for n, end in enumerate(ends) if end <= event.start_ps), len(ends))
            ends[thread : thread + 1] = [event.start_ps + event.duration_ps]
            thread += 1
        found.append((event, thread))
    return found


def _named(kind: str, stage: int, thread: int, args: dict[str, object]) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": stage, "tid": thread, "args": args}


def _track(thread: int) -> str:
    if thread == 0:
        return "passes"
    return "communication" if thread == 1 else f"communication {thread}"


def _name(event: Event) -> str:
    if event.kind == "data":
        return "reduce gradients, gather parameters"
    return event.kind if event.kind == "optimizer" else f"{event.kind} {event.micro_batch}"
