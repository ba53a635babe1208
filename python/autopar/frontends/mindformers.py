"""MindFormers' run configuration, as a question and a plan.

The rules of the batch are those of `mindformers/trainer/base_trainer.py`, the rules of offsets and
of recomputed layers those of `LayerSetting`.
"""

from typing import Any

from autopar import wire
from autopar.errors import SpecError, shown
from autopar.frontends import launch, mindformers_recompute
from autopar.frontends.launch import Launch, Settings
from autopar.frontends.mindformers_recompute import UnsaidError
from autopar.frontends.places import keys, places
from autopar.report import Recompute
from autopar.spec import Model

P, M, R = "parallel_config", "model.model_config", "recompute_config"
SLICES = f"{R}.recompute_slice_activation"
SHARD = "parallel.parallel_optimizer_config"
_DP, _TP, _CP = f"{P}.data_parallel", f"{P}.model_parallel", f"{P}.context_parallel"
_PP, _EP = f"{P}.pipeline_stage", f"{P}.expert_parallel"
_VPP, _INTERLEAVES = f"{M}.pp_interleave_num", "parallel.pipeline_config.pipeline_interleave"
_STEPS = (f"{P}.micro_batch_num", "runner_config.gradient_accumulation_steps")
_BATCH = ("runner_config.batch_size", f"{M}.batch_size")
# Where the file says what of a plan and a problem.
FIELDS = {
    "plan.dp": keys(_DP),
    "plan.tp": keys(_TP),
    "plan.sp": keys(f"{P}.use_seq_parallel"),
    "plan.cp": keys(_CP),
    "plan.pp": keys(_PP),
    "plan.ep": keys(_EP),
    "plan.etp": keys(_TP),
    "plan.vpp": keys(_VPP),
    "plan.mbs": keys(*_BATCH),
    "plan.zero": keys(
        f"{P}.optimizer_shard", "parallel.enable_parallel_optimizer", f"{SHARD}.optimizer_level",
        called="ZeRO stage",
    ),
    "plan.shard_group": keys(f"{SHARD}.optimizer_weight_shard_size"),
    "plan.schedule": keys(_INTERLEAVES, _VPP),
    "plan.stages.layers": keys(f"{M}.offset", f"{M}.num_layers", _PP),
    "plan.stages.recompute": keys(
        f"{R}.recompute", f"{R}.select_recompute", f"{R}.select_comm_recompute"
    ),
    "workload.global_batch_size": keys(
        *_STEPS, *_BATCH, "micro_batch_interleave_num", _DP, called="global batch size"
    ),
    "workload.sequence_length": keys(f"{M}.seq_length"),
    "workload.precision": keys(f"{M}.compute_dtype"),
    "workload.attention": keys(f"{M}.use_flash_attention"),
    "cluster.devices": keys(_DP, _TP, _CP, _PP, called="product of the degrees"),
    "model": keys(f"{M}.type"),
    "model.layers": keys(f"{M}.num_layers"),
    "model.hidden": keys(f"{M}.hidden_size"),
    "model.ffn_hidden": keys(
        *(f"{M}.{name}" for name in ("intermediate_size", "ffn_dim_multiplier", "multiple_of",
                                     "hidden_size")), called="MLP width"),
    "model.heads": keys(f"{M}.num_heads"),
    "model.kv_heads": keys(f"{M}.n_kv_heads", f"{M}.num_heads"),
    "model.vocab": keys(f"{M}.vocab_size"),
    "model.max_positions": keys(f"{M}.seq_length"),
    "model.moe": keys("moe_config.expert_num"),
    "model.moe.topk": keys("moe_config.num_experts_chosen"),
    "model.moe.expert_ffn": keys(f"{M}.intermediate_size", f"{M}.hidden_size", called="MLP width"),
}  # fmt: skip
TABLES = (
    "",
    "model",
    "parallel",
    "parallel.pipeline_config",
    SHARD,
    P,
    R,
    M,
    "runner_config",
    "moe_config",
)
LEVELS = {"level1": 1, "level2": 2, "level3": 3}
MODE = "parallel.parallel_mode"
# As numbers and as words; only in the first two do the degrees of `parallel_config` act.
MODES = (
    *(1, "semi_auto_parallel", 2, "auto_parallel"),
    *(0, "data_parallel", "stand_alone", 3, "hybrid_parallel"),
)


