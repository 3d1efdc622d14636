"""The families by the `model_type` of config.json."""

from core.models.families.gemma2 import GEMMA2
from core.models.families.gemma3 import GEMMA3
from core.models.families.llama import LLAMA
from core.models.families.mistral import MISTRAL
from core.models.families.olmo2 import OLMO2
from core.models.families.phi3 import PHI3
from core.models.families.qwen2 import QWEN2
from core.models.families.qwen3 import QWEN3
from core.models.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3, OLMO2)
}
