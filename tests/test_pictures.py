"""Pictures: descriptions are read strictly, and pixels become the numbers that they ask for."""

import numpy as np
import pytest

from pelton import preprocessing
from pelton.errors import InputError

pytest.importorskip("PIL")


def test_a_description_says_everything_once():
    assert preprocessing.parse(
        "224x320 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 bgr crop=0.875 scale=1 lanczos"
    ) == preprocessing.Preprocessing(
        224, 320, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1.0, "bgr", 0.875, False, "lanczos"
    )
    assert preprocessing.parse("8x8 stretch gray mean=.5") == preprocessing.Preprocessing(
        8, 8, mean=(0.5,), channels="gray", stretch=True
    )
    assert preprocessing.parse("8x8").scale == 1 / 255


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "names no size"),
        ("rgb", "names no size"),
        ("224", "no size"),
        ("0x3", "no size"),
        ("224x224x3", "no size"),
        ("-2x3", "no size"),
        ("8x8 9x9", "second time"),
        ("8x8 rgb bgr", "second time"),
        ("8x8 cmyk", "no size, channel order"),
        ("8x8 mean=a", "no list of numbers"),
        ("8x8 mean=", "no list of numbers"),
        ("8x8 mean=1,2", "2 numbers for 3"),
        ("8x8 gray std=1,2,3", "3 numbers for 1"),
        ("8x8 std=0", "cannot be 0"),
        ("8x8 mean=nan", "finite"),
        ("8x8 scale=-1", "above 0"),
        ("8x8 scale=1,2", "one number"),
        ("8x8 crop=1.5", "up to 1"),
        ("8x8 crop=.5 stretch", "exclude"),
        ("8x8 size=3", "only mean="),
        ("8x8 mean=1 mean=2", "second time"),
    ],
)
def test_nonsense_is_refused_with_examples(text, why):
    with pytest.raises(InputError, match=why) as e:
        preprocessing.parse(text)
    assert "224x224 mean=" in str(e.value)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype(np.uint8)


def test_pixels_become_numbers(pixels):
    mean, std = np.array([1, 2, 3]), np.array([2, 4, 8])
    plain = preprocessing.parse("6x6 scale=1 mean=1,2,3 std=2,4,8 nearest")
    want = (pixels - mean) / std
    assert np.allclose(plain.array(pixels, (1, 3, 6, 6)), want.transpose(2, 0, 1)[None])
    assert np.allclose(plain.array(pixels, (1, 6, 6, 3)), want[None])
    bgr = preprocessing.parse("6x6 scale=1 mean=1,2,3 std=2,4,8 nearest bgr").array(pixels, (1, 6, 6, 3))
    assert np.allclose(bgr, (pixels[:, :, ::-1] - mean) / std)
    assert plain.array(pixels, (1, 3, 6, 6), np.float16).dtype == np.float16
    assert np.allclose(preprocessing.parse("6x6 nearest").array(pixels, (1, 6, 6, 3)), pixels[None] / 255)
    assert (preprocessing.parse("6x6 nearest").array(pixels, (1, 6, 6, 3), np.uint8) == pixels).all()
    assert preprocessing.parse("6x6 gray").array(pixels, (1, 1, 6, 6)).shape == (1, 1, 6, 6)


def test_the_middle_is_cut_out_unless_stretched():
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    assert (preprocessing.parse("5x5 scale=1").array(wide, (1, 3, 5, 5)) == 200).all()
    stretched = preprocessing.parse("5x5 scale=1 stretch nearest").array(wide, (1, 3, 5, 5))
    assert stretched[0, 0, 0].tolist() == [0, 0, 200, 0, 0]
    inner = np.zeros((20, 20, 3), np.uint8)
    inner[5:15, 5:15] = 90
    assert (preprocessing.parse("4x4 scale=1 crop=0.5").array(inner, (1, 3, 4, 4)) == 90).all()


def test_the_cut_is_pillows(pixels):
    from PIL import Image

    big = np.kron(pixels, np.ones((50, 75, 1), np.uint8))  # 300 × 450
    want = np.asarray(Image.fromarray(big).crop((75, 0, 375, 300)).resize((32, 32), Image.Resampling.LANCZOS))
    assert (preprocessing.parse("32x32 scale=1 lanczos").array(big, (1, 32, 32, 3)) == want).all()


def test_files_are_read_and_turned_upright(tmp_path, pixels):
    from PIL import Image

    path, turned = tmp_path / "p.png", tmp_path / "turned.png"
    Image.fromarray(pixels).save(path)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(turned, exif=exif)
    plain = preprocessing.parse("6x6 scale=1 nearest")
    assert (plain.array(path, (1, 6, 6, 3))[0] == pixels).all()
    assert (plain.array(turned, (1, 6, 6, 3))[0] == pixels[::-1, ::-1]).all()
    Image.fromarray(pixels).convert("RGBA").save(path)
    assert plain.array(path, (1, 6, 6, 3)).shape == (1, 6, 6, 3)


@pytest.mark.parametrize("shape", [(1, 3, 6, 5), (1, 1, 6, 6), (3, 6, 6), (1, 6, 6, 4), ()])
def test_inputs_that_take_no_such_picture(shape):
    with pytest.raises(InputError, match="need an input of shape"):
        preprocessing.parse("6x6").axis(shape)


def test_types_that_take_no_picture(pixels):
    with pytest.raises(InputError, match="floats or of uint8"):
        preprocessing.parse("6x6").array(pixels, (1, 3, 6, 6), np.int64)
    with pytest.raises(InputError, match="leave out mean="):
        preprocessing.parse("6x6 mean=1").array(pixels, (1, 3, 6, 6), np.uint8)
    with pytest.raises(InputError, match="uint8"):
        preprocessing.parse("6x6").array(pixels.astype(float), (1, 3, 6, 6))


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_broken_files(tmp_path, content):
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        preprocessing.open_picture(path)
    with pytest.raises(InputError, match="cannot be read"):
        preprocessing.open_picture(tmp_path / "missing.png")


def test_labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("cat\n  big dog \nfrog\n\n")
    assert preprocessing.read_labels(path) == ("cat", "big dog", "frog")
    for content, why in ((b"", "no lines"), (b"a\n\nb\n", "empty line"), (b"\xff\xfe\x00", "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=why):
            preprocessing.read_labels(path)
    with pytest.raises(InputError, match="one class per line"):
        preprocessing.read_labels(tmp_path / "missing.txt")
