"""Networks of PyTorch, by both of its exporters: pip install torch onnx onnxscript onnxruntime; python torch_nets.py
[NAME…]"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from keep import Made, export, run
from torch import Tensor, nn
from torch.nn import functional as f


def made(
    model: nn.Module,
    *sets: dict[str, Any],
    dynamo: bool,
    dynamic: Any = None,
    opset: int = 18,
    outputs: list[str] | None = None,
) -> Made:
    """The model's form in ONNX for the first set of inputs, and what it gives for all of them. `dynamic`: per input
    {axis: name}."""
    model = model.eval()
    names = list(sets[0])
    example = tuple(torch.from_numpy(a) for a in sets[0].values())
    file = io.BytesIO()
    with torch.no_grad():
        if dynamo:
            sizes = (
                {k: {axis: torch.export.Dim.DYNAMIC for axis in axes} for k, axes in dynamic.items()}
                if dynamic
                else None
            )
            program = torch.onnx.export(
                model,
                example,
                input_names=names,
                output_names=outputs,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                dynamic_shapes=tuple(sizes.get(k) for k in names) if sizes else None,
            )
            assert program is not None
            data = program.model_proto.SerializeToString()
        else:
            torch.onnx.export(
                model,
                example,
                file,
                input_names=names,
                output_names=outputs,
                dynamo=False,
                opset_version=min(opset, 17),
                dynamic_axes=dynamic,
            )
            data = file.getvalue()
        found = [model(*(torch.from_numpy(a) for a in s.values())) for s in sets]
    return data, sets, [[y.numpy() for y in flat(ys)] for ys in found]


def flat(things: Any) -> list[Tensor]:
    return [things] if isinstance(things, Tensor) else [y for thing in things for y in flat(thing)]


def normal(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def words(*shape: int, high: int = 40) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, high, shape)


class ImageNetwork(nn.Module):
    """Convolutions of several kinds, a residual, pools and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.deep, self.point = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Conv2d(8, 8, 1)
        self.up, self.head = nn.ConvTranspose2d(8, 4, 2, 2), nn.Linear(12, 5)
        self.norm.running_mean, self.norm.running_var = torch.linspace(-1, 1, 8), torch.linspace(0.5, 2, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = f.hardswish(self.norm(self.first(x)))
        y = y + self.point(f.silu(self.deep(y)))
        z = f.pixel_shuffle(torch.cat([y, f.interpolate(f.max_pool2d(y, 2), size=y.shape[2:], mode="bilinear")], 1), 2)
        u = f.adaptive_avg_pool2d(torch.cat([self.up(y), z, f.pad(z, (0, 0, 0, 0, 2, 2))], 1), (1, 1))
        return self.head(u.flatten(1)[:, :12])


@export
def torch_images() -> Made:
    torch.manual_seed(0)
    return made(
        ImageNetwork(),
        {"x": normal(1, 3, 12, 12)},
        {"x": normal(2, 3, 12, 12)},
        dynamo=False,
        dynamic={"x": {0: "batch"}},
    )


@export
def torch_images_dynamo() -> Made:
    torch.manual_seed(0)
    return made(
        ImageNetwork(),
        {"x": normal(2, 3, 12, 12)},
        {"x": normal(3, 3, 12, 12)},
        dynamo=True,
        dynamic={"x": {0: "batch"}},
    )


class Layer(nn.Module):
    """One layer of a transformer as libraries write it, with views, a mask made of sizes, and a cache of keys and
    values."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, rows, size = x.shape
        q, k, v = (
            t.view(batch, rows, self.heads, size // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = q @ k.transpose(-1, -2) / (size // self.heads) ** 0.5
        seen = torch.arange(k.shape[2])[None] <= torch.arange(rows)[:, None] + (k.shape[2] - rows)
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, rows, size)
        x = x + self.out(y)
        return x + self.narrow(f.gelu(self.wide(self.norm2(x)))), (k, v)


class Decoder(nn.Module):
    """Two layers over words and places; takes a cache and gives the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.layers, self.norm = nn.ModuleList([Layer(16, 2) for _ in range(2)]), nn.LayerNorm(16)

    def forward(self, ids: Tensor, k0: Tensor, v0: Tensor, k1: Tensor, v1: Tensor) -> tuple[Tensor, ...]:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]) + k0.shape[2])
        x, first = self.layers[0](x, (k0, v0))
        x, second = self.layers[1](x, (k1, v1))
        return self.norm(x) @ self.words.weight.T, *first, *second