def read(file: str) -> Launch:
    """Returns the job that a run configuration of MindFormers describes.

    Raises:
        SpecError: The file is wrong or contradicts itself.
    """
    settings = launch.yaml_settings(file)
    settings.refuse_misspelt(TABLES, FIELDS)
    _check_mode(settings)
    pp, vpp = settings.degree(_PP), settings.degree(_VPP)
    if vpp > 1 and not settings.flag(_INTERLEAVES):
        # MindFormers gives each stage one chunk unless the pipeline interleaves.
        vpp = 1
    dp, tp, cp = settings.degree(_DP), settings.degree(_TP), settings.degree(_CP)
    mbs = settings.count(_BATCH[0], settings.count(_BATCH[1], 1))
    steps = _steps(settings, pp)
    copies = settings.count("micro_batch_interleave_num", 1)
    layers = settings.count(f"{M}.num_layers")
    plan: dict[str, Any] = {
        "dp": dp,
        "tp": tp,
        "sp": settings.flag(f"{P}.use_seq_parallel") and tp > 1,
        "cp": cp,
        "pp": pp,
        "vpp": vpp,
        "mbs": mbs,
        "layers": _layers(settings, layers, pp, vpp),
        **_sharding(settings),
    }
    ep = settings.degree(_EP)
    if settings.has("moe_config.expert_num") and settings.count("moe_config.expert_num") > 1:
        plan |= {"ep": ep, "etp": tp}
    recompute, chosen, unclear = _recompute(settings, plan)
    zero, model, notes = plan["zero"], _model(settings, layers), _notes(settings, copies)
    changes = _changes(settings, pp, zero) | chosen
    return Launch(
        file=settings.file,
        framework="mindformers",
        model=model,
        question={
            "global_batch_size": dp * mbs * steps * copies,
            "sequence_length": settings.count(f"{M}.seq_length"),
            "devices": dp * tp * cp * pp,
            "precision": _precision(settings),
            "attention": "flash" if settings.flag(f"{M}.use_flash_attention") else "unfused",
        },
        plan=plan,
        recompute=recompute,
        unclear=unclear,
        changes=changes,
        notes=notes,
        places=places(settings, FIELDS),
    )


def _steps(settings: Settings, pp: int) -> int:
    """Returns the micro-batches of a step, `micro_batch_interleave_num` apart."""
    if pp == 1:
        # Outside of the modes in which its parallel cells act, MindFormers sets accumulation to 1.
        steps = settings.count(_STEPS[1], 1)
        return 1 if settings.value(MODE) in MODES[4:] else steps
    steps = settings.degree(_STEPS[0])
    if steps < pp:
        what = f"must be at least {_PP} {pp}, found {steps}"
        raise settings.error(_STEPS[0], what, "Give as many micro-batches as stages, or more.")
    return steps


def _check_mode(settings: Settings) -> None:
    """Refuses degrees that the run would pass over."""
    mode = settings.value(MODE)
    if settings.has(MODE) and (type(mode) is bool or mode not in MODES):
        words = ", ".join(map(str, MODES))
        what = f"must be one of {words}, found {shown(mode)}"
        raise settings.error(MODE, what, "Give one of them.")
    whole = "parallel.full_batch"
    if settings.has(whole) and not settings.flag(whole):
        for path in (_TP, _CP, _PP):
            if settings.degree(path) > 1:
                what = f"false beside {path} {settings.degree(path)}, where every device has a "
                raise settings.error(whole, f"{what}batch of its own", "Write True.")
    alone = settings.has("use_parallel") and not settings.flag("use_parallel")
    if not alone and mode not in MODES[4:]:
        return
    setting = "use_parallel: false" if alone else f"parallel_mode: {mode}"
    kinds = ("model_parallel", "context_parallel", "pipeline_stage", "expert_parallel")
    for kind in (*kinds, "data_parallel") if alone else kinds:
        degree = settings.count(f"{P}.{kind}", 1)
        if degree > 1:
            what = f"has no effect beside {setting}, found {degree}"
            raise settings.error(f"{P}.{kind}", what, "Write 1, or parallel_mode: 1.")


def _precision(settings: Settings) -> str:
    kinds = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return kinds[settings.word(f"{M}.compute_dtype", tuple(kinds), "float16")]


