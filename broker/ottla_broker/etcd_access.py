"""Builds the metadata store from a broker's settings, with certificates and login. [A]

Used by the broker process, and by commands that manage a cluster without a broker.
"""

from __future__ import annotations

from ottla_broker.config import EtcdConfig
from ottla_broker.metadata.etcd import EtcdLogin, EtcdStore, EtcdTls
from ottla_broker.setting import ConfigError


def etcd_store(etcd: EtcdConfig, cluster: str) -> EtcdStore:
    """The store of the cluster of this name. ConfigError if a file that a setting names cannot be read.

    Nothing is connected to yet.
    """
    tls = login = None
    if etcd.tls:
        tls = EtcdTls(
            _read("etcd.tls.ca.file", etcd.tls_ca_file),
            _read("etcd.tls.certificate.file", etcd.tls_certificate_file),
            _read("etcd.tls.key.file", etcd.tls_key_file),
        )
    password = _read("etcd.password.file", etcd.password_file)
    if etcd.user is not None and password is not None:
        login = EtcdLogin(etcd.user, password.decode("utf-8", "replace").rstrip("\r\n"))
    return EtcdStore(
        [str(address) for address in etcd.endpoints],
        f"/ottla/{cluster}",
        tls=tls,
        login=login,
        timeout_s=etcd.request_timeout_ms / 1000,
    )


def _read(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as failed:
        raise ConfigError(f"{name} = {path} cannot be read: {failed.strerror or failed}.") from None
