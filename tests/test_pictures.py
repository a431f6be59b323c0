"""Pictures: strict parsing of descriptions, and pixels converted as described."""

import numpy as np
import pytest

import pelton
from pelton import preprocessing
from pelton.cli import main
from pelton.errors import InputError

Image = pytest.importorskip("PIL.Image")


def test_a_description_says_everything_once():
    assert preprocessing.parse(
        "224x320 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 bgr crop=0.875 scale=1 lanczos"
    ) == preprocessing.Preprocessing(
        224, 320, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1.0, "bgr", "cut", 0.875, resample="lanczos"
    )
    assert preprocessing.parse("8x8 stretch gray mean=.5") == preprocessing.Preprocessing(
        8, 8, mean=(0.5,), channels="gray", fit="stretch"
    )
    assert preprocessing.parse("8x8").scale == 1 / 255


@pytest.mark.parametrize(
    "text",
    [
        "8x9",
        "8x9 crop=0.3 gray mean=0.1",
        "64x48 shorter=65 floor bicubic std=0.2,0.3,1e-3 scale=1",
        "64x48 stretch=70x48 hamming",
        "64x48 stretch box",
        "64x48 letterbox",
        "64x48 letterbox=1,2,255 bgr mean=0.1,0.2,0.3",
        "64x48 letterbox=0 gray",
    ],
)
def test_a_description_can_be_written_again(text):
    read = preprocessing.parse(text)
    assert preprocessing.parse(str(read)) == read


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "names no size"),
        ("rgb", "names no size"),
        ("224", "no size"),
        ("0x3", "no size"),
        ("224x224x3", "no size"),
        ("-2x3", "no size"),
        ("8x8 9x9", "twice"),
        ("8x8 rgb bgr", "twice"),
        ("8x8 cmyk", "no size, channel order"),
        ("8x8 crop", "nor one of mean=, std=, scale=, crop=, .*shorter=.* with a value"),
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
        ("8x8 shorter=9 letterbox", "exclude"),
        ("8x8 shorter=7", "is smaller than 8x8"),
        ("8x8 shorter=9.5", "whole number"),
        ("8x8 shorter=", "no list of numbers"),
        ("8x8 shorter=99999999", "whole number"),
        ("9x8 stretch=8x9", "is smaller than 9x8"),
        ("8x8 stretch=9", "height and width"),
        ("8x8 floor", "belongs to"),
        ("8x8 stretch floor", "belongs to"),
        ("8x8 letterbox=256", "up to 255"),
        ("8x8 letterbox=1,2", "2 numbers for 3"),
        ("8x8 size=3", "only mean="),
        ("8x8 mean=1 mean=2", "twice"),
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


