"""Serves a data folder until stopped."""

from __future__ import annotations

from functools import partial

from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, all_given, offers_settings


@offers_settings()
def serve(config: ConfigFile = None, assignments: Assignments = None, **given: object) -> None:
    """Serve a data folder until SIGTERM or Ctrl-C.

    A setting that is not given here comes from the environment (EVENTSTORE_DATA, EVENTSTORE_LISTEN, …), then from the
    TOML file, then from its default. `eventstore settings` lists the values and where they come from.

    \b
    Example:
      eventstore serve --data ./data --listen 127.0.0.1:7701 --http 127.0.0.1:7702
    """
    from eventstore.server.bootstrap import run_to_end
    from eventstore.server.logs import configure_logs, get_logger
    from eventstore.server.run import run
    from eventstore.settings.sources import load_settings, misspelled_variables

    settings = load_settings(config, **all_given(assignments, given))
    configure_logs(settings.log_format, settings.log_level)
    for name, meant in misspelled_variables().items():
        get_logger("eventstore.server").warning("an environment variable is not a setting", variable=name, did_you_mean=meant)
    run_to_end(partial(run, settings))
