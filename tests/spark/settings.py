"""How Spark runs in these tests: so that what is short costs little. What is read, written and told does not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# A Java that lives for seconds spends most of them on compiling for speed that it never reaches.
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_settings(folder: Path) -> dict[str, str]:
    """Settings of a session that leaves its files in `folder`, whose name is short: sockets lie in it."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",  # expressions are interpreted: a thousand rows do not pay for a class of Java
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={folder} -Dderby.system.home={folder}",
        "spark.executor.extraJavaOptions": JAVA,
    }


def settings_folder(folder: Path) -> Path:
    """Writes them where `SPARK_CONF_DIR` of another process names them; what it sets by itself counts more."""
    lines = [f"{name} {value}\n" for name, value in spark_settings(folder).items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return folder
