"""The fuzzer: python -m fuzz [--runs N] [--seed S] [--kind KIND] [--keep FOLDER]; exits with 1 on findings."""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.serve.page import replace_part

from . import caffe, cases, darknet, engines, gpu, language, pool, tflite

# of so many damaged models, one case of the kind
SHARE = {
    "model": 1,
    "graph": 10,
    "int8": 40,
    "engine": 4,
    "caffe": 4,
    "darknet": 10,
    "tflite": 4,
    "gguf": 4,
    "cuda": 40,
    "cubin": 100,
}
# kinds that need Triton, or are slow: only where they are asked for
ALONE = ("int8", "cuda", "cubin")
SLOW = 120.0  # seconds that a case of these may take


def main() -> int:
    ask = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    ask.add_argument("--runs", type=int, default=20000, help="damaged models (other kinds: a part of that)")
    ask.add_argument("--seed", type=int, default=None, help="the first seed; drawn where it is not given")
    ask.add_argument(
        "--kind", default="", help=f"only this kind of case, of {', '.join(SHARE)}; {' and '.join(ALONE)} only if named"
    )
    ask.add_argument(
        "--small", action="store_true", help="without the onnx package's node tests, which take half a minute to make"
    )
    ask.add_argument("--children", type=int, default=2)
    ask.add_argument("--keep", type=Path, help="where models that something was found with are written")
    ask.add_argument("--page", type=Path, help="a page with a part for the results of the kind, written anew")
    a = ask.parse_args()
    cases.quiet()
    first = random.SystemRandom().randrange(1 << 32) if a.seed is None else a.seed
    corpus = cases.corpus(not a.small)
    start, found, ended = time.monotonic(), collections.defaultdict(list), collections.Counter()
    with tempfile.TemporaryDirectory() as cache:
        kinds = {
            "model": cases.model_case(corpus, Path(cache)),
            "graph": cases.graph_case(cases.on_cpu(Path(cache))),
            "int8": cases.graph_case(cases.in_int8(Path(cache))),
            "cuda": cases.graph_case(gpu.interpreted()),
            "cubin": cases.graph_case(gpu.compiled(Path(cache))),
            "darknet": darknet.case,
            "tflite": tflite.case,
            "gguf": language.gguf_case(Path(cache)),
            "caffe": caffe.case,
            "engine": engines.engine_case(engines.originals(Path(cache)) if a.kind in ("", "engine") else []),
        }
        asked = [
            (kind, first + i)
            for kind in kinds
            if a.kind == kind or not a.kind and kind not in ALONE
            for i in range(max(a.runs // SHARE[kind], 1))
        ]
        for e in pool.run(kinds, asked, a.children, SLOW if a.kind in ALONE else pool.SECONDS):
            ended[e.kind, e.how] += 1
            if e.bad:
                found[e.cause].append(e)
                small = " --small" if a.small else ""
                print(
                    f"{e.kind} {e.seed}: {e.how} after {e.seconds:.1f} s; again: python -m fuzz --kind {e.kind} --seed"
                    f" {e.seed} --runs 1{small}",
                    flush=True,
                )
                if len(found[e.cause]) == 1:
                    print(f"{e.detail}\n", flush=True)
                    if a.keep is not None and e.kind == "model":
                        a.keep.mkdir(parents=True, exist_ok=True)
                        (a.keep / f"{e.kind}-{e.seed}.onnx").write_bytes(cases.damaged(e.seed, corpus))
    print(f"from seed {first}, {len(asked)} cases in {time.monotonic() - start:.0f} s")
    for (kind, how), n in sorted(ended.items()):
        print(f"  {kind}: {n} {how}")
    for cause, endings in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"  {len(endings)} × {cause} (seeds {', '.join(str(e.seed) for e in endings[:5])})")
    if a.page is not None:
        results = ", ".join(f"{n:,} {how}" for (_, how), n in sorted(ended.items()))
        line = f"{len(asked):,} cases from seed {first}: {results}."
        replace_part(a.page, f"<!-- fuzz {a.kind}: begin -->", f"<!-- fuzz {a.kind}: end -->", [line])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
