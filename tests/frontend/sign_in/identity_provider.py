"""A small OpenID Connect provider on loopback: as strict as the standard, and able to misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT = ("lorikeet", "the secret of the client")
"""The client's id and secret, as registered with the provider."""
CALLBACK = "/account/oidc/sso/login/callback/"

Answer = tuple[int, dict[str, Any]]


@cache
def key(name: str) -> rsa.RSAPrivateKey:
    """The signing key of this name."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Refused(Exception):
    """Sent as an OAuth error with this code."""


class IdentityProvider(ThreadingHTTPServer):
    """Signs in `person` without asking for credentials. Tests set these attributes:

    `person`: claims of the ID token and the user info. `token` and `userinfo`: changes of only one
    of them, with None for a claim that is left out. `signer`, `header` and `algorithm`: how the ID
    token is signed. `describes`: changes of the discovery document. `broken`: paths that answer
    503. `denies`: the error with which the browser is sent back. `asks`: whether the provider first
    shows a page on which the person continues or cancels.
    """

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://{host}:{self.server_port}"
        self.redirect_uri = f"http://testserver{CALLBACK}"
        self.person: dict[str, Any] = {"sub": "ann-1", "email": "ann@example.com"}
        self.person |= {"email_verified": True, "name": "Ann Ames", "preferred_username": "ann"}
        self.token: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.describes: dict[str, Any] = {}
        self.signer, self.header = key("right"), {"kid": "right"}
        self.algorithm = "RS256"
        self.broken: set[str] = set()
        self.denies = ""
        self.asks = False
        self._asked: dict[str, dict[str, str]] = {}
        """The authorization requests, by the code that answered them."""
        self._access: set[str] = set()

    def discover(self, _: dict[str, str]) -> Answer:
        ends = {"authorization_endpoint": "/authorize", "token_endpoint": "/token"}
        ends |= {"userinfo_endpoint": "/userinfo", "jwks_uri": "/keys"}
        found = {"issuer": self.issuer} | {name: self.issuer + end for name, end in ends.items()}
        return 200, _changed(found, self.describes)

    def keys(self, _: dict[str, str]) -> Answer:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(key("right").public_key(), as_dict=True)
        return 200, {"keys": [{**public, "kid": "right", "alg": "RS256", "use": "sig"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """The address to which the browser is redirected."""
        _require(asked["client_id"] == CLIENT[0], "unauthorized_client")
        _require(asked["redirect_uri"] == self.redirect_uri, "invalid_request")
        _require(asked["response_type"] == "code", "unsupported_response_type")
        _require({"openid", "email"} <= set(asked["scope"].split()), "invalid_scope")
        _require(asked["code_challenge_method"] == "S256" and bool(asked["state"]), "no_pkce")
        code = secrets.token_urlsafe()
        self._asked[code] = asked
        denies = asked.get("error", self.denies)
        said = {"error": denies} if denies else {"code": code}
        return f"{asked['redirect_uri']}?{urlencode(said | {'state': asked['state']})}"

    def page(self, asked: dict[str, str]) -> str:
        """The page on which a person decides; its form repeats the authorization request."""
        kept = "".join(
            f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
            for name, value in asked.items()
        )
        return (
            f'<!doctype html><html lang="en"><title>Identity provider</title><h1>Who is it?</h1>'
            f'<form method="post" action="/authorize">{kept}'
            f"<button>Continue as {escape(self.person['name'])}</button>"
            f'<button name="error" value="access_denied">Cancel</button></form>'
        )

    def exchange(self, form: dict[str, str]) -> Answer:
        """The tokens for a code, which is valid once."""
        asked = self._asked.pop(form["code"], None)
        _require((form["client_id"], form["client_secret"]) == CLIENT, "invalid_client")
        _require(asked is not None and form["redirect_uri"] == self.redirect_uri, "invalid_grant")
        assert asked is not None
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        _require(challenge == asked["code_challenge"], "invalid_grant")
        access = secrets.token_urlsafe()
        self._access.add(access)
        tokens = {"access_token": access, "token_type": "Bearer", "expires_in": 60}
        return 200, tokens | {"id_token": self._id_token(asked["nonce"])}

    def _id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT[0], "iat": now, "exp": now + 60}
        claims = _changed(claims | {"nonce": nonce} | self.person, self.token)
        signers: dict[str, Any] = {"none": None, "HS256": b"whatever is as long as it must be"}
        signer = signers.get(self.algorithm, self.signer)
        return jwt.encode(claims, signer, algorithm=self.algorithm, headers=self.header)

    def tell(self, authorization: str) -> Answer:
        """The user info for an access token."""
        _require(authorization.removeprefix("Bearer ") in self._access, "invalid_token")
        return 200, _changed(self.person, self.userinfo)


def _require(holds: bool, error: str) -> None:
    if not holds:
        raise Refused(error)


def _changed(claims: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (claims | changes).items() if value is not None}


class _Handler(BaseHTTPRequestHandler):
    server: IdentityProvider

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        self._answer(at.path, {name: values[0] for name, values in parse_qs(at.query).items()})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        self._answer(self.path, {name: values[0] for name, values in form.items()})

    def _answer(self, path: str, sent: dict[str, str]) -> None:
        try:
            if path in self.server.broken:
                self._send(503, {})
            elif path == "/authorize" and self.server.asks and self.command == "GET":
                self._write(200, self.server.page(sent), ("content-type", "text/html"))
            elif path == "/authorize":
                self._write(302, "", ("location", self.server.authorize(sent)))
            elif path == "/userinfo":
                self._send(*self.server.tell(self.headers["authorization"]))
            else:
                ends: dict[str, Callable[[dict[str, str]], Answer]]
                ends = {"/.well-known/openid-configuration": self.server.discover}
                ends |= {"/token": self.server.exchange, "/keys": self.server.keys}
                self._send(*ends[path](sent))
        except (Refused, KeyError) as wrong:
            self._send(400, {"error": str(wrong)})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self._write(status, json.dumps(body), ("content-type", "application/json"))

    def _write(self, status: int, body: str, header: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header(*header)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[IdentityProvider]:
    """A running provider whose issuer has this name of the loopback address."""
    with IdentityProvider(host) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
