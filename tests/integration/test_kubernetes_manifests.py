"""Goal: the manifests for Kubernetes are valid, and `onceflow run` takes what they say.

Method: each document is validated against Kubernetes' own schemas, without unknown fields. The
command of each container runs with the variables of its ConfigMap and Secret; what it would do is
looked at, because there is no cluster here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from onceflow.cli import main
from onceflow.cli.connect import SLOT_VARIABLE
from onceflow.processors import App

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
VERSION = "1.33"

PROGRAM = """
from onceflow.processors import App

app = App("shop")
mailer = App("mailer", leave_on_sigterm=True)


@app.processor("orders", to="bills")
def bill(order: bytes) -> bytes:
    return order


@mailer.processor("bills", to="mails")
def mail(bill: bytes) -> bytes:
    return bill
"""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FOLDER.joinpath(name).read_text()))


def everything() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (document["kind"], document["metadata"]["name"]): document
        for name in FILES
        for document in documents(name)
    }


WORKLOADS = [key for key in everything() if key[0] in ("StatefulSet", "Deployment")]


@pytest.mark.parametrize("name", FILES)
def test_documents_are_valid(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_wrong_document_is_not_valid() -> None:
    (_, workload, _) = documents("worker.yaml")
    workload["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload, VERSION, strict=True)


def variables_of(container: dict[str, Any]) -> dict[str, str]:
    """What the container gets, as Kubernetes puts it together."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            found |= everything()["ConfigMap", source["configMapRef"]["name"]]["data"]
        else:
            found |= everything()["Secret", source["secretRef"]["name"]]["stringData"]
    for entry in container.get("env", ()):
        found[entry["name"]] = entry.get("value", "1")  # A field of the pod: its ordinal.
    return found


@pytest.mark.parametrize("key", WORKLOADS)
def test_the_command_takes_options_and_settings(
    key: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = everything()[key]["spec"]["template"]["spec"]
    (container,) = template["containers"]
    (tmp_path / "shop.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}

    def run(app: App, *, until_end: bool = False) -> None:
        config = app.settings.session_config(app.name, ["orders"], "x")
        seen.update(settings=app.settings, admin=app.settings.admin_config(), consumer=config)

    class Server:
        """In place of ports."""

        addresses: dict[str, str] = {}  # noqa: RUF012

        def __init__(self, app: App, *given: object) -> None:
            seen["served"] = given

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(App, "run", run)
    monkeypatch.setattr("onceflow.cli.worker_server.WorkerServer", Server)
    assert container["command"] == ["onceflow"]
    variables = variables_of(container)
    result = CliRunner().invoke(main, container["args"], env=variables)
    assert result.exit_code == 0, (result.output, result.exception)
    settings = seen["settings"]
    assert settings.state_dir == Path("/state")
    admin = seen["admin"]
    assert [str(each) for each in admin.addresses] == ["kafka.example.com:9093"]
    security = admin.security
    assert (security.security_protocol, security.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (security.sasl_username, security.sasl_password) == ("shop", "replace-me")
    assert security.ssl_cafile == "/etc/kafka/ca.pem"
    assert seen["served"] == ("0.0.0.0", 8080, 8080)
    if key[0] == "StatefulSet":
        assert settings.slot == "1"
    else:
        assert settings.leave_on_sigterm
        assert seen["consumer"].consumer.session_timeout_ms == 15_000


@pytest.mark.parametrize("key", WORKLOADS)
def test_probes_times_and_disks_fit_what_a_worker_does(key: tuple[str, str]) -> None:
    workload = everything()[key]
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    longest_s = App("a").settings.shutdown_timeout_ms / 1000
    assert pod["terminationGracePeriodSeconds"] > longest_s
    assert "/state" in [mount["mountPath"] for mount in container["volumeMounts"]]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for volume in pod["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in everything()
    if key[0] == "StatefulSet":
        assert ("Service", workload["spec"]["serviceName"]) in everything()
        names = [entry["name"] for entry in container["env"]]
        assert names == [SLOT_VARIABLE]
        assert "pod-index" in json.dumps(container["env"])
