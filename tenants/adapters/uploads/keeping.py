"""Turns an unpacked upload into a version of an adapter, or finds the version with this content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction

from tenants.adapters import quota, short_lived, store
from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads.base_names import may_be
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.unpacking import Unpacked
from tenants.models import Adapter, AdapterVersion, BaseModel, State, Tenant, UploadSession, User

Judge = Callable[[AdapterVersion], None]
"""Called with a version that has just been given its files, in the same transaction."""
WITHOUT_FILES = (State.UPLOADING, State.ARCHIVED)
"""States in which a version has no files: an upload of its content provides them."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an upload belongs: the tenant's adapter `name`, which is created if it does not exist,
    on the base model `base_name` (empty: see `_base_model`). `base_confirmed` says whether `user`
    accepted that the adapter names another base model; `short_lived`, whether the version is to
    expire, which all versions of an adapter do or none."""

    tenant: Tenant
    name: str
    base_name: str
    user: User | None
    base_confirmed: bool = False
    short_lived: bool = False

    @classmethod
    def of(cls, session: UploadSession) -> Destination:
        name, base_name = session.adapter_name, session.base_model_name
        confirmed = session.base_confirmed
        by, expires = session.created_by, session.short_lived
        return cls(session.tenant, name, base_name, by, confirmed, expires)

    def refuse_unless_possible(self) -> None:
        """Raises UploadRefused for reasons that can be found without reading the files."""
        refuse_suspended(self.tenant)
        check_name(self.tenant, self.name)
        _base_model_asked(self)


def refuse_suspended(tenant: Tenant) -> None:
    """Raises UploadRefused for a tenant that is suspended."""
    if not tenant.active:
        raise UploadRefused(
            UploadRefusal.TENANT_SUSPENDED, f"The tenant {tenant.slug} is suspended."
        )


def check_name(tenant: Tenant, name: str) -> None:
    """Raises UploadRefused if an adapter cannot have this name."""
    adapter = Adapter(tenant=tenant, name=name)
    try:
        adapter.clean_fields(exclude=["base_model", "created_by"])
        adapter.clean()
    except ValidationError as error:
        raise UploadRefused(UploadRefusal.NAME_INVALID, " ".join(error.messages)) from error


def keep(where: Destination, upload: Unpacked, judge: Judge) -> tuple[AdapterVersion, bool]:
    """The version that holds the upload's content, and whether this upload gave it its files.

    Raises:
        UploadRefused: see `UploadRefusal`. Nothing was kept.
    """
    base_model = _base_model(where, upload)
    _check_trained_on(where, base_model, upload.contents.trained_on)
    adapter, is_new = _adapter(where, base_model)
    try:
        return _keep(adapter, upload, where.user, judge)
    except Adapter.DoesNotExist as error:
        message = f"The adapter {where.name} was deleted during this upload. Send it again."
        raise UploadRefused(UploadRefusal.ADAPTER_DELETED, message) from error
    except BaseException:
        if is_new:
            Adapter.objects.filter(pk=adapter.pk, versions=None).delete()
        raise


def _base_model(where: Destination, upload: Unpacked) -> BaseModel:
    """The base model of the existing adapter, else the one asked for, else the only one there is,
    else the one that the configuration names."""
    if (base_model := _base_model_asked(where)) is not None:
        return base_model
    known = list(BaseModel.objects.all())
    if len(known) == 1:
        return known[0]
    if upload.contents.config_fault:
        raise UploadRefused(UploadRefusal.CONFIG_NOT_JSON, upload.contents.config_fault)
    trained_on = upload.contents.trained_on
    exact = [base for base in known if base.name == trained_on]
    alike = exact or [base for base in known if trained_on and may_be(trained_on, base.name)]
    if len(alike) != 1:
        named = f"names {shown(trained_on)}" if trained_on else "names none"
        raise UploadRefused(
            UploadRefusal.BASE_MODEL_AMBIGUOUS,
            f"adapter_config.json {named} as its base model. Set the field base_model to one of: "
            f"{', '.join(base.name for base in alike or known) or 'none yet'}.",
        )
    return alike[0]


def _base_model_asked(where: Destination) -> BaseModel | None:
    """The base model of the existing adapter, else the one asked for; None if there is neither.

    Raises:
        UploadRefused: the adapter exists on another base model, or the one asked for is unknown.
    """
    asked = where.base_name
    named = Adapter.objects.select_related("base_model").filter(tenant=where.tenant)
    adapter = named.filter(name=where.name).first()
    if adapter is not None:
        _refuse_mixture(where, adapter)
        if asked and asked != adapter.base_model.name:
            raise UploadRefused(
                UploadRefusal.BASE_MODEL_MISMATCH,
                f"{where.name} is an adapter of the base model {adapter.base_model}, not "
                f"of {shown(asked)}.",
            )
        return adapter.base_model
    if not asked:
        return None
    base_model = BaseModel.objects.filter(name=asked).first()
    if base_model is None:
        known = ", ".join(BaseModel.objects.values_list("name", flat=True))
        raise UploadRefused(
            UploadRefusal.BASE_MODEL_UNKNOWN,
            f"The base model {shown(asked)} does not exist. Available: {known or 'none yet'}.",
        )
    return base_model


def _refuse_mixture(where: Destination, adapter: Adapter) -> None:
    """Raises UploadRefused if the adapter's versions expire and this one is not to, or the other
    way round."""
    if adapter.short_lived == where.short_lived:
        return
    if where.short_lived:
        message = f"{where.name} is an adapter of this tenant. Load it under another name."
    else:
        message = f"A training loop has loaded {where.name}. Unload it first, or use another name."
    raise UploadRefused(UploadRefusal.NAME_INVALID, message)


def _check_trained_on(where: Destination, base_model: BaseModel, trained_on: str) -> None:
    """Refuse an adapter that names another base model, unless this was confirmed: with this upload,
    or with an earlier one of the tenant that names the same model."""
    if may_be(trained_on, base_model.name):
        return
    message = (
        f"adapter_config.json names the base model {shown(trained_on)}, but the adapter "
        f"would run on {base_model}. An adapter trained on another model gives poor "
        "answers."
    )
    if settings.OTHER_BASE_MODEL == "refuse":
        raise UploadRefused(
            UploadRefusal.BASE_MODEL_DIFFERS, f"{message} This server does not accept it."
        )
    known = AdapterVersion.objects.filter(
        adapter__tenant=where.tenant, adapter__base_model=base_model, trained_on=trained_on
    )
    if not where.base_confirmed and not known.exists():
        raise UploadRefused(
            UploadRefusal.BASE_MODEL_UNCONFIRMED,
            f"{message} If both names mean the same model, send it again with "
            "confirm_base_model=true.",
        )


def _adapter(where: Destination, base_model: BaseModel) -> tuple[Adapter, bool]:
    """The tenant's adapter of this name, and whether it is new."""
    check_name(where.tenant, where.name)
    fields = {"base_model": base_model, "created_by": where.user, "short_lived": where.short_lived}
    adapter, is_new = Adapter.objects.get_or_create(
        tenant=where.tenant, name=where.name, defaults=fields
    )
    _refuse_mixture(where, adapter)
    return adapter, is_new


