"""`external.metrics.k8s.io`: the answers to Kubernetes, and which clients get none."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.management.commands.kubernetes_secrets import external_metrics
from gateway.planes.monitoring import external_metrics as listener
from gateway.planes.monitoring.external_metrics import (
    MAX_PER_ADDRESS,
    ROOT,
    ExternalMetrics,
    MetricRefused,
    TlsFiles,
    answer,
    label_of,
)
from inference.gateway.fleet.demand import Demand, FleetDemand

HOST = "external-metrics.lorikeet.svc"


def fleet(**pools: Demand) -> FleetDemand:
    """The demand of these pools, reported at 100 s."""
    demand = FleetDemand(lambda: pools, 0.0)
    demand.heard([], 100.0)
    return demand


def value(target: str, demand: FleetDemand) -> dict[str, str]:
    items = answer(f"{ROOT}/namespaces/lorikeet/{target}", demand, 100.0)["items"]
    return {one["metricLabels"]["pool"]: one["value"] for one in items}


def test_the_metrics_are_listed() -> None:
    told = answer(ROOT, fleet(), 100.0)
    assert told["groupVersion"] == "external.metrics.k8s.io/v1beta1"
    assert {one["name"] for one in told["resources"]} >= {"lorikeet_demand", "lorikeet_held"}


def test_a_pool_is_told_of_by_its_label() -> None:
    demand = fleet(**{"org/Base 1": Demand(1, 2, held=3), "other": Demand(1, 9)})
    assert value("lorikeet_demand?labelSelector=pool%3Dorg-Base-1", demand) == {
        "org-Base-1": "5000m"
    }
    assert value("lorikeet_demand", demand) == {"org-Base-1": "5000m", "other": "9000m"}
    assert label_of("-" + "x" * 99) == "x" * 63


def test_nothing_is_asked_of_a_pool_without_engines_and_requests() -> None:
    assert value("lorikeet_demand?labelSelector=pool%3Dgone", fleet()) == {"gone": "0m"}


@pytest.mark.parametrize(
    ("target", "now", "status"),
    [
        (f"{ROOT}/namespaces/x/another", 100.0, 404),
        (f"{ROOT}/nodes/x/lorikeet_demand", 100.0, 404),
        ("/metrics", 100.0, 404),
        (f"{ROOT}/namespaces/x/lorikeet_demand?labelSelector=app%3Dx", 100.0, 400),
        (f"{ROOT}/namespaces/x/lorikeet_demand?labelSelector=pool+in+%28a%2Cb%29", 100.0, 400),
        (f"{ROOT}/namespaces/x/lorikeet_demand", 200.0, 503),
        (
            f"{ROOT}/namespaces/x/lorikeet_expected_wait_seconds?labelSelector=pool%3Dx",
            100.0,
            503,
        ),
    ],
)
def test_what_is_not_known_is_not_made_up(target: str, now: float, status: int) -> None:
    with pytest.raises(MetricRefused) as refused:
        answer(target, fleet(), now)
    assert refused.value.status == status


# --- the listener --------------------------------------------------------------------------------


class Authority:
    """A certificate authority that signs client certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.crt"
        made = self._signed(self.name, self._key, authority=True)
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def client(self, name: str) -> tuple[str, str]:
        """The files of a new client certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        made = self._signed(subject, key, authority=False)
        files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(files[0]), str(files[1])

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


class Listening:
    """The listener, its files, and the CA bundle that its clients trust."""

    def __init__(self, folder: Path) -> None:
        secret, _ = external_metrics("lorikeet")
        self.files = TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "front-proxy.crt")
        self.files.certificate.write_text(secret["stringData"]["tls.crt"])
        self.files.key.write_text(secret["stringData"]["tls.key"])
        self.authority = Authority(folder, "front-proxy")
        self.bundle = secret["stringData"]["tls.crt"]
        names = ["front-proxy-client"]
        demand = FleetDemand(lambda: {"base": Demand(1, 2)}, -1000.0)
        demand.heard([], asyncio.get_running_loop().time() + 1e6)
        self.server = ExternalMetrics(demand, "127.0.0.1", 0, self.files, names)

    @property
    def port(self) -> int | None:
        return self.server.port

    async def ask(self, certificate: tuple[str, str] | None, target: str) -> httpx.Response:
        """Send a request as Kubernetes' API server does: to the service's name, with the client
        certificate."""
        context = ssl.create_default_context(cadata=self.bundle)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            return await client.get(
                f"https://127.0.0.1:{self.port}{target}",
                headers={"X-Remote-User": "system:admin", "Host": HOST},
                extensions={"sni_hostname": HOST},
            )


@pytest.fixture
async def listening(tmp_path: Path) -> AsyncIterator[Listening]:
    made = Listening(tmp_path)
    async with made.server:
        yield made


METRIC = f"{ROOT}/namespaces/lorikeet/lorikeet_demand?labelSelector=pool%3Dbase"


async def test_the_aggregation_layer_is_answered(listening: Listening) -> None:
    certificate = listening.authority.client("front-proxy-client")
    found = await listening.ask(certificate, METRIC)
    assert found.json()["items"][0]["value"] == "2000m"
    assert (await listening.ask(certificate, "/metrics")).json()["kind"] == "Status"


async def test_nobody_else_is_heard_whatever_he_says_of_himself(
    listening: Listening, tmp_path: Path
) -> None:
    """Clients without a certificate, with one of another authority under the right name, and with
    one of the right authority under another name, as if it also signed the API server's clients."""
    others = Authority(tmp_path / ".", "others")
    strangers = (None, others.client("front-proxy-client"), listening.authority.client("admin"))
    for stranger in strangers:
        with pytest.raises(httpx.TransportError):
            await listening.ask(stranger, METRIC)


async def test_it_is_not_asked_in_the_clear(listening: Listening) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://127.0.0.1:{listening.port}{METRIC}")


async def test_those_that_never_say_who_they_are_keep_nobody_else_away_for_long(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.5)
    silent = [
        await asyncio.open_connection("127.0.0.1", listening.port) for _ in range(MAX_PER_ADDRESS)
    ]
    reader, refused = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.read() == b"", "one more than an address may have"
    refused.close()
    for reader, writer in silent:
        assert await reader.read() == b"", "its time is over"
        writer.close()
    certificate = listening.authority.client("front-proxy-client")
    assert (await listening.ask(certificate, METRIC)).status_code == 200


async def test_new_certificates_are_taken_over_as_they_come(
    listening: Listening, tmp_path: Path
) -> None:
    old = listening.authority.client("front-proxy-client")
    assert (await listening.ask(old, METRIC)).status_code == 200
    (tmp_path / "new").mkdir()
    new = Authority(tmp_path / "new", "front-proxy")
    listening.files.client_authority.write_bytes(new.file.read_bytes())
    with pytest.raises(httpx.TransportError):
        await listening.ask(old, METRIC)
    assert (await listening.ask(new.client("front-proxy-client"), METRIC)).status_code == 200