def _sharding(settings: Settings) -> dict[str, Any]:
    """Returns the ZeRO stage and its ranks; the section of the parallel classes overrules."""
    path = f"{P}.optimizer_shard"
    whole = settings.flag("parallel.enable_parallel_optimizer")
    if not settings.flag(path, whole):
        return {"zero": 0}
    level = LEVELS[settings.word(f"{SHARD}.optimizer_level", tuple(LEVELS), "level1")]
    if level == 1 and settings.flag(f"{SHARD}.gradient_accumulation_shard"):
        level = 2
    sharding: dict[str, Any] = {"zero": level}
    size = settings.value(f"{SHARD}.optimizer_weight_shard_size")
    if size not in (None, -1):
        sharding["shard_group"] = settings.count(f"{SHARD}.optimizer_weight_shard_size")
    return sharding


def _layers(settings: Settings, layers: int, pp: int, vpp: int) -> list[int]:
    """Returns the layers of each stage: an equal share of each chunk plus its offset."""
    path = f"{M}.offset"
    share, rest = divmod(layers, pp * vpp)
    offset = settings.value(path)
    if offset in (None, 0):
        if rest:
            what = f"{layers} layers do not divide into {pp} x {vpp} chunks"
            raise settings.error(f"{M}.num_layers", what, "Give an offset for each stage.")
        return [share * vpp] * pp
    rows = offset if isinstance(offset, list) else [offset]
    if rows and not isinstance(rows[0], list):
        rows = [rows] * vpp
    if [_whole(row) for row in rows] != [pp] * vpp:
        what = f"must list {pp} stages" + (f" for each of {vpp} chunks" if vpp > 1 else "")
        raise settings.error(path, f"{what}, found {shown(offset)}", "Give a number for each.")
    if (total := sum(map(sum, rows))) != rest:
        what = f"adds up to {total}, the rest of {layers} layers is {rest}"
        raise settings.error(path, what, "Make them agree.")
    return [sum(share + row[stage] for row in rows) for stage in range(pp)]


def _whole(row: Any) -> int:
    """Returns the length of a list of whole numbers; 0 for anything else."""
    good = isinstance(row, list) and all(type(item) is int for item in row)
    return len(row) if good else 0


def _recompute(
    settings: Settings, plan: dict[str, Any]
) -> tuple[tuple[Recompute, ...] | None, dict[str, Any], str]:
    """Returns what each stage recomputes, what that sets of the framework, or what is unclear."""
    keys = ("recompute", "select_recompute", "select_comm_recompute")
    asked = mindformers_recompute.Settings(
        **{key: _whole_or_no(settings.value(f"{R}.{key}")) for key in keys}
    )
    chunks = mindformers_recompute.Chunks(plan["layers"], plan["vpp"])
    try:
        stages, named = mindformers_recompute.stages(asked, chunks, cut_sequence=plan["sp"])
    except UnsaidError as error:
        line = settings.place(f"{R}.{error.path}").line
        return None, {}, f"line {line}: {R}.{error.path} {error.what}"
    except SpecError as error:
        what = f"{error.what}, found {shown(settings.value(f'{R}.{error.path}'))}"
        raise settings.error(f"{R}.{error.path}", what, error.hint) from None
    chosen = {} if named is None else {"selective": "named", "named": wire.write(named)}
    return stages, chosen, ""


def _whole_or_no(value: Any) -> Any:
    """Returns a setting; a key without a value is one that is off."""
    return False if value is None else value


