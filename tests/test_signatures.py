"""Signatures of engine files: their owners, protection of every byte, and messages on failure."""

import hashlib
import json
import os
import random
import sys

import numpy as np
import onnx
import pytest
from handmade import chain
from models import small_cnn
from script_models import MODELS

import pelton
from pelton.cli import main
from pelton.engine import container, file, signature
from pelton.errors import EngineError, InputError

pytest.importorskip("cryptography", reason="signatures need the package cryptography")
from cryptography.hazmat.primitives import serialization as pem  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402


def private_pem(key, password=None):
    how = pem.BestAvailableEncryption(password) if password else pem.NoEncryption()
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, how)


def public_pem(key):
    return key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture(scope="module")
def keys():
    return [Ed25519PrivateKey.generate() for _ in range(3)]


@pytest.fixture
def signed(tmp_path, keys):
    path = tmp_path / "e.pelton"
    file.write(chain(37), path, sign=keys[0])
    return path


def refused(*given, kind=EngineError, **more):
    with pytest.raises(kind) as e:
        pelton.load(*given, **more)
    return str(e.value)


def fingerprint(key):
    return signature.fingerprint(key.public_key().public_bytes(pem.Encoding.Raw, pem.PublicFormat.Raw))


def test_signed_engines_load_with_and_without_trust(signed, keys, tmp_path):
    (tmp_path / "k.pub").write_bytes(public_pem(keys[0]))
    data = signed.read_bytes()
    for trust in (tmp_path / "k.pub", str(tmp_path / "k.pub"), public_pem(keys[0]), keys[0].public_key()):
        for source in (signed, data):
            assert pelton.load(source, device=None, trust=trust).tobytes() == file.to_bytes(chain(37))
            assert pelton.load(source, device=None, trust=[public_pem(keys[1]), trust]).name
    assert pelton.load(signed, device=None, verify=True).tobytes() == file.to_bytes(chain(37))
    assert signature.signers(signed) == (fingerprint(keys[0]),)


def test_fingerprints_are_what_openssl_gives(keys):
    import base64
    import hashlib

    der = keys[0].public_key().public_bytes(pem.Encoding.DER, pem.PublicFormat.SubjectPublicKeyInfo)
    assert fingerprint(keys[0]) == "SHA256:" + base64.b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")


def test_every_flipped_byte_is_refused(signed, keys):
    data, rng = signed.read_bytes(), random.Random()
    front = 64 + 64 * int.from_bytes(data[12:16], "little")
    places = {*range(64), *range(len(data) - 150, len(data)), *rng.sample(range(len(data)), 150), front, front + 1}
    for at in places:
        altered = bytearray(data)
        altered[at] ^= 1 << rng.randrange(8)
        assert refused(bytes(altered), device=None, trust=keys[0].public_key())


def test_a_file_that_is_made_anew_around_another_content_is_refused(signed, keys):
    """Hashes can be computed again by whoever alters a file; the signature cannot."""
    found = container.open_container(*container.map_file(signed))
    sections = found.sections(found.rows)
    for change in (
        {"constants": bytes(len(sections["constants"]))},
        {"plan": bytes(sections["plan"]).replace(b"handmade", b"nicename")},
    ):
        forged = b"".join(container.frame({**sections, **change}))
        assert forged != signed.read_bytes() and pelton.load(forged, device=None, verify=True).name
        assert "altered after SHA256:" in refused(forged, device=None, trust=keys[0].public_key())


def test_what_is_said_of_unsigned_engines_and_other_keys(signed, keys, tmp_path):
    says = refused(signed, device=None, trust=[public_pem(keys[1]), keys[2].public_key()])
    assert all(fingerprint(key) in says for key in keys)
    file.write(chain(), tmp_path / "plain.pelton")
    says = refused(tmp_path / "plain.pelton", device=None, trust=keys[1].public_key())
    assert "is not signed" in says and fingerprint(keys[1]) in says
    assert "has no public key" in refused(signed, kind=InputError, device=None, trust=[])


