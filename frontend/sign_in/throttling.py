"""Slows down guessing: of passwords, of second-factor codes, of invitation links; and mail floods.

Failed attempts are counted per client address and per account as tried from that address, so
nobody can lock somebody else's account from elsewhere. After a few free attempts each further one
has to wait, twice as long as the one before it. An attempt counts as failed from its start, so many
in parallel gain nothing; success takes that back. Counts are in Django's cache, never in the
database.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from allauth.core.internal.ratelimit import cache_lock
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from inference.addresses import network_of

MINUTE_S, HOUR_S = 60.0, 3600.0


class TooManyAttempts(ValidationError):
    """The next attempt has to wait; the message says how long."""

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = math.ceil(wait_s)
        super().__init__(f"Too many attempts. Try again in {duration(self.retry_after_s)}.")


def duration(seconds: int) -> str:
    """Rounded up to whole minutes above a minute and a half."""
    count, unit = (seconds, "second") if seconds <= 90 else (math.ceil(seconds / 60), "minute")
    return f"{count} {unit}" + ("" if count == 1 else "s")


@dataclass(frozen=True, slots=True)
class SignInFailures:
    """Recent failures under one key: how many, and when the last one was (Unix time)."""

    count: float = 0.0
    last_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """How long the next attempt waits after a number of failures.

    After `free` failures it waits `first_wait_s`, after each further one twice as long, up to
    `longest_wait_s`. One failure is forgotten every `forget_s`.
    """

    free: int
    first_wait_s: float
    longest_wait_s: float
    forget_s: float

    def wait_s(self, failures: SignInFailures, now: float) -> float:
        """Seconds until an attempt is allowed; 0 if it is allowed now."""
        excess = round(failures.count) - self.free  # a part is forgotten between two attempts
        if excess < 0:
            return 0.0
        wait = min(self.first_wait_s * 2.0 ** min(excess, 64), self.longest_wait_s)
        return max(0.0, failures.last_at + wait - now)

    def failed(self, failures: SignInFailures, now: float) -> SignInFailures:
        """The failures after one more."""
        forgotten = max(0.0, now - failures.last_at) / self.forget_s
        return SignInFailures(max(0.0, failures.count - forgotten) + 1, now)

    def lifetime_s(self, failures: SignInFailures) -> float:
        """Seconds for which they have to be remembered."""
        return failures.count * self.forget_s + self.longest_wait_s


@dataclass(frozen=True, slots=True)
class _Counter:
    key: str
    limit: Limit
    cleared_by_success: bool

    def store(self, failures: SignInFailures) -> None:
        cache.set(self.key, failures, self.limit.lifetime_s(failures))


@dataclass(frozen=True, slots=True)
class _Counted:
    """A counter, with its failures before and after an attempt."""

    counter: _Counter
    before: SignInFailures
    after: SignInFailures

    def take_back(self) -> None:
        """Undo the attempt; attempts made meanwhile stay counted."""
        with cache_lock(self.counter.key) as locked:
            if not locked:
                return  # it stays counted, which is the safe side
            found = cache.get(self.counter.key)
            if found == self.after:
                self.counter.store(self.before)
            elif found is not None:
                self.counter.store(SignInFailures(max(0.0, found.count - 1), found.last_at))


class SignInAttempt:
    """An attempt that was allowed, and counts as failed until `succeeded`."""

    def __init__(self, counted: Iterable[_Counted]) -> None:
        self._counted = counted

    def succeeded(self) -> None:
        """Forget all failures of the account, but only this one of the address: otherwise
        signing in to one's own account would make guesses at others free again."""
        for counted in self._counted:
            if counted.counter.cleared_by_success:
                cache.delete(counted.counter.key)
            else:
                counted.take_back()


@dataclass(frozen=True)
class Throttle:
    """The limits of one kind of attempt; None for no limit.

    `per_account` counts an account's failures wherever they come from. Only for attempts
    that a stranger cannot make, because anybody who can make them can lock the account.
    """

    action: str
    per_address: Limit
    per_account_and_address: Limit | None = None
    per_account: Limit | None = None
    clock: Callable[[], float] = time.time

    def begin(self, request: HttpRequest, accounts: Iterable[str] = ()) -> SignInAttempt:
        """Count an attempt at these accounts from the request's address.

        Raises:
            TooManyAttempts: it has to wait. It is not counted then, so that waiting ends.
        """
        counted: list[_Counted] = []
        for counter in self._counters(network_of(request.META.get("REMOTE_ADDR", "")), accounts):
            try:
                counted.append(self._count(counter))
            except TooManyAttempts:
                for earlier in counted:
                    earlier.take_back()
                raise
        return SignInAttempt(counted)

    def _counters(self, address: str, accounts: Iterable[str]) -> Iterable[_Counter]:
        yield _Counter(self._key("address", address), self.per_address, cleared_by_success=False)
        for account in accounts:
            if self.per_account_and_address:
                key = self._key("both", f"{address} {account}")
                yield _Counter(key, self.per_account_and_address, cleared_by_success=True)
            if self.per_account:
                key = self._key("account", account)
                yield _Counter(key, self.per_account, cleared_by_success=True)

    def _key(self, kind: str, text: str) -> str:
        return f"throttle:{self.action}:{kind}:{hashlib.sha256(text.encode()).hexdigest()}"

    def _count(self, counter: _Counter) -> _Counted:
        with cache_lock(counter.key) as locked:
            if not locked:  # many attempts at once
                raise TooManyAttempts(1)
            now = self.clock()
            before = cache.get(counter.key) or SignInFailures()
            wait_s = counter.limit.wait_s(before, now)
            if wait_s > 0:
                raise TooManyAttempts(wait_s)
            after = counter.limit.failed(before, now)
            counter.store(after)
            return _Counted(counter, before, after)


_OF_ADDRESS = Limit(free=30, first_wait_s=2, longest_wait_s=MINUTE_S, forget_s=MINUTE_S / 2)
"""An office may share one address: generous, but far too slow to try common passwords on many
accounts."""
_OF_ACCOUNT_HERE = Limit(
    free=5, first_wait_s=15, longest_wait_s=15 * MINUTE_S, forget_s=15 * MINUTE_S
)
"""In the long run four guesses an hour."""

PASSWORDS = Throttle("password", _OF_ADDRESS, _OF_ACCOUNT_HERE)
CODES = Throttle(
    "code",
    _OF_ADDRESS,
    _OF_ACCOUNT_HERE,
    # Only a client that knows the password is asked for a code. Without this limit, a thousand
    # addresses with a few guesses each would find one of the million codes.
    per_account=Limit(free=20, first_wait_s=MINUTE_S, longest_wait_s=HOUR_S, forget_s=HOUR_S),
)
RESET_MAILS = Throttle(
    "reset-mail",
    Limit(free=10, first_wait_s=10, longest_wait_s=5 * MINUTE_S, forget_s=MINUTE_S),
    # A user who has to wait already has three emails with a working link.
    per_account=Limit(free=3, first_wait_s=MINUTE_S, longest_wait_s=HOUR_S, forget_s=HOUR_S),
)
INVITATION_LINKS = Throttle(
    "invitation", Limit(free=20, first_wait_s=2, longest_wait_s=MINUTE_S, forget_s=MINUTE_S / 2)
)