def _keep(
    adapter: Adapter, upload: Unpacked, user: User | None, judge: Judge
) -> tuple[AdapterVersion, bool]:
    """The version with this content, and whether this upload gave it its files.

    The row comes first, so that files which a crash leaves behind have an owner that `clean_up`
    finds. Of two uploads of the same content at once, both store their files; the adapter's row
    lock lets one of them hand its folder over, and the other removes its own.
    """
    folder = store.new_folder(adapter, upload.digest)
    size = upload.contents.size_bytes
    fields = {
        "folder": folder,
        "size_bytes": size,
        "trained_on": upload.contents.trained_on,
        "converted": upload.contents.converted,
        "left_out": upload.contents.left_out,
        "expires_at": short_lived.expiry() if adapter.short_lived else None,
    }
    with transaction.atomic():
        version = _version_with_room(adapter, upload.digest, created_by=user, **fields)
    if version.state not in WITHOUT_FILES:
        return version, False
    try:
        with upload.files() as files:
            store.save(folder, files)
        with transaction.atomic():
            version = _version_with_room(adapter, upload.digest, created_by=user, **fields)
            kept = version.state in WITHOUT_FILES
            if kept:
                version.advance(State.VALIDATING, **fields, report={}, config={})
                judge(version)
    except BaseException:
        _forget(adapter, upload.digest, folder)
        raise
    if not kept:
        store.remove(folder)
    return version, kept


def _version_with_room(adapter: Adapter, digest: str, **fields: Any) -> AdapterVersion:
    """The version with this content, created with these fields if there is none. Call it inside a
    transaction.

    Raises:
        UploadRefused: its files must be stored, and the tenant has no room for them.
    """
    tenant = quota.locked(adapter.tenant_id)
    version, _ = adapter.add_version(digest, **fields)
    if version.state in WITHOUT_FILES:
        more_versions = 0 if adapter.short_lived else 1
        quota.Storage.of(tenant, but=version).require(fields["size_bytes"], more_versions)
    return version


def _forget(adapter: Adapter, digest: str, folder: str) -> None:
    """After a failure: delete the files and the row, except what another upload has taken over."""
    store.remove(folder)
    adapter.versions.filter(digest=digest, state=State.UPLOADING, folder=folder).delete()
