import re

from extproc.ids import Ids


def test_identifiers_differ_over_many_stocks() -> None:
    ids = Ids()
    traces = [ids.traceparent() for _ in range(1_000)]
    requests = [ids.request_id() for _ in range(1_000)]
    assert len({*traces, *requests}) == 2_000
    assert all(re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", each) for each in traces)
    assert all(re.fullmatch(r"[0-9a-f]{32}", each) for each in requests)
    # Not even a part of one is another's.
    assert len({each[3:35] for each in traces} | {each[:32] for each in requests}) == 2_000


def test_two_stocks_have_nothing_in_common() -> None:
    assert Ids().request_id() != Ids().request_id()
