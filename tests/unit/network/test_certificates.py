"""A certificate has a device's name and host; keys stay with their owner; garbage is refused in one line."""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from drdsgd.errors import InputError
from drdsgd.network import certificates
from drdsgd.network.certificates import Authority, make_authority, make_key, name_of, open_authority
from tests.support.refusing import message

PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority("0123456789abcdef", days=10)


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return make_key()


def hosts(what: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The hosts in a certificate or request."""
    found = what.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(one.value) for one in found]


def public(key: ec.EllipticCurvePublicKey | object) -> bytes:
    """A public key as bytes, to be compared."""
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def secret(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: bytes | None = None) -> bytes:
    """The private key in the bytes of a file."""
    locked = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, locked)


def as_pem(label: str, der: bytes) -> bytes:
    """Any bytes in the form of a PEM file."""
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n".encode()


def changed(data: bytes, part: bytes, k: int, flip: int) -> bytes:
    """The data with one byte changed, somewhere in that part of it."""
    found = bytearray(data)
    found[data.index(part) + k % len(part)] ^= flip
    return bytes(found)


@contextmanager
def umask(value: int) -> Iterator[None]:
    """While the block runs, the process has this umask."""
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


# ------------------------------------------------------------------------ files


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_key_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, authority: Authority, mask: int) -> None:
    replaced = tmp_path / "replaced.key"
    replaced.write_bytes(b"")
    replaced.chmod(0o666)
    with umask(mask):
        for name in ("new.key", "replaced.key"):
            certificates.write(tmp_path / name, authority.key)
        certificates.write(tmp_path / "a.pem", authority.certificate)
        certificates.write(tmp_path / "a.csr", certificates.request("a", "a", authority.key))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    others = 0o666 & ~mask
    assert modes == {"new.key": 0o600, "replaced.key": 0o600, "a.pem": others, "a.csr": others}


def test_a_certificate_comes_back_as_it_was_and_has_no_secret(tmp_path: Path, authority: Authority) -> None:
    certificates.write(tmp_path / "ca.pem", authority.certificate)
    assert certificates.read_certificate(tmp_path / "ca.pem") == authority.certificate
    assert b"PRIVATE" not in (tmp_path / "ca.pem").read_bytes()


def test_an_authority_that_was_written_signs_as_before(tmp_path: Path, authority: Authority) -> None:
    certificates.write(tmp_path / "ca.key", authority.key)
    certificates.write(tmp_path / "ca.pem", authority.certificate)
    opened = open_authority(tmp_path / "ca.key", tmp_path / "ca.pem")
    signed = opened.sign("device-0", "127.0.0.1", make_key().public_key(), days=1)
    assert certificates.was_signed(signed, opened.certificate) and certificates.was_signed(
        signed, authority.certificate
    )


# ------------------------------------------------------------------ who and where


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True))
def test_a_certificate_names_the_device(authority: Authority, key: ec.EllipticCurvePrivateKey, name: str) -> None:
    assert name_of(authority.sign(name, "127.0.0.1", key.public_key(), days=1)) == name
    assert name_of(certificates.request(name, "127.0.0.1", key)) == name


@pytest.mark.parametrize(
    "host, kind",
    [
        ("127.0.0.1", x509.IPAddress),
        ("10.0.0.5", x509.IPAddress),
        ("::1", x509.IPAddress),
        ("2001:db8::5", x509.IPAddress),
        ("localhost", x509.DNSName),
        ("clinic-a.example.org", x509.DNSName),
        ("10.0.0.5.example.org", x509.DNSName),
    ],
)
def test_a_certificate_says_where_the_device_listens(
    authority: Authority, key: ec.EllipticCurvePrivateKey, host: str, kind: type[x509.GeneralName]
) -> None:
    for what in (
        authority.sign("device-0", host, key.public_key(), days=1),
        certificates.request("device-0", host, key),
    ):
        [found] = what.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert type(found) is kind and str(found.value) == host


@given(st.ip_addresses())
def test_any_address_is_one_in_the_certificate(
    authority: Authority,
    key: ec.EllipticCurvePrivateKey,
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert hosts(authority.sign("device-0", str(address), key.public_key(), days=1)) == [str(address)]


def test_a_name_that_is_none_or_twice_is_no_name(key: ec.EllipticCurvePrivateKey) -> None:
    for names in ([], ["device-0", "device-1"]):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        assert name_of(asked) == ""


def test_a_device_can_call_and_be_called_but_not_sign(authority: Authority, key: ec.EllipticCurvePrivateKey) -> None:
    signed = authority.sign("device-0", "127.0.0.1", key.public_key(), days=1)
    constraints = x509.BasicConstraints
    assert not signed.extensions.get_extension_for_class(constraints).value.ca
    usage = signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    own = authority.certificate.extensions
    assert own.get_extension_for_class(constraints).value == constraints(ca=True, path_length=0)
    assert own.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_the_certificate_is_for_the_key_that_was_shown(authority: Authority) -> None:
    one, other = make_key(), make_key()
    signed = authority.sign("device-0", "127.0.0.1", one.public_key(), days=1)
    assert public(signed.public_key()) == public(one.public_key()) != public(other.public_key())


def test_a_key_fits_its_own_certificate_only(tmp_path: Path, authority: Authority) -> None:
    one, other = make_key(), make_key()
    signed = authority.sign("device-0", "127.0.0.1", one.public_key(), days=1)
    for name, key in (("one.key", one), ("other.key", other)):
        certificates.write(tmp_path / name, key)
        assert certificates.fits(tmp_path / name, signed) == (key is one)
    path = tmp_path / "nowhere.key"
    message(lambda: certificates.fits(path, signed), str(path), "drdsgd network join")
    path.write_text("garbage")
    message(lambda: certificates.fits(path, signed), str(path), "is not a private key")


def test_no_two_certificates_have_the_same_number(authority: Authority, key: ec.EllipticCurvePrivateKey) -> None:
    assert len({authority.sign("a", "a", key.public_key(), days=1).serial_number for _ in range(20)}) == 20


# ------------------------------------------------------------------ signed by whom


def test_an_authority_knows_its_own_certificates_from_anothers(key: ec.EllipticCurvePrivateKey) -> None:
    """Even if the other authority has the same name."""
    one, same, other = (make_authority(name, days=1) for name in ("one", "one", "other"))
    for authority in (one, same, other):
        signed = authority.sign("device-0", "127.0.0.1", key.public_key(), days=1)
        assert [certificates.was_signed(signed, judge.certificate) for judge in (one, same, other)] == [
            authority is judge for judge in (one, same, other)
        ]


def test_what_a_device_signs_is_not_signed_by_the_authority(authority: Authority) -> None:
    key = make_key()
    device = Authority(key, authority.sign("device-0", "127.0.0.1", key.public_key(), days=1))
    forged = device.sign("device-1", "127.0.0.1", make_key().public_key(), days=1)
    assert not certificates.was_signed(forged, authority.certificate)


@given(st.booleans(), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_certificate_is_not_signed(
    authority: Authority, key: ec.EllipticCurvePrivateKey, in_signature: bool, k: int, flip: int
) -> None:
    signed = authority.sign("device-0", "127.0.0.1", key.public_key(), days=1)
    assert certificates.was_signed(signed, authority.certificate)
    part = signed.signature if in_signature else signed.tbs_certificate_bytes
    try:
        found = x509.load_der_x509_certificate(changed(signed.public_bytes(DER), part, k, flip))
    except (ValueError, x509.InvalidVersion, CryptographyDeprecationWarning):
        return
    assert not certificates.was_signed(found, authority.certificate)


# ------------------------------------------------------------------ until when


@pytest.mark.parametrize("days", [0.5, 1, 365, 3650])
def test_it_expires_after_so_many_days(authority: Authority, key: ec.EllipticCurvePrivateKey, days: float) -> None:
    before = datetime.now(UTC)
    signed = authority.sign("device-0", "127.0.0.1", key.public_key(), days)
    after = datetime.now(UTC)
    second = timedelta(seconds=1)  # the format has whole seconds
    until = signed.not_valid_after_utc
    assert until.tzinfo is not None
    assert before - second < until - timedelta(days=days) <= after
    # valid at once, also on a host whose clock is a little behind
    assert timedelta(minutes=4) < before - signed.not_valid_before_utc < timedelta(minutes=6)


def test_the_authority_expires_too() -> None:
    left = make_authority("a", days=7).certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=6.9) < left < timedelta(days=7.1)


# ------------------------------------------------------------------ in use


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> Callable[..., Path]:
    """Writes the files of a device: `folder(name, host, ...)`."""

    def make(name: str, host: str = "127.0.0.1", days: float = 1.0, by: Authority = authority) -> Path:
        key = make_key()
        certificates.write(tmp_path / name / "device.key", key)
        certificates.write(tmp_path / name / "device.pem", by.sign(name, host, key.public_key(), days))
        certificates.write(tmp_path / name / "ca.pem", authority.certificate)
        return tmp_path / name

    return make


def connect(caller: Path, called: Path, host: str = "127.0.0.1") -> tuple[str, str]:
    """One device calls another at a host, over mutual TLS in memory; the names that both ends see."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context, device in zip(contexts, (caller, called), strict=True):
        context.load_cert_chain(device / "device.pem", device / "device.key")
        context.load_verify_locations(device / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts[0].wrap_bio(back, there, server_hostname=host)
    server = contexts[1].wrap_bio(there, back, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    names = []
    for end in (client, server):
        der = end.getpeercert(binary_form=True)
        assert der is not None
        names.append(name_of(x509.load_der_x509_certificate(der)))
    return names[0], names[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "clinic-a.example.org"])
def test_two_devices_know_each_other_by_name(folder: Callable[..., Path], host: str) -> None:
    assert connect(folder("device-0"), folder("device-1", host), host) == ("device-1", "device-0")


@pytest.mark.parametrize(
    "listens, called", [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1"), ("clinic-a.org", "clinic-b.org")]
)
def test_a_device_at_another_host_is_not_believed(folder: Callable[..., Path], listens: str, called: str) -> None:
    one, other = folder("device-0"), folder("device-1", listens)
    assert connect(one, other, listens)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        connect(one, other, called)


def test_a_certificate_of_another_authority_is_not_believed_either_way(folder: Callable[..., Path]) -> None:
    one, stranger = folder("device-0"), folder("device-1", by=make_authority("another", days=1))
    for ends in ((one, stranger), (stranger, one)):
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            connect(*ends)


def test_a_certificate_that_a_device_signed_is_not_believed(folder: Callable[..., Path], authority: Authority) -> None:
    key = make_key()
    device = Authority(key, authority.sign("device-0", "127.0.0.1", key.public_key(), days=1))
    one, forged = folder("device-1"), folder("device-2", by=device)
    with (forged / "device.pem").open("ab") as file:  # with the whole chain, as a forger would send it
        file.write(device.certificate.public_bytes(PEM))
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        connect(one, forged)


def test_an_expired_certificate_is_not_believed_either_way(folder: Callable[..., Path]) -> None:
    one, late = folder("device-0"), folder("device-1", days=1e-9)
    assert certificates.read_certificate(late / "device.pem").not_valid_after_utc <= datetime.now(UTC)
    for ends in ((one, late), (late, one)):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            connect(*ends)


# --------------------------------------------------------------------- requests


def test_a_request_comes_back_as_it_was(tmp_path: Path) -> None:
    key = make_key()
    asked = certificates.request("device-3", "clinic-a.example.org", key)
    certificates.write(tmp_path / "a.csr", asked)
    found = certificates.read_request(tmp_path / "a.csr")
    assert found == asked
    assert name_of(found) == "device-3" and hosts(found) == ["clinic-a.example.org"]
    assert public(found.public_key()) == public(key.public_key())
    assert secret(key) not in (tmp_path / "a.csr").read_bytes()


def test_a_request_with_another_name_put_in_is_refused(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    asked = certificates.request("device-3", "127.0.0.1", key).public_bytes(DER)
    assert asked.count(b"device-3") == 1
    path = tmp_path / "a.csr"
    path.write_bytes(as_pem("CERTIFICATE REQUEST", asked.replace(b"device-3", b"device-4")))
    message(lambda: certificates.read_request(path), str(path), "not signed with the key that it names", "join")


def test_a_request_for_somebody_elses_key_is_refused(tmp_path: Path) -> None:
    """Only the owner of a key can request a certificate for it."""
    mine, theirs = make_key(), make_key()
    asked = certificates.request("device-3", "127.0.0.1", mine).public_bytes(DER)
    path = tmp_path / "a.csr"
    path.write_bytes(
        as_pem("CERTIFICATE REQUEST", asked.replace(public(mine.public_key()), public(theirs.public_key())))
    )
    message(lambda: certificates.read_request(path), str(path), "not signed with the key that it names")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_request_with_any_other_byte_is_refused_in_one_line(
    key: ec.EllipticCurvePrivateKey, tmp_path_factory: pytest.TempPathFactory, k: int, flip: int
) -> None:
    asked = certificates.request("device-3", "127.0.0.1", key)
    path = tmp_path_factory.mktemp("byte") / "a.csr"
    data = changed(asked.public_bytes(DER), asked.tbs_certrequest_bytes, k, flip)
    path.write_bytes(as_pem("CERTIFICATE REQUEST", data))
    message(lambda: certificates.read_request(path), str(path))


@pytest.mark.parametrize("what", ["version", "kind of key", "curve", "point"])
def test_a_request_whose_parts_are_spoilt_is_refused_in_one_line(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey, what: str
) -> None:
    asked = certificates.request("device-3", "127.0.0.1", key)
    data = bytearray(asked.public_bytes(DER))
    start = data.index(public(key.public_key()))
    k = {
        "version": data.index(b"\x02\x01\x00") + 2,
        "kind of key": start + 12,
        "curve": start + 22,
        "point": start + 40,
    }[what]
    data[k] ^= 1
    path = tmp_path / "a.csr"
    path.write_bytes(as_pem("CERTIFICATE REQUEST", bytes(data)))
    message(lambda: certificates.read_request(path), str(path))


# ---------------------------------------------------------------------- garbage


def read_key(path: Path) -> object:
    """Open an authority with this key."""
    certificate = path.parent / "ca.pem"
    certificates.write(certificate, make_authority("a", days=1).certificate)
    return open_authority(path, certificate)


READERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "certificate": (certificates.read_certificate, "CERTIFICATE", "is not a certificate"),
    "request": (certificates.read_request, "CERTIFICATE REQUEST", "is not a signing request"),
    "key": (read_key, "PRIVATE KEY", "is not a private key"),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n\n", b"garbage", b"\xff\xfe\x00", b"-----BEGIN", b"[table]\nkey = 1\n",
        b"-----BEGIN CERTIFICATE-----\n", as_pem("SOMETHING ELSE", b"abc"), as_pem("CERTIFICATE", b""),
        as_pem("CERTIFICATE REQUEST", b"abc"), as_pem("PRIVATE KEY", b"abc"),
    ],
)  # fmt: skip
def test_garbage_is_told_in_one_line(tmp_path: Path, kind: str, content: bytes) -> None:
    read, _, said = READERS[kind]
    path = tmp_path / "file"
    path.write_bytes(content)
    message(lambda: read(path), str(path), said)


@pytest.mark.parametrize("kind", READERS)
def test_one_kind_of_file_is_not_another(
    tmp_path: Path, authority: Authority, key: ec.EllipticCurvePrivateKey, kind: str
) -> None:
    files: dict[str, Any] = {
        "certificate": authority.certificate,
        "request": certificates.request("a", "a", key),
        "key": key,
    }
    read, _, said = READERS[kind]
    for other, what in files.items():
        path = tmp_path / other
        certificates.write(path, what)
        if other == kind:
            assert kind == "key" or read(path) == what
        else:
            message(partial(read, path), str(path), said)


@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_is_cut_is_told_in_one_line(
    tmp_path: Path, authority: Authority, key: ec.EllipticCurvePrivateKey, kind: str
) -> None:
    whole = {
        "certificate": authority.certificate.public_bytes(PEM),
        "request": certificates.request("a", "a", key).public_bytes(PEM),
        "key": secret(key),
    }[kind]
    read, _, said = READERS[kind]
    path = tmp_path / "file"
    for size in (1, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        message(lambda: read(path), str(path), said)


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=60))
def test_any_bytes_are_told_in_one_line(tmp_path_factory: pytest.TempPathFactory, kind: str, content: bytes) -> None:
    read, label, said = READERS[kind]
    path = tmp_path_factory.mktemp("bytes") / "file"
    for data in (content, as_pem(label, content)):
        path.write_bytes(data)
        message(lambda: read(path), str(path), said)


def test_a_certificate_of_an_unknown_version_is_told_in_one_line(tmp_path: Path, authority: Authority) -> None:
    data = bytearray(authority.certificate.public_bytes(DER))
    data[data.index(b"\xa0\x03\x02\x01\x02") + 4] = 12
    path = tmp_path / "a.pem"
    path.write_bytes(as_pem("CERTIFICATE", bytes(data)))
    message(lambda: certificates.read_certificate(path), str(path), "is not a certificate")


def test_a_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    message(lambda: certificates.read_certificate(path), str(path), "drdsgd network join")
    message(lambda: certificates.read_request(path), str(path))


# ----------------------------------------------------------- the authority's key


def test_without_its_key_there_is_no_authority(tmp_path: Path, authority: Authority) -> None:
    certificates.write(tmp_path / "ca.pem", authority.certificate)
    message(
        lambda: open_authority(tmp_path / "ca.key", tmp_path / "ca.pem"),
        str(tmp_path / "ca.key"), "only the holder of the authority's key can sign",
    )  # fmt: skip


def test_without_its_certificate_there_is_no_authority(tmp_path: Path, authority: Authority) -> None:
    certificates.write(tmp_path / "ca.key", authority.key)
    said = message(lambda: open_authority(tmp_path / "ca.key", tmp_path / "ca.pem"), str(tmp_path / "ca.pem"))
    assert "network join" not in said, "that makes no ca.pem"


def test_a_key_with_a_password_is_told_in_one_line(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.key").write_bytes(secret(authority.key, b"open sesame"))
    certificates.write(tmp_path / "ca.pem", authority.certificate)
    message(lambda: open_authority(tmp_path / "ca.key", tmp_path / "ca.pem"), str(tmp_path / "ca.key"), "password")


def test_a_key_of_another_kind_is_told_in_one_line(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.key").write_bytes(secret(ed25519.Ed25519PrivateKey.generate()))
    certificates.write(tmp_path / "ca.pem", authority.certificate)
    message(lambda: open_authority(tmp_path / "ca.key", tmp_path / "ca.pem"), str(tmp_path / "ca.key"), "another kind")


def test_the_key_of_another_authority_is_refused(tmp_path: Path, authority: Authority) -> None:
    """Nobody would trust what it signs."""
    certificates.write(tmp_path / "ca.key", make_key())
    certificates.write(tmp_path / "ca.pem", authority.certificate)
    message(lambda: open_authority(tmp_path / "ca.key", tmp_path / "ca.pem"), str(tmp_path))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_key_with_any_other_byte_is_one_or_told_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, k: int, flip: int
) -> None:
    key = make_key()
    data = key.private_bytes(DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("byte") / "ca.key"
    path.write_bytes(as_pem("PRIVATE KEY", changed(data, data, k, flip)))
    try:
        read_key(path)
    except InputError as error:
        assert str(path.parent) in str(error) and "\n" not in str(error)
