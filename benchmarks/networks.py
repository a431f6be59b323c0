"""Benchmark networks, as torch modules with random inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def cbr(
    i: int, o: int, k: int = 3, s: int = 1, groups: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), act())


class UNet(nn.Module):
    """Ronneberger et al. 2015, padded, with half the channels and bilinear upsampling."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(nn.Sequential(cbr(i, o), cbr(o, o)) for i, o in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.Sequential(cbr(i + o, o), cbr(o, o)) for i, o in zip(widths[:0:-1], widths[-2::-1]))
        self.out = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for i, step in enumerate(self.down):
            x = step(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for step, side in zip(self.up, kept[-2::-1]):
            x = step(torch.cat([F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False), side], 1))
        return self.out(x)


class Detector(nn.Module):
    """ResNet-18, a feature pyramid, and a head at three scales (as in the YOLO family)."""

    def __init__(self, classes: int = 80, width: int = 128):
        super().__init__()
        from torchvision.models import resnet18

        net = resnet18()
        self.stages = nn.ModuleList(
            [nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1, net.layer2), net.layer3, net.layer4]
        )
        self.lateral = nn.ModuleList(cbr(c, width, 1) for c in (128, 256, 512))
        self.merge = nn.ModuleList(cbr(2 * width, width) for _ in range(2))
        self.head = nn.Sequential(cbr(width, width), nn.Conv2d(width, 3 * (5 + classes), 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for stage, lateral in zip(self.stages, self.lateral):
            x = stage(x)
            levels.append(lateral(x))
        y = levels.pop()
        heads = [self.head(y)]
        for step in reversed(self.merge):
            y = step(torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), levels.pop()], 1))
            heads.append(self.head(y))
        return torch.cat([torch.sigmoid(h).flatten(2).transpose(1, 2) for h in heads], 1)


class GPT(nn.Module):
    """Decoder blocks with causal attention, over embeddings (Radford et al. 2019, small)."""

    def __init__(self, layers: int = 6, width: int = 512, heads: int = 8, words: int = 8192, longest: int = 512):
        super().__init__()
        self.words, self.places, self.heads = nn.Embedding(words, width), nn.Embedding(longest, width), heads
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(width),
                    nn.Linear(width, 3 * width),
                    nn.Linear(width, width),
                    nn.LayerNorm(width),
                    nn.Linear(width, 4 * width),
                    nn.Linear(4 * width, width),
                ]
            )
            for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        b, n = ids.shape
        x = self.words(ids) + self.places(torch.arange(n))
        mask = torch.full((n, n), float("-inf")).triu(1)
        for norm1, qkv, project, norm2, wide, narrow in self.blocks:
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in qkv(norm1(x)).chunk(3, -1))
            a = torch.softmax(q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5) + mask, -1) @ v
            x = x + project(a.transpose(1, 2).reshape(b, n, -1))
            x = x + narrow(F.gelu(wide(norm2(x)), approximate="tanh"))
        return self.out(self.norm(x))


class Speech(nn.Module):
    """Convolutions over frames, then two unidirectional GRU layers."""

    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(80, 256, 5, 2, 2)
        self.gru = nn.GRU(256, 384, 2, batch_first=True)
        self.out = nn.Linear(384, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(F.relu(self.front(x)).transpose(1, 2))[0])


class TCN(nn.Module):
    """Dilated convolutions over time with gates (van den Oord et al. 2016)."""

    def __init__(self, width: int = 128, layers: int = 10):
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 32, 1)
        self.steps = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv1d(width, 2 * width, 3, dilation=2 ** (i % 5), padding=2 ** (i % 5)),
                    nn.Conv1d(width, width, 1),
                ]
            )
            for i in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for wide, mix in self.steps:
            a, b = wide(x).chunk(2, 1)
            x = x + mix(torch.tanh(a) * torch.sigmoid(b))
        return self.last(F.relu(x))


