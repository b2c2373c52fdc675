"""Lists the settings a server would have, each with range, unit and origin."""

from __future__ import annotations

from eventstore.cli.terminal.output import print_json, print_line, print_table
from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, all_given, offers_settings
from eventstore.cli.terminal.shared_options import AsJson


@offers_settings()
def settings(config: ConfigFile = None, assignments: Assignments = None, as_json: AsJson = False, **given: object) -> None:
    """List all settings with value, range, unit and origin.

    The command takes the options of `eventstore serve`, and shows the settings of a server with these options. It starts
    nothing.

    \b
    Example:
      eventstore settings --config /etc/eventstore.toml --json
    """
    from eventstore.settings.server import ServerSettings
    from eventstore.settings.setting_declaration import DeclaredSetting, settings_by_group
    from eventstore.settings.sources import load_with_origins

    loaded = load_with_origins(config, **all_given(assignments, given))
    groups = settings_by_group(ServerSettings)

    def row(each: DeclaredSetting) -> tuple[str, ...]:
        value = each.shown(each.told(loaded.values[each.name]))
        return each.name, value, each.range_text or each.type_text, each.unit, loaded.origins[each.name]

    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "value": each.told(loaded.values[each.name]),
                    "default": each.written(each.default),
                    "origin": loaded.origins[each.name],
                    "group": each.setting.group,
                    "type": each.type_text,
                    "range": each.range_text,
                    "unit": each.unit,
                    "flag": each.flag,
                    "variable": each.variable,
                    "meaning": each.setting.meaning,
                }
                for members in groups.values()
                for each in members
            ]
        )
        return
    for place, (group, members) in enumerate(groups.items()):
        if place:
            print_line("")
        print_table(group, ("setting", "value", "allowed", "unit", "from"), map(row, members))
