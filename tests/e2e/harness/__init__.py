"""The whole product under test: `recursant up` as users run it (`harness.stack`), on free ports, cleaned up
whatever happens.

def test_chat(stack: Stack) -> None:                # shared by the session: only read, never break it
    answer = stack.chat("Hello", agent="chat-web")
    assert answer.status_code == 200

def test_worker_dies(make_stack: MakeStack) -> None:  # this test's own: break what you like
    stack = make_stack(workers=3)
    name, pid = next(iter(stack.worker_pids.items()))
    stack.kill(name)
    stack.wait_until(lambda: stack.worker_pids.get(name) not in (None, pid))
"""
