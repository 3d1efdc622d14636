"""An engine whose policy preempts when the test says so.

Owns: the engine, its policy, and the tokens that a request must get. Never knows: what is tested.
"""

from core.policy.base import Preemption, Relief
from core.request import Request
from core.sampling_params import SamplingParams
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings, reference_tokens
from tests.support.scheduler.preempting_policies import ScriptedPolicy

FOREVER = SamplingParams(ignore_eos=True)


class Rig:
    """An engine whose policy does what the test says."""

    def __init__(
        self, num_blocks: int = 100, num_host_blocks: int = 40, *, num_replicas: int = 1,
        **overrides: object,
    ) -> None:  # fmt: skip
        settings = make_settings(**overrides)
        self.policy = ScriptedPolicy(settings)
        self.engine = CheckedEngine(
            settings,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_replicas=num_replicas,
            policy=self.policy,
        )
        self.metering = self.engine.metering
        self.engine.start()

    def submit(self, request_id: int, prompt: list[int], max_tokens: int = 12) -> Request:
        request = self.engine.make_request(request_id, prompt, max_tokens, sampling=FOREVER)
        return self.engine.submit(request)

    def run_until(self, num_output_tokens: int, request: Request) -> None:
        while len(self.engine.transcript(request).token_ids) < num_output_tokens:
            assert self.engine.step()
            self.engine.core.check_integrity()

    def swap(self, request: Request) -> None:
        """Swap `request` out and let nothing start until `resume`."""
        self.take(request, Relief.SWAP)

    def take(
        self, request: Request, relief: Relief = Relief.RECOMPUTE, num_blocks: int = 0
    ) -> None:
        """Preempt `request` in the next step and grant nothing until `resume`."""
        self.policy.orders.append(Preemption(request, relief, num_blocks))
        self.policy.grants = False
        self.engine.step()
        self.engine.core.check_integrity()

    def resume(self) -> None:
        self.policy.grants = True

    def end(self, *requests: Request) -> None:
        self.engine.run()
        for request in requests:
            assert_right(self.engine, request)
        assert self.engine.core.statistics().replicas[0].host.num_held == 0
        self.engine.core.check_integrity()


def assert_right(engine: CheckedEngine, request: Request) -> None:
    prompt = request.token_ids[: request.prompt_len].tolist()
    expected, _ = reference_tokens(prompt, request.max_tokens, FOREVER, 50_000)
    assert engine.transcript(request).token_ids == expected
