"""The certificate of the lines to other machines: made once, for nobody but the workers to whom it is given."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controlplane.home import Home
from environments.disk import write_file

_YEARS = 10


def files(home: Home) -> tuple[Path, Path]:
    """The certificate and its private key, made at the first call."""
    certificate = home.certificate_file
    secret = certificate.with_name("key.pem")
    if not certificate.exists():
        certificate.parent.mkdir(mode=0o700, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        write_file(
            secret,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            mode=0o600,
        )
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rollyard")])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))  # clocks of nodes differ
            .not_valid_after(now + timedelta(days=365 * _YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_file(certificate, made.public_bytes(serialization.Encoding.PEM), mode=0o600)
    return certificate, secret
