"""Upgrades layers of older versions of Caffe to the present one."""

from __future__ import annotations

from collections.abc import Iterator

from pelton.errors import ModelError

from .prototxt import Prototxt
from .schema import Message, message_class

# of V1, whose types were an enumeration: names that are not CamelCase today
_TYPES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "IM2COL": "Im2col",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}
# of V0, whose types were texts: V1's names for them
_OLDEST = {"CONV": "CONVOLUTION", "POOL": "POOLING", "INNERPRODUCT": "INNER_PRODUCT", "IMAGES": "IMAGE_DATA"}
# the parameters of V0 are fields of the layer itself: type → (message, {field of V0: field of that message})
_FILLED = {"num_output": "num_output", "biasterm": "bias_term"} | {k: k for k in ("weight_filler", "bias_filler")}
_WINDOW = {"pad": "pad", "kernelsize": "kernel_size", "stride": "stride"}
_FIELDS = {
    "Convolution": ("convolution_param", {**_FILLED, **_WINDOW, "group": "group"}),
    "InnerProduct": ("inner_product_param", _FILLED),
    "Pooling": ("pooling_param", {**_WINDOW, "pool": "pool"}),
    "Dropout": ("dropout_param", {"dropout_ratio": "dropout_ratio"}),
    "LRN": ("lrn_param", {k: k for k in ("local_size", "alpha", "beta", "k")}),
    "Concat": ("concat_param", {"concat_dim": "concat_dim"}),
    "Data": ("transform_param", {"scale": "scale", "cropsize": "crop_size", "meanfile": "mean_file"}),
}


def layers(text: Prototxt) -> Iterator[tuple[Message, int]]:
    """Yields all layers of a net, as `LayerParameter`, each with its line; raises ModelError for others."""
    net = text.net
    if net.layer and net.layers:
        raise ModelError(f"{text.file}: has layers of two versions of Caffe, `layer` and `layers`; use one of the two")
    if net.layer:
        yield from zip(net.layer, text.lines_of("layer"))
        return
    padded: dict[str, tuple[str, int]] = {}  # V0 padded images in a separate layer: its top → its bottom, padding
    for old, line in zip(net.layers, text.lines_of("layers")):
        if not old.HasField("layer"):
            yield _of_enumeration(old), line
        elif old.layer.type == "padding":
            if len(old.bottom) != 1 or len(old.top) != 1:
                raise ModelError(f"{text.file}:{line}: layer {old.layer.name!r} (padding) needs one bottom and one top")
            padded[old.top[0]] = (old.bottom[0], old.layer.pad)
        else:
            yield _of_text(old, padded, f"{text.file}:{line}"), line


def type_name(name: str) -> str:
    """Converts INNER_PRODUCT to InnerProduct."""
    return _TYPES.get(name) or "".join(part.capitalize() for part in name.split("_"))


def _of_enumeration(old: Message) -> Message:
    new = message_class("LayerParameter")(
        name=old.name, type=type_name(old.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[old.type].name)
    )
    known = new.DESCRIPTOR.fields_by_name
    for name in old.param:
        new.param.add(name=name)
    for field, value in old.ListFields():
        if field.name in known and field.name not in ("name", "type", "param"):
            _set(new, field.name, value)
    return new


def _of_text(old: Message, padded: dict[str, tuple[str, int]], where: str) -> Message:
    layer = old.layer
    name = layer.type.upper()
    new = message_class("LayerParameter")(name=layer.name, type=type_name(_OLDEST.get(name, name)))
    new.top.extend(old.top)
    new.bottom.extend(padded.get(b, (b, 0))[0] for b in old.bottom)
    param, fields = _FIELDS.get(new.type, ("", {}))
    for field, other in fields.items():
        if layer.HasField(field):
            _set(getattr(new, param), other, getattr(layer, field))
    padding = [padded[b][1] for b in old.bottom if b in padded]
    if padding:
        if new.type not in ("Convolution", "Pooling") or layer.pad:
            raise ModelError(f"{where}: layer {layer.name!r} ({layer.type}) cannot read the layer of padding before it")
        _set(getattr(new, param), "pad", padding[0])
    return new


def _set(message: Message, field: str, given: Message) -> None:
    """Sets a field to a value, or a repeated field to the one value."""
    held = getattr(message, field)
    if hasattr(held, "extend"):
        held.extend([given] if isinstance(given, int) else list(given))
    elif hasattr(held, "CopyFrom"):
        held.CopyFrom(given)
    else:
        setattr(message, field, given)
