"""nudenet looks at a picture of a person, scikit-image's astronaut."""

import numpy as np
from nudenet import NudeDetector
from skimage import data
from report import report


def look(detector: NudeDetector) -> dict:
    x = np.random.default_rng(0).random((1, 3, 320, 320), np.float32)
    (raw,) = detector.onnx_session.run(None, {detector.input_name: x})
    return {"found": detector.detect(np.ascontiguousarray(data.astronaut()[:, :, ::-1])), "raw": raw[:, :, ::50]}


report("nudenet", NudeDetector, look)
