"""The pipeline of a measured run: its order of passes; chip, layers and chunks of each stage."""

import re
from itertools import pairwise

from autopar.cluster import Cluster
from autopar.entries import FrameworkEntry
from autopar.errors import SpecError
from autopar.runs import rx
from autopar.runs.anatomy import noted
from autopar.runs.rows import Run
from autopar.spec import Schedule


def stage_chips(cluster: Cluster, pp: int) -> list[int]:
    """Returns which kind holds each stage: as many as a kind's devices make, kind after kind.

    Raises:
        SpecError: A stage would hold two kinds.
    """
    if len(cluster.groups) == 1:
        return [0] * pp
    per_stage = (cluster.devices or 0) // pp
    chips: list[int] = []
    for kind, group in enumerate(cluster.groups):
        stages, rest = divmod(group.limit or 0, per_stage)
        if rest:
            raise SpecError("chip", f"a stage of {per_stage} devices would hold two kinds of chip")
        chips += [kind] * stages
    if len(chips) != pp:
        raise SpecError("chip", f"devices for {len(chips)} stages, where pp is {pp}")
    return chips


def stage_chunks(
    run: Run, entry: FrameworkEntry, schedule: Schedule | None, layers: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """Returns the chunks that a stage may hold, and whether the row says how many."""
    if run.vpp:
        return (run.vpp,), True
    if len(layers) == 1 or schedule in ("1f1b", "gpipe", "zb-h1"):
        return (1,), True
    if schedule == "zb-v":
        return (2,), True
    whole = tuple(v for v in range(1, max(layers) + 1) if _cuts(layers, v))
    if schedule == "interleaved":
        if len(whole) == 1:
            raise SpecError("vpp", "missing, and no number of chunks divides the stages' layers")
        usual = entry.run.interleaved_vpp
        return ((usual,) if usual in whole else whole[1:]), False
    return ((entry.run.vpp,) if entry.run.vpp else whole), False


def _cuts(layers: tuple[int, ...], vpp: int) -> bool:
    """Returns whether stages split into so many equal chunks, of which the ends' may lack a few.

    Interleaved, the embedding and the head may take the place of layers in the first and the last,
    of stages that differ for it: nobody cuts equal ones into other than whole chunks unsaid.
    """
    if len(set(layers)) == 1:
        return layers[0] % vpp == 0
    chunks = [-(-count // vpp) for count in layers]
    lacks = [chunk * vpp - count for chunk, count in zip(chunks, layers, strict=True)]
    ends = all(lacks[end] <= (chunks[end] if vpp > 1 else 0) for end in (0, -1))
    return ends and not any(lacks[1:-1])


def stage_layers(run: Run, layers: int, pp: int, assumed: list[str]) -> tuple[int, ...]:
    """Returns the layers of each stage.

    A list may count the embedding and the head, and what stands about them, as layers: what it has
    beyond the model's layers is taken from both ends. Without a list the shares are equal; where
    the layers do not divide, the embedding and the head stand for one each.
    """
    if listed := _listed_layers(run):
        beyond = sum(listed) - layers
        if len(listed) != pp or beyond < 0 or beyond % 2:
            what = f"{sum(listed)} layers in {len(listed)} stages listed of {layers} in {pp}"
            raise SpecError("layers_per_stage", what)
        listed[0] -= beyond // 2
        listed[-1] -= beyond // 2
        if min(listed[1:-1], default=1) < 1 or min(listed) < 0:
            raise SpecError("layers_per_stage", "a stage between the ends without a layer")
        return tuple(listed)
    slots = rx.search(r"embedding slots?", run.notes)
    if layers % pp == 0 and not slots:
        return _fewer_in_the_last(run, layers // pp, pp)
    last = noted(r"last stage has (\d+) (?:block|layer)", run.notes)
    if last and (layers - last) % (pp - 1) == 0:
        return (*((layers - last) // (pp - 1),) * (pp - 1), last)
    chunks = pp * (run.vpp or 1)
    lack = -layers % chunks
    chunk = (layers + lack) // chunks
    if chunks > pp and (layers + 2) % chunks and lack <= 2 * chunk:
        # Whole chunks, of which the last, and then the first, lack what is missing.
        shares = [chunk * chunks // pp] * pp
        shares[-1] -= min(lack, chunk)
        shares[0] -= max(lack - chunk, 0)
        assumed.append(f"layers_per_stage={'-'.join(map(str, shares))}")
        return tuple(shares)
    ends = 1 if slots or (layers + 2) % pp == 0 else 0
    share, more = divmod(layers + 2 * ends, pp)
    shares = [share + 1] * more + [share] * (pp - more)
    shares[0] -= ends
    shares[-1] -= ends
    if not slots:
        assumed.append(f"layers_per_stage={'-'.join(map(str, shares))}")
    return tuple(shares)


def _fewer_in_the_last(run: Run, share: int, pp: int) -> tuple[int, ...]:
    """Returns equal shares, or LiBai's: later stages take layers of the last, which has the head.

    Oneflow-Inc/libai, libai/utils/distributed.py (_init_placement_group): of four stages or more,
    and eight layers or more.
    """
    own = pp >= 4 and share * pp >= 8 and rx.match(r"LiBai\b", run.framework, re.I)
    more = min(pp - 1, share) if own else 0
    shares = [share] * (pp - more) + [share + 1] * more
    shares[-1] -= more
    return tuple(shares)


def _listed_layers(run: Run) -> list[int]:
    """Returns the layers of each stage as the row's column or notes list them."""
    if run.layers_per_stage:
        numbers = re.findall(r"\d+", run.layers_per_stage)
        return [int(number) for number in numbers]
    if found := rx.search(r"num-layer-list ((?:\d+,)+\d+)", run.notes):
        return [int(number) for number in found[1].split(",")]
    if found := rx.search(r"layer boundaries \[([\d, ]+)\]", run.notes):
        cuts = [int(number) for number in found[1].split(",")]
        return [after - before for before, after in pairwise(cuts)]
    return []


def schedule_of(run: Run) -> Schedule | None:
    """Returns the order of passes that the row names."""
    named = " ".join(re.findall(r"[\w-]+ (?:PP )?schedule", run.notes))
    if not named and (order := rx.search(ORDERS, run.notes, re.I)):
        # People call what interleaves 1F1B too.
        named = "" if order[0].lower() == "1f1b" and (run.vpp or 1) > 1 else order[0]
    text = (run.schedule or named).lower()
    for word, schedule in SCHEDULES.items():
        if word in text:
            return schedule
    return None


# Orders of passes; Megatron calls how it hides the exchanges of experts 1F1B too.
ORDERS = (
    r"(?<!non-)(?<!not )\binterleaved[- ](?:1F1B|pipeline|PP)\b|\bGPipe\b|\bZB-?(?:V|H1)\b"
    r"|(?<!\()\b1F1B\b(?! (?:of|EP|expert|overlap|a2a|all-to-all))"
)
SCHEDULES: dict[str, Schedule] = {
    "interleaved": "interleaved",
    "zb-v": "zb-v",
    "zbv": "zb-v",
    "zb": "zb-h1",
    "zero-bubble": "zb-h1",
    "gpipe": "gpipe",
    "1f1b": "1f1b",
}
