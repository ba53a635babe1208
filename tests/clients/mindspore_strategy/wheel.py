"""The real MindSpore without a device: import this before anything of MindSpore's.

The compiler stops after its parallel passes. What the public wheel asks of a device before that is
answered here: that there is one, and how many are in a group.
"""

import os
import re
import sys
from typing import Any

os.environ["MS_DEV_PRECOMPILE_ONLY"] = "1"
os.environ.setdefault("GLOG_v", "4")

import mindspore  # noqa: F401
from mindspore import context
from mindspore._c_expression import DeviceManagerConf

# Devices of the job; a case sets it.
devices = 1


def group_size(group: str = "", *_: Any, **__: Any) -> int:
    """Returns the devices of a group, whose name begins with their number."""
    named = re.match(r"^(\d+)-\d+$", str(group))
    return int(named[1]) if named else devices


def pretend(target: str) -> None:
    """Has a device of a kind be there, `GPU` or `Ascend`."""
    context.set_context(mode=context.GRAPH_MODE)
    DeviceManagerConf.get_instance().set_device(target, 0, False)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("mindspore") and hasattr(
            module, "get_group_size"
        ):
            module.get_group_size = group_size
