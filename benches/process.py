"""Times whole processes of the main job: from the command to its last line, start of Python included.

Prints, for each command, what came out and what the search counted, then the seconds. It asserts
nothing: seconds are a machine's, counts are the program's. Standard library only.

    python benches/process.py [repeats]
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = [
    "apss --model-name llama2-70b --num-gpus 256 --nproc-per-node 8 --gpu-infos a800"
    " --global-batch-size 512 --sequence-length 4096 --top 3",
    "apss --model-name llama2-70b --num-gpus 256 --nproc-per-node 8 --gpu-infos a800:128,h800:160"
    " --global-batch-size 512 --sequence-length 4096 --top 3",
    "apss --model-name llama2-70b --gpu-infos a800:32,h800:224",
    "apss --model-name llama-1800b --num-gpus 1048576 --gpu-infos h800 --global-batch-size 1048576",
]
