import pytest

from recursant.config.model import Config, FamilyPattern
from recursant.fleet.families import FamilyResolver


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("deepseek-ai/deepseek-coder-33b-instruct", "deepseek"),
        # The publisher's name does not count, the first word in the model's own name does.
        ("deepseek-ai/Qwen-Distill", "qwen"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi"),
        ("meta-llama/Llama-3-8B", None),
        ("", None),
    ],
)
def test_known_words_name_the_family(model: str, family: str | None) -> None:
    assert FamilyResolver([], ["phi", "qwen", "deepseek"]).family_of(model) == family


def test_patterns_come_before_known_words() -> None:
    resolver = FamilyResolver([FamilyPattern(pattern="^my-qwen", family="house")], ["qwen"])
    assert resolver.family_of("org/My-Qwen-7B") == "house"
    assert resolver.family_of("qwen-7b") == "qwen"


def test_known_words_come_from_agents_and_static_workers() -> None:
    config = Config.model_validate(
        {
            "agents": [{"agent_id": "a", "model_family": "whisper", "fallback_strategy": "degrade_to_llama"}],
            "workers": [{"host": "n1", "models": ["phi", {"name": "x/y", "family": "house"}]}],
        }
    )
    resolver = FamilyResolver.from_config(config)
    assert resolver.family_of("openai/whisper-large-v3") == "whisper"
    assert resolver.family_of("Phi-3") == "phi"
    assert resolver.family_of("meta-llama/Llama-3-8B") == "llama"
    assert resolver.family_of("the-house-model") == "house"