def photo(width, height):
    """A picture without edges of its own, so that filters give values of all kinds."""
    from PIL import Image

    rng = np.random.default_rng()
    coarse = rng.integers(0, 256, (max(2, height // 7), max(2, width // 7), 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def middle_as_torchvision(image, shorter, height, width, filter):
    """torchvision.transforms: Resize(shorter, filter), then CenterCrop((height, width)), written again."""
    w, h = image.size
    size = (shorter, int(shorter * h / w)) if w <= h else (int(shorter * w / h), shorter)
    top, left = int(round((size[1] - height) / 2.0)), int(round((size[0] - width) / 2.0))
    return np.asarray(image.resize(size, filter))[top : top + height, left : left + width]


@pytest.mark.parametrize("width, height", [(97, 61), (61, 97), (40, 40), (333, 31), (20, 25)])
def test_the_shorter_side_is_resized_and_the_middle_cut_out(width, height):
    from PIL import Image

    image = photo(width, height)
    for shorter in (37, 38, 53):
        want = middle_as_torchvision(image, shorter, 36, 35, Image.Resampling.BICUBIC)
        got = preprocessing.parse(f"36x35 shorter={shorter} bicubic").array(image, (1, 36, 35, 3), np.uint8)
        assert (got[0] == want).all()


@pytest.mark.parametrize("width, height", [(96, 61), (61, 96), (40, 40), (333, 31), (7, 5), (900, 1)])
def test_a_letterbox_holds_the_whole_picture(width, height):
    """As Ultralytics' LetterBox has it: as large as it fits, in the middle, an odd pixel more at right or bottom."""
    from PIL import Image

    image = photo(width, height)
    got = preprocessing.parse("45x64 letterbox=9,8,7").array(image, (1, 45, 64, 3), np.uint8)[0]
    ratio = min(45 / height, 64 / width)
    w, h = max(1, round(width * ratio)), max(1, round(height * ratio))
    top, left = int(round((45 - h) / 2 - 0.1)), int(round((64 - w) / 2 - 0.1))
    want = np.full((45, 64, 3), (9, 8, 7), np.uint8)
    want[top : top + h, left : left + w] = np.asarray(image.resize((w, h), Image.Resampling.BILINEAR))
    assert (got == want).all()
    bgr = preprocessing.parse("45x64 letterbox=7,8,9 bgr").array(image, (1, 45, 64, 3), np.uint8)[0]
    assert (bgr == want[:, :, ::-1]).all()
    grey = preprocessing.parse("45x64 letterbox gray").array(image, (1, 45, 64, 1), np.uint8)[0, :, :, 0]
    assert grey.shape == (45, 64) and (np.delete(grey, range(top, top + h), 0) == 114).all()


@pytest.mark.parametrize("how", ["letterbox", "stretch", "shorter=110", "stretch=120x111", "crop=0.8"])
@pytest.mark.parametrize("width, height", [(301, 200), (180, 333)])
def test_boxes_of_an_input_lie_in_the_picture(how, width, height):
    """A rectangle that is painted into the picture is found in the input, and mapped back to where it was."""
    prepare = preprocessing.parse(f"96x104 scale=1 nearest {how}")
    box = np.array([width // 2 - 31, height // 2 - 23, width // 2 + 40, height // 2 + 37])
    picture = np.zeros((height, width, 3), np.uint8)
    picture[box[1] : box[3], box[0] : box[2]] = 255
    found = prepare.array(picture, (1, 96, 104, 3))[0, :, :, 0] == 255
    (rows,), (columns,) = np.nonzero(found.any(1)), np.nonzero(found.any(0))
    corners = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    assert np.abs(prepare.boxes_in_picture(corners, (width, height)) - box).max() <= max(width / 96, height / 96)
    everywhere = prepare.boxes_in_picture(np.array([[[-999, -999, 9999, 9999]]]), (width, height))
    assert everywhere.tolist() == [[[0, 0, width, height]]]
    with pytest.raises(InputError, match=r"\[\.\.\., 4\]"):
        prepare.boxes_in_picture(np.zeros((4, 5)), (width, height))


def test_a_picture_too_thin_to_resize_is_refused():
    thin = np.zeros((1, 30000, 3), np.uint8)
    with pytest.raises(InputError, match="stretch or letterbox"):
        preprocessing.parse("224x224 shorter=256").array(thin, (1, 224, 224, 3))
    assert preprocessing.parse("224x224 letterbox").array(thin, (1, 224, 224, 3)).shape == (1, 224, 224, 3)


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


def test_pictures_go_to_the_inputs_that_they_fit():
    shapes = {"ids": ("batch", 4), "image": ("batch", 6, 6, 3), "meta": ("batch", 7)}
    assert preprocessing.parse("6x6").fitting(shapes) == ["image"]
    with pytest.raises(InputError, match=r"got ids \[batch, 4\], image \[batch, 6, 6, 3\], meta \[batch, 7\]"):
        preprocessing.parse("7x6").fitting(shapes)


def test_pictures_go_to_the_only_input_that_they_fit(capsys, tmp_path, refused):
    picture, path = str(tmp_path / "p.png"), str(tmp_path / "several.pelton")
    Image.fromarray(np.full((6, 6, 3), 51, np.uint8)).save(picture)
    np.save(tmp_path / "ids.npy", np.zeros((1, 4), np.float32))
    net = pelton.Network()
    net.output(net.input("ids", "f32[1, 4]") + 1.0, "next")
    for name in ("left", "right"):
        net.output(net.input(name, "f32[1, 6, 6, 3]" if name == "left" else "f32[1, 9, 9, 3]") + 1.0, f"{name}_next")
    pelton.build(net, level=0, threads=1, image="6x6").save(path)
    ids, right = f"ids={tmp_path}/ids.npy", f"right={tmp_path}/right.npy"
    np.save(tmp_path / "right.npy", np.zeros((1, 9, 9, 3), np.float32))
    assert main(["run", path, "--input", ids, "--input", right, "--input", picture]) == 0
    assert "left_next f32[1, 6, 6, 3]: min 1.2, mean 1.2, max 1.2" in capsys.readouterr().out
    assert "got right [1, 9, 9, 3]" in refused("run", path, "--input", f"right={picture}")
    assert "got ids [1, 4], left [1, 6, 6, 3], right" in refused("run", path, "--input", picture, "--image", "7x7")
    with pytest.raises(InputError, match=r"got ids \[1, 4\]"):
        pelton.build(net, level=0, threads=1, image="7x7")


def test_pictures_that_fit_several_inputs_need_a_name(tmp_path, refused):
    picture, path = str(tmp_path / "p.png"), str(tmp_path / "pair.pelton")
    net = pelton.Network()
    net.output(net.input("left", "f32[1, 6, 6, 3]") + net.input("right", "f32[1, 6, 6, 3]"), "sum")
    pelton.build(net, level=0, threads=1, image="6x6").save(path)
    assert f"any of the inputs left, right; write --input left={picture}" in refused("run", path, "--input", picture)


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
