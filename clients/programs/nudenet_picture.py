"""nudenet looks at a picture of a person, and at shapes."""
import numpy as np
from nudenet import NudeDetector
from PIL import Image, ImageDraw
from told import tell


def drawing() -> np.ndarray:
    """A figure of ovals, as a picture of OpenCV (BGR)."""
    image = Image.new("RGB", (480, 640), (90, 140, 190))
    draw = ImageDraw.Draw(image)
    skin = (224, 172, 138)
    for box in ((180, 60, 300, 210), (150, 200, 330, 480), (90, 220, 150, 420), (330, 220, 390, 420), (170, 460, 230, 640), (250, 460, 310, 640)):
        draw.ellipse(box, fill=skin, outline=(150, 100, 80))
    for x in (210, 258):
        draw.ellipse((x, 115, x + 14, 125), fill="white", outline="black")
    draw.arc((215, 150, 265, 185), 10, 170, fill=(160, 60, 60), width=4)
    return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])


def look(detector: NudeDetector) -> dict:
    x = np.random.default_rng(0).random((1, 3, 320, 320), np.float32)
    (raw,) = detector.onnx_session.run(None, {detector.input_name: x})
    return {"found": detector.detect(drawing()), "raw": raw[:, :, ::50]}


tell("nudenet", NudeDetector, look)
