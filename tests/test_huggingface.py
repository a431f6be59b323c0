"""Hugging Face's preprocessor_config.json: pixels as its image processors compute them, and refusals."""

import json

import numpy as np
import pytest
from test_pictures import photo

from pelton import preprocessing
from pelton.cli import main
from pelton.errors import InputError
from pelton.options import Options

Image = pytest.importorskip("PIL.Image")

# the files of well-known models, in the forms of three generations of transformers
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMAL = {"do_normalize": True, "image_mean": MEAN, "image_std": STD}
SCALED = {"do_rescale": True, "rescale_factor": 0.00392156862745098}
VIT = {"feature_extractor_type": "ViTFeatureExtractor", "do_resize": True, "resample": 2, "size": 224, **NORMAL}
CLIP = {
    **{"crop_size": 224, "do_center_crop": True, "do_convert_rgb": True, "do_resize": True, "resample": 3},
    **{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, **NORMAL},
}
DEIT = {
    **{"crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_resize": True, "resample": 3},
    **{"image_processor_type": "DeiTImageProcessor", "size": {"height": 256, "width": 256}, **NORMAL, **SCALED},
}
CONVNEXT = {
    **{"crop_pct": 0.875, "do_resize": True, "image_processor_type": "ConvNextImageProcessor", "resample": 3},
    **{"size": {"shortest_edge": 224}, **NORMAL, **SCALED},
}
RT_DETR = {
    **{"image_processor_type": "RTDetrImageProcessorFast", "do_resize": True, "do_normalize": False, "do_pad": False},
    **{"size": {"height": 640, "width": 640}, "resample": 2, "format": "coco_detection", "pad_size": None, **SCALED},
    **{"image_mean": MEAN, "image_std": STD, "size_divisor": None},
}
MOBILEVIT = {
    **{"image_processor_type": "MobileViTImageProcessor", "do_resize": True, "resample": 2, "do_center_crop": True},
    **{"size": {"shortest_edge": 288}, "crop_size": {"height": 256, "width": 256}, "do_flip_channel_order": True},
    **SCALED,
}


def written(tmp_path, config):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(config))
    return path


def shorter(image, side):
    w, h = image.size
    return (side, int(side * h / w)) if w <= h else (int(side * w / h), side)


def as_transformers(image, resized, crop, resample, mean=None, std=None, flip=False):
    """Its image processors, written again by Pillow and numpy: resize, cut, rescale, normalize."""
    x = np.asarray(image.resize(resized, resample))
    top, left = (x.shape[0] - crop[0]) // 2, (x.shape[1] - crop[1]) // 2
    x = x[top : top + crop[0], left : left + crop[1]] / 255.0
    x = (x - mean) / std if mean else x
    return np.moveaxis(x[:, :, ::-1] if flip else x, 2, 0)[None]


@pytest.mark.parametrize("width, height", [(301, 257), (256, 391), (60, 45)])
@pytest.mark.parametrize(
    "config, resized, crop, more",
    [
        (VIT, lambda i: (224, 224), (224, 224), (2, MEAN, STD)),
        (CLIP, lambda i: shorter(i, 224), (224, 224), (3, MEAN, STD)),
        (DEIT, lambda i: (256, 256), (224, 224), (3, MEAN, STD)),
        (CONVNEXT, lambda i: shorter(i, 256), (224, 224), (3, MEAN, STD)),
        ({**CONVNEXT, "size": 384}, lambda i: (384, 384), (384, 384), (3, MEAN, STD)),
        ({**CLIP, "size": 231, "crop_size": [31, 224], "resample": 1}, lambda i: shorter(i, 231), (31, 224), None),
        (RT_DETR, lambda i: (640, 640), (640, 640), (2,)),
        (MOBILEVIT, lambda i: shorter(i, 288), (256, 256), (2, None, None, True)),
    ],
)
def test_inputs_are_those_of_transformers(tmp_path, config, resized, crop, more, width, height):
    image = photo(width, height)
    want = as_transformers(image, resized(image), crop, *(more or (1, MEAN, STD)))
    prepare = preprocessing.parse(written(tmp_path, config))
    got = prepare.array(image, want.shape)
    assert np.allclose(got, want, atol=1e-6)
    assert preprocessing.parse(str(prepare)) == prepare