def fused_groups(wanted: int, layers: int) -> int:
    """Returns the groups of layers that `gradient_aggregation_group` makes.

    Layers are numbered through, and so many of them take one number as a group has in a model of
    one layer more.

    Example:
        >>> fused_groups(4, 32), fused_groups(4, 30), fused_groups(64, 32)
        (4, 5, 32)
    """
    share = max((layers + 1) // wanted, 1)
    return (layers - 1) // share + 1


def _changes(settings: Settings, pp: int, zero: int) -> dict[str, Any]:
    """Returns what the file sets of the framework."""
    whole = settings.flag(f"{P}.vocab_emb_dp", True)
    groups = settings.count(f"{P}.gradient_aggregation_group", 4)
    changes: dict[str, Any] = {
        "fused_groups": fused_groups(groups, settings.count(f"{M}.num_layers")),
        # MindFormers turns it off with a pipeline.
        "whole_vocabulary": whole and pp == 1,
        "slices_kept_inputs": settings.flag(SLICES) and settings.value(f"{R}.recompute") is True,
        "sums_in_fp32": settings.flag("parallel.force_fp32_communication"),
    }
    if zero:
        least = settings.count(f"{SHARD}.parallel_optimizer_threshold", 64, least=0)
        changes["whole_below_bytes"] = least * 1024
    if settings.has(f"{M}.qkv_concat"):
        # Of its LLaMA it packs gate and up too.
        changes["projections"] = "packed" if settings.flag(f"{M}.qkv_concat") else "apart"
    if settings.has("parallel.enable_alltoall"):
        by_all = settings.flag("parallel.enable_alltoall")
        changes["expert_dispatch"] = "copies" if by_all else "gather_split"
    if settings.has("parallel.gradient_fp32_sync"):
        wide = settings.flag("parallel.gradient_fp32_sync") or changes["sums_in_fp32"]
        changes["bytes"] = {"gradient_sent": 4 if wide else 2}
    return changes


def _notes(settings: Settings, copies: int) -> tuple[str, ...]:
    notes = []
    recomputed = settings.value(f"{R}.recompute")
    if recomputed and not settings.flag(f"{R}.mp_comm_recompute", True):
        notes.append(f"{R}.mp_comm_recompute acts on no layer: LayerSetting does not pass it on")
    if recomputed and recomputed is not True and settings.flag(SLICES):
        notes.append(f"{SLICES} acts where recompute is true, not where it lists layers")
    if copies > 1:
        notes.append(f"micro_batch_interleave_num {copies} counts as so many more micro-batches")
    unread = settings.unread([P])
    known = {f"{P}.{name}" for name in ("vocab_emb_dp", "mem_coeff")}
    if rest := [key for key in unread if key not in known]:
        notes.append(f"not read: {', '.join(rest)}")
    return tuple(notes)


def _model(settings: Settings, layers: int) -> Model | None:
    """Returns the model of a configuration that spells a LLaMA out; None for one without."""
    if settings.value(f"{M}.type") != "LlamaConfig":
        return None
    hidden, heads = settings.count(f"{M}.hidden_size"), settings.count(f"{M}.num_heads")
    if hidden % heads:
        what = f"{heads} heads do not divide {M}.hidden_size {hidden}"
        raise settings.error(f"{M}.num_heads", what, "Give a divisor.")
    fields: dict[str, Any] = {
        "name": settings.file,
        "layers": layers,
        "hidden": hidden,
        "ffn_hidden": _width(settings, hidden),
        "heads": heads,
        "kv_heads": settings.count(f"{M}.n_kv_heads", heads),
        "head_dim": hidden // heads,
        "vocab": settings.count(f"{M}.vocab_size"),
        "max_positions": settings.count(f"{M}.seq_length"),
        "qkv_bias": settings.flag(f"{M}.qkv_has_bias"),
        "tied_embeddings": settings.flag(f"{M}.tie_word_embeddings"),
    }
    if settings.count("moe_config.expert_num", 1) > 1:
        fields["moe"] = {
            "experts": settings.count("moe_config.expert_num"),
            "topk": settings.count("moe_config.num_experts_chosen", 1),
            "expert_ffn": fields["ffn_hidden"],
        }
    return wire.read(Model, fields, f"{settings.file}: model")


def _width(settings: Settings, hidden: int) -> int:
    """Returns the width of the MLP: given, or LLaMA's two thirds of four times the model's."""
    if settings.has(f"{M}.intermediate_size"):
        return settings.count(f"{M}.intermediate_size")
    width = 4 * hidden
    factor = settings.value(f"{M}.ffn_dim_multiplier")
    if factor is not None:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            path = f"{M}.ffn_dim_multiplier"
            what = f"must be a positive number, found {shown(factor)}"
            raise settings.error(path, what, "Give the factor of the MLP's width.")
        # Its layer adds the hundredth.
        width = int((factor + 0.01) * width)
    step = settings.count(f"{M}.multiple_of", 256)
    return -(-int(2 * width / 3) // step) * step
