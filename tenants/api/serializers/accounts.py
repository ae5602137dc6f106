"""Tenants, members and invitations."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from tenants.adapters.quota import Storage
from tenants.api.serializers.strict import Creator, PatchMixin, StrictMixin
from tenants.models import AuditEntry, Invitation, Membership, Role, Tenant, User


class TenantSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[Tenant]):
    """A customer. Only operators set its status, weight and quota."""

    class Meta:
        model = Tenant
        fields = [
            "slug", "name", "status", "weight", "max_stored_bytes", "max_versions", "created_at",
        ]  # fmt: skip

    def validate_slug(self, slug: str) -> str:
        if self.instance is not None and slug != self.instance.slug:
            raise ValidationError("The slug cannot be changed, because adapter names contain it.")
        return slug


class StorageSerializer(serializers.Serializer[Storage]):
    """What a tenant stores, and its quota."""

    stored_bytes = serializers.IntegerField(help_text="Total size of adapter files.")
    max_stored_bytes = serializers.IntegerField()
    versions = serializers.IntegerField(help_text="Number of versions, in any state.")
    max_versions = serializers.IntegerField()


class OneTenantSerializer(TenantSerializer):
    """A tenant, and what it stores."""

    storage = serializers.SerializerMethodField()

    class Meta(TenantSerializer.Meta):
        fields = [*TenantSerializer.Meta.fields, "second_factor_required", "repair", "storage"]

    @extend_schema_field(StorageSerializer)
    def get_storage(self, tenant: Tenant) -> dict[str, int]:
        return StorageSerializer(Storage.of(tenant)).data


class MemberSerializer(StrictMixin, serializers.ModelSerializer[Membership]):
    """A member of a tenant."""

    # Never looked up: a caller must not learn usernames of other tenants' members.
    username = serializers.SlugRelatedField[User](
        slug_field="username", source="user", read_only=True, help_text="Username of the member."
    )

    class Meta:
        model = Membership
        fields = ["id", "username", "role", "created_at"]

    def validate_role(self, role: str) -> Role:
        return Role(role)


class InvitationSerializer(StrictMixin, serializers.ModelSerializer[Invitation]):
    """An invitation without its link, which cannot be shown again."""

    created_by = Creator()

    class Meta:
        model = Invitation
        fields = ["id", "role", "note", "created_by", "created_at", "expires_at"]
        read_only_fields = ["created_at", "expires_at"]


class NewInvitationSerializer(InvitationSerializer):
    """An invitation with its link, which is shown only once."""

    url = serializers.URLField(
        read_only=True, help_text="The invitation link to send. It is shown only once."
    )

    class Meta(InvitationSerializer.Meta):
        fields = [*InvitationSerializer.Meta.fields, "url"]


class JoinedTenantSerializer(serializers.ModelSerializer[Membership]):
    """A tenant that a person is a member of."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)

    class Meta:
        model = Membership
        fields = ["tenant", "role"]


class UserSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[User]):
    """A person who can sign in."""

    email = serializers.CharField(read_only=True, help_text="Empty if it is not known.")
    active = serializers.BooleanField(source="is_active", help_text="Whether they can sign in.")
    operator = serializers.BooleanField(source="is_staff")
    created_at = serializers.DateTimeField(source="date_joined", read_only=True)
    memberships = JoinedTenantSerializer(many=True, read_only=True)

    class Meta:
        model = User
        fields = [
            "id", "username", "email", "active", "operator", "memberships", "created_at",
            "last_login",
        ]  # fmt: skip
        read_only_fields = ["username", "email", "last_login"]


class AuditEntrySerializer(serializers.ModelSerializer[AuditEntry]):
    """A change: `before` and `after` hold the columns that differ, never secrets."""

    tenant = serializers.CharField(
        source="tenant.slug", default=None, allow_null=True, read_only=True
    )
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)

    class Meta:
        model = AuditEntry
        fields = [
            "id", "at", "tenant", "actor_kind", "actor_id", "actor_name", "address", "request_id",
            "action", "kind", "name", "object_id", "before", "after",
        ]  # fmt: skip
