"""docs/choosing.md and docs/advise.md: what the guides of 2017 to 2021 say is there by number, their slips are mended,
and the tables of kinds of user and of routes are those of the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

from pelton.advise.catalog import load
from pelton.advise.routes import SOURCES, TARGETS, known_names
from pelton.advise.users import PROFILES

DOCS = Path(__file__).parents[1] / "docs"
CHOOSING, INSTALL, ADVISE = (
    " ".join((DOCS / name).read_text().split()) for name in ("choosing.md", "install-gpu.md", "advise.md")
)
# number of a fact of the guides → page and what stands there
FACTS = [
    (1, CHOOSING, "heterogeneous if processors of different cores, memories, instruction sets and software"),
    (2, CHOOSING, "Core i7-5960X (8 cores, 16 threads) is a Haswell-E"),
    (2, CHOOSING, "spends most of its die on caches, memory and control"),
    (3, CHOOSING, "| Intel Xeon X5650 | Westmere | 6 | 2660 | 127.7 | 95 |"),
    (4, CHOOSING, "14 SMs of 32 cores, 448 in all, and 1,030 GFLOPS, not 16 and 1,288"),
    (5, CHOOSING, "13 SMs of 192 cores, and 48 KB of shared memory or L1"),
    (6, CHOOSING, "13 SMs of 128 cores and 3,494 GFLOPS"),
    (
        7,
        CHOOSING,
        "global memory, L2 cache, shared memory and L1 cache of an SM, texture and constant caches, registers",
    ),
    (8, CHOOSING, "More cores help only if enough work of the same kind is scheduled and memory keeps up"),
    (9, CHOOSING, "such as cuBLAS and cuDNN"),
    (10, CHOOSING, "Tensor cores compute D = A × B + C"),
    (10, CHOOSING, "1.8 times on one layer"),
    (11, CHOOSING, "420 TFLOPS of the TPU v3 are those of a board, not of a chip"),
    (11, CHOOSING, "is smaller than a penny"),
    (12, CHOOSING, "GPU or TPU: Google"),
    (12, CHOOSING, "Quantum computers play no part"),
    (13, CHOOSING, "some guides put compute first, others bandwidth"),
    (14, CHOOSING, "ask for 4 GB, and for 6 GB with a display"),
    (15, CHOOSING, "The guides of 2017 say that the GTX 1000 series gives twice"),
    (16, CHOOSING, "Servers take 8 or 16 cards"),
    (17, CHOOSING, "| data over 250 GB | GeForce GTX Titan X (12 GB"),
    (17, CHOOSING, "| a cluster | another matter"),
    (18, CHOOSING, "above 100 machines; from 10 to 100 complete systems (DGX)"),
    (19, CHOOSING, "New architectures come every one to three years (the guides: one or two)"),
    (20, CHOOSING, "training and predictions on a GPU need no fast one"),
    (21, CHOOSING, "length and slots of the cards"),
    (22, CHOOSING, "cards of 50 to 300 W"),
    (23, CHOOSING, "with four cards ×16 may become ×8 or ×4"),
    (24, CHOOSING, "Power, heat and volume decide together"),
    (25, CHOOSING, "Windows is for beginners who know no Linux"),
    (26, CHOOSING, "the run file of CUDA 8.0 or 9.0"),
    (26, INSTALL, "By run file, where no package fits"),
    (27, INSTALL, "## cuBLASLt and cuDNN"),
    (28, INSTALL, "## Native or container"),
    (29, CHOOSING, "| TensorFlow | framework | static graphs with TensorBoard"),
    (30, CHOOSING, "| PyTorch | framework | plain interface, dynamic graphs, variable lengths"),
    (31, CHOOSING, "| Keras | framework | highest level, over several back ends"),
    (32, CHOOSING, "| Sonnet | framework"),
    (33, CHOOSING, "hard to install; common in vision until 2017"),
    (34, CHOOSING, "| Caffe2 | framework"),
    (35, CHOOSING, "| Apache MXNet | framework | several GPUs, many languages, GluonCV and GluonNLP"),
    (36, CHOOSING, "| Microsoft CNTK | framework"),
    (37, CHOOSING, "| PaddlePaddle | framework"),
    (37, CHOOSING, "| MindSpore | framework"),
    (38, CHOOSING, "PyTorch for beginners (a plain interface) and TensorFlow for deployment in industry"),
    (39, CHOOSING, "| QNNPACK | compiler"),
    (39, CHOOSING, "| Clipper | server"),
    (40, CHOOSING, "NNAPI, deprecated in Android 15"),
    (40, CHOOSING, "Apple's CPUs through Accelerate (BNNS)"),
    (41, CHOOSING, "Distributed training stays with the frameworks"),
    (42, CHOOSING, "| Tensor Comprehensions | compiler"),
    (43, CHOOSING, "Servers: the framework's own server, TensorRT, TVM, ONNX Runtime"),
    (44, CHOOSING, "about 7 times the performance and 5 times the batch for BERT"),
    (45, CHOOSING, "layout with channels last, the autotuner of cuDNN, data parallelism"),
]


@pytest.mark.parametrize("number, page, words", FACTS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(FACTS)])
def test_every_fact_of_the_guides_is_there(number, page, words):
    assert words in page


def test_the_facts_are_all_of_them():
    assert {n for n, *_ in FACTS} == set(range(1, 46))


def test_slips_of_the_guides_are_mended_in_the_catalog():
    catalog = load()
    assert catalog.device("Core i7-5960X").architecture == "Haswell-E"
    assert catalog.device("Tesla M2070").cores == 14 * 32 and catalog.device("Tesla M2070").peak("fp32") == 1.03
    assert catalog.device("Tesla K20").cores == 13 * 192 and catalog.device("GTX 980").cores == 16 * 128
    assert catalog.device("Google TPU v3").peak("bf16") == 123


def test_the_tables_of_advise_are_those_of_the_code():
    rows = re.findall(r"\| `(\w+)` \| ([^|]+) \| ([\d, ]+); (\w+) \| (\d*) ?\| ([\w, ]+) \|", ADVISE)
    want = [
        (
            u.name,
            u.title,
            ", ".join(map(str, u.batches)),
            u.precision,
            "" if u.budget is None else f"{u.budget:g}",
        )
        for u in PROFILES
    ]
    assert [row[:5] for row in rows] == want and [r[5] for r in rows] == [", ".join(u.weigh) for u in PROFILES]
    assert f"Formats: {', '.join(known_names(SOURCES))}. Places: {', '.join(known_names(TARGETS))}." in ADVISE


def test_references_of_the_page_have_addresses():
    text = (DOCS / "choosing.md").read_text()
    used, known = set(re.findall(r"\]\[(\w+)\]", text)), dict(re.findall(r"^\[(\w+)\]: (\S+)$", text, re.M))
    assert used == known.keys() and all(url.startswith("https://") for url in known.values())
