"""The jobs: export, rebuild, verify, ship."""
