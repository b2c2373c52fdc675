"""The settings of command mailboxes: the options of `eventstore_mailbox`, under the names they have at a server."""

from __future__ import annotations

from typing import Final

from eventstore.settings.setting_declaration import Setting, SettingsPart
from eventstore_mailbox.core.options import Bound

_UNPREFIXED: Final = ("mailboxes", "aggregates_max", "reruns_max")


def _setting_of(name: str, bound: Bound) -> Setting:
    return Setting(
        bound.meaning, "Mailboxes", bound.low, bound.high, unit=bound.unit, name=name if name in _UNPREFIXED else None
    )


MAILBOX_PART: Final = SettingsPart("mailbox_", _setting_of)
"""Marks the field of a settings class that holds the `Options` of its mailboxes."""
