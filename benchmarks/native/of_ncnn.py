"""Times a network in ncnn, by its Python package: of_ncnn.py MODEL.onnx FOLDER THREADS DIMENSION …

Prints the bytes of the library and of the converted files, then nanoseconds: load, first run, median run. pnnx converts
the model into FOLDER, without FP16. A call goes through pybind11.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import ncnn
import numpy as np

SECONDS = 0.5


def main(model: Path, folder: Path, threads: int, shape: list[int]) -> None:
    param, weights = folder / f"{model.stem}.ncnn.param", folder / f"{model.stem}.ncnn.bin"
    if not param.exists():
        copy = folder / model.name
        copy.write_bytes(model.read_bytes())
        sizes = f"inputshape=[{','.join(map(str, shape))}]f32"
        convert = [sys.executable, "-c", "import pnnx; pnnx.pnnx()", str(copy), sizes, "fp16=0"]
        subprocess.run(convert, cwd=folder, check=True, capture_output=True)
    (library,) = Path(ncnn.__file__).parent.glob("ncnn*.so")
    x = np.zeros(shape[1:] if len(shape) > 1 else shape, np.float32)  # without the batch
    start = time.perf_counter_ns()
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    if net.load_param(str(param)) or net.load_model(str(weights)):
        sys.exit("ncnn does not load what pnnx wrote")
    load = time.perf_counter_ns() - start

    def run() -> int:
        begin = time.perf_counter_ns()
        extractor = net.create_extractor()
        extractor.input("in0", ncnn.Mat(x))
        status, _ = extractor.extract("out0")
        took = time.perf_counter_ns() - begin
        if status:
            sys.exit(f"ncnn does not run it: status {status}")
        return took

    first, end = run(), time.perf_counter() + SECONDS
    times = [run()]
    while time.perf_counter() < end:
        times.append(run())
    size = library.stat().st_size + param.stat().st_size + weights.stat().st_size
    print(size, load, first, int(statistics.median(times)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(n) for n in sys.argv[4:]])
