"""Measuring: the idle cost first, then rounds in which all cases take turns."""

import asyncio
from collections.abc import Sequence

from bench import fleets
from bench.gateway.cases import DIRECT, MODES, OURS, Case, cases_of, rotated
from bench.gateway.rig import Rig
from bench.gateway.rows import Beats, Row, Samples, row_of
from bench.processes import cpu_seconds

_IDLE_S = 5.0


async def idle(rig: Rig) -> list[Beats]:
    """The cost of heartbeats alone."""
    ours = {key: process for key, process in rig.servers.items() if key[0] in OURS}
    await asyncio.sleep(2.0)
    before = {key: cpu_seconds(process.pid) for key, process in ours.items()}
    await asyncio.sleep(_IDLE_S)
    return [
        Beats(key[0], key[1], key[1] / fleets.BEAT_S, (cpu_seconds(ours[key].pid) - used) / _IDLE_S * 1e6)
        for key, used in before.items()
    ]


async def rounds_of(rig: Rig, beats: Sequence[Beats], rounds: int, share: float) -> list[Row]:
    """So many rounds after one to warm up; `share` scales the requests of each sample."""
    idle_share = {(each.server, each.workers): each.cpu_us_per_s / 1e6 for each in beats}
    modes = {mode.name: mode for mode in MODES}
    cases = [case for mode in MODES for case in cases_of(mode, rig.transports, rig.noops)]
    samples: dict[Case, Samples] = {case: Samples() for case in cases}
    for turn in range(rounds + 1):
        print(f"round {turn} of {rounds}" if turn else "warming up", flush=True)
        for case in rotated(cases, turn):
            mode = modes[case.mode]
            requests = round(mode.requests[mode.connections.index(case.connections)] * share)
            if turn == 0:
                requests = requests // 4 or 1
            result, used, envoy_used = await rig.sample(case, mode, max(requests, case.connections))
            if turn == 0:
                continue
            micros = result["micros"]
            count = len(micros)
            used -= idle_share.get((case.server, case.workers), 0.0) * result["seconds"]
            found = samples[case]
            found.cpu_us.append(used / count * 1e6)
            found.envoy_us.append(envoy_used / count * 1e6 if case.server != DIRECT else 0.0)
            found.p50_ms.append(micros[count // 2] / 1e3)
            found.p99_ms.append(micros[count * 99 // 100] / 1e3)
            found.rps.append(count / result["seconds"])
    return [row_of(case, samples) for case in cases]
