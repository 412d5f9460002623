"""What runs where: options and configuration merged, ports and models chosen."""

from pathlib import Path

import pytest

from recursant.config.load import dump_config, parse_config
from recursant.config.model import Config
from recursant.supervise.layout import Layout, LayoutError, UpOptions, lay_out
from recursant.supervise.rundir import RunDirectory

AGENTS = """
agents:
  - {agent_id: a, model_family: qwen}
  - {agent_id: b, model_family: deepseek}
  - {agent_id: c, model_family: phi}
  - {agent_id: d, model_family: qwen}
"""


def config(text: str) -> Config:
    return parse_config(text, "test.yaml").config


def laid_out(text: str = "", **options: object) -> Layout:
    return lay_out(config(text), UpOptions(**options), RunDirectory(Path("/r")))  # type: ignore[arg-type]


def test_defaults_are_the_documented_ones() -> None:
    layout = laid_out()
    # DESIGN §3.
    assert layout.config.gateway.port == 8000
    assert layout.config.gateway.admin_port == 9901
    assert layout.config.xds.port == 18000
    assert layout.config.api.port == 8001
    assert layout.worker_ports == (8101, 8102, 8103, 8104)
    assert layout.config.extproc.listen == ("unix:/r/extproc.sock",)
    assert layout.config.gateway.host == layout.config.api.host == layout.config.xds.host == "127.0.0.1"
    assert layout.config.redis.url == f"redis://127.0.0.1:{layout.redis_port}/0"


def test_options_win_over_the_file() -> None:
    text = "gateway: {port: 1000, admin_port: 1001}\napi: {port: 1002}\nxds: {port: 1003}"
    layout = laid_out(text, gateway_port=2000, xds_port=2003, host="0.0.0.0")
    assert (layout.config.gateway.port, layout.config.gateway.host) == (2000, "0.0.0.0")
    assert layout.config.gateway.admin_port == 1001
    assert layout.config.api.port == 1002
    assert layout.config.xds.port == 2003


def test_port_0_takes_free_ones_all_different() -> None:
    layout = laid_out(
        workers=5,
        worker_port=0,
        gateway_port=0,
        admin_port=0,
        api_port=0,
        xds_port=0,
        xds_metrics_port=0,
        extproc_metrics_port=0,
    )
    ports = [binding.port for binding in layout.bindings] + [layout.redis_port]
    assert len(ports) == len(set(ports)) == 12
    assert 0 not in ports


def test_the_effective_configuration_loads_back() -> None:
    layout = laid_out(AGENTS, gateway_port=2000, worker_urls=("http://gpu-1:8000",))
    assert config(dump_config(layout.config)) == layout.config


def test_workers_follow_the_first_port() -> None:
    assert laid_out(workers=3, worker_port=9000).worker_ports == (9000, 9001, 9002)
    assert laid_out(workers=0).worker_ports == ()
    with pytest.raises(LayoutError, match="past 65535: lower --worker-port"):
        laid_out(workers=3, worker_port=65534)


def test_one_model_for_each_family_of_the_agents() -> None:
    assert laid_out(AGENTS).worker_models == (
        "Qwen/Qwen2.5-7B-Instruct",
        "deepseek-ai/deepseek-coder-6.7b-instruct",
        "microsoft/Phi-3-mini-4k-instruct",
    )
    assert laid_out("agents: [{agent_id: x, model_family: acme}]").worker_models == ("acme-sim",)
    assert laid_out("agents: [{agent_id: x}]").worker_models == ("Qwen/Qwen2.5-7B-Instruct",)
    assert laid_out(AGENTS, worker_models=("mine",)).worker_models == ("mine",)


def test_a_model_whose_family_the_file_changes_is_not_taken() -> None:
    text = "agents: [{agent_id: x, model_family: qwen}]\nfamilies: [{pattern: qwen2.5, family: old}]"
    assert laid_out(text).worker_models == ("qwen-sim",)


def test_real_workers_take_the_place_of_simulated_and_configured_ones() -> None:
    text = "workers: [{host: configured}]"
    assert [worker.worker_id for worker in laid_out(text).config.workers] == ["configured:8000"]
    layout = laid_out(text, worker_urls=("http://gpu-1:9000/", "http://[::1]"))
    assert [worker.worker_id for worker in layout.config.workers] == ["gpu-1:9000", "[::1]:80"]
    assert [(worker.host, worker.port) for worker in layout.config.workers] == [("gpu-1", 9000), ("::1", 80)]
    assert layout.worker_ports == ()
    assert laid_out(worker_urls=("http://gpu-1:9000",), workers=2).worker_ports == (8101, 8102)


@pytest.mark.parametrize(
    "url",
    [
        "gpu-1:8000",
        "https://gpu-1",
        "http://",
        "http://gpu-1/v1",
        "http://u:p@gpu-1",
        "http://gpu-1:x",
        "http://a_-.b-",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(LayoutError, match=r"^--worker-urls: "):
        laid_out(worker_urls=(url,))


def test_a_worker_given_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match="given twice"):
        laid_out(worker_urls=("http://gpu-1:80", "http://gpu-1"))


def test_an_external_redis_takes_the_place_of_the_embedded() -> None:
    for layout in (laid_out("redis: {url: 'redis://r:1/0'}"), laid_out(redis_url="redis://r:1/0")):
        assert layout.redis_port is None
        assert layout.config.redis.url == "redis://r:1/0"
    both = laid_out("redis: {url: 'redis://file:1/0'}", redis_url="redis://option:1/0")
    assert both.config.redis.url == "redis://option:1/0"
