"""Certificates to test with: an authority, and what it signs."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)
_LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    @property
    def serial(self) -> int:
        """Its serial number, by which certificates are told apart."""
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number

    def replace_by(self, other: "Pair") -> None:
        """Write another pair into these files."""
        self.key.write_bytes(other.key.read_bytes())
        self.certificate.write_bytes(other.certificate.read_bytes())


class Authority:
    """Signs certificates, and keeps everything in a directory."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = folder / f"{name}.pem"
        public = self._key.public_key()
        certificate = (
            self._builder(self._name, public, 36_500)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(_usage(is_authority=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(_PEM))

    def issue(
        self, name: str, *, days: int = 36_500, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")
    ) -> Pair:
        """Sign a certificate that is valid for so many days from 2020 on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(subject, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(_usage(is_authority=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(_PEM))
        pair.key.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        pair.key.chmod(0o600)
        return pair

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_LONG_AGO)
            .not_valid_after(_LONG_AGO + days * _DAY)
        )


def client_context(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    """A client that trusts the authority, perhaps with a certificate of its own."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def encrypt_key(pair: Pair) -> None:
    """Put a password on a key."""
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
        )
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
