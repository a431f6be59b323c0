"""Damaged Darknet configurations, with random weights: each is read as a network, or refused."""

from __future__ import annotations

import random

from pelton import importers

from .mutate import bytes_changed

CONV = "[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=leaky\n"
YOLO = "[yolo]\nmask=0,1\nanchors=1,2,3,4\nnum=2\nclasses=1\n"
SEED = (
    "[net]\nwidth=8\nheight=8\nchannels=3\n"
    + CONV
    + "batch_normalize=1\n[maxpool]\nsize=2\nstride=1\n"
    + CONV
    + "[shortcut]\nfrom=-2\nactivation=mish\n[route]\nlayers=-1,0\n[reorg]\nstride=2\n[upsample]\nstride=2\n"
    + CONV.replace("4", "12")
    + YOLO
    + "[route]\nlayers=-3\n[local]\nfilters=2\nsize=3\npad=1\nactivation=linear\n[connected]\noutput=5\n[softmax]\n"
)
WORDS = ("0", "-1", "1", "2", "-9", "65535", "1048576", "1e9", "", "leaky", "3,4", "[yolo]", "[route]\nlayers=-2", "=")


def damaged(seed: int) -> bytes:
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return bytes_changed(SEED.encode(), rng)
    lines = SEED.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(4, len(lines))
        name, equals, _ = lines[at].partition("=")
        change = rng.randrange(4)
        if change == 0 and equals:
            lines[at] = f"{name}={rng.choice(WORDS)}"
        elif change == 1:
            lines[at : at + 1] = []
        elif change == 2:
            lines.insert(at, rng.choice(lines))
        else:
            lines[at : at + 1] = rng.sample(lines, 2)
    return "\n".join(lines).encode()


def case(seed: int) -> str:
    importers.load(damaged(seed))
    return "loaded"
