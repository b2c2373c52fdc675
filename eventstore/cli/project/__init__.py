"""The files of a new project, as `eventstore new` writes them: `{name}` stands for its module."""
