"""Treatment of members that request encryption, which Clary lacks: refused, unless the owner trusts the machine."""

from __future__ import annotations

from clary.control.jobs.members.member import Member, Use, is_set, refused, warned

TRUST = "set machine_is_trusted = true in settings.toml if {place.trusted}"


def encryption(path: str, what: str) -> Member:
    """Declare a member that requests encryption, which Clary does not do."""
    return Member(
        path=path,
        rules=(
            refused(
                f"{path} asks for encryption that is not done here: {what}. Leave it out, or {TRUST}.",
                when="unless setting machine_is_trusted is true",
                holds=_is_unencrypted,
            ),
            warned(f"{path} has no effect: {what}", when="setting machine_is_trusted is true"),
        ),
    )


def _is_unencrypted(use: Use) -> bool:
    return is_set(use) and not use.site.machine_is_trusted
