"""A time line in the Chrome trace format, which Perfetto (ui.perfetto.dev) opens.

Format: "Trace Event Format", Google, 2016; times are microseconds.
"""

import json

from autopar.report import Timeline
from autopar.spec import Problem

PS_PER_US = 1_000_000


def chrome_trace(timeline: Timeline, problem: Problem, stage_chips: list[str]) -> str:
    """Returns the JSON text of a trace: one process, one thread for each pipeline stage.

    Args:
        timeline: The events.
        problem: What was asked; its names go into the trace's metadata.
        stage_chips: The kind of chip of each stage.
    """
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": problem.model.name}}
    ]
    for stage, chip in enumerate(stage_chips):
        name = f"stage {stage} ({chip})"
        events += [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": stage, "args": {"name": name}},
            {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": stage,
             "args": {"sort_index": stage}},
        ]  # fmt: skip
    events += [
        {
            "name": f"{event.kind} {event.micro_batch}",
            "cat": event.kind,
            "ph": "X",
            "pid": 0,
            "tid": event.stage,
            "ts": event.start_ps / PS_PER_US,
            "dur": event.duration_ps / PS_PER_US,
            "args": {"micro_batch": event.micro_batch, "chunk": event.chunk},
        }
        for event in timeline.events
    ]
    document = {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"model": problem.model.name, "truncated": timeline.truncated},
    }
    return json.dumps(document, separators=(",", ":"))
