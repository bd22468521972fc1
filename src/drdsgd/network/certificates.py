"""A deployment's own certificate authority: who signs, who is signed, until when.

A certificate names one device (its common name, by which neighbours know it) and where it listens (checked by whoever
connects to it). The authority signs for this deployment only. Private keys are readable by their owner alone.
"""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from drdsgd.errors import InputError, one_line
from drdsgd.files import replacing

__all__ = [
    "Authority", "expires", "fits", "make_authority", "make_key", "name_of", "open_authority", "read_certificate",
    "read_request", "request", "was_signed", "write",
]  # fmt: skip

# clocks differ a little between hosts
EARLIER = timedelta(minutes=5)
# what the library raises where a file is not what it should be
_SPOILT = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)


class Authority:
    """A key that signs, with its certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    def sign(self, name: str, host: str, key: ec.EllipticCurvePublicKey, days: float) -> x509.Certificate:
        """A certificate for the device `name` that listens at `host`, valid for so many days.

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
    """A new authority, for one deployment."""
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
    """The authority that was written to these files."""
    if not key.exists():
        raise InputError(f"there is no {key}: only who holds the authority's key can sign")
    loaded = _private(key)
    check_secret(key)
    if not certificate.exists():
        raise InputError(f"there is no {certificate}: every device has a copy of it, beside its device.toml")
    found = read_certificate(certificate)
    if found.public_key() != loaded.public_key():
        raise InputError(f"{key} is not the key of {certificate}; use those of the same deployment")
    return Authority(loaded, found)


def check_secret(key: Path) -> None:
    """Refuse a private key that others than its owner may read."""
    if key.exists() and key.stat().st_mode & 0o077:
        raise InputError(f"others may read the key {key}: chmod 600 it, or better make another")


def was_signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    """Whether a certificate was signed by the authority with that one."""
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def fits(key: Path, certificate: x509.Certificate) -> bool:
    """Whether the private key in a file is that of a certificate."""
    return bool(_private(key).public_key() == certificate.public_key())


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise InputError(f"there is no key {path}; a device makes its own with drdsgd network join") from None
    except _SPOILT as error:
        raise InputError(f"{path} is no private key: {one_line(error)}") from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} is a key of another kind than `drdsgd network` makes")
    return loaded


def make_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def request(name: str, host: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateSigningRequest:
    """What a device asks the authority to sign; its key stays where it is."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return builder.add_extension(x509.SubjectAlternativeName(_alternatives(host)), critical=False).sign(
        key, hashes.SHA256()
    )


def write(path: Path, what: ec.EllipticCurvePrivateKey | x509.Certificate | x509.CertificateSigningRequest) -> None:
    """Write a key (readable by its owner only), a certificate or a request, as PEM."""
    secret = isinstance(what, ec.EllipticCurvePrivateKey)
    with replacing(path, private=secret) as temporary:
        if isinstance(what, ec.EllipticCurvePrivateKey):
            temporary.write_bytes(
                what.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        else:
            temporary.write_bytes(what.public_bytes(serialization.Encoding.PEM))


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no certificate {path}; see drdsgd network join") from None
    except _SPOILT as error:
        raise InputError(f"{path} is no certificate: {one_line(error)}") from error


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """The signing request in a file, if whoever made it has the key that it names."""
    try:
        found = x509.load_pem_x509_csr(path.read_bytes())
        valid = found.is_signature_valid
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except _SPOILT as error:
        raise InputError(
            f"{path} is no signing request: {one_line(error)}; make one with drdsgd network join"
        ) from error
    if not valid:
        raise InputError(f"{path} is not signed with the key that it names; make it again with drdsgd network join")
    return found


def name_of(what: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The device that a certificate or a request names."""
    names = what.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def checksum(file: Path) -> str:
    """What two people compare on the telephone: the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def expires(certificate: x509.Certificate) -> datetime:
    """When it ceases to be valid, in UTC."""
    return certificate.not_valid_after_utc


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
