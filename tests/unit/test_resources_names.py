"""envoy/ repeats names that recursant/names.py fixes; here they are held together."""

import re
from pathlib import Path

import pytest
import yaml

from recursant import data, names
from recursant.fleet.engine_errors import MAX_BODY_BYTES

ROOT = Path(__file__).parents[2]


def lua(script: str) -> str:
    """The code without its comments."""
    return re.sub(r"--[^\n]*", "", data.envoy_file(f"lua/{script}.lua").read_text())


def test_envoy_is_no_python_package() -> None:
    """It would shadow the `envoy` package of xds-protos."""
    assert not list((ROOT / "envoy").rglob("*.py"))
    import envoy.service.ext_proc.v3 as installed

    assert not Path(next(iter(installed.__path__))).is_relative_to(ROOT / "envoy")


def test_lua_reads_the_headers_that_python_names() -> None:
    assert set(re.findall(r'"(x-[a-z-]+)"', lua("agent"))) == {names.AGENT_ID, names.REQUEST_ID}
    assert set(re.findall(r'"(x-[a-z-]+)"', lua("body"))) == set()


def test_lua_reads_the_metadata_that_python_writes() -> None:
    code = lua("body")
    assert f'NAMESPACE = "{names.METADATA_NAMESPACE}"' in code
    assert f'AUTO = "{names.AUTO_MODEL}"' in code
    for_envoy = {
        names.METADATA_NAMESPACE,
        names.METADATA_ENDPOINTS,
        names.METADATA_SELECTED,
        names.METADATA_FAIL_OPEN,
    }
    from_lua = {names.METADATA_CLAMPED, names.METADATA_FAILED, names.METADATA_FAILED_BODY}
    for_lua = {value for name, value in vars(names).items() if name.startswith("METADATA_")} - for_envoy - from_lua
    assert set(re.findall(r"decision\.([a-z_]+)", code)) == for_lua
    of_routes = {
        names.METADATA_MODEL,
        names.METADATA_ALLOWED_MODELS,
        names.METADATA_PRIORITY,
        names.METADATA_MAX_TOKENS,
    }
    assert set(re.findall(r'context:get\("([a-z_]+)"\)', code)) == of_routes
    assert f'metadata:set(NAMESPACE, "{names.METADATA_FAIL_OPEN}", true)' in code
    assert f':set(NAMESPACE, "{names.METADATA_CLAMPED}", clamped)' in code
    for said in (names.CLAMPED_LOWERED, names.CLAMPED_ADDED):
        assert f'"{said}"' in code


def test_the_attempts_lua_leaves_what_python_reads() -> None:
    code = lua("attempt")
    assert f'NAMESPACE = "{names.METADATA_NAMESPACE}"' in code
    assert re.findall(r'"(x-[a-z-]+)"', code) == [names.RETRY_MARK]
    assert set(re.findall(r'set\(NAMESPACE, "([a-z_]+)"', code)) == {names.METADATA_FAILED, names.METADATA_FAILED_BODY}
    assert set(re.findall(r"known\.([a-z_]+)", code)) == {names.METADATA_FAILED, names.METADATA_SELECTED}
    assert f"MAX_BODY_BYTES = {MAX_BODY_BYTES}" in code


def test_the_bootstrap_names_the_clusters_that_python_names() -> None:
    bootstrap = yaml.safe_load(data.envoy_file("bootstrap.yaml").read_text())
    (cluster,) = bootstrap["static_resources"]["clusters"]
    assert cluster["name"] == cluster["load_assignment"]["cluster_name"] == names.XDS_CLUSTER
    ads = bootstrap["dynamic_resources"]["ads_config"]
    assert ads["grpc_services"] == [{"envoy_grpc": {"cluster_name": names.XDS_CLUSTER}}]
    assert ads["set_node_on_first_message_only"] is True
    port = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    assert port == {"address": names.LOOPBACK, "port_value": names.XDS_PORT}


def test_a_missing_file_is_said_with_its_places() -> None:
    with pytest.raises(FileNotFoundError, match=r"no envoy/lua/none\.lua in .*envoy or .*_envoy"):
        data.envoy_file("lua/none.lua")