@pytest.mark.parametrize("damage", ["size", "place"])
def test_a_malformed_section_is_refused_by_its_name(keys, damage):
    data = b"".join(signature.signed(file._pieces(chain(), more=signature.EMPTY), [keys[0]]))
    rows = dict(container.open_container(*container.map_file(data)).rows)
    row = rows["signatures"]
    rows["signatures"] = row._replace(**{"size": row.size - 64} if damage == "size" else {"offset": row.offset - 64})
    text = b"".join(container.ROW.pack(name.encode(), *row) for name, row in rows.items())
    front = data[:32] + hashlib.sha256(data[:32] + text).digest() + text
    whole = front + data[len(front) :]
    assert pelton.load(whole, device=None).name == chain().name  # nobody asked
    assert "its signatures must be its last 800 bytes" in refused(whole, device=None, trust=keys[0].public_key())


def test_several_sign_one_file(signed, keys, tmp_path):
    for key in keys[1:]:
        signature.sign_file(signed, key)
    signature.sign_file(signed, keys[0])  # again: it has one slot
    assert sorted(signature.signers(signed)) == sorted(map(fingerprint, keys))
    for key in keys:
        assert pelton.load(signed, device=None, trust=key.public_key()).name
    for _ in range(5):
        signature.sign_file(signed, Ed25519PrivateKey.generate())
    before = signed.read_bytes()
    with pytest.raises(EngineError, match="has 8 signatures"):
        signature.sign_file(signed, Ed25519PrivateKey.generate())
    assert signed.read_bytes() == before and os.listdir(tmp_path) == ["e.pelton"]


