"""Runs etcd, API server, controller manager and scheduler with newly created keys."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.labs.kubernetes.api import Api
from tests.labs.kubernetes.network import HOST_IP, SERVICES

PORT = 16443
FRONT_PROXY = "front-proxy-client"
READY_S = 120.0


@dataclass(frozen=True)
class Keys:
    """Key files in a folder: a certificate authority for servers, and one for the aggregation
    layer."""

    folder: Path
    token: str

    def file(self, name: str) -> str:
        return str(self.folder / name)

    @classmethod
    def make(cls, folder: Path) -> Keys:
        """Create the keys with openssl, as `kubeadm` would."""
        folder.mkdir(parents=True)
        keys = cls(folder, secrets.token_hex(16))
        keys._authority("ca", "kubernetes-ca")
        keys._authority("front-proxy-ca", "front-proxy-ca")
        names = f"subjectAltName=IP:127.0.0.1,IP:{HOST_IP},IP:{SERVICES}.1"
        keys.certificate("api", "kube-apiserver", "ca", names)
        keys.certificate("front-proxy", FRONT_PROXY, "front-proxy-ca")
        keys._authority("accounts", "service-accounts")
        (folder / "tokens.csv").write_text(f"{keys.token},admin,1,system:masters\n")
        return keys

    def _authority(self, name: str, subject: str) -> None:
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", f"/CN={subject}",
            "-keyout", self.file(f"{name}.key"), "-out", self.file(f"{name}.crt"),
        )  # fmt: skip

    def certificate(self, name: str, subject: str, authority: str, extension: str = "") -> None:
        """Create a certificate signed by this authority."""
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}",
            "-keyout", self.file(f"{name}.key"), "-out", self.file(f"{name}.csr"),
        )  # fmt: skip
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(extension)
        self._openssl(
            "x509", "-req", "-days", "2", "-in", self.file(f"{name}.csr"),
            "-CA", self.file(f"{authority}.crt"), "-CAkey", self.file(f"{authority}.key"),
            "-CAcreateserial", "-extfile", str(extensions), "-out", self.file(f"{name}.crt"),
        )  # fmt: skip

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def programs(binaries: Path, keys: Keys, folder: Path) -> Mapping[str, list[str]]:
    """The commands of the control plane, by name."""
    etcd, kubeconfig = "http://127.0.0.1:12379", keys.folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(keys)))
    return {
        "etcd": [
            str(binaries / "etcd") if (binaries / "etcd").exists() else "etcd",
            "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", "http://127.0.0.1:12380",
        ],
        "kube-apiserver": [
            str(binaries / "kube-apiserver"), "--etcd-servers", etcd,
            "--secure-port", str(PORT), "--bind-address", "0.0.0.0",
            "--advertise-address", HOST_IP,
            "--tls-cert-file", keys.file("api.crt"), "--tls-private-key-file", keys.file("api.key"),
            "--token-auth-file", keys.file("tokens.csv"), "--authorization-mode", "RBAC",
            "--service-cluster-ip-range", f"{SERVICES}.0/24",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-signing-key-file", keys.file("accounts.key"),
            "--service-account-key-file", keys.file("accounts.crt"),
            "--disable-admission-plugins", "ServiceAccount",
            "--requestheader-client-ca-file", keys.file("front-proxy-ca.crt"),
            "--requestheader-allowed-names", FRONT_PROXY,
            "--requestheader-username-headers", "X-Remote-User",
            "--requestheader-group-headers", "X-Remote-Group",
            "--proxy-client-cert-file", keys.file("front-proxy.crt"),
            "--proxy-client-key-file", keys.file("front-proxy.key"),
            "--enable-aggregator-routing=true", "--feature-gates", "HPAScaleToZero=true",
        ],
        "kube-controller-manager": [
            str(binaries / "kube-controller-manager"), "--kubeconfig", str(kubeconfig),
            "--horizontal-pod-autoscaler-sync-period", "2s",
            "--leader-elect=false", "--controllers", "*,-nodelifecycle,-serviceaccount-token",
            "--feature-gates", "HPAScaleToZero=true",
        ],
        "kube-scheduler": [
            str(binaries / "kube-scheduler"), "--kubeconfig", str(kubeconfig),
            "--leader-elect=false",
        ],
    }  # fmt: skip


def _kubeconfig(keys: Keys) -> Mapping[str, object]:
    cluster = {
        "server": f"https://127.0.0.1:{PORT}",
        "certificate-authority": keys.file("ca.crt"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": keys.token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "current-context": "tests",
    }


@asynccontextmanager
async def control_plane(binaries: Path, keys: Keys, folder: Path) -> AsyncIterator[Api]:
    """Run the control plane inside the context; yields a client once it is ready."""
    started: list[asyncio.subprocess.Process] = []
    commands = programs(binaries, keys, folder)
    url = f"https://127.0.0.1:{PORT}"
    async with Api(url, keys.folder / "ca.crt", keys.token) as api:
        try:
            for name, command in commands.items():
                log = (folder / f"{name}.log").open("wb")
                process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
                started.append(process)
                if name == "kube-apiserver":
                    await _until_ready(api, process, folder / f"{name}.log")
            yield api
        finally:
            for process in reversed(started):
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def _until_ready(api: Api, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(READY_S):
        while not await api.answers():
            if process.returncode is not None:
                raise RuntimeError(f"the API server ended: see {log}")
            await asyncio.sleep(0.3)
