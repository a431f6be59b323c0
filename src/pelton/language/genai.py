"""Folders of onnxruntime-genai: genai_config.json, an ONNX decoder, and the tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pelton.errors import FormatError, ModelAbsent, ModelError, Needs

from .description import DecoderPorts, Description
from .folder_tokens import folder_tokens, ids_of
from .source import LanguageSource, LanguageSettings, DecoderSizes, read_json

if TYPE_CHECKING:
    from pelton.ir.dims import Size
    from pelton.network import Network

CONFIG = "genai_config.json"
NEXT = "next"  # the output with logits of the rows that a run keeps
CACHES = ("past_key_names", "past_value_names")
BATCH = "1..1..64"  # sequences of a run
KNOWN = {"input_ids", "attention_mask", "position_ids", *CACHES}


def genai_model(folder: Path) -> LanguageSource:
    """Returns the model of a folder. Raises ModelError for files that are missing, damaged or of another kind."""
    config = LanguageSettings(read_json(folder / CONFIG), folder / CONFIG)
    model = config.part("model")
    decoder = model.part("decoder")
    others = [name for name in ("encoder", "vision", "speech", "embedding") if name in model.values]
    if others:
        raise ModelError(f"{folder}: models with a part {others[0]!r} are not supported, only decoders of text")
    if "pipeline" in decoder.values:
        raise ModelError(f"{folder}: decoders in a pipeline of several models are not supported")
    inputs = decoder.part("inputs").values
    unknown = [name for name in inputs if name not in KNOWN]
    if unknown:
        raise ModelError(f"{folder}: the decoder has an input {unknown[0]!r}, which is not supported")
    path = folder / decoder.text("filename")
    if not path.is_file():
        raise ModelAbsent(f"{folder} has no {path.name}, which genai_config.json names", path)
    description = Description(
        family=model.text("type", "decoder"),
        layers=decoder.layers(),
        kv_heads=decoder.whole("num_key_value_heads"),
        head_size=decoder.whole("head_size"),
        context=model.whole("context_length"),
        vocabulary=model.whole("vocab_size"),
    )
    bos, eos = (ids_of(model.values.get(name)) for name in ("bos_token_id", "eos_token_id"))
    data = sorted(f for f in folder.iterdir() if f.name.startswith(path.name + "."))
    return LanguageSource(
        "onnxruntime-genai",
        (path, *data, folder / CONFIG),
        description,
        lambda: folder_tokens(folder, bos[0] if bos else None, eos),
        lambda sizes: _network(path, decoder, description, sizes),
    )


def _network(
    path: Path, decoder: LanguageSettings, description: Description, sizes: DecoderSizes
) -> tuple[Network, DecoderPorts, list[str]]:
    from pelton.importers import load  # the compiler's, which later starts do not import
    from pelton.plugins import Network as EditableNetwork

    from .heads import keep_rows

    inputs, outputs = decoder.part("inputs"), decoder.part("outputs")
    ids, mask = inputs.text("input_ids", "input_ids"), inputs.text("attention_mask", "attention_mask")
    patterns = [inputs.text(name) for name in CACHES if name in inputs.values]
    past = [p.replace("%d", str(i)) for i in range(description.layers) for p in patterns]
    net = EditableNetwork.from_graph(load(path, _ranges(path, (ids, mask), past, description.head_size, sizes)).graph)
    ports = {t.name: t for t in net.inputs}
    for name in (ids, mask):
        if name not in ports:
            raise ModelError(f"{path} has no input {name!r}, which {CONFIG} names")
    logits = outputs.text("logits", "logits")
    if logits not in net.outputs:
        raise ModelError(f"{path} has no output {logits!r}, which {CONFIG} names")
    caches = tuple(name for name in past if name in ports)
    kept = keep_rows(net, net.outputs[logits], NEXT, sizes.context)
    batch, count = ports[ids].shape
    capacity = next((ports[name].shape[2] for name in caches if ports[name].rank == 4), 0)
    positions = inputs.text("position_ids", "position_ids")
    return (
        net.extract([t.name for t in net.inputs], [name for name in net.outputs if name != logits]),
        DecoderPorts(
            ids,
            mask,
            positions if positions in ports else None,
            kept,
            NEXT,
            caches,
            batch=_name(batch),
            tokens=_name(count),
            capacity=_name(capacity),
            kept="kept" if kept else "",
        ),
        [],
    )


def _ranges(path: Path, first: tuple[str, str], past: list[str], head_size: int, sizes: DecoderSizes) -> dict[str, str]:
    """Returns the ranges of the dimensions that the model's inputs name. first: the inputs of ids and of the mask."""
    with Needs("reading ONNX models"):
        import onnx

    try:
        inputs = onnx.load(str(path), load_external_data=False).graph.input
    except Exception as e:  # protobuf has errors of its own
        raise FormatError(f"{path} cannot be read as an ONNX model: {e}") from None
    most, ranges = sizes.context, dict[str, str]()
    named = {v.name: [d.dim_param for d in v.type.tensor_type.shape.dim] for v in inputs}
    total = f"1..{min(2 * sizes.prompt, most)}..{most}"
    for name, count in zip(first, (f"1..{sizes.prompt}..{most}", total)):
        ranges |= {d: text for d, text in zip(named.get(name, ()), (BATCH, count)) if d}
    for name in past:
        dims = named.get(name, ())
        if len(dims) == 4:
            texts = {dims[2]: f"1..{most}..{most}", dims[3]: f"{head_size}"}
            ranges |= {d: text for d, text in texts.items() if d and d not in ranges}
    return ranges


def _name(size: Size) -> str:
    return "" if isinstance(size, int) else str(size)