def test_an_altered_file_is_not_signed(signed, keys, tmp_path):
    data = bytearray(signed.read_bytes())
    data[-signature.ROOM - 70] ^= 4
    (tmp_path / "bad.pelton").write_bytes(data)
    with pytest.raises(EngineError, match="altered"):
        signature.sign_file(tmp_path / "bad.pelton", keys[1])
    with pytest.raises(EngineError, match="not a Pelton engine"):
        signature.sign_file(__file__, keys[1], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_keys_that_are_none(signed, keys, tmp_path):
    other = generate_private_key(SECP256R1())
    for given, says in (
        (tmp_path / "none.pem", "there is no key"),
        (tmp_path, "cannot be read"),
        (b"nonsense", "no private key in PEM form"),
        (public_pem(keys[0]), "no private key in PEM form"),
        (private_pem(keys[0], b"secret"), "is encrypted"),
        (private_pem(other), "of another kind than Ed25519"),
        (3, "must be the path of a PEM file"),
    ):
        with pytest.raises(InputError, match=says):
            pelton.Engine(chain()).save(tmp_path / "no.pelton", sign=given)
    assert not (tmp_path / "no.pelton").exists()
    for given, says in (
        (private_pem(keys[0]), "is a private key"),
        (b"", "no public key in PEM form"),
        (public_pem(other), "of another kind than Ed25519"),
        (tmp_path / "none.pub", "there is no key"),
        (3, "must be the path of a PEM file"),
    ):
        assert says in refused(signed, kind=InputError, device=None, trust=[given])


def test_what_was_checked_is_what_runs(tmp_path, keys):
    """With trust, weights are in memory of their own: a file that is written into later changes nothing."""
    e, path = chain(64, constant=np.ones(64, np.float32)), tmp_path / "e.pelton"
    file.write(e, path, sign=keys[0])
    trusted = pelton.load(path, device=None, trust=keys[0].public_key())
    with open(path, "r+b") as f:
        f.seek(-signature.ROOM - 64, os.SEEK_END)
        f.write(bytes(64))
    assert bytes(trusted.constants) == bytes(e.constants)


def test_scripts_are_signed_as_a_whole(tmp_path, keys):
    path = tmp_path / "s.pelton"
    script = pelton.build(MODELS["nonzero_gather"]()[0], level=0)
    script.save(path, sign=keys[0])
    assert pelton.load(path, trust=keys[0].public_key()).tobytes() == script.tobytes()
    data = bytearray(path.read_bytes())
    data[-signature.ROOM - 900] ^= 1
    assert refused(bytes(data), device=None, trust=keys[0].public_key())


def test_without_the_package_the_error_says_what_to_install(signed, keys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(InputError, match=r'pip install "pelton\[sign\]"'):
        pelton.Engine(chain()).save(signed, sign=b"")
    assert 'pip install "pelton[sign]"' in refused(signed, kind=InputError, device=None, trust=public_pem(keys[0]))
    assert pelton.load(signed, device=None).name


TRTEXEC = ("--duration=0", "--warmUp=0", "--iterations=1")


def test_on_the_command_line(tmp_path, keys, monkeypatch, capsys):
    def run(*words):
        status, said = main(list(map(str, words))), capsys.readouterr()
        return status, said.out, said.err

    monkeypatch.chdir(tmp_path)
    onnx.save(small_cnn(), "m.onnx")
    for name, key in (("key", keys[0]), ("other", keys[1])):
        (tmp_path / f"{name}.pem").write_bytes(private_pem(key))
        (tmp_path / f"{name}.pub").write_bytes(public_pem(key))
    assert run("build", "m.onnx", "--level", 0, "--sign", "absent.pem")[0] == 2 and not os.path.exists("m.pelton")
    assert run("build", "m.onnx", "-q", "--level", 0, "--sign", "key.pem")[0] == 0
    _, shown, _ = run("inspect", "m.pelton")
    assert fingerprint(keys[0]) in shown and "not verified" in shown
    assert "; verified\n" in run("inspect", "m.pelton", "--trust", "key.pub")[1]
    status, _, says = run("run", "m.pelton", "--trust", "other.pub")
    assert status == 2 and fingerprint(keys[0]) in says and says.count("\n") == 1
    assert run("sign", "m.pelton", "--key", "other.pem", "-o", "both.pelton")[0] == 0
    found = json.loads(run("inspect", "both.pelton", "--json", "--trust", "other.pub")[1])["signers"]
    assert sorted(found) == sorted(map(fingerprint, keys[:2]))
    assert run("bench", "both.pelton", "--trust", "other.pub", "--seconds", 0.01, "--warmup", 0)[0] == 0
    assert run("bench", "m.onnx", "--trust", "key.pub")[0] == 2
    for words, refuses in ((("view",), 2), (("trace", "--runs", 1, "--warmup", 0), 2), (("trtexec", *TRTEXEC), 1)):
        command, *more = words
        engine = (lambda name: f"--loadEngine={name}") if command == "trtexec" else str
        assert run(command, engine("both.pelton"), "--trust", "other.pub", *more)[0] == 0
        status, _, says = run(command, engine("m.pelton"), "--trust", "other.pub", *more)
        assert status == refuses and fingerprint(keys[0]) in says
    assert run("view", "both.pelton", "m.pelton", "--trust", "other.pub")[0] == 2
    assert run("compare", "m.onnx", "both.pelton", "--trust", "other.pub")[0] == 0
    assert run("compare", "m.onnx", "m.pelton", "--trust", "other.pub")[0] == 2
    assert run("trtexec", "--onnx=m.onnx", "--trust=key.pub")[0] == 1


def test_refitting_says_that_a_signature_is_gone(tmp_path, keys, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(small_cnn(), "m.onnx")
    (tmp_path / "key.pem").write_bytes(private_pem(keys[0]))
    assert main("build m.onnx --level 0 -q --refit --sign key.pem".split()) == 0
    for more, signed in (("-o same.pelton --sign key.pem", True), ("", False)):
        assert main(["refit", "m.pelton", "--weights", "m.onnx", *more.split()]) == 0
        assert ("m.pelton is not signed" in capsys.readouterr().err) == (not signed)
    assert main(["refit", "m.pelton", "--weights", "m.onnx"]) == 0 and "signed" not in capsys.readouterr().err