def step(batch: int, before: int, rows: int) -> dict[str, np.ndarray]:
    caches = {
        name: normal(batch, 2, before, 8, seed=i)
        for i, name in enumerate(("past_0_key", "past_0_value", "past_1_key", "past_1_value"))
    }
    return {"input_ids": words(batch, rows), **caches}


CACHE: Any = {
    "input_ids": {0: "batch", 1: "sequence"},
    **{name: {0: "batch", 2: "past_sequence"} for name in ("past_0_key", "past_0_value", "past_1_key", "past_1_value")},
}
GIVEN = ["logits", "present_0_key", "present_0_value", "present_1_key", "present_1_value"]


@export
def torch_decoder() -> Made:
    """With a cache, also an empty one, as a generating loop calls it."""
    torch.manual_seed(0)
    return made(Decoder(), step(2, 3, 4), step(1, 0, 6), step(1, 6, 1), dynamo=False, dynamic=CACHE, outputs=GIVEN)


@export
def torch_decoder_dynamo() -> Made:
    torch.manual_seed(0)
    return made(Decoder(), step(2, 3, 4), step(3, 5, 2), dynamo=True, dynamic=CACHE, outputs=GIVEN)


class Encoder(nn.Module):
    """As models of sentences are: a mask of what is padding, the mean over the rest, length one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(40, 16), nn.Embedding(2, 16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.wide, self.narrow, self.norm1, self.norm2 = (
            nn.Linear(16, 24),
            nn.Linear(24, 16),
            nn.LayerNorm(16),
            nn.LayerNorm(16),
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        batch, rows = input_ids.size()
        x = self.words(input_ids) + self.kinds(torch.zeros_like(input_ids))
        unseen = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for _ in range(2):
            q, k, v = (w(x).view(batch, -1, 2, 8).transpose(1, 2) for w in (self.q, self.k, self.v))
            y = f.scaled_dot_product_attention(q, k, v, attn_mask=unseen.expand(batch, 1, rows, rows))
            x = self.norm1(x + self.out(y.transpose(1, 2).contiguous().view(batch, -1, 16)))
            x = self.norm2(x + self.narrow(f.gelu(self.wide(x))))
        kept = attention_mask.unsqueeze(-1).expand(x.size()).to(x.dtype)
        return f.normalize((x * kept).sum(1) / kept.sum(1).clamp(min=1e-9))


def sentences(batch: int, rows: int) -> dict[str, np.ndarray]:
    mask = (np.arange(rows) < np.linspace(rows, max(rows // 2, 1), batch)[:, None]).astype(np.int64)
    return {"input_ids": words(batch, rows), "attention_mask": mask}


SENTENCES: Any = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}


@export
def torch_encoder() -> Made:
    torch.manual_seed(0)
    return made(Encoder(), sentences(2, 6), sentences(1, 9), dynamo=False, dynamic=SENTENCES)


@export
def torch_encoder_dynamo() -> Made:
    torch.manual_seed(0)
    return made(Encoder(), sentences(2, 6), sentences(3, 9), dynamo=True, dynamic=SENTENCES)


class Rope(nn.Module):
    """A layer as newer language models have it: RMS norm, rotated queries and keys shared by several heads, a gated
    network."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.weight = nn.Embedding(40, 16), nn.Parameter(torch.linspace(0.5, 1.5, 16))
        self.q, self.k, self.v, self.o = (
            nn.Linear(16, 16, False),
            nn.Linear(16, 8, False),
            nn.Linear(16, 8, False),
            nn.Linear(16, 16, False),
        )
        self.gate, self.up, self.down = nn.Linear(16, 24, False), nn.Linear(16, 24, False), nn.Linear(24, 16, False)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        y = self.normed(x)
        batch, rows, _ = y.shape
        q, k, v = (w(y).view(batch, rows, -1, 4).transpose(1, 2) for w in (self.q, self.k, self.v))
        angles = position_ids[..., None].float() * (10000.0 ** -(torch.arange(0, 4, 2).float() / 4))
        cos, sin = (torch.cat([t, t], -1)[:, None] for t in (angles.cos(), angles.sin()))

        def rotated(t: Tensor) -> Tensor:
            return t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin

        k, v = (t[:, :, None].expand(batch, 2, 2, rows, 4).reshape(batch, 4, rows, 4) for t in (rotated(k), v))
        y = f.scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, rows, 16))
        y = self.normed(x)
        return x + self.down(f.silu(self.gate(y)) * self.up(y))

    def normed(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def places(batch: int, rows: int) -> dict[str, np.ndarray]:
    return {"input_ids": words(batch, rows), "position_ids": np.tile(np.arange(rows), (batch, 1))}


PLACES: Any = {"input_ids": {0: "batch", 1: "sequence"}, "position_ids": {0: "batch", 1: "sequence"}}


@export
def torch_rope() -> Made:
    torch.manual_seed(0)
    return made(Rope(), places(2, 5), places(1, 9), dynamo=False, dynamic=PLACES)


@export
def torch_rope_dynamo() -> Made:
    torch.manual_seed(0)
    return made(Rope(), places(2, 5), places(3, 7), dynamo=True, dynamic=PLACES)


class Speech(nn.Module):
    """Frames to words: convolutions over time, recurrent layers in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.lstm = nn.Conv1d(6, 8, 3, 2, 1), nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
        self.gru, self.out = nn.GRU(12, 5, batch_first=True), nn.Linear(5, 7)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        y = f.relu(self.front(frames.transpose(1, 2))).transpose(1, 2)
        y, _ = self.lstm(y)
        y, last = self.gru(y)
        return f.log_softmax(self.out(y), -1), last


@export
def torch_speech() -> Made:
    torch.manual_seed(0)
    return made(
        Speech(),
        {"frames": normal(1, 12, 6)},
        {"frames": normal(1, 31, 6)},
        dynamo=False,
        dynamic={"frames": {1: "time"}},
    )


class Indexed(nn.Module):
    """What people write with indices: gathers, scatters, sorts, masks, one-hot, einsum, where."""

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        best, where = x.topk(3, -1)
        picked = x.gather(1, at)
        put = torch.zeros_like(x).scatter_add(1, at, picked) + x.flip(1).cumsum(1)
        hot = f.one_hot(at % 4, 4).float()
        mixed = torch.einsum("bkc,bd->kcd", hot, put)
        ordered = x.sort(-1, descending=True).values[:, 1:-1:2]
        rolled = torch.roll(x, 2, 1).unfold(1, 3, 2).amax(-1)
        return (
            best,
            where,
            put,
            mixed,
            ordered,
            torch.where(x > 0, x.abs().log1p(), x.exp() - 1),
            rolled,
            x.std(1),
            x.var(0, unbiased=False),
        )


@export
def torch_indexed() -> Made:
    return made(
        Indexed(),
        {"x": normal(3, 8), "at": words(3, 5, high=8)},
        {"x": normal(3, 8, seed=9), "at": words(3, 5, high=7)},
        dynamo=False,
    )


class Loops(nn.Module):
    """What tracing cannot: a loop of as many turns as a tensor says, and a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(5, 5)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        for _ in range(int(turns)):
            x = torch.tanh(self.cell(x))
        if bool((x.sum() > 0).item()):
            x = x * 2
        else:
            x = x - 1
        return x


@export
def torch_loops() -> Made:
    torch.manual_seed(0)
    model: Any = torch.jit.script(Loops())
    return made(
        model,
        {"x": normal(2, 5), "turns": np.array(3)},
        {"x": normal(4, 5), "turns": np.array(0)},
        dynamo=False,
        dynamic={"x": {0: "batch"}},
    )


@export
def torch_half() -> Made:
    """In bfloat16 within, f32 outside."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).to(torch.float16)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.half()).float()

    torch.manual_seed(0)
    return made(Half(), {"x": normal(3, 6)}, {"x": normal(1, 6)}, dynamo=False, dynamic={"x": {0: "batch"}})


if __name__ == "__main__":
    run()
