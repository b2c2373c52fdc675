"""Makes a CA and certificates signed by it, for trying out TLS and for tests. Needs the library cryptography."""

from __future__ import annotations

import ipaddress
import os
import re
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventstore.errors import InvalidArgument
from eventstore.extras import advice
from eventstore.fields import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA: Final = "ca"
_CA_DAYS: Final = 3650
_CLOCKS_APART: Final = timedelta(hours=1)
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")  # a common name has at most 64 characters
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644


def make_certificate(folder: Path, names: Sequence[str], days: int, *, starts: datetime | None = None) -> list[Path]:
    """Writes a certificate for these host names and addresses, the first of which is its common name, and its key; before that
    a CA, if the folder has none. Returns what was written. `starts`: from when on it is valid; None: an hour ago.

    Raises:
        InvalidArgument: a name is of no use, the folder has such a certificate already, or the library is not installed.
    """
    if find_spec("cryptography") is None:
        raise InvalidArgument(f"certificates are made by cryptography, which is not installed; {advice('tls')}", field="tls")
    common = names[0]
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name.strip(".") == "" or name == CA:
            raise InvalidArgument(
                f"{shown(name)} is neither a host name, an address nor a short name, of letters without accents",
                field="name",
                value=shown(name),
            )
    target, key_file = folder / f"{common}.pem", folder / f"{common}.key"
    for each in (target, key_file):
        if each.exists():
            raise InvalidArgument(f"{each} exists; delete it first, or choose another folder", field="to", value=str(each))
    folder.mkdir(parents=True, exist_ok=True)
    written = [] if (folder / f"{CA}.pem").exists() else _make_ca(folder)
    ca, ca_key = _read_ca(folder)
    key = _new_key()
    begin = datetime.now(UTC) - _CLOCKS_APART if starts is None else starts
    made = _signed(common, key, ca.subject, ca_key, begin, timedelta(days=days), names, ca)
    _write(key_file, _key_bytes(key), _PRIVATE)
    _write(target, _certificate_bytes(made), _PUBLIC)
    return [*written, target, key_file]


def _make_ca(folder: Path) -> list[Path]:
    paths = [folder / f"{CA}.pem", folder / f"{CA}.key"]
    if paths[1].exists():
        raise InvalidArgument(
            f"{paths[1]} is there without {paths[0]}; put that back, or delete the key to have a new CA made",
            field="to",
            value=str(paths[0]),
        )
    key = _new_key()
    name = _name("eventstore CA for trying")
    made = _signed("", key, name, key, datetime.now(UTC) - _CLOCKS_APART, timedelta(days=_CA_DAYS), None, None)
    _write(paths[1], _key_bytes(key), _PRIVATE)
    _write(paths[0], _certificate_bytes(made), _PUBLIC)
    return paths


def _read_ca(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
        key = load_pem_private_key((folder / f"{CA}.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgument(f"{folder}: the CA in it cannot be used ({error})", field="to", value=str(folder)) from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise InvalidArgument(f"{folder}: its CA was made by another program", field="to", value=str(folder))
    return certificate, key


def _signed(
    common: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Name,
    by: EllipticCurvePrivateKey,
    begin: datetime,
    lasts: timedelta,
    names: Sequence[str] | None,
    ca: x509.Certificate | None,
) -> x509.Certificate:
    """Returns a signed certificate; of the CA itself without `names`."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID

    is_ca = names is None
    signer = by.public_key() if ca is None else ca.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(issuer if is_ca else _name(common))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + lasts)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)  # type: ignore[arg-type,unused-ignore]
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_ca,
                key_cert_sign=is_ca,
                crl_sign=is_ca,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if names is not None:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
    return builder.sign(by, SHA256())


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())  # signs five times faster than RSA, on the task of all sockets


def _key_bytes(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate_bytes(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