class Inverted(nn.Module):
    """An inverted residual (Sandler et al. 2018)."""

    def __init__(self, i: int, o: int, stride: int, factor: int):
        super().__init__()
        wide = i * factor
        self.skip = stride == 1 and i == o
        self.body = nn.Sequential(
            *([cbr(i, wide, 1, act=nn.ReLU6)] if factor > 1 else []),
            cbr(wide, wide, 3, stride, wide, nn.ReLU6),
            cbr(wide, o, 1, act=nn.Identity),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.skip else self.body(x)


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [cbr(3, 32, 3, 2, act=nn.ReLU6)]
    channels = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, width, count, stride in stages:
        for i in range(count):
            layers.append(Inverted(channels, width, 1 if i else stride, factor))
            channels = width
    return nn.Sequential(
        *layers, cbr(channels, 1280, 1, act=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)
    )


class YoloV2(nn.Module):
    """Redmon and Farhadi 2016: Darknet-19 without its head, a passthrough, and 5 boxes for each of 13 × 13 cells."""

    # (channels, kernel) of convolutions; () is a pool
    EARLY = ((32, 3), (), (64, 3), (), (128, 3), (64, 1), (128, 3), (), (256, 3), (128, 1), (256, 3), ())
    EARLY += ((512, 3), (256, 1), (512, 3), (256, 1), (512, 3))
    LATE = ((), (1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3), (1024, 3), (1024, 3))

    def __init__(self):
        super().__init__()
        self.early, self.late = self.chain(3, self.EARLY), self.chain(512, self.LATE)
        self.side, self.head = cbr(512, 64, 1), nn.Sequential(cbr(1280, 1024), nn.Conv2d(1024, 125, 1))

    @staticmethod
    def chain(channels: int, layers: tuple[tuple[int, ...], ...]) -> nn.Sequential:
        """Convolutions (channels, kernel) and pools ()."""
        modules: list[nn.Module] = []
        for layer in layers:
            modules.append(cbr(channels, *layer) if layer else nn.MaxPool2d(2))
            channels = layer[0] if layer else channels
        return nn.Sequential(*modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.early(x)
        b, c, h, w = (side := self.side(x)).shape
        fine = side.view(b, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(b, 4 * c, h // 2, w // 2)
        return self.head(torch.cat([fine, self.late(x)], 1))


class Bert(nn.Module):
    """Devlin et al. 2018, base: the encoder, written in the operators that exporters see."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 30522):
        super().__init__()
        self.words, self.places, self.kinds = (
            nn.Embedding(words, width),
            nn.Embedding(512, width),
            nn.Embedding(2, width),
        )
        self.norm = nn.LayerNorm(width)
        self.heads = heads
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    *(nn.Linear(width, width) for _ in range(4)),
                    nn.LayerNorm(width),
                    nn.Linear(width, 4 * width),
                    nn.Linear(4 * width, width),
                    nn.LayerNorm(width),
                ]
            )
            for _ in range(layers)
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n = ids.shape
        x = self.norm(self.words(ids) + self.places(torch.arange(n))[None] + self.kinds(torch.zeros_like(ids)))
        hidden = (1 - mask[:, None, None, :].float()) * -10000.0
        for query, key, value, project, norm1, wide, narrow, norm2 in self.blocks:
            q, k, v = (t(x).view(b, n, self.heads, -1).transpose(1, 2) for t in (query, key, value))
            a = torch.softmax(q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5) + hidden, -1) @ v
            x = norm1(x + project(a.transpose(1, 2).reshape(b, n, -1)))
            x = norm2(x + narrow(F.gelu(wide(x))))
        return x


class Listener(nn.Module):
    """Three bidirectional LSTM layers over frames, and letters."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(80, 512, 3, batch_first=True, bidirectional=True), nn.Linear(1024, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


def vision(name: str, **given: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **given)

    return build


def small_vit() -> nn.Module:
    """ViT-S/16 (Touvron et al. 2021)."""
    from torchvision.models import VisionTransformer

    net = VisionTransformer(224, 16, 12, 6, 384, 1536)
    nn.init.normal_(net.heads.head.weight, 0, 0.02)  # zero by torchvision's initialisation
    return net


Feed = Callable[[int], dict[str, torch.Tensor]]  # batch → inputs


def image(side: int) -> Feed:
    return lambda batch: {"x": torch.randn(batch, 3, side, side)}


def words(batch: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(0, 1000, (batch, 128)), "mask": torch.ones(batch, 128, dtype=torch.int64)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Feed]] = {
    "bert_base": (Bert, words),
    "convnext_tiny": (vision("convnext_tiny", layer_scale=0.3), image(224)),
    "detector": (Detector, image(320)),
    "efficientnet_b0": (vision("efficientnet_b0"), image(224)),
    "gpt": (GPT, lambda batch: {"x": torch.randint(0, 8192, (batch, 256))}),
    "gru": (Speech, lambda batch: {"x": torch.randn(batch, 80, 200)}),
    "lstm": (Listener, lambda batch: {"x": torch.randn(batch, 100, 80)}),
    "mobilenet_v2": (mobilenet_v2, image(224)),
    "mobilenet_v3": (vision("mobilenet_v3_large"), image(224)),
    "regnet_y_800mf": (vision("regnet_y_800mf"), image(224)),
    "swin_t": (vision("swin_t"), image(224)),
    "tcn": (TCN, lambda batch: {"x": torch.randn(batch, 1, 4000)}),
    "unet": (UNet, image(256)),
    "vit_small": (small_vit, image(224)),
    "yolov2": (YoloV2, image(416)),
}
