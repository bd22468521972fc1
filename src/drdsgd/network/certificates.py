"""A deployment's own certificate authority, its keys and certificates.

A certificate has the name of one device (the common name, by which neighbours know it) and its host (which whoever
connects checks). The authority signs for one deployment only. Only its owner may read a private key.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from drdsgd.errors import InputError, one_line
from drdsgd.files import replacing

__all__ = [
    "Authority", "check_secret", "checksum", "fits", "make_authority", "make_key", "name_of", "open_authority",
    "read_certificate", "read_key", "read_request", "request", "was_signed", "write",
]  # fmt: skip

# certificates are valid from this long before they are made: the clocks of two hosts differ
EARLIER = timedelta(minutes=5)
T = TypeVar("T")


class Authority:
    """The key that signs certificates, with its own certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    def sign(self, name: str, host: str, key: ec.EllipticCurvePublicKey, days: float) -> x509.Certificate:
        """A certificate for the device `name` at `host`, valid for `days`.

        >>> from datetime import UTC, datetime
        >>> authority = make_authority("an example", days=2)
        >>> name_of(authority.sign("device-0", "127.0.0.1", make_key().public_key(), days=1))
        'device-0'
        """
        both_ways = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = (
            _builder(name, self.certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(_alternatives(host)), critical=False)
            .add_extension(both_ways, critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())


def make_authority(deployment: str, days: float) -> Authority:
    """A new authority for one deployment."""
    key = make_key()
    name = f"drdsgd {deployment}"
    builder = (
        _builder(name, _name(name), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
    )  # fmt: skip
    return Authority(key, builder.sign(key, hashes.SHA256()))


def open_authority(key: Path, certificate: Path) -> Authority:
    """The authority in these files."""
    if not key.exists():
        raise InputError(f"there is no {key}: only the holder of the authority's key can sign")
    loaded = read_key(key)
    check_secret(key)
    if not certificate.exists():
        raise InputError(f"there is no {certificate}: copy it from any device's folder")
    found = read_certificate(certificate)
    if found.public_key() != loaded.public_key():
        raise InputError(f"{key} is not the key of {certificate}; use the two files of one deployment")
    return Authority(loaded, found)


def check_secret(key: Path) -> None:
    """Refuse a private key that anybody but its owner may read."""
    if key.exists() and key.stat().st_mode & 0o077:
        raise InputError(f"others may read the key {key}: chmod 600 it, or better, make another")


def was_signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    """Whether the authority with the certificate `by` signed a certificate."""
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def fits(key: Path, certificate: x509.Certificate) -> bool:
    """Whether the private key in a file belongs to a certificate."""
    return bool(read_key(key).public_key() == certificate.public_key())


def make_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def request(name: str, host: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateSigningRequest:
    """The request of a device to be signed; it does not contain the private key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(host)), critical=False)
    return builder.sign(key, hashes.SHA256())


def write(path: Path, what: ec.EllipticCurvePrivateKey | x509.Certificate | x509.CertificateSigningRequest) -> None:
    """Write a key (which only its owner may read), a certificate or a request, as PEM."""
    pem, secret = serialization.Encoding.PEM, isinstance(what, ec.EllipticCurvePrivateKey)
    if isinstance(what, ec.EllipticCurvePrivateKey):
        data = what.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    else:
        data = what.public_bytes(pem)
    with replacing(path, private=secret) as temporary:
        temporary.write_bytes(data)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file."""
    loaded = _read(
        path, lambda data: serialization.load_pem_private_key(data, password=None),
        "private key", "a device makes its own with drdsgd network join",
    )  # fmt: skip
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} is another kind of key; make one with drdsgd network join")
    return loaded


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file."""
    return _read(path, x509.load_pem_x509_certificate, "certificate", "see drdsgd network join")


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """The signing request in a file, if it is signed with the key that it names."""

    def load(data: bytes) -> tuple[x509.CertificateSigningRequest, bool]:
        found = x509.load_pem_x509_csr(data)
        return found, found.is_signature_valid

    found, valid = _read(path, load, "signing request", "make one with drdsgd network join")
    if not valid:
        raise InputError(f"{path} is not signed with the key that it names; make it again with drdsgd network join")
    return found


def _read(path: Path, load: Callable[[bytes], T], kind: str, fix: str) -> T:
    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no {kind} {path}; {fix}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise InputError(f"{path} is not a {kind}: {one_line(error)}; {fix}") from error


def name_of(what: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name of the device in a certificate or a request."""
    names = what.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def checksum(file: Path) -> str:
    """The SHA-256 of a file, for two people to compare on the telephone."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternatives(host: str) -> list[x509.GeneralName]:
    try:
        return [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [x509.DNSName(host)]