@pytest.mark.parametrize(
    "config, change, why",
    [
        (VIT, {"do_thumbnail": True}, "'do_thumbnail'"),
        (VIT, {"size_divisor": 32}, "'size_divisor'"),
        (VIT, {"rescale_offset": 1}, "'rescale_offset'"),
        (VIT, {"size": {"shortest_edge": 224}}, "left open"),
        (VIT, {"size": {"shortest_edge": 800, "longest_edge": 1333}}, "'size'"),
        (VIT, {"size": None}, "'size'"),
        (VIT, {"size": -3}, "'size'"),
        (VIT, {"size": True}, "'size'"),
        (VIT, {"size": 1e9}, "'size'"),
        (VIT, {"resample": 9}, "'resample'"),
        (VIT, {"resample": "bicubic"}, "'resample'"),
        (VIT, {"do_resize": False}, "'do_resize'"),
        (VIT, {"do_resize": 1}, "'do_resize'"),
        (VIT, {"image_std": [0.1, 0, 0.1]}, "'image_std'"),
        (VIT, {"image_mean": "x"}, "'image_mean'"),
        (VIT, {"image_mean": [1, 2]}, "'image_mean'"),
        (VIT, {"image_mean": [1, 2, 10**400]}, "too large"),
        (VIT, {"do_normalize": None, "crop_size": 3}, "'do_center_crop'"),
        (VIT, {"feature_extractor_type": "DonutFeatureExtractor"}, "DonutFeatureExtractor"),
        (VIT, {"feature_extractor_type": 7}, "'image_processor_type' is missing"),
        (CLIP, {"crop_size": 225}, "'crop_size'"),
        (CLIP, {"crop_size": {"shortest_edge": 3}}, "'crop_size'"),
        (DEIT, {"rescale_factor": -1}, "'rescale_factor'"),
        (CONVNEXT, {"crop_pct": 1.5}, "'crop_pct'"),
        (CONVNEXT, {"do_center_crop": True}, "'do_center_crop'"),
        (RT_DETR, {"do_pad": True, "pad_size": {"height": 700, "width": 700}}, "'do_pad'"),
        (MOBILEVIT, NORMAL, "'do_flip_channel_order'"),
    ],
)
def test_what_would_change_pixels_is_refused_by_name(tmp_path, config, change, why):
    with pytest.raises(InputError, match=why) as e:
        preprocessing.parse(written(tmp_path, config | change))
    assert "preprocessor_config.json" in str(e.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 100_000])
def test_other_files(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="config.json"):
        preprocessing.parse(path)
    with pytest.raises(InputError, match="cannot be read"):
        preprocessing.parse(tmp_path / "missing.json")


def test_an_engine_holds_what_the_file_says(tmp_path, cnn, cache, capsys):
    """Built with the file, it takes pictures when that is gone."""
    size = {"height": 12, "width": 12}
    path = written(tmp_path, {"image_processor": {**DEIT, "size": {"height": 15, "width": 14}, "crop_size": size}})
    engine, picture = str(tmp_path / "e.pelton"), str(tmp_path / "p.png")
    assert main(["build", cnn, "-o", engine, "--image", str(path), "--level", "0", "-q", *cache]) == 0
    path.unlink()
    photo(40, 30).save(picture)
    assert main(["run", engine, "--input", picture, "--top", "2"]) == 0
    assert main(["inspect", engine]) == 0
    said = capsys.readouterr().out
    assert "12x12 stretch=15x14 floor bicubic" in said
    assert Options(image="12x12 rgb").image == "12x12 rgb"
    with pytest.raises(InputError, match="image is a description"):
        Options(image=3)
